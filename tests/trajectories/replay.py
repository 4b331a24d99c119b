"""Replays training steps of the authors' code, without that code and without weights.

A golden of `goldens/` holds the authors' loss at each step, and for each parameter three checksums
of how far it moved: the sum, the sum of absolute values, the projection on a random vector. Weights
and batches are drawn from its seed, in a fixed order. Augmentation on the device is left out:
batches are given as `Task.prepare` returns them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.file import apply_overrides, build_config, read_mapping
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.optimizers import build_optimizer
from vit_jax.train.program import Program, build_program
from vit_jax.train.schedules import build_weight_decay
from vit_jax.train.step import make_train_step

Arrays = dict[str, np.ndarray]
_HERE = Path(__file__).parent
_RECIPES = _HERE.parents[1] / "configs"
# Mean and deviation of the initial values; the first pattern that the name ends with is used.
_SPREADS = (
    (r"(attention|mlp)_scale", 0.1, 0.01),
    (r"scale", 1.0, 0.1),
    (r"bias", 0.0, 0.02),
    (r"", 0.0, 0.1),
)
# The gradient of the keys' bias is zero but for rounding, which Adam enlarges.
_ROUNDING_ONLY = re.compile(r"(qkv|key|kv)/bias")

SMALL: dict[str, Any] = {
    "model.width": 64,
    "model.depth": 3,
    "model.num_heads": 2,
    "model.mlp_dim": 256,
    "model.dtype": "float32",
    "data.image_size": 32,
    "data.global_batch_size": 8,
}
"""Overrides that make a recipe of a ViT small."""


def read_golden(name: str) -> Arrays:
    """Returns the arrays of a golden."""
    with np.load(_HERE / "goldens" / f"{name}.npz") as file:
        return dict(file)


class Replay:
    """A recipe at a tiny size, with its own model, schedule, optimizer and step.

    Args:
        golden: its seed and number of steps are used.
        recipe: file of configs/ with its argument, e.g. "mae.py:B/16".
        overrides: dotted config key -> value.
        num_classes: of the data.
        num_examples: of the data.

    Attributes:
        arrays: the initial parameters by name, drawn from the seed; a test may change them.
        rng: source of the batches.
    """

    def __init__(
        self,
        golden: Arrays,
        recipe: str,
        overrides: Mapping[str, Any],
        *,
        num_classes: int = 10,
        num_examples: int = 16,
    ):
        mapping = read_mapping(str(_RECIPES / recipe))
        apply_overrides(mapping, overrides.items())
        self.config = config = build_config(mapping)
        mesh = make_mesh(config.mesh, jax.devices()[:1])
        self.program = build_program(
            config, mesh, num_classes=num_classes, num_examples=num_examples
        )
        sizes = {"num_examples": num_examples, "batch_size": config.data.global_batch_size}
        self.optimizer = build_optimizer(
            config.optimizer,
            self.program.schedule,
            self.program.abstract.params,
            config.model,
            weight_decay=build_weight_decay(config.optimizer, self.program.total_steps),
            freeze_steps=duration_in_steps(config.optimizer, "freeze", **sizes),
        )
        shapes = {n: leaf.shape for n, leaf in named_leaves(self.program.abstract.params).items()}
        self.golden, seed = golden, int(golden["seed"])
        self.arrays = draw_weights(shapes, seed)
        self.rng = np.random.RandomState(seed + 1)

    def train(
        self,
        batch_of: Callable[[int], Any],
        *frozen: Any,
        variant_of: Callable[[int], str] = lambda step: "",
    ) -> tuple[list[float], Any]:
        """Returns the loss of each step, and the last state.

        Args:
            batch_of: step -> prepared batch.
            *frozen: arguments of the step after the batch, such as a teacher's parameters.
            variant_of: step -> name of the program's variant, e.g. the patch size of FlexiViT.
        """
        programs = self.program.variants or {"": self.program}
        step_fns = {name: self._step_fn(program) for name, program in programs.items()}
        state, losses = self.program.init_state(self._params()), []
        for number in range(int(self.golden["steps"])):
            step_fn = step_fns[variant_of(number)]
            state, metrics = step_fn(state, batch_of(number), *frozen)
            losses.append(float(metrics["train/loss"]))
        return losses, state

    def _step_fn(self, program: Program) -> Callable[..., Any]:
        step = make_train_step(
            self.config,
            batch_loss=program.task.batch_loss,
            prepare=lambda batch, step: batch,
            optimizer=self.optimizer,
            schedule=program.schedule,
            teacher=program.task.teacher,
            clamp=program.task.clamp,
            num_microbatches=program.choice.microbatches,
        )
        return jax.jit(step)

    def apply(self, still: Sequence[str] = ()) -> Any:
        """Returns the parameters after the optimizer alone applied random gradients.

        Args:
            still: names of parameters whose gradients are zero.
        """
        drawn = [name for name in sorted(self.arrays) if name not in still]
        zeros = {name: np.zeros_like(self.arrays[name]) for name in still}

        @jax.jit
        def step_fn(params: Any, state: Any, gradients: Any) -> Any:
            updates, state = self.optimizer.update(gradients, state, params)
            return jax.tree.map(jnp.add, params, updates), state

        params = self._params()
        state = self.optimizer.init(params)
        for number in range(int(self.golden["steps"])):
            scale = 0.01 * (1 + number % 3)
            normal = {n: self.rng.standard_normal(self.arrays[n].shape) for n in drawn}
            gradients = zeros | {n: (scale * a).astype(np.float32) for n, a in normal.items()}
            params, state = step_fn(params, state, unflatten_dict(gradients, sep="/"))
        return params

    def differences(self, params: Any, prefix: str = "checksum") -> dict[str, float]:
        """Returns how differently each parameter of the golden moved, relative to its movement.

        What float32 may round in the parameters themselves is left out: 6e-8 of them a step, as a
        random walk. Parameters whose gradient is rounding only are left out, too.
        """
        after, found = named_leaves(jax.device_get(params)), {}
        names = sorted(n for n in after if f"{prefix}/{n}" in self.golden)
        assert names
        for place, name in enumerate(names):
            if _ROUNDING_ONLY.search(name):
                continue
            moved = np.asarray(after[name], np.float64) - self.arrays[name]
            want = self.golden[f"{prefix}/{name}"]
            rounding = 6e-8 * np.sqrt(self.golden["steps"]) * np.abs(after[name]).sum(dtype=float)
            difference = max(np.abs(_checksums(moved, place) - want).max() - rounding, 0)
            found[name] = difference / want[1] if want[1] else float(np.abs(moved).max())
        return found

    def check(
        self, params: Any, losses: Sequence[float] = (), *, loss: float = 3e-5, moved: float = 2e-4
    ) -> None:
        """Asserts that losses and parameters are the golden's within relative tolerances."""
        np.testing.assert_allclose(losses, self.golden["losses"], rtol=loss)
        differing = {n: d for n, d in self.differences(params).items() if d > moved}
        assert not differing

    def _params(self) -> Any:
        return unflatten_dict({n: jnp.asarray(a) for n, a in self.arrays.items()}, sep="/")


def _checksums(moved: np.ndarray, place: int) -> np.ndarray:
    """Returns f64[3] of the parameter at this place in the sorted list of the golden's names."""
    vector = np.random.RandomState(place).standard_normal(moved.size)
    return np.array([moved.sum(), np.abs(moved).sum(), moved.ravel() @ vector])


def draw_weights(shapes: Mapping[str, tuple[int, ...]], seed: int) -> Arrays:
    """Returns the initial parameters, drawn in the sorted order of their names."""
    rng, arrays = np.random.RandomState(seed), {}
    for name in sorted(shapes):
        mean, deviation = next(s[1:] for s in _SPREADS if re.search(f"{s[0]}$", name))
        values = mean + deviation * rng.standard_normal(shapes[name])
        arrays[name] = values.astype(np.float32)
    return arrays


def draw_images(rng: np.random.RandomState, *shape: int, side: int = 32) -> np.ndarray:
    """Returns f32[*shape, side, side, 3] in [-1, 1]: random bytes, scaled."""
    values = rng.randint(0, 256, (*shape, side, side, 3)).astype(np.float32)
    return values / np.float32(127.5) - 1


def mixed_labels(golden: Arrays, num_classes: int) -> np.ndarray:
    """Returns the golden's labels f32[T, B, C], each row mixed with that at the opposite end."""
    one_hot, shares = np.eye(num_classes)[golden["labels"]], golden["lams"][:, None, None]
    return (shares * one_hot + (1 - shares) * one_hot[:, ::-1]).astype(np.float32)
