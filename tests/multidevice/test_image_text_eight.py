"""Zero-shot classification on eight devices are those on one.

Run as a program, this file prints what its tests look at.
"""

import json
import tempfile
from pathlib import Path

import pytest
from eight_devices import run_on_eight

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
CLASSES = ("cat", "dog", "square")


@pytest.fixture(scope="module")
def found(once):
    return once("image-text", lambda: run_on_eight(__file__))


def test_figures_and_embeddings_are_the_same(found):
    one, eight = found["one"], found["eight"]
    assert one["zero_shot"]["examples"] == 21
    assert eight["zero_shot"] == one["zero_shot"]
    assert eight["classes"] == pytest.approx(one["classes"], abs=1e-5)


def main() -> None:
    import jax
    import numpy as np
    from flax import nnx
    from images import encode, noise
    from vocabularies import WORDS, write_word_level

    from vit_jax.config.captions import CaptionsConfig
    from vit_jax.config.data import DataConfig
    from vit_jax.config.mesh import MeshConfig
    from vit_jax.data.arrays import labelled_image
    from vit_jax.data.captions import build_captions
    from vit_jax.data.loader import BatchSpec
    from vit_jax.data.sources import open_source
    from vit_jax.data.transforms import make_eval_transform
    from vit_jax.evaluation.embeddings import EvaluatedImages
    from vit_jax.evaluation.features import shard_params
    from vit_jax.evaluation.zeroshot import class_embeddings, evaluate_zero_shot
    from vit_jax.models.registry import create_model
    from vit_jax.parallel.mesh import make_mesh

    root = Path(tempfile.mkdtemp())
    for i in range(21):
        name = f"colours/{CLASSES[i % 3]}/{i}.png"
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(encode(noise(8, 8, i)))
    tokenizer = str(write_word_level(root))
    size = 3 + len(WORDS)
    model = create_model(
        "CLIP-ViT-Nano/4", image_size=8, text={"vocabulary_size": size, "context_length": 8}
    )
    graphdef, state = nnx.split(model)
    config = CaptionsConfig(tokenizer=tokenizer)
    captions = build_captions(config, model.text.options)
    transform = make_eval_transform(8, "resize")

    def measure(mesh_config: MeshConfig, devices: list) -> dict:
        mesh = make_mesh(mesh_config, devices)
        placed = nnx.merge(graphdef, shard_params(nnx.to_pure_dict(state), mesh_config, mesh))
        spec = BatchSpec(8, range(8))
        data = {"name": "colours", "global_batch_size": 8}
        folder = DataConfig(source="folder", data_dir=str(root / "colours"), **data)
        labelled = EvaluatedImages(
            open_source(folder, "train"), labelled_image(transform, 8, 3), spec, mesh
        )
        arguments = (CLASSES, ["a {}", "the big {}"])
        classes = class_embeddings(placed, captions.tokenizer, *arguments, mesh, 8)
        return {
            "zero_shot": evaluate_zero_shot(placed, captions.tokenizer, labelled, *arguments),
            "classes": np.ravel(classes).tolist(),
        }

    assert len(jax.devices()) == 8
    eight = measure(MeshConfig(data=4, fsdp=2), jax.devices())
    one = measure(MeshConfig(), jax.devices()[:1])
    print(json.dumps({"one": one, "eight": eight}))


if __name__ == "__main__":
    main()
