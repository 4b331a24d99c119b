import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util

from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.errors import ConfigError
from vit_jax.models.registry import build_model, model_options
from vit_jax.named_tree import leaf_names
from vit_jax.train.optimizers import _parameters, build_optimizer, layer_scales

PARAMS = {
    "patch_embedding": {"kernel": jnp.full((2, 2), 1.0), "bias": jnp.full(2, 1.0)},
    "encoder": {
        "blocks": {"mlp": {"kernel": jnp.full((3, 2, 2), 1.0), "bias": jnp.full((3, 2), 1.0)}}
    },
    "head": {"linear": {"kernel": jnp.full((2, 2), 1.0), "bias": jnp.full(2, 1.0)}},
}
GRADS = jax.tree.map(lambda p: 0.5 * jnp.ones_like(p), PARAMS)


def build(learning_rate=0.1, **options):
    config = OptimizerConfig.from_mapping({"learning_rate": 1.0, **options})
    return build_optimizer(config, optax.constant_schedule(learning_rate), PARAMS)


def update(grads=GRADS, **options):
    optimizer = build(**options)
    return optimizer.update(grads, optimizer.init(PARAMS), PARAMS)[0]


def test_sgd_with_momentum_by_hand():
    optimizer = build(name="sgd", options={"momentum": 0.9})
    state = optimizer.init(PARAMS)
    first, state = optimizer.update(GRADS, state, PARAMS)
    second, _ = optimizer.update(GRADS, state, PARAMS)
    assert float(first["head"]["linear"]["bias"][0]) == pytest.approx(-0.1 * 0.5)
    assert float(second["head"]["linear"]["bias"][0]) == pytest.approx(-0.1 * (0.5 + 0.9 * 0.5))


def test_adamw_equals_that_of_optax():
    mask = jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", PARAMS)
    reference = optax.adamw(0.1, weight_decay=0.3, mask=mask)
    want, _ = reference.update(GRADS, reference.init(PARAMS), PARAMS)
    got = update(name="adamw", weight_decay=0.3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


@pytest.mark.parametrize("name", ["sgd", "adafactor", "lion"])
def test_weight_decay_touches_kernels_alone(name):
    plain, decayed = update(name=name), update(name=name, weight_decay=0.2)
    head, decayed_head = plain["head"]["linear"], decayed["head"]["linear"]
    np.testing.assert_array_equal(head["bias"], decayed_head["bias"])
    assert np.abs(head["kernel"] - decayed_head["kernel"]).max() > 1e-4


def test_lamb_decays_inside_its_trust_ratio():
    reference = optax.lamb(0.1, weight_decay=0.5)
    optimizer = build(name="lamb", weight_decay=0.5, weight_decay_mask=((".*", True),))
    params = jax.tree.map(lambda p: p * jnp.arange(1.0, 1 + p.size).reshape(p.shape), PARAMS)
    want, _ = reference.update(GRADS, reference.init(params), params)
    got, _ = optimizer.update(GRADS, optimizer.init(params), params)
    got, want = ({k: v for k, v in tree.items() if k != "encoder"} for tree in (got, want))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), got, want)


# Stack -> its depth.
STACKS = {"encoder": 3, "trunk/stage1": 2, "stem/stage2": 1}


@pytest.mark.parametrize("name", ["lamb", "lars", "adafactor", "novograd", "sm3"])
def test_optimizers_that_see_whole_tensors_see_each_layer_by_itself(name):
    """Each layer of a stack gets what it would get outside of any."""
    size = np.asarray([1.0, 10.0, 100.0])[:, None, None]
    kernels = jnp.asarray(size * np.random.default_rng(0).standard_normal((3, 4, 4)), jnp.float32)
    grads = jnp.asarray(np.random.default_rng(1).standard_normal((3, 4, 4)) / size, jnp.float32)
    config = OptimizerConfig(name=name, learning_rate=1.0, weight_decay=0.1)

    def updates(named, named_grads):
        params, grads = (
            {**PARAMS, **traverse_util.unflatten_dict(tree, sep="/")}
            for tree in (named, named_grads)
        )
        optimizer = build_optimizer(config, optax.constant_schedule(0.1), params)
        step = jax.jit(optimizer.update)
        _, state = step(grads, optimizer.init(params), params)
        return traverse_util.flatten_dict(step(grads, state, params)[0], sep="/")

    def stacked(values):
        return {f"{stack}/blocks/conv/kernel": values[:n] for stack, n in STACKS.items()}

    together = updates(stacked(kernels), stacked(grads))
    for layer in range(3):
        alone = updates({"first/kernel": kernels[layer]}, {"first/kernel": grads[layer]})
        for stack in [stack for stack, depth in STACKS.items() if layer < depth]:
            got = together[f"{stack}/blocks/conv/kernel"][layer]
            np.testing.assert_allclose(got, alone["first/kernel"], rtol=1e-4, atol=1e-7)


def test_a_frozen_stack_leaves_the_other_stacks_as_they_are():
    params = {**PARAMS, "trunk": {"blocks": {"kernel": jnp.full((2, 2, 2), 2.0)}}}
    grads = jax.tree.map(lambda p: 0.5 * p, params)
    found = []
    for freeze in ((), ("encoder/.*",)):
        config = OptimizerConfig(name="lamb", learning_rate=1.0, freeze=freeze)
        optimizer = build_optimizer(config, optax.constant_schedule(0.1), params)
        found.append(optimizer.update(grads, optimizer.init(params), params)[0])
    np.testing.assert_array_equal(*(f["trunk"]["blocks"]["kernel"] for f in found))
    assert np.abs(found[1]["trunk"]["blocks"]["kernel"]).min() > 0.01
    assert np.abs(found[1]["encoder"]["blocks"]["mlp"]["kernel"]).max() == 0


def test_decoupled_decay_by_hand():
    """SGD at rate 0.1: -0.1 * gradient - 0.1 * 0.2 * parameter."""
    got = update(name="sgd", weight_decay=0.2)
    np.testing.assert_allclose(
        got["head"]["linear"]["kernel"], -0.1 * 0.5 - 0.1 * 0.2 * 1, rtol=1e-6
    )


def test_every_parameter_must_be_covered_by_the_mask():
    with pytest.raises(
        ConfigError, match=r"no pattern .* matches parameter 'encoder/blocks/mlp/bias'"
    ):
        build(weight_decay_mask=((".*/kernel", True),))


def test_clipping_scales_the_whole_gradient_to_the_norm():
    got = update(name="sgd", clip_global_norm=0.01, learning_rate=1.0)
    assert float(optax.tree.norm(got)) == pytest.approx(0.01, rel=1e-5)


def test_layer_decay_by_hand():
    """Three blocks: embedding 0.5^4, blocks 0.5^3, 0.5^2, 0.5, head 1."""
    scales = layer_scales(PARAMS, 0.5)
    assert float(scales["patch_embedding"]["kernel"]) == 0.0625
    blocks = scales["encoder"]["blocks"]["mlp"]
    np.testing.assert_array_equal(blocks["kernel"].squeeze(), [0.125, 0.25, 0.5])
    np.testing.assert_array_equal(blocks["bias"].squeeze(), [0.125, 0.25, 0.5])
    assert float(scales["head"]["linear"]["bias"]) == 1
    got = update(name="sgd", layer_decay=0.5)
    np.testing.assert_allclose(got["encoder"]["blocks"]["mlp"]["kernel"][1], -0.1 * 0.5 * 0.25)


def powers_of_layer_decay(model, **options):
    """Parameter name -> number of layers below the head, one each layer for a stack."""
    config = model_options(model, **options)
    model = nnx.eval_shape(
        lambda: build_model(config, num_classes=3, image_size=32, key=jax.random.key(0))
    )
    params = nnx.to_pure_dict(nnx.state(model))
    scales = jax.tree.leaves(layer_scales(params, 0.5))
    for scale, leaf in zip(scales, jax.tree.leaves(params), strict=True):
        np.broadcast_shapes(scale.shape, leaf.shape)
    powers = [(-np.log2(scale)).ravel().tolist() for scale in scales]
    return dict(zip(leaf_names(params), powers, strict=True))


def test_layers_of_a_resnet_by_hand():
    """3 + 4 + 6 + 3 units: the root is layer 0, the head layer 17."""
    found = powers_of_layer_decay("BiT-R50x1")
    assert found["trunk/conv_root/kernel"] == [17]
    assert found["trunk/stage1/first/conv_proj/kernel"] == [16]
    assert found["trunk/stage1/blocks/conv1/kernel"] == [15, 14]
    assert found["trunk/stage2/first/norm1/scale"] == [13]
    assert found["trunk/stage2/blocks/norm1/scale"] == [12, 11, 10]
    assert found["trunk/stage3/first/conv3/kernel"] == [9]
    assert found["trunk/stage3/blocks/norm2/bias"] == [8, 7, 6, 5, 4]
    assert found["trunk/stage4/first/conv2/kernel"] == [3]
    assert found["trunk/stage4/blocks/conv2/kernel"] == [2, 1]
    head = {"norm/scale", "norm/bias", "head/linear/kernel", "head/linear/bias"}
    assert {name for name, powers in found.items() if powers == [0]} == head


def test_the_stem_of_a_hybrid_learns_like_its_embedding():
    found = powers_of_layer_decay("R26+ViT-S/32", num_registers=1, pooling="map", class_token=True)
    below = {name.split("/")[0] for name, powers in found.items() if powers == [13]}
    assert below == {
        "stem", "patch_embedding", "position_embedding", "class_token", "registers",
    }  # fmt: skip
    assert all(powers == [13] for name, powers in found.items() if name.startswith("stem/"))
    assert found["encoder/blocks/mlp/expand/kernel"] == [12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    above = {name.split("/")[0] for name, powers in found.items() if powers == [0]}
    assert above == {"norm", "attention_pooling", "head"}


def test_position_tables_of_every_block_learn_like_their_block():
    options = {"depth": 3, "position_placement": "every_layer"}
    found = powers_of_layer_decay("ViT-Ti/16", **options)
    assert found["encoder/blocks/position_embedding/table"] == [3, 2, 1]
    assert found["patch_embedding/kernel"] == [4]


def test_frozen_parameters_stay_and_do_not_count_for_clipping():
    frozen = ("patch_embedding/.*", "encoder/blocks/.*")
    options = {"freeze": frozen, "weight_decay": 0.1, "layer_decay": 0.5, "clip_global_norm": 0.6}
    got = update(name="sgd", learning_rate=1.0, **options)
    assert np.abs(got["patch_embedding"]["kernel"]).max() == 0
    assert np.abs(got["encoder"]["blocks"]["mlp"]["kernel"]).max() == 0
    # The head's six gradients of 0.5 have norm 1.22; clipped to 0.6 each is 0.245.
    np.testing.assert_allclose(got["head"]["linear"]["bias"], -0.6 / np.sqrt(6), rtol=1e-5)


def test_frozen_parameters_have_no_optimizer_state():
    state = build(name="adamw", freeze=("encoder/blocks/.*",)).init(PARAMS)
    moments = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 3]
    assert not moments


@pytest.mark.parametrize(("name", "key"), [("adamw", "mu"), ("sgd", "trace")])
def test_momentum_in_bfloat16(name, key):
    state = build(name=name, state_dtype="bfloat16").init(PARAMS)
    found = [
        leaf.dtype
        for path, leaf in jax.tree_util.tree_leaves_with_path(state)
        if key in str(path) and leaf.ndim
    ]
    assert found
    assert set(map(str, found)) == {"bfloat16"}


# Optimizers of optax that `build_optimizer` takes: each must make a step of finite size.
_NAMES = sorted(filter(_parameters, dir(optax)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning:optax")
@pytest.mark.parametrize("name", ["adamw", *_NAMES])
def test_optimizers_of_optax_go_by_name(name):
    got = update(name=name, weight_decay=0.1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(got))
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(got)) > 0


def test_there_are_many_optimizers():
    assert {"adam", "sgd", "adafactor", "lion", "lamb", "rmsprop", "nadamw"} <= set(_NAMES)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "adamx"}, ["'optimizer.name' is 'adamx'", "did you mean 'adam"]),
        ({"name": "lbfgs"}, ["'lbfgs'", "only gradients"]),
        ({"name": "chain"}, ["'chain'"]),
        ({"options": {"beta2": 0.9}}, ["unknown option 'beta2'", "optimizer.options.b2"]),
        ({"options": {"b1": "abc"}}, ["'optimizer.options.b1' is 'abc'", "a float"]),
        ({"options": {"nesterov": "maybe"}}, ["'maybe'", "a bool"]),
        ({"name": "lion", "options": {"weight_decay": 5.0}}, ["set optimizer.weight_decay"]),
        ({"name": "fromage"}, ["'fromage'"]),
        ({"freeze": ("[",)}, ["'['", "not a regular expression"]),
        ({"weight_decay_mask": (("(", True),)}, ["'('", "not a regular expression"]),
        ({"name": "adafactor", "options": {"min_dim": 3}}, ["'min_dim'"]),
        ({"name": "adagrad", "state_dtype": "bfloat16"}, ["state_dtype", "adagrad", "float32"]),
        ({"freeze": ("encoder",)}, ["'encoder', which matches no parameter"]),
        ({"freeze": (".*",)}, ["matches every parameter"]),
    ],
)
def test_wrong_optimizers_are_named(options, words):
    with pytest.raises(ConfigError) as caught:
        build(**options)
    for word in words:
        assert word in str(caught.value)
