"""Microbatches give the loss and the gradient of the whole batch, in every task."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from eight_devices import small_program
from weight_files import random_weights

from vit_jax.config.task import TASKS
from vit_jax.parallel.mesh import to_devices
from vit_jax.tasks.task import TeacherState
from vit_jax.train.step import accumulated_gradient

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
SIZES = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
VIT = {"name": "ViT-Ti/4", **SIZES}
DINO = {
    "name": "dino",
    "local_crops": 1, "local_size": 8, "prototypes": 16, "head_width": 16, "bottleneck": 8,
    "teacher_temperature": 0.2, "distort": False,
}  # fmt: skip
MAE = {"name": "mae", "decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2}
TEXT = {**SIZES, "vocabulary_size": 20, "context_length": 8}
PAIRS = {
    "model": {"name": "LiT-ViT-Ti/4", "image": VIT, "text": TEXT},
    "data": {"captions": {"tokenizer": "synthetic"}},
}
RUNS = {
    "classification": {"loss": {"class_weights": "none", "label_smoothing": 0.1}},
    "classification, mixed": {
        "data": {"augment": {"flip": True, "mix": {"mixup_alpha": 0.4, "cutmix_alpha": 1.0}}}
    },
    "classification, NaFlex": {
        "model": {**VIT, "pooling": "map", "position_grid": 2},
        "data": {"sequence_length": 16, "eval_crop": "resize"},
    },
    "masked_patches": {"task": {"name": "masked_patches"}},
    "distillation": {"task": {"name": "distillation"}},
    "mae": {"task": MAE},
    "dino": {"task": DINO},
    "dino, iBOT": {"task": {**DINO, "ibot_weight": 1.0}},
    "dino, Sinkhorn": {"task": {**DINO, "centring": "sinkhorn"}},
    "dino, iBOT, Sinkhorn": {
        "task": {**DINO, "centring": "sinkhorn", "ibot_weight": 1.0},
    },
    "image_text, softmax": {**PAIRS, "task": {"name": "image_text", "loss": "softmax"}},
    "image_text, sigmoid": {**PAIRS, "task": {"name": "image_text", "loss": "sigmoid"}},
}
_MOST_COMPARED = "dino, iBOT, Sinkhorn"  # The others are slow tests.


def test_every_task_is_here():
    names = {run["task"]["name"] for run in RUNS.values() if "task" in run}
    assert names | {"classification"} == set(TASKS)


def spread(tree, seed):
    """Returns parameters that are not small, heads included."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.float32(x + 0.3 * rng.standard_normal(x.shape)), tree)


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS if name != _MOST_COMPARED),
        _MOST_COMPARED,
    ],
)
def test_microbatches_have_the_loss_and_the_gradient_of_the_batch(name, tmp_path):
    content = {"model": VIT, **RUNS[name]}
    if name == "distillation":
        weights = tmp_path / "teacher"
        random_weights(weights, num_classes=10, image_size=(16, 16))
        content["task"] = {"name": name, "teacher": str(weights), "targets": "soft"}
    program = small_program({}, **content)
    task, state, rng = program.task, program.init(), np.random.default_rng(0)
    batch = program.example_batch(0)
    if "masked" in batch:
        batch["masked"] = rng.random(batch["masked"].shape) < 0.3
    frozen = program.load_frozen()
    if task.teacher is not None:
        frozen = (TeacherState(spread(state.ema, 1), state.extra, jnp.int32(0)), *frozen)
    prepared = task.prepare(to_devices(batch, program.mesh), jnp.int32(0))

    @functools.partial(jax.jit, static_argnums=0)
    def gradient(parts, params, prepared, frozen):
        key = jax.random.key(0)
        return accumulated_gradient(task.batch_loss, params, prepared, key, frozen, parts)

    params = spread(state.params, 2)
    (whole, _), of_whole = gradient(1, params, prepared, frozen)
    (cut, _), of_cut = gradient(4, params, prepared, frozen)
    assert float(cut) == pytest.approx(float(whole), rel=1e-5)
    norm = float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(of_whole))))
    apart = jax.tree.map(lambda a, b: a - b, of_whole, of_cut)
    assert norm > 1e-3
    assert float(jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(apart)))) < 1e-5 * norm
