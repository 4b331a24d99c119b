"""Everything of a run that is computed on devices, built from a config and three numbers.

Training, evaluation, benchmarks, plans and the tests of every recipe all start here. Nothing is
computed and no array is made until asked for.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.run import Config
from vit_jax.data.arrays import batch_shapes, labelled_image_arrays
from vit_jax.errors import ConfigError
from vit_jax.evaluation.classification import EvalStep, jit_eval_step
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.models.flops import training_flops
from vit_jax.parallel.mesh import batch_sharding, check_batch_size
from vit_jax.rng import stream
from vit_jax.train.classification import classification
from vit_jax.train.masked_patches import masked_patches
from vit_jax.train.optimizers import build_optimizer
from vit_jax.train.schedules import build_schedule
from vit_jax.train.state import StartFrom, TrainState, abstract_state, init_sharded, make_start_from
from vit_jax.train.step import StepFn, make_train_step
from vit_jax.train.task import Task


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions and shapes of a run.

    Attributes:
        config: as given.
        mesh: devices.
        num_classes: C of the dataset.
        task: what is learned.
        total_steps: length of the run.
        schedule: step -> learning rate.
        step_fn: one training step, not jitted.
        abstract: shapes, types and shardings of the state.
        init_params: makes the parameters of a new model; may be traced.
        start_from: makes the state at step 0 of parameters; may be traced.
        eval_step: sums over one batch, jitted.
        flops_per_image: model FLOPs of training on one image.
    """

    config: Config
    mesh: Mesh
    num_classes: int
    task: Task
    total_steps: int
    schedule: optax.Schedule
    step_fn: StepFn
    abstract: TrainState
    init_params: Callable[[], Any]
    start_from: StartFrom
    eval_step: EvalStep
    flops_per_image: int

    @property
    def graphdef(self) -> nnx.GraphDef:
        """The model without its parameters."""
        return self.task.graphdef

    def init(self) -> TrainState:
        """Makes the state at step 0, sharded."""
        return init_sharded(lambda: self.start_from(self.init_params()), self.abstract)

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a training batch as it comes over the wire."""
        data = self.config.data
        arrays = labelled_image_arrays(data.image_size)
        return batch_shapes(arrays, data.global_batch_size, batch_sharding(self.mesh))

    def lower(self) -> jax.stages.Lowered:
        """Returns the jitted step, its state donated, traced for the shapes of this run."""
        shardings = jax.tree.map(lambda s: s.sharding, self.abstract)
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        jitted = jax.jit(self.step_fn, donate_argnums=0, out_shardings=(shardings, everywhere))
        return jitted.lower(self.abstract, self.batch_shapes())

    def compile(self) -> jax.stages.Compiled:
        """Returns the compiled step.

        Raises:
            ConfigError: a compiler option that XLA does not know.
        """
        options: Any = self.config.compiler_options
        lowered = self.lower()
        try:
            return lowered.compile(compiler_options=dict(options) or None)
        except jax.errors.JaxRuntimeError as error:
            if not options or "INVALID_ARGUMENT" not in str(error):
                raise
            raise ConfigError(
                f"'compiler_options' is {options}: {error}", "options of this XLA", "correct them"
            ) from None

    def num_parameters(self) -> int:
        """Returns the number of trainable values."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract.params))


def build_program(
    config: Config,
    mesh: Mesh,
    *,
    num_classes: int,
    num_examples: int,
    class_weights: np.ndarray | None = None,
) -> Program:
    """Builds the program of a run.

    Args:
        config: the run.
        mesh: devices.
        num_classes: C of the dataset.
        num_examples: examples an epoch.
        class_weights: f32[C], factors of the loss by class; None: 1.

    Raises:
        ConfigError, ModelError: sizes that do not go together.
    """
    batch_size = config.data.global_batch_size
    check_batch_size(mesh, batch_size, "data.global_batch_size", config.accumulation_steps)
    platform = mesh.devices.flat[0].platform
    sizes = {"batch_size": batch_size, "num_examples": num_examples}
    total_steps = duration_in_steps(config, "train", **sizes) or 1

    if config.task == "masked_patches":
        task = masked_patches(config, platform=platform)
    else:
        task = classification(
            config, num_classes=num_classes, class_weights=class_weights, platform=platform
        )

    def init_params() -> Any:
        return nnx.to_pure_dict(nnx.state(task.build(stream(config.seed, "init"))))

    schedule = build_schedule(
        config.optimizer.schedule, config.optimizer.learning_rate, total_steps=total_steps, **sizes
    )
    optimizer = build_optimizer(config.optimizer, schedule, jax.eval_shape(init_params))
    start_from = make_start_from(optimizer, ema=config.keeps_average)
    abstract = abstract_state(lambda: start_from(init_params()), mesh, config.mesh)
    shardings = jax.tree.map(lambda s: s.sharding, abstract.params)
    step_fn = make_train_step(
        config,
        batch_loss=task.batch_loss,
        prepare=task.prepare,
        optimizer=optimizer,
        schedule=schedule,
        shardings=shardings,
    )
    return Program(
        config=config,
        mesh=mesh,
        num_classes=num_classes,
        task=task,
        total_steps=total_steps,
        schedule=schedule,
        step_fn=with_mesh(step_fn, mesh),
        abstract=abstract,
        init_params=init_params,
        start_from=start_from,
        eval_step=jit_eval_step(with_mesh(task.eval_step, mesh), shardings, mesh),
        flops_per_image=training_flops(task.forward_macs),
    )
