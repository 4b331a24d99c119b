import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx, traverse_util

from vit_jax.config.mesh import MeshConfig
from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.errors import ConfigError
from vit_jax.models.registry import build_model, layer_indices, model_options
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import make_mesh
from vit_jax.parallel.sharding import state_shardings
from vit_jax.train.optimizers import (
    OPTIMIZERS,
    _is_hidden_matrix,
    build_optimizer,
    schedule_free_params,
)
from vit_jax.train.own_optimizers import _as_matrices
from vit_jax.train.parameter_groups import layer_scales
from vit_jax.train.schedules import build_weight_decay

PARAMS = {
    "patch_embedding": {"kernel": jnp.full((2, 2), 1.0), "bias": jnp.full(2, 1.0)},
    "encoder": {
        "blocks": {"mlp": {"kernel": jnp.full((3, 2, 2), 1.0), "bias": jnp.full((3, 2), 1.0)}}
    },
    "head": {"linear": {"kernel": jnp.full((2, 2), 1.0), "bias": jnp.full(2, 1.0)}},
}
VIT = model_options("ViT-Mini/4")
GRADS = jax.tree.map(lambda p: 0.5 * jnp.ones_like(p), PARAMS)


def build(params=PARAMS, rate=0.1, **options):
    config = OptimizerConfig.from_mapping({"learning_rate": 1.0, **options})
    return build_optimizer(config, optax.constant_schedule(rate), params, VIT)


def update(grads=GRADS, **options):
    optimizer = build(**options)
    return jax.jit(lambda: optimizer.update(grads, optimizer.init(PARAMS), PARAMS)[0])()


def test_a_head_of_zeros_grows_under_lamb():
    params = {"head": {"linear": {"bias": jnp.zeros(3)}}, "kernel": jnp.ones(3)}
    optimizer = build(params, name="lamb")
    grads = jax.tree.map(jnp.ones_like, params)
    final = two_steps(optimizer, params, grads)["head"]["linear"]["bias"]
    np.testing.assert_allclose(final, -0.1, rtol=1e-4)  # The second step; optax.lamb: the first's.


def test_adafactor_without_a_cap_equals_optax_and_the_cap_limits_beta2():
    """With cap 0.25, gradients 1 and then 3: v = 1, then 0.25 * 1 + 0.75 * 9 = 7."""
    options = {"multiply_by_parameter_scale": False, "clipping_threshold": None}
    params, grads = vit_tree(0), vit_tree(1)
    ours = build(params, name="adafactor", options={"momentum": 0.9})
    theirs = optax.adafactor(0.1, momentum=0.9)
    got, want = (two_steps(o, params, grads)["head"] for o in (ours, theirs))
    np.testing.assert_allclose(got["linear"]["kernel"], want["linear"]["kernel"], rtol=1e-5)

    capped = OPTIMIZERS["adafactor"](1.0, beta2_cap=0.25, **options)
    state = capped.init({"x": jnp.ones(1)})
    for gradient, update in ((1.0, -1.0), (3.0, -3 / 7**0.5)):
        found, state = capped.update({"x": jnp.full(1, gradient)}, state, {"x": jnp.ones(1)})
        np.testing.assert_allclose(found["x"], update, rtol=1e-6)


def test_each_parameter_of_each_layer_is_clipped_by_itself():
    params, grads = vit_tree(0), vit_tree(1)
    clip = {"clip_global_norm": 0.3, "clip_each_parameter": True}
    optimizer = build(params, rate=1.0, name="sgd", options={"momentum": 0.0}, **clip)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    for name, update in traverse_util.flatten_dict(updates, sep="/").items():
        for layer in update if "/blocks/" in name else [update]:
            np.testing.assert_allclose(np.linalg.norm(layer), 0.3, rtol=1e-4, err_msg=name)


# Named and shaped like the parameters of a ViT with two blocks.
SHAPES = {
    "patch_embedding/kernel": (2, 2, 3, 4),
    "position_embedding/table": (5, 4),
    "encoder/blocks/attention/qkv/kernel": (2, 4, 3, 2, 2),
    "encoder/blocks/attention/out/kernel": (2, 2, 2, 4),
    "encoder/blocks/mlp/expand/kernel": (2, 4, 6),
    "encoder/blocks/norm1/scale": (2, 4),
    "head/linear/kernel": (4, 3),
}
# One optimizer of each kind. All others are tested with the slow tests.
KINDS = {"adamw", "muon", "lamb", "adafactor", "schedule_free_adamw", "sgd"}


def others_are_slow(names):
    """Marks the optimizers that are not in KINDS as slow tests."""
    return [n if n in KINDS else pytest.param(n, marks=pytest.mark.slow) for n in names]


def vit_tree(seed):
    """A tree of normal numbers. Layer k of a stack is 10^k times as large as the first."""
    rng = np.random.default_rng(seed)
    flat = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    for name in flat:
        if "/blocks/" in name:
            flat[name] *= (10.0 ** np.arange(2)).reshape(2, *[1] * (flat[name].ndim - 1))
    leaves = {name: jnp.asarray(leaf, jnp.float32) for name, leaf in flat.items()}
    return traverse_util.unflatten_dict(leaves, sep="/")


def layers_alone(tree, *, optimizer):
    """Returns name -> array of every layer, as matrices for the optimizers of matrices."""
    found = {}
    for name, leaf in traverse_util.flatten_dict(tree, sep="/").items():
        for layer, x in enumerate(leaf if "/blocks/" in name else [leaf]):
            parts = [x]
            if name.endswith("kernel") and optimizer == "muon":
                if "qkv" in name:
                    parts = [x[:, i].reshape(4, 4) for i in range(3)]  # Queries, keys, values.
                else:
                    parts = [x.reshape(-1, x.shape[-1])]
            found |= {f"{name} {layer} {part}": value for part, value in enumerate(parts)}
    return found


def two_steps(optimizer, params, grads):
    @jax.jit
    def run(params, grads):
        state = optimizer.init(params)
        updates, state = optimizer.update(grads, state, params)
        return optimizer.update(grads, state, optax.apply_updates(params, updates))[0]

    return run(params, grads)


@pytest.mark.parametrize("name", others_are_slow(OPTIMIZERS))
def test_a_stack_is_updated_like_its_layers_one_by_one(name):
    """The update of the scanned stack equals that of optax's own function on separate layers."""
    params, grads = vit_tree(0), vit_tree(1)
    if name == "muon":  # optax would treat these two-dimensional arrays as matrices.
        for tree in (params, grads):
            del tree["head"], tree["position_embedding"], tree["patch_embedding"]
    got = layers_alone(two_steps(build(params, name=name), params, grads), optimizer=name)
    options = {"momentum": 0.9} if name == "sgd" else {}
    function = OPTIMIZERS[name]
    if "weight_decay" in inspect.signature(function).parameters:
        options["weight_decay"] = 0.0
    if name == "muon":
        options["is_matrix"] = lambda name: "kernel" in name
    if name == "lamb":
        options["mask"] = lambda tree: {name: "kernel" in name for name in tree}
    separate = [layers_alone(tree, optimizer=name) for tree in (params, grads)]
    want = two_steps(function(learning_rate=0.1, **options), *separate)
    assert got.keys() == want.keys()
    for key in got:
        np.testing.assert_allclose(got[key], want[key], rtol=2e-4, atol=1e-6, err_msg=key)
    assert max(float(jnp.abs(leaf).max()) for leaf in got.values()) > 0


@pytest.mark.parametrize("name", others_are_slow(sorted(OPTIMIZERS.keys() - {"lamb"})))
def test_weight_decay_layer_decay_and_freezing_mean_the_same_with_each_optimizer(name):
    """Kernels decay by 0.1 * 0.2 of themselves; a layer k below the head learns at 0.5^k."""
    params, grads = vit_tree(0), vit_tree(1)
    changes = {"freeze": ("patch_embedding/.*",)}

    def first_update(**changes):
        optimizer = build(params, name=name, **changes)
        step = jax.jit(lambda: optimizer.update(grads, optimizer.init(params), params)[0])
        return traverse_util.flatten_dict(step(), sep="/")

    plain = first_update(**changes)
    got = first_update(weight_decay=0.2, layer_decay=0.5, **changes)
    values = traverse_util.flatten_dict(params, sep="/")
    scales = {"encoder": np.asarray([1 / 4, 1 / 2]), "head": 1, "position_embedding": 1 / 8}
    for key, update in got.items():
        if key.startswith("patch_embedding"):
            assert float(jnp.abs(update).max()) == 0
            continue
        decay = 0.1 * 0.2 * values[key] if key.endswith("kernel") else 0
        scale = np.asarray(scales[key.split("/")[0]], np.float32)
        scale = scale.reshape(-1, *[1] * (update.ndim - 1)) if scale.ndim else scale
        want = scale * np.asarray(plain[key] - decay)
        np.testing.assert_allclose(update, want, rtol=1e-3, atol=2e-5, err_msg=key)


@pytest.mark.parametrize(
    ("model", "name", "size"),
    [
        # Each layer separately; queries, keys and values separately.
        ("R26+ViT-S/32", "encoder/blocks/attention/qkv/kernel", (384, 384)),
        ("R26+ViT-S/32", "encoder/blocks/attention/out/kernel", (384, 384)),
        ("R26+ViT-S/32", "encoder/blocks/mlp/expand/kernel", (384, 1536)),
        ("R26+ViT-S/32", "attention_pooling/query/kernel", (384, 384)),
        ("R26+ViT-S/32", "patch_embedding/kernel", None),
        ("R26+ViT-S/32", "head/linear/kernel", None),
        ("R26+ViT-S/32", "position_embedding/table", None),
        ("ViT-B/16", "patch_embedding/kernel", None),
        ("BiT-R50x1", "trunk/conv_root/kernel", None),
        ("BiT-R50x1", "trunk/stage2/blocks/conv2/kernel", (3 * 3 * 128, 128)),
    ],
)
def test_matrices_of_muon_have_the_inputs_and_outputs_of_their_layer(model, name, size):
    params = abstract_params(model, **({"pooling": "map"} if "R26" in model else {}))
    shape = named_leaves(params)[name].shape["/blocks/" in name :]  # One layer of the stack.
    leaf = jax.ShapeDtypeStruct(shape, "float32")
    matrices = jax.eval_shape(functools.partial(_as_matrices, name), leaf)
    assert (matrices.shape[1:] if _is_hidden_matrix(name) else None) == size
    assert math.prod(matrices.shape) == math.prod(shape)


def test_muon_uses_adam_for_both_ends_of_the_model_and_embedding_tables():
    params, grads = vit_tree(0), vit_tree(1)
    optimizer = build(params, name="muon", learning_rate=0.1, options={"adam_learning_rate": 0.3})
    got = two_steps(optimizer, params, grads)
    want = two_steps(optax.adam(0.3), params, grads)
    for name in ("head", "position_embedding", "patch_embedding"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4), got[name], want[name]
        )
    # The singular values of an orthogonalised update are near 1: here 4 -> 6 features.
    for kernel in got["encoder"]["blocks"]["mlp"]["expand"]["kernel"]:
        assert np.linalg.svd(kernel, compute_uv=False) == pytest.approx(0.1, rel=0.5)


def test_schedule_free_evaluates_the_average_by_hand():
    """Rate 0.1, equal gradients: z = 0.9, 0.8; their mean x = 0.85; y = 0.9 x + 0.1 z."""
    optimizer = build(name="schedule_free_adamw", freeze=("patch_embedding/.*",))
    params, state = PARAMS, optimizer.init(PARAMS)
    for _ in range(2):
        updates, state = optimizer.update(GRADS, state, params)
        params = optax.apply_updates(params, updates)
    averaged = schedule_free_params(state, params)
    np.testing.assert_allclose(params["head"]["linear"]["kernel"], 0.845, rtol=1e-5)
    np.testing.assert_allclose(averaged["head"]["linear"]["kernel"], 0.85, rtol=1e-5)
    np.testing.assert_array_equal(averaged["patch_embedding"]["kernel"], 1.0)


def test_schedule_free_adamw_equals_optax():
    params, grads = vit_tree(0), vit_tree(1)
    ours = build(
        params,
        name="schedule_free_adamw",
        weight_decay=0.3,
        weight_decay_mask=((".*", True),),
        options={"b1": 0.95, "b2": 0.9},
    )
    theirs = optax.contrib.schedule_free_adamw(0.1, b1=0.95, b2=0.9, weight_decay=0.3)
    got, want = (two_steps(o, params, grads) for o in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, want)


def test_the_moments_of_muon_and_the_average_of_schedule_free_are_sharded_like_parameters():
    mesh = make_mesh(MeshConfig())
    params = vit_tree(0)
    # Momentum of three kernels, two moments of the embedding and the head; z and second moment of
    # five kernels.
    for name, count in (("muon", 3 + 4), ("schedule_free_adamw", 5 + 5)):
        state = jax.eval_shape(build(params, name=name).init, params)
        shardings = jax.tree.leaves(state_shardings(state, params, mesh))
        assert sum("fsdp" in sharding.spec for sharding in shardings) == count


def test_freezing_one_stack_does_not_change_the_others():
    params = {**PARAMS, "trunk": {"blocks": {"kernel": jnp.full((2, 2, 2), 2.0)}}}
    grads = jax.tree.map(lambda p: 0.5 * p, params)
    found = []
    for freeze in ((), ("encoder/.*",)):
        found.append(two_steps(build(params, name="lamb", freeze=freeze), params, grads))
    np.testing.assert_array_equal(*(f["trunk"]["blocks"]["kernel"] for f in found))
    assert np.abs(found[1]["trunk"]["blocks"]["kernel"]).min() > 0.01
    assert np.abs(found[1]["encoder"]["blocks"]["mlp"]["kernel"]).max() == 0


def test_layer_decay_by_hand():
    """Three blocks: embedding 0.5^4, blocks 0.5^3, 0.5^2, 0.5, head 1."""
    with pytest.raises(
        ConfigError, match=r"'optimizer\.layer_decay' is below 1, but .* family ViT"
    ):
        layer_indices({"head": {"linear": {"bias": jnp.ones(2)}}}, VIT)
    scales = layer_scales(layer_indices(PARAMS, VIT), 0.5)
    assert scales["patch_embedding/kernel"] == 0.0625
    for name in ("kernel", "bias"):
        found = scales[f"encoder/blocks/mlp/{name}"].squeeze()
        np.testing.assert_array_equal(found, [0.125, 0.25, 0.5])
    assert scales["head/linear/bias"] == 1
    got = update(name="sgd", layer_decay=0.5)
    np.testing.assert_allclose(got["encoder"]["blocks"]["mlp"]["kernel"][1], -0.1 * 0.5 * 0.25)


@functools.cache
def abstract_params(model, **options):
    """The shapes of a model's parameters."""
    build = functools.partial(build_model, num_classes=3, image_size=32, key=jax.random.key(0))
    model = nnx.eval_shape(lambda: build(model_options(model, **options)))
    return nnx.to_pure_dict(nnx.state(model))


def test_frozen_parameters_stay_and_have_no_state_and_do_not_count_for_clipping():
    frozen = ("patch_embedding/.*", "encoder/blocks/.*")
    options = {"freeze": frozen, "weight_decay": 0.1, "layer_decay": 0.5, "clip_global_norm": 0.6}
    got = update(name="sgd", rate=1.0, **options)
    assert np.abs(got["patch_embedding"]["kernel"]).max() == 0
    assert np.abs(got["encoder"]["blocks"]["mlp"]["kernel"]).max() == 0
    # The head's six gradients of 0.5 have norm 1.22; clipped to 0.6 each is 0.245.
    np.testing.assert_allclose(got["head"]["linear"]["bias"], -0.6 / np.sqrt(6), rtol=1e-5)
    state = build(name="adamw", freeze=("encoder/blocks/.*",)).init(PARAMS)
    assert not [leaf for leaf in jax.tree.leaves(state) if leaf.ndim == 3]  # Moments of a stack.


@pytest.mark.parametrize(("name", "key"), [("adamw", "mu"), ("sgd", "trace")])
def test_momentum_may_be_bfloat16(name, key):
    state = build(name=name, state_dtype="bfloat16").init(PARAMS)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    found = {str(leaf.dtype) for path, leaf in leaves if key in str(path) and leaf.ndim}
    assert found == {"bfloat16"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": "adamx"}, ["'optimizer.name' is 'adamx'", "did you mean 'adam"]),
        ({"name": "lbfgs"}, ["'lbfgs'", "one of acprop"]),
        ({"options": {"beta2": 0.9}}, ["unknown option 'beta2'", "optimizer.options.b2"]),
        ({"options": {"b1": "abc"}}, ["'optimizer.options.b1' is 'abc'", "a number"]),
        ({"options": {"nesterov": "maybe"}}, ["'maybe'", "true or false"]),
        ({"name": "muon", "options": {"weight_decay": 1.0}}, ["set optimizer.weight_decay"]),
        (
            {"name": "schedule_free_adamw", "options": {"warmup_steps": 5}},
            ["set optimizer.schedule"],
        ),
        ({"freeze": ("[",)}, ["'['", "not a regular expression"]),
        ({"weight_decay_mask": (("(", True),)}, ["'('", "not a regular expression"]),
        ({"name": "adagrad", "state_dtype": "bfloat16"}, ["state_dtype", "adagrad", "float32"]),
        ({"freeze": ("encoder",)}, ["'encoder', which matches no parameter"]),
        ({"freeze": (".*",)}, ["matches every parameter"]),
        ({"freeze_epochs": 1.0}, ["'freeze_epochs' is 1.0 without 'freeze'"]),
        (
            {"weight_decay_mask": ((".*/kernel", True),)},
            ["no pattern", "'encoder/blocks/mlp/bias'"],
        ),
    ],
)
def test_the_error_names_what_is_wrong_with_an_optimizer(options, words):
    with pytest.raises(ConfigError) as caught:
        build(**options)
    for word in words:
        assert word in str(caught.value)


def test_weight_decay_follows_half_a_cosine():
    decays = {"weight_decay": 0.1, "end_weight_decay": 0.5}
    config = OptimizerConfig(name="sgd", learning_rate=1.0, **decays)
    schedule = build_weight_decay(config, 4)
    assert schedule is not None
    want = [0.1, 0.5 - 0.4 * (1 + 0.5**0.5) / 2, 0.3, 0.5 - 0.4 * (1 - 0.5**0.5) / 2, 0.5]
    assert [float(schedule(step)) for step in range(5)] == pytest.approx(want)
    rate = optax.constant_schedule(0.1)
    optimizer = build_optimizer(config, rate, PARAMS, VIT, weight_decay=schedule)
    state, zero = optimizer.init(PARAMS), jax.tree.map(jnp.zeros_like, PARAMS)
    for decay in want[:3]:
        updates, state = optimizer.update(zero, state, PARAMS)
        kernel, bias = (updates["head"]["linear"][name] for name in ("kernel", "bias"))
        assert float(kernel[0, 0]) == pytest.approx(-0.1 * decay, rel=1e-5)
        assert float(bias[0]) == 0


def test_a_weight_decay_that_changes_needs_an_optimizer_without_its_own():
    config = OptimizerConfig(name="lamb", learning_rate=1.0, end_weight_decay=0.5)
    decay = build_weight_decay(config, 4)
    with pytest.raises(ConfigError, match=r"'optimizer.end_weight_decay' is 0.5 with lamb"):
        build_optimizer(config, optax.constant_schedule(0.1), PARAMS, VIT, weight_decay=decay)


def test_parameters_that_are_frozen_for_some_steps_then_start_as_new():
    """With Adam's empty moments, but at the current learning rate."""
    frozen = {"freeze": ("head/.*",), "freeze_steps": 2}
    config = OptimizerConfig(name="adam", learning_rate=1.0, **frozen)
    rate = optax.linear_schedule(0.1, 0.5, 4)
    optimizer = build_optimizer(config, rate, PARAMS, VIT, freeze_steps=2)
    state, found = optimizer.init(PARAMS), []
    for _ in range(3):
        updates, state = optimizer.update(GRADS, state, PARAMS)
        found.append([float(updates[name]["kernel"][0, 0]) for name in ("patch_embedding",)])
        found[-1].append(float(updates["head"]["linear"]["kernel"][0, 0]))
    # Adam's first update, and every one with equal gradients, is the learning rate.
    want = [[-0.1, 0], [-0.2, 0], [-0.3, -0.3]]
    np.testing.assert_allclose(found, want, rtol=1e-4)
