"""The functions that a run computes on devices, built from its config and properties of its data.

Training, evaluation, benchmarks, plans and the tests of all recipes use it. Building a program
computes nothing and allocates no arrays.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.flexible import variants
from vit_jax.config.run import Config
from vit_jax.data.arrays import Preprocessing, batch_shapes
from vit_jax.data.sources import Source
from vit_jax.errors import ConfigError
from vit_jax.evaluation.loop import EvalStep, jit_eval_step
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.models.initial_values import redraw
from vit_jax.models.options import AUTO
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import batch_sharding, check_batch_size, platform_of
from vit_jax.parallel.sharding import shard_arrays
from vit_jax.rng import fixed_jax_settings, stream
from vit_jax.tasks.task import DataInfo, Task, build_task
from vit_jax.train.optimizers import build_optimizer
from vit_jax.train.schedules import build_schedule, build_weight_decay
from vit_jax.train.state import (
    InitState,
    TrainState,
    abstract_frozen,
    abstract_state,
    make_init_state,
)
from vit_jax.train.step import StepFn, make_train_step
from vit_jax.train.step_choice import StepChoice, check_sizes, check_state, choose_step


@dataclasses.dataclass(frozen=True)
class Program:
    """The functions and shapes of a run."""

    config: Config
    mesh: Mesh
    task: Task
    total_steps: int
    schedule: optax.Schedule  # step -> learning rate
    step_fn: StepFn  # not jitted
    abstract: TrainState  # shapes, dtypes and shardings
    abstract_frozen: tuple[Any, ...]  # of the step's frozen arguments: () or one tree
    init_params: Callable[[], Any]  # may be traced
    init_state: InitState  # parameters -> state at step 0; may be traced
    eval_step: EvalStep  # jitted
    choice: StepChoice
    # Programs of the same parameters at other patch sizes; empty: the run has one size.
    variants: Mapping[str, "Program"] = dataclasses.field(default_factory=dict)

    @property
    def trained(self) -> dict[str, tuple[float, "Program"]]:
        """The programs that train: name -> (probability, program). A run with one size has one."""
        if not self.variants:
            return {"": (1.0, self)}
        named = zip(self.config.flexible.shares, self.variants.items(), strict=True)
        return {name: (share, program) for share, (name, program) in named if share}

    @property
    def evaluated_variants(self) -> dict[str, tuple[EvalStep, Preprocessing]]:
        return {n: (p.eval_step, p.task.eval_preprocessing) for n, p in self.variants.items()}

    @property
    def platform(self) -> str:
        return platform_of(self.mesh)

    @property
    def flops_per_image(self) -> int:
        """Model FLOPs of training on one image; with several sizes, their mean."""
        return round(sum(share * p.task.flops_per_image for share, p in self.trained.values()))

    def init(self) -> TrainState:
        """Returns the state at step 0, sharded."""
        return self._init_fn()

    @functools.cached_property
    def _init_fn(self) -> Callable[[], TrainState]:
        shardings = jax.tree.map(lambda s: s.sharding, self.abstract)
        return jax.jit(lambda: self.init_state(self.init_params()), out_shardings=shardings)

    def load_frozen(self) -> tuple[Any, ...]:
        """Returns the frozen arguments of the step, sharded: () or one tree."""
        if self.task.frozen is None:
            return ()
        shardings = jax.tree.map(lambda s: s.sharding, self.abstract_frozen[0])
        return (shard_arrays(self.task.frozen.load(), shardings),)

    def batch_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shapes of a training batch on the devices, before augmentation."""
        arrays = self.task.train_preprocessing.arrays
        return batch_shapes(arrays, self.config.data.global_batch_size, batch_sharding(self.mesh))

    def example_batch(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns a training batch of random bytes and zeros, for timing and tests."""
        rng = np.random.default_rng(seed)

        def fill(shape: jax.ShapeDtypeStruct) -> np.ndarray:
            if shape.dtype == np.uint8:
                return rng.integers(0, 256, shape.shape, np.uint8)
            return (np.ones if shape.dtype == np.bool_ else np.zeros)(shape.shape, shape.dtype)

        return {name: fill(shape) for name, shape in self.batch_shapes().items()}

    def lower(self) -> jax.stages.Lowered:
        """Returns the lowered training step for the shapes of this run. The state is donated."""
        shardings = jax.tree.map(lambda s: s.sharding, self.abstract)
        replicated = NamedSharding(self.mesh, PartitionSpec())
        jitted = jax.jit(self.step_fn, donate_argnums=0, out_shardings=(shardings, replicated))
        return jitted.lower(self.abstract, self.batch_shapes(), *self.abstract_frozen)

    @functools.cached_property
    def compiled(self) -> jax.stages.Compiled:
        """The compiled step: (state, batch, *frozen) -> (state, metrics)."""
        options: Any = self.config.compiler_options
        try:
            return self.lower().compile(compiler_options=dict(options) or None)
        except jax.errors.JaxRuntimeError as error:
            if not options or "INVALID_ARGUMENT" not in str(error):
                raise
            raise ConfigError(
                f"'compiler_options' is {options}: {error}", "options of this XLA", "correct them"
            ) from None

    @property
    def feature_width(self) -> int | None:
        """F, the number of features that the linear layer of the head sees; None: it has none."""
        kernel = named_leaves(self.abstract.params).get("head/linear/kernel")
        return None if kernel is None else kernel.shape[-2]

    def num_parameters(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(self.abstract.params))


def build_program(
    config: Config,
    mesh: Mesh,
    *,
    num_classes: int,
    num_examples: int,
    class_counts: np.ndarray | None = None,
    source: Source | None = None,
    planned: bool = False,
) -> Program:
    """Builds the program of a run.

    `class_counts` is i64[C], training examples of each class, if the task needs them. A program
    that is only `planned` will not run here, so it may need more memory than there is.
    """
    build = functools.partial(
        _build_program,
        mesh=mesh,
        num_classes=num_classes,
        num_examples=num_examples,
        class_counts=class_counts,
        source=source,
        planned=planned,
    )
    program = build(config)
    built = {}
    for name, variant in variants(config).items():
        same = (variant.model, variant.data) == (config.model, config.data)
        built[name] = program if same else build(variant)
        _check_same_parameters(program, built[name])
    return dataclasses.replace(program, variants=built)


def _check_same_parameters(program: Program, variant: Program) -> None:
    """Raises ConfigError unless both programs have the same parameters."""
    ours, theirs = (named_leaves(p.abstract.params) for p in (program, variant))
    for name in sorted(ours.keys() | theirs.keys()):
        shapes = [leaves[name].shape if name in leaves else None for leaves in (ours, theirs)]
        if shapes[0] != shapes[1]:
            raise ConfigError(
                f"gives parameter '{name}' the shape {shapes[1]} in {variant.config.model.name},"
                f" and {shapes[0]} in {program.config.model.name}",
                "parameters that all sizes share",
                "use another pooling and position embedding",
                key="flexible.patch_sizes",
            )


def _build_program(
    config: Config,
    mesh: Mesh,
    *,
    num_classes: int,
    num_examples: int,
    class_counts: np.ndarray | None,
    source: Source | None,
    planned: bool,
) -> Program:
    """Builds the program of one size."""
    batch_size = config.data.global_batch_size
    microbatches = 1 if config.accumulation_steps == AUTO else config.accumulation_steps
    check_batch_size(mesh, batch_size, "data.global_batch_size", microbatches)
    check_sizes(config, planned=planned)
    sizes = {"batch_size": batch_size, "num_examples": num_examples}
    total_steps = duration_in_steps(config, "train", **sizes) or 1
    platform = platform_of(mesh)
    data = DataInfo(num_classes, class_counts, num_examples, total_steps, source)
    task = build_task(config, data, platform=platform)

    @fixed_jax_settings()
    def init_params() -> Any:
        params = nnx.to_pure_dict(nnx.state(task.build(stream(config.seed, "init"))))
        key = stream(config.seed, "initial_values")
        return redraw(params, config.model.initial_values, key)

    schedule = build_schedule(
        config.optimizer.schedule, config.optimizer.learning_rate, total_steps=total_steps, **sizes
    )
    optimizer = build_optimizer(
        config.optimizer,
        schedule,
        jax.eval_shape(init_params),
        config.model,
        weight_decay=build_weight_decay(config.optimizer, total_steps),
        freeze_steps=duration_in_steps(config.optimizer, "freeze", **sizes),
    )
    extra = None if task.teacher is None else task.teacher.init
    init_state = make_init_state(optimizer, ema=config.keeps_average, extra=extra)
    abstract = abstract_state(lambda: init_state(init_params()), mesh, config.mesh)
    check_state(abstract, mesh, planned=planned)
    frozen = ()
    if task.frozen is not None:
        frozen = (abstract_frozen(task.frozen.shapes, mesh, config.mesh),)
    shardings, *frozen_shardings = jax.tree.map(lambda s: s.sharding, (abstract.params, *frozen))
    choice = choose_step(config, task, mesh, (abstract, *frozen), total_steps)
    step_fn = make_train_step(
        config,
        batch_loss=task.with_loop(choice.loop).batch_loss,
        prepare=task.prepare,
        optimizer=optimizer,
        schedule=schedule,
        num_microbatches=choice.microbatches,
        shardings=shardings,
        teacher=task.teacher,
        clamp=task.clamp,
    )
    return Program(
        config=config,
        mesh=mesh,
        task=task,
        total_steps=total_steps,
        schedule=schedule,
        step_fn=with_mesh(step_fn, mesh),
        abstract=abstract,
        abstract_frozen=frozen,
        init_params=init_params,
        init_state=init_state,
        eval_step=jit_eval_step(
            with_mesh(task.eval_step, mesh), mesh, shardings, *frozen_shardings
        ),
        choice=choice,
    )
