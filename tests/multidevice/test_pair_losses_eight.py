"""Pairs of images and texts on eight devices: losses, gradients, microbatches, sizes of logits.

Run as a program, this file prints what its tests look at.
"""

import json
from typing import Any

import pytest
from eight_devices import CUBE, run_on_eight, small_program, train

pytestmark = [pytest.mark.multidevice, pytest.mark.slow]
MESHES = {
    "data": {"data": 8},
    "data and fsdp": {"data": 2, "fsdp": 4},
    "all": CUBE,
}
KINDS = ("softmax", "sigmoid")
PAIRS, WIDTH = 64, 12


@pytest.fixture(scope="module")
def found(once):
    return once("pair-losses", lambda: run_on_eight(__file__))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mesh", MESHES)
def test_value_and_gradients_are_those_of_one_device(found, kind, mesh):
    """The formulas with the whole matrix are the reference."""
    one, eight = found["plain"][kind], found["losses"][mesh][kind]["values"]
    for name, values in one.items():
        assert eight[name] == pytest.approx(values, rel=1e-5, abs=1e-6), name
    assert max(map(abs, one["images"])) > 1e-3


@pytest.mark.parametrize("mesh", MESHES)
def test_no_device_holds_the_logits_of_all_pairs(found, mesh):
    """The largest matrix of logits: b x b on the ring, b x B with gathered embeddings."""
    parts = 4 if mesh == "all" else 8
    b = PAIRS // parts
    largest = {kind: found["losses"][mesh][kind]["logits"] for kind in KINDS}
    assert largest == {"softmax": b * PAIRS, "sigmoid": b * b}


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_the_same_on_one_and_eight_devices_and_in_microbatches(found, kind):
    rows = found["training"][kind]
    for other in ("eight", "parts", "eight in parts"):
        assert rows[other]["losses"] == pytest.approx(rows["one"]["losses"], rel=1e-5), other
        assert rows[other]["norms"] == pytest.approx(rows["one"]["norms"], rel=1e-3), other
    assert abs(rows["one"]["losses"][-1] - rows["one"]["losses"][0]) > 1e-3


def main() -> None:
    import jax
    import jax.numpy as jnp
    from tasks.test_image_text_losses import embeddings, plain

    from vit_jax.config.mesh import MeshConfig
    from vit_jax.parallel.mesh import make_mesh

    meshes = {name: make_mesh(MeshConfig(**sizes)) for name, sizes in MESHES.items()}
    found: dict[str, Any] = {"plain": {}, "losses": {}}
    arguments = (*embeddings(PAIRS, WIDTH), jnp.float32(5), jnp.float32(-3))
    for kind in KINDS:
        found["plain"][kind] = values(jax.jit(gradient(plain, kind))(*arguments))
    for name, mesh in meshes.items():
        found["losses"][name] = {kind: on_mesh(kind, mesh, arguments) for kind in KINDS}
    found["training"] = {
        kind: {
            "one": learned(kind, {}, 1),
            "eight": learned(kind, CUBE, 1),
            "parts": learned(kind, {}, 4),
            "eight in parts": learned(kind, CUBE, 2),
        }
        for kind in KINDS
    }
    print(json.dumps(found))


def ours(kind: str, *arguments: Any) -> Any:
    from vit_jax.tasks.image_text.losses import LOSSES

    return LOSSES[kind](*arguments).loss


def gradient(loss: Any, kind: str) -> Any:
    import jax

    return jax.value_and_grad(lambda *a: loss(kind, *a), (0, 1, 2, 3))


def values(found: Any) -> dict[str, list[float]]:
    import numpy as np

    loss, gradients = found
    named = dict(zip(("images", "texts", "temperature", "bias"), gradients, strict=True))
    return {n: np.asarray(x).reshape(-1).tolist() for n, x in {"loss": loss, **named}.items()}


def sharded(kind: str, mesh: Any) -> Any:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from vit_jax.models.activation_sharding import with_mesh
    from vit_jax.parallel.mesh import batch_sharding

    rows, scalar = batch_sharding(mesh), NamedSharding(mesh, PartitionSpec())
    places = (rows, rows, scalar, scalar)
    return jax.jit(
        with_mesh(gradient(ours, kind), mesh), in_shardings=places, out_shardings=(scalar, places)
    )


def on_mesh(kind: str, mesh: Any, arguments: Any) -> dict[str, Any]:
    """Returns value and gradients, and the size of the largest product of two embeddings."""
    import jax

    from vit_jax.models.flops import sub_jaxprs

    step = sharded(kind, mesh)

    def largest(jaxpr: Any) -> int:
        """Of matrices [*, *] without the axis of the features, in the program of one device."""
        found = 0
        for eqn in jaxpr.eqns:
            found = max([found, *map(largest, sub_jaxprs(eqn))])
            if eqn.primitive.name == "dot_general" and WIDTH not in eqn.outvars[0].aval.shape:
                found = max(found, eqn.outvars[0].aval.size)
        return found

    jaxpr = jax.make_jaxpr(step)(*arguments).jaxpr
    return {"values": values(step(*arguments)), "logits": largest(jaxpr)}


def learned(kind: str, mesh: dict[str, int], parts: int) -> dict[str, Any]:
    import numpy as np

    sizes = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
    program = small_program(
        mesh,
        task={"name": "image_text", "loss": kind},
        model={
            "name": "CLIP-ViT-Ti/8" if kind == "softmax" else "SigLIP-ViT-Ti/8",
            "image": {"name": "ViT-Ti/8", **sizes},
            "text": {**sizes, "vocabulary_size": 20, "context_length": 4},
            **({"embedding_size": 16} if kind == "softmax" else {}),
        },
        data={"captions": {"tokenizer": "none"}},
        optimizer={"name": "sgd", "learning_rate": 0.1},
        accumulation_steps=parts,
    )
    batch = program.example_batch()
    batch["tokens"] = np.random.default_rng(1).integers(0, 20, (16, 4)).astype(np.int32)
    _, metrics = train(program, [batch] * 3)
    return {"losses": metrics["train/loss"], "norms": metrics["train/gradient_norm"]}


if __name__ == "__main__":
    main()
