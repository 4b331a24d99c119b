import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.config.mesh import MeshConfig
from vit_jax.config.run import Config
from vit_jax.data.augment.erasing import Erasing
from vit_jax.errors import ConfigError
from vit_jax.parallel.mesh import make_mesh, to_devices
from vit_jax.run.about import evaluated_item
from vit_jax.tasks.classification.task import Classification
from vit_jax.tasks.task import DataInfo
from vit_jax.train.optimizers import schedule_free_params
from vit_jax.train.program import build_program

MODEL = {"name": "ViT-Ti/4", "width": 8, "depth": 1, "mlp_dim": 16, "num_heads": 2}
DATA = {"name": "none", "global_batch_size": 8, "image_size": 8}


def config(**changes):
    base = {
        "model": MODEL,
        "data": DATA,
        "optimizer": {"name": "sgd", "learning_rate": 0.1, "schedule": {"decay": "constant"}},
        "ema_decay": 0.75,
        "train_steps": 10,
    }
    return Config.from_mapping(base | changes)


def program(**changes):
    return build_program(config(**changes), make_mesh(MeshConfig()), num_classes=5, num_examples=80)


@functools.cache
def plain_program():
    """The program without changes, which most tests share."""
    return program()


def run_step(built, state, batch):
    """Runs the compiled step on a copy of the state, because the step donates its state."""
    shardings = jax.tree.map(lambda abstract: abstract.sharding, built.abstract)
    copy = jax.device_put(jax.tree.map(jnp.copy, state), shardings)
    return built.compiled(copy, batch)


def batch(size=8, seed=0):
    rng = np.random.default_rng(seed)
    rows = {
        "image": rng.integers(0, 256, (size, 8, 8, 3), np.uint8),
        "label": rng.integers(0, 5, size).astype(np.int32),
        "mask": np.ones(size, bool),
    }
    return to_devices(rows, make_mesh(MeshConfig()))


def spread(state):
    """A state whose parameters, head included, are not small."""
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: jnp.asarray(p + 0.3 * rng.standard_normal(p.shape), jnp.float32), state.params
    )
    return dataclasses.replace(state, params=params)


def assert_close(got, want):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), got, want)


def test_logged_loss_and_norms_equal_those_of_the_step():
    built = plain_program()
    state = spread(built.init())
    new, metrics = run_step(built, state, batch())
    delta = jax.tree.map(lambda a, b: a - b, new.params, state.params)

    def norm(tree):
        return np.sqrt(sum(np.sum(np.asarray(x, np.float64) ** 2) for x in jax.tree.leaves(tree)))

    assert float(metrics["train/parameter_norm"]) == pytest.approx(norm(state.params), rel=1e-5)
    assert float(metrics["train/update_norm"]) == pytest.approx(norm(delta), rel=1e-3)
    # Plain SGD without momentum in its first step: update = -learning rate * gradient.
    gradient_norm = float(metrics["train/gradient_norm"])
    assert float(metrics["train/update_norm"]) == pytest.approx(0.1 * gradient_norm, rel=1e-5)
    assert float(metrics["train/learning_rate"]) == pytest.approx(0.1)
    assert int(new.step) == 1


def test_gradient_accumulation_equals_one_large_batch():
    whole, cut = plain_program(), program(accumulation_steps=4)
    state = spread(whole.init())
    one, metrics = run_step(whole, state, batch())
    two, metrics_cut = run_step(cut, state, batch())
    for name in ("train/loss", "train/gradient_norm", "train/update_norm"):
        assert float(metrics_cut[name]) == pytest.approx(float(metrics[name]), rel=1e-5)
    assert_close(one, two)


def test_the_moving_average_by_hand():
    built = plain_program()
    state = spread(built.init())
    new, _ = run_step(built, state, batch())
    assert_close(new.ema, jax.tree.map(lambda a, p: 0.75 * a + 0.25 * p, state.ema, new.params))
    assert new.eval_params is new.ema
    without = program(ema_decay=None).abstract
    assert without.eval_params is without.params


@pytest.mark.slow
def test_a_schedule_free_run_evaluates_and_saves_the_average_of_its_optimizer():
    optimizer = {"name": "schedule_free_adamw", "learning_rate": 0.1}
    built = program(optimizer=optimizer, ema_decay=None)
    state = spread(built.init())
    for seed in range(2):
        state, _ = run_step(built, state, batch(seed=seed))
    want = schedule_free_params(state.opt_state, state.params)
    assert_close(state.eval_params, want)
    assert evaluated_item(built.config.to_mapping()) == "ema"
    assert evaluated_item(config(ema_decay=None).to_mapping()) == "params"
    with pytest.raises(ConfigError, match=r"'ema_decay' is 0.9 with schedule_free_adamw"):
        config(optimizer=optimizer, ema_decay=0.9)


@pytest.mark.slow
def test_dropout_mixing_erasing_and_flips_depend_only_on_seed_and_step():
    noisy = {
        "model": {**MODEL, "dropout": 0.3, "stochastic_depth": 0.2},
        "data": {
            **DATA,
            "augment": {
                "flip": True,
                "erasing": {"probability": 0.5},
                "mix": {"mixup_alpha": 0.5, "cutmix_alpha": 1.0},
            },
        },
    }

    def losses(seed):
        built = program(seed=seed, **noisy)
        state = spread(built.init())
        found = []
        for at in (3, 3, 4):
            moved = dataclasses.replace(state, step=jnp.asarray(at, jnp.int32))
            found.append(float(run_step(built, moved, batch())[1]["train/loss"]))
        return found

    first, again, later = losses(0)
    assert first == again
    assert first != later
    assert losses(1)[0] != first


def test_images_are_erased_before_they_are_mixed(monkeypatch):
    def erase_half_of_every_second(self, images, key):
        return images.at[::2, :4].set(0)

    monkeypatch.setattr(Erasing, "__call__", erase_half_of_every_second)
    augment = {"mix": {"mixup_alpha": 1.0}, "erasing": True}
    mixed = config(data={**DATA, "augment": augment})
    prepare = jax.jit(Classification(mixed, DataInfo(5), platform="cpu").prepare)
    white = {"image": jnp.full((8, 8, 8, 3), 255, jnp.uint8), "label": jnp.zeros(8, jnp.int32)}
    found = np.unique(np.round(prepare(white, jnp.asarray(0, jnp.int32))["image"], 4))
    # Blends of an erased with a white image, in both orders, and of two white ones.
    share = found[0]
    np.testing.assert_allclose(found, [share, 1 - share, 1], atol=1e-3)


def test_the_state_is_donated():
    built = plain_program()
    state = built.init()
    built.compiled(state, batch())
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
