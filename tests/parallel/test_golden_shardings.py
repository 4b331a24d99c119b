"""Golden shardings of every registered model under every preset.

Run as a program, this file writes golden_shardings.json anew; look at the difference.
"""

import json
import math
from pathlib import Path
from typing import Any, get_args

import jax
import pytest
from fake_devices import mesh_of
from flax import nnx

from vit_jax.config.mesh import MeshConfig, Preset
from vit_jax.models.registry import (
    build_model,
    families,
    family_of,
    is_small,
    list_models,
    model_options,
)
from vit_jax.named_tree import leaf_names
from vit_jax.parallel.sharding import parameter_shardings, sharding_rules

GOLDEN = Path(__file__).resolve().with_name("golden_shardings.json")
FAMILIES = ("ViT-B/16", "R50+ViT-B/16", "BiT-R50x1", "Mixer-B/16", "CLIP-ViT-B/16")
AXES = {"data": 2, "fsdp": 4}
# Options of a ViT that have parameters with rules of their own.
OPTIONS = {
    "pooling": "map", "position_embedding": "relative", "mlp": "swiglu", "qk_norm": True,
    "layer_scale": 0.1, "num_registers": 2, "representation_size": 64,
}  # fmt: skip


def shardings_of(name: str, **own: Any) -> dict[str, dict[str, tuple[tuple[int, ...], Any]]]:
    """Preset -> parameter -> its shape and sharding, over data=2, fsdp=4 and, where cut, tensor=2.

    The mesh lists one real device sixteen times: good for shapes.
    """

    classes = family_of(name).default_classes

    def init():
        options = model_options(name, **own)
        model = build_model(options, num_classes=classes, image_size=224, key=jax.random.key(0))
        return nnx.to_pure_dict(nnx.state(model))

    params = jax.eval_shape(init)
    found = {}
    for preset in get_args(Preset):
        sizes = {**AXES, "tensor": 2 if preset == "fsdp_tensor" else 1, "preset": preset}
        mesh = mesh_of(8 * sizes["tensor"], **sizes)
        rules = sharding_rules(MeshConfig(**sizes), params, mesh)
        shardings = jax.tree.leaves(parameter_shardings(params, mesh, rules))
        shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
        both = zip(shapes, shardings, strict=True)
        found[preset] = dict(zip(leaf_names(params), both, strict=True))
    return found


def values_per_device(parameters: dict[str, tuple[tuple[int, ...], Any]]) -> int:
    return sum(math.prod(s.shard_shape(shape)) for shape, s in parameters.values())


def cut(parameters: dict[str, tuple[tuple[int, ...], Any]]) -> dict[str, str]:
    """Name -> mesh axes of each sharded parameter; "." marks a dimension that is not sharded."""
    specs = {name: s.spec for name, (_, s) in parameters.items()}
    return {
        name: " ".join(axis or "." for axis in spec) for name, spec in specs.items() if any(spec)
    }


def described(found: dict[str, Any]) -> dict[str, Any]:
    """Returns the content of the golden file."""
    return {
        "specs": {
            name: {preset: cut(parameters) for preset, parameters in found[name].items()}
            for name in FAMILIES
        },
        "values_per_device": {
            name: {preset: values_per_device(parameters) for preset, parameters in presets.items()}
            for name, presets in found.items()
        },
        "every_option": cut(shardings_of("ViT-B/16", **OPTIONS)["fsdp_tensor"]),
    }


@pytest.fixture(scope="module", params=["families", pytest.param("all", marks=pytest.mark.slow)])
def found(request):
    """Shardings of a model of each family; with the slow tests, of every model."""
    names = FAMILIES if request.param == "families" else list_models()
    return {name: shardings_of(name) for name in names}


@pytest.fixture(scope="module")
def golden():
    return json.loads(GOLDEN.read_text())


def test_the_golden_file_has_exactly_the_registered_models(golden):
    assert list(golden["values_per_device"]) == list_models()
    assert all(list(row) == list(get_args(Preset)) for row in golden["values_per_device"].values())


def test_every_family_has_golden_specs():
    assert {family_of(name).name for name in FAMILIES} == {family.name for family in families()}


def test_models_have_their_golden_shardings(found, golden):
    have = described(found)
    assert have["specs"] == golden["specs"]
    assert have["every_option"] == golden["every_option"]
    assert have["values_per_device"] == {name: golden["values_per_device"][name] for name in found}


def test_only_kernels_are_sharded_over_fsdp_and_all_that_divide_are(found):
    """Only models for 32-pixel images have kernels that fsdp does not divide."""
    for name, presets in found.items():
        shapes = {n: shape for n, (shape, _) in presets["replicated"].items()}
        sizes = {n: math.prod(shape) for n, shape in shapes.items()}
        assert values_per_device(presets["replicated"]) == sum(sizes.values())
        kernels = [n for n in sizes if n.endswith(("/kernel", "/token_embedding"))]
        uneven = [n for n in kernels if all(d % AXES["fsdp"] for d in shapes[n])]
        assert not uneven or is_small(name), (name, uneven)
        kernels = sum(sizes[n] for n in kernels if n not in uneven)
        rest = sum(sizes.values()) - kernels
        assert values_per_device(presets["fsdp"]) == kernels / AXES["fsdp"] + rest, name
        assert values_per_device(presets["fsdp_tensor"]) < values_per_device(presets["fsdp"])


def main() -> None:
    golden = described({name: shardings_of(name) for name in list_models()})
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
