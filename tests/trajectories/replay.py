"""Replays training steps of the authors' code with this project's recipe, optimizer and step.

A golden holds the losses of the reference implementation, and for each parameter three checksums of
how far it moved. Both sides make their weights from a seed: for each parameter in sorted order
normal numbers, scaled by `spread`. Inputs are random bytes from the next seed. Augmentation is left
out: batches are given as the step sees them.
"""

import contextlib
import json
import re
from pathlib import Path

import jax
import numpy as np
from flax import traverse_util

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.file import build_config, override_key, read_mapping
from vit_jax.config.mesh import MeshConfig
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.optimizers import build_optimizer
from vit_jax.train.program import build_program
from vit_jax.train.schedules import build_weight_decay
from vit_jax.train.step import make_train_step

FOLDER = Path(__file__).parent / "goldens"
CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# The gradient of the keys' bias is zero but for rounding, which Adam makes large.
_NOISE = re.compile("qkv/bias|key/bias|kv/bias")


def load(name):
    """Returns the arrays of a golden; the JSON of its settings is decoded."""
    golden = dict(np.load(FOLDER / f"{name}.npz"))
    if "settings" in golden:
        golden["settings"] = json.loads(str(golden["settings"]))
    return golden


def spread(name):
    """Returns mean and deviation of a parameter's weights."""
    if name.endswith(("attention_scale", "mlp_scale")):
        return 0.1, 0.01
    if name.endswith("scale"):
        return 1.0, 0.1
    return 0.0, 0.02 if name.endswith("bias") else 0.1


def normal_weights(shapes, seed):
    """Returns name -> f32 weights from a seed."""
    rng, found = np.random.RandomState(seed), {}
    for name in sorted(shapes):
        mean, deviation = spread(name)
        found[name] = (mean + deviation * rng.standard_normal(shapes[name])).astype(np.float32)
    return found


def pictures(rng, batch, side, steps):
    """Returns f32[steps, batch, side, side, 3] in [-1, 1]."""
    return rng.randint(0, 256, (steps, batch, side, side, 3)).astype(np.float32) / 127.5 - 1


def checksums(moved):
    """Returns name -> sum, sum of absolute values, and projection on a fixed random vector."""
    found = {}
    for number, name in enumerate(sorted(moved)):
        a = np.asarray(moved[name], np.float64).ravel()
        random = np.random.RandomState(number).standard_normal(a.size)
        found[name] = np.array([a.sum(), np.abs(a).sum(), a @ random])
    return found


@contextlib.contextmanager
def exact_matmuls():
    """Matmuls as exact as float32 allows; optax mixes types, which our tests forbid elsewhere."""
    with jax.default_matmul_precision("highest"), jax.numpy_dtype_promotion("standard"):
        yield


class Replay:
    """A recipe with overrides on one device; `prepare` is left out."""

    def __init__(self, recipe, overrides, *, num_classes=10, num_examples=16):
        mapping = read_mapping(str(CONFIGS / recipe))
        for key, value in overrides.items():
            override_key(mapping, key, value)
        self.config = build_config(mapping)
        program = build_program(
            self.config,
            make_mesh(MeshConfig(), jax.devices()[:1]),
            num_classes=num_classes,
            num_examples=num_examples,
        )
        self.program = program
        sizes = {"batch_size": self.config.data.global_batch_size, "num_examples": num_examples}
        self.optimizer = build_optimizer(
            self.config.optimizer,
            program.schedule,
            program.abstract.params,
            weight_decay=build_weight_decay(self.config.optimizer, program.total_steps),
            freeze_steps=duration_in_steps(self.config.optimizer, "freeze", **sizes),
        )
        self.shapes = {n: leaf.shape for n, leaf in named_leaves(program.abstract.params).items()}
        self.steps = {
            name: self._step(p) for name, p in (program.variants or {"": program}).items()
        }

    def _step(self, program):
        step = make_train_step(
            self.config,
            batch_loss=program.task.batch_loss,
            prepare=lambda batch, step: batch,
            optimizer=self.optimizer,
            schedule=program.schedule,
            teacher=program.task.teacher,
            project=program.task.project,
            parts=program.choice.microbatches,
        )
        return jax.jit(step)

    def train(self, golden, weights, batch_of, *rest, variant_of=lambda step: ""):
        """Trains from `weights`, and compares losses and movement with the golden.

        Returns:
            The final state.
        """
        state, losses = self.program.init_state(nested(weights)), []
        for step in range(len(golden["losses"])):
            state, metrics = self.steps[variant_of(step)](state, batch_of(step), *rest)
            losses.append(float(metrics["train/loss"]))
        np.testing.assert_allclose(losses, golden["losses"], rtol=3e-5)
        return state

    def update(self, golden, weights, gradients_of):
        """Returns the parameters after the golden's steps of the optimizer with given gradients."""
        params = nested(weights)
        state, update = self.optimizer.init(params), jax.jit(self.optimizer.update)
        for step in range(int(golden["steps"])):
            updates, state = update(nested(gradients_of(step)), state, params)
            params = jax.tree.map(lambda p, u: p + u, params, updates)
        return params


def check_moved(golden, params, weights, tolerance=2e-4, prefix="checksum/"):
    """Asserts that each parameter moved as the reference's, relative to how far it moved.

    What float32 rounds in a parameter in each step, as a random walk, is not counted.
    """
    final = flat(params)
    moved = {name: np.asarray(a, np.float64) - weights[name] for name, a in final.items()}
    compared = {name: a for name, a in moved.items() if prefix + name in golden}
    assert len(compared) == sum(key.startswith(prefix) for key in golden)
    for name, sums in checksums(compared).items():
        want = golden[prefix + name]
        rounding = 6e-8 * np.sqrt(int(golden["steps"])) * np.abs(final[name]).sum(dtype=np.float64)
        difference = max(np.abs(sums - want).max() - rounding, 0)
        if want[1] == 0:
            assert sums[1] == 0, f"{name} moved, but not in the reference"
        elif not _NOISE.search(name):
            assert difference / want[1] < tolerance, name


def nested(named):
    return traverse_util.unflatten_dict({n: jax.numpy.asarray(a) for n, a in named.items()}, "/")


def flat(tree):
    return traverse_util.flatten_dict(jax.device_get(tree), sep="/")
