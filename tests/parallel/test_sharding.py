from typing import Any, get_args

import jax
import jax.numpy as jnp
import optax
import pytest
from fake_devices import mesh_of
from flax import nnx
from jax.sharding import PartitionSpec as P

from vit_jax.config.mesh import MeshConfig, Preset
from vit_jax.errors import ConfigError
from vit_jax.models.registry import build_model, model_options
from vit_jax.named_tree import leaf_names
from vit_jax.parallel.sharding import (
    match_first,
    parameter_shardings,
    preset_rules,
    sharding_rules,
    state_shardings,
)

KEY = "optimizer.weight_decay_mask"


def shapes_of(num_classes: int = 10, **options: Any) -> Any:
    config = model_options(**{"name": "ViT-S/16", **options})

    def init():
        model = build_model(config, num_classes=num_classes, image_size=32, key=jax.random.key(0))
        return nnx.to_pure_dict(nnx.state(model))

    return jax.eval_shape(init)


def specs_of(params: Any, mesh: jax.sharding.Mesh) -> dict[str, P]:
    shardings = jax.tree.leaves(parameter_shardings(params, mesh))
    return dict(zip(leaf_names(params), [s.spec for s in shardings], strict=True))


def test_names_are_keys_joined_by_slashes_in_the_order_of_the_leaves():
    tree = {"b": {"kernel": 1, "bias": 2}, "a": [3, (4,)], "c": optax.TraceState(trace={7: 5})}
    assert leaf_names(tree) == ["a/0", "a/1/0", "b/bias", "b/kernel", "c/trace/7"]
    assert jax.tree.leaves(tree) == [3, 4, 2, 1, 5]


def test_the_first_pattern_that_matches_the_whole_name_counts():
    patterns = ((".*/kernel", 1), ("head/.*", 2), (".*", 3))
    assert match_first("head/kernel", patterns, KEY) == 1
    assert match_first("head/bias", patterns, KEY) == 2
    assert match_first("a/kernel/b", patterns, KEY) == 3
    assert match_first("kernel", patterns, KEY) == 3


def test_a_parameter_that_no_pattern_covers_is_named():
    with pytest.raises(ConfigError) as caught:
        match_first("head/bias", ((".*/kernel", True), ("head", False)), KEY)
    assert caught.value.got == f"no pattern of {KEY} matches parameter 'head/bias'"
    assert caught.value.fix == "add a last pattern '.*'"


def test_position_tables_of_every_block_are_sharded_by_feature():
    for kind, halves in (("learned_1d", ("table",)), ("learned_2d", ("by_row", "by_column"))):
        options = {"position_placement": "every_layer", "position_embedding": kind}
        specs = specs_of(shapes_of(**options), mesh_of(8, fsdp=2, tensor=2))
        for half in halves:
            spec = specs[f"encoder/blocks/position_embedding/{half}"]
            assert spec == P(*[None] * (len(spec) - 1), "fsdp")


def test_an_axis_that_does_not_divide_its_dimension_is_left_out():
    # ViT-Ti has three heads; ten classes do not divide by four.
    specs = specs_of(shapes_of(name="ViT-Ti/16"), mesh_of(8, fsdp=2, tensor=4))
    assert specs["encoder/blocks/attention/qkv/kernel"] == P(None, "fsdp", None, None, None)
    assert specs["encoder/blocks/attention/out/kernel"] == P(None, None, None, "fsdp")
    assert specs["encoder/blocks/mlp/expand/kernel"] == P(None, "fsdp", "tensor")
    assert specs["head/linear/kernel"] == P("fsdp", None)


def test_fsdp_moves_to_another_dimension_that_it_divides_but_tensor_does_not():
    # 384 features do not divide by 256, 1,536 hidden ones do; heads are six, of 64 features.
    specs = specs_of(shapes_of(), mesh_of(512, data=1, fsdp=256, tensor=2))
    assert specs["encoder/blocks/mlp/expand/kernel"] == P(None, None, "tensor")
    for preset in ("fsdp", "fsdp_tensor"):
        mesh = mesh_of(256, data=1, fsdp=256)
        found = parameter_shardings(shapes_of(), mesh, preset_rules(preset))["encoder"]["blocks"]
        assert found["mlp"]["expand"]["kernel"].spec == P(None, None, "fsdp")
        assert found["mlp"]["contract"]["kernel"].spec == P(None, "fsdp", None)
        assert "fsdp" not in found["attention"]["qkv"]["kernel"].spec
    # The leading axis is the layers': 12 divide by 3, and are not cut.
    specs = parameter_shardings({"blocks": shape(12, 2, 5)}, mesh_of(3, data=1, fsdp=3), _ONE)
    assert specs["blocks"].spec == P(None, None, None)


_ONE = ((".*", ("fsdp", None)),)


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def test_an_axis_of_one_device_shards_nothing():
    """So that the default preset, on a mesh without fsdp and tensor, is plain data parallelism."""
    params = shapes_of()
    sizes = [p.shape for p in jax.tree.leaves(params)]
    for preset in get_args(Preset):
        rules = preset_rules(preset)
        found = jax.tree.leaves(parameter_shardings(params, mesh_of(8), rules))
        assert [s.shard_shape(size) for s, size in zip(found, sizes, strict=True)] == sizes


def test_rules_of_the_config_precede_those_of_the_preset():
    config = MeshConfig(
        fsdp=2, tensor=2, rules=((r"head/.*/kernel", (None, "data")), (r"head/.*", ("tensor",)))
    )
    params, mesh = shapes_of(), mesh_of(8, fsdp=2, tensor=2)
    rules = sharding_rules(config, params, mesh)
    found = parameter_shardings(params, mesh, rules)
    assert found["head"]["linear"]["kernel"].spec == P(None, "data")
    assert found["head"]["linear"]["bias"].spec == P("tensor")
    assert found["patch_embedding"]["kernel"].spec == P(None, None, None, "fsdp")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rules": (("heads/.*", ()),)}, "matches no parameter; .* did you mean 'head/linear/"),
        ({"rules": (("head/.*", ("fsdp", "tensor")),)}, "2 axes .* 1 dimensions of head/linear/b"),
        ({"tensor": 2, "preset": "fsdp"}, "mesh.tensor is 2 .* set mesh.preset=fsdp_tensor, or"),
        ({"tensor": 2, "preset": "replicated"}, "mesh.tensor is 2 with preset replicated"),
    ],
)
def test_rules_that_do_not_fit_are_errors(config, message):
    config = MeshConfig(**config)
    with pytest.raises(ConfigError, match=message):
        sharding_rules(config, shapes_of(), mesh_of(8, tensor=config.tensor))


def test_a_custom_rule_lets_a_preset_use_the_tensor_axis():
    config = MeshConfig(tensor=2, preset="fsdp", rules=(("head/linear/kernel", ("tensor",)),))
    rules = sharding_rules(config, shapes_of(), mesh_of(8, tensor=2))
    assert rules == config.rules + preset_rules("fsdp")


def test_moments_and_averages_are_sharded_like_their_parameter():
    params = shapes_of()
    mesh = mesh_of(8, fsdp=2, tensor=2)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = {
        "params": params,
        "opt_state": jax.eval_shape(optimizer.init, params),
        "ema": params,
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    specs = [s.spec for s in jax.tree.leaves(state_shardings(state, params, mesh))]
    found = dict(zip(leaf_names(state), specs, strict=True))
    kernel, spec = "encoder/blocks/mlp/expand/kernel", P(None, "fsdp", "tensor")
    holders = [name for name in found if name.endswith(kernel)]
    assert len(holders) == 4  # Parameter, average, first and second moment.
    assert {found[name] for name in holders} == {spec}
    assert found["step"] == P()
    counts = [name for name in found if name.endswith("count")]
    assert counts
    assert {found[name] for name in counts} == {P()}


def test_a_leaf_of_another_shape_is_replicated_whatever_its_name():
    params = {"head": {"kernel": jax.ShapeDtypeStruct((4, 8), jnp.float32)}}
    state = {"row": {"head": {"kernel": jax.ShapeDtypeStruct((4,), jnp.float32)}}}
    (sharding,) = jax.tree.leaves(state_shardings(state, params, mesh_of(4, tensor=2, fsdp=2)))
    assert sharding.spec == P()
