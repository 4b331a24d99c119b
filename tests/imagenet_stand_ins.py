"""Small datasets with the names and features of ImageNet's test sets, for 1000 classes."""

import io
import json

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tfds_stand_ins import write_tfds

from vit_jax.data.benchmarks import imagenet_classes

SIDE = 16


def picture(seed):
    """Returns a PNG of coarse noise."""
    pixels = np.random.default_rng(seed).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    image = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def prepare(folder, name, split, rows, *, several=False, config=None, version="1.0.0"):
    """Writes a TFDS dataset of ArrayRecord.

    Args:
        folder: data_dir.
        name: TFDS name.
        split: its only split.
        rows: one label per example; with `several`, lists of labels.
        several: as in imagenet2012_real, with the first label as `original_label`.
        config: name of the builder's config.
        version: of the dataset.
    """
    names = tfds.features.ClassLabel(names=imagenet_classes()["wnid"].tolist())
    image = tfds.features.Image(encoding_format="png")
    features = {"image": image, "file_name": tfds.features.Text()}
    if several:
        features |= {"original_label": names, "real_label": tfds.features.Sequence(names)}
    else:
        features |= {"label": names}
    examples = []
    for index, labels in enumerate(rows):
        own = {"image": io.BytesIO(picture(index)), "file_name": f"{index}.png"}
        if several:
            own |= {"original_label": labels[0] if labels else 7, "real_label": labels}
        else:
            own |= {"label": labels}
        examples.append(own)
    write_tfds(folder, name, features, {split: examples}, version=version, config=config)


def objectnet(folder):
    """Writes ObjectNet's layout: two classes of ImageNet, one of two of them, one of none."""
    root = folder / "objectnet-1.0"
    for number, name in enumerate(("chair", "banana", "puzzle")):
        (root / "images" / name).mkdir(parents=True)
        for k in range(3):
            pixels = np.asarray(Image.open(io.BytesIO(picture(10 * number + k)))).copy()
            framed = np.pad(pixels, ((2, 2), (2, 2), (0, 0)))
            framed[..., 0][:2] = 255  # A border that must not count.
            Image.fromarray(framed).save(root / "images" / name / f"{k}.png")
    (root / "mappings").mkdir()

    def write(name, content):
        (root / "mappings" / f"{name}.json").write_text(json.dumps(content))

    write("folder_to_objectnet_label", {"chair": "Chair", "banana": "Banana", "puzzle": "Puzzle"})
    write("objectnet_to_imagenet_1k", {"Chair": "barber chair; folding chair", "Banana": "banana"})
    # Line 0 is class 423, line 1 class 559, line 2 class 954.
    write("pytorch_to_imagenet_2012_id", {"423": 0, "559": 1, "954": 2})
    lines = "barber chair\nfolding chair\nbanana\n"
    (root / "mappings" / "imagenet_to_label_2012_v2").write_text(lines)
