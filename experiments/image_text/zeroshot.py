"""Zero-shot accuracy of published weights of CLIP, SigLIP or LiT on a dataset.

    python -m experiments.image_text.zeroshot CLIP_FOLDER --data=imagenet2012 --split=validation
    python -m experiments.image_text.zeroshot SIGLIP.npz --tokenizer=C4.model --data=PHOTOS
    python -m experiments.image_text.zeroshot LIT.npz --tokenizer=VOCAB.txt --prompts="a {}" ...

--data is a TFDS dataset, or a folder of images in one subfolder for each class. --tokenizer is the
vocabulary of the text tower; without it, it is looked for in the folder of the weights.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import DataConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.captions import build_captions
from vit_jax.data.loader import batch_spec
from vit_jax.data.preprocess import preprocess_of
from vit_jax.data.sources import open_source
from vit_jax.data.tokenizers import Tokenizer, published_conventions
from vit_jax.errors import ModelError, UserError
from vit_jax.evaluation.embeddings import EvaluatedImages
from vit_jax.evaluation.features import shard_params
from vit_jax.evaluation.intervals import wilson_interval
from vit_jax.evaluation.prompts import read_class_names, read_templates
from vit_jax.evaluation.zeroshot import evaluate_zero_shot
from vit_jax.interop.load import load
from vit_jax.models.two_towers import TwoTowers, TwoTowersConfig
from vit_jax.parallel.mesh import host_rows, make_mesh, num_batch_shards


def main(arguments: list[str] | None = None) -> int:
    """Prints the accuracy with its 95 % interval; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("weights", help="file or folder")
    parser.add_argument("--data", required=True, help="TFDS name, or a folder of images")
    parser.add_argument("--data_dir", help="TFDS folder")
    parser.add_argument("--split", help="(test; of a folder: train)")
    parser.add_argument("--tokenizer", help="vocabulary: a file or folder")
    parser.add_argument(
        "--canonicalize",
        choices=("none", "lower", "punctuation"),
        help="how to simplify captions (default: as the weights were trained)",
    )
    parser.add_argument(
        "--prompts",
        default="lit",
        help="imagenet, short, lit, cifar10, name, a file of templates, or one with {} (lit)",
    )
    parser.add_argument("--classes", metavar="FILE", help="names of the classes, one a line")
    args = parser.parse_args(arguments)
    try:
        found = measure(args)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    low, high = wilson_interval(found["accuracy_top1"], int(found["examples"]))
    print(
        f"{found['examples']:,.0f} images: {found['accuracy_top1']:.2%} [{low:.1%}, {high:.1%}]"
        f" by {found['templates']} templates of {found['classes']} classes"
    )
    return 0


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Returns accuracy_top1, accuracy_top5 (of more than five classes) and the number of images."""
    mesh = make_mesh(MeshConfig())
    is_folder = Path(args.data).is_dir()
    data = DataConfig(
        source="folder" if is_folder else "tfds",
        name=Path(args.data).name if is_folder else args.data,
        data_dir=args.data if is_folder else args.data_dir,
        global_batch_size=64 * num_batch_shards(mesh),
        cache_mb=0,
    )
    templates = read_templates(args.prompts)
    source = open_source(data, args.split or ("train" if is_folder else "test"))
    names = read_class_names(args.classes, source.class_names)
    loaded = load(args.weights)
    options, (height, width) = loaded.options, loaded.image_size
    if not isinstance(loaded.model, TwoTowers) or not isinstance(options, TwoTowersConfig):
        raise ModelError(
            f"{options.name} from {args.weights}",
            "a pair of an image and a text tower, such as CLIP",
            "use `eval` or `fewshot` for image models",
        )
    if height != width:
        raise ModelError(f"images of {height}x{width}", "a square image", "use other weights")
    preprocess = preprocess_of(loaded.model)

    def transform(encoded: bytes, rng: np.random.Generator) -> np.ndarray:
        del rng
        return preprocess.pixels(encoded)

    preprocessing = labelled_image(transform, height, len(source.class_names))
    rows = host_rows(mesh, data.global_batch_size)
    images = EvaluatedImages(
        source, preprocessing, batch_spec(data, data.global_batch_size, rows), mesh
    )
    graphdef, state = nnx.split(loaded.model)
    model: TwoTowers = nnx.merge(
        graphdef, shard_params(nnx.to_pure_dict(state), MeshConfig(), mesh)
    )
    found = evaluate_zero_shot(model, _tokenizer(args, options), images, names, templates)
    assert found is not None
    return found | {"templates": len(templates), "classes": len(names)}


def _tokenizer(args: argparse.Namespace, options: TwoTowersConfig) -> Tokenizer:
    """Returns the vocabulary with the conventions that the weights were trained with."""
    weights = Path(args.weights)
    usual, pad_token = published_conventions(options.name, options.text.vocabulary_size)
    captions = CaptionsConfig(
        feature=None,
        tokenizer=args.tokenizer or str(weights if weights.is_dir() else weights.parent),
        canonicalize=args.canonicalize or usual,
        pad_token=pad_token,
    )
    return build_captions(captions, options.text).tokenizer


if __name__ == "__main__":
    sys.exit(main())
