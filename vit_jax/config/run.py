"""The config of a run: its sections, top-level keys, and checks across sections.

Each section defines type, range, default and meaning of its keys and validates itself
(`vit_jax.schema`). `vit_jax.config.file` reads a config from files and the command line. The rest
of the package reads only these frozen sections, never raw dictionaries.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vit_jax.config.data import DataConfig, data_class
from vit_jax.config.durations import check_duration
from vit_jax.config.early_stopping import EarlyStoppingConfig
from vit_jax.config.evaluation import EvaluationConfig
from vit_jax.config.fewshot import FewshotConfig
from vit_jax.config.flexible import FlexibleConfig, check_flexible
from vit_jax.config.hooks import HooksConfig, hooks_class
from vit_jax.config.init import InitConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.config.profile import ProfileConfig
from vit_jax.config.split_overlap import overlap
from vit_jax.config.task import TASKS, TaskConfig, task_class
from vit_jax.errors import KEY, ConfigError
from vit_jax.losses import LabelLoss, formula_of, loss_class
from vit_jax.models.options import AUTO, ModelConfig
from vit_jax.schema import ChosenBy, Section, differences, option, section

# Largest number of classes whose accuracies are measured by default.
_MOST_CLASSES = 100


def _options_class(mapping: Mapping[str, Any]) -> type[ModelConfig]:
    """Returns the section class for the model name in a mapping."""
    from vit_jax.models.registry import options_class  # Imports JAX.

    return options_class(mapping)


class CheckpointConfig(Section):
    """When to save checkpoints, and which to keep. The last step is always saved.

    Without an interval, a checkpoint is saved every 1,000 steps.
    """

    interval_steps: int | None = option(None, at_least=1)
    """How often to save. Give steps, epochs or examples."""
    interval_epochs: float | None = option(None, above=0)
    """The same in epochs."""
    interval_examples: int | None = option(None, at_least=1)
    """The same in examples."""
    keep_last: int = option(2, at_least=1)
    """How many of the newest checkpoints to keep."""

    def check(self) -> None:
        check_duration(self, "interval", required=False)


class LoggingConfig(Section):
    """Logging: what to log, how often and where."""

    interval_steps: int = option(50, at_least=1)
    """How often to log the training metrics."""
    tensorboard: bool = option(True)
    """Also write the metrics as TensorBoard files to tensorboard/."""
    wandb_project: str | None = option(None)
    """Weights & Biases project; None: Weights & Biases is off."""
    curves: bool = option(True)
    """Draw report/curves.png after training."""
    example_ids: Literal["none", "hash", "all"] = option("none")
    """Content of examples-HOST.jsonl for each step: a "hash" of the example ids, or "all" ids."""


class Config(Section):
    """The config of one training run."""

    former_keys = {"mixing": "data.augment.mix"} | {
        name: f"task.name={name}, and its other keys as task.KEY"
        for name in TASKS
        if name != "classification"
    }

    task: Annotated[TaskConfig, ChosenBy(task_class)] = section(lambda: task_class(None)())
    loss: Annotated[LabelLoss | None, ChosenBy(loss_class)] = section(lambda: None)
    seed: int = option(0, at_least=0, below=2**32)
    """All randomness derives from this seed, a stream name and the step."""
    model: Annotated[ModelConfig, ChosenBy(_options_class)] = section()
    data: Annotated[DataConfig, ChosenBy(data_class, by_name=False)] = section()
    flexible: FlexibleConfig = section(FlexibleConfig)
    optimizer: OptimizerConfig = section()
    train_steps: int | None = option(None, at_least=1, below=2**31)
    """Length of the run. Give steps, epochs or examples."""
    train_epochs: float | None = option(None, above=0)
    """The same in epochs."""
    train_examples: int | None = option(None, at_least=1)
    """The same in examples."""
    accumulation_steps: int | Literal["auto"] = option(AUTO, auto_is_any=True)
    """Microbatches per step. Their mean gradient equals the gradient of the whole batch. auto: on a
    CPU, as many as make a layer fit its cache; elsewhere 1, or the fewest that fit the memory. 1
    with dropout or stochastic depth, because microbatches draw other random numbers, and for losses
    that compare a whole batch (task image_text, sinkhorn of task dino), for which microbatches are
    computed twice (arXiv:2101.06983).
    """
    compiler_options: dict[str, bool | int | str] = option({}, changes_result=False)
    """XLA options for the compiled step, e.g. {"xla_cpu_use_onednn": True}."""
    compile_cache: str | None = option("auto", changes_result=False)
    """Folder or bucket that keeps compiled programs, for a fast second start. auto: in the user's
    cache folder; None: nowhere. All hosts of a run must share it, and only people you trust may
    write there. The variable JAX_COMPILATION_CACHE_DIR comes first.
    """
    ema_decay: float | None = option(None, above=0, below=1)
    """Decay of the exponential moving average of the parameters (Polyak); None: no average."""
    init_from: str | None = option(None)
    """Weights to start from: a run folder, a checkpoint, a published npz, or timm's or Hugging
    Face's files; a local path, hf:// or gs://. `init` has options for adapting them to the model.
    """
    init: InitConfig = section(InitConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    fewshot: FewshotConfig = section(FewshotConfig)
    early_stopping: EarlyStoppingConfig = section(EarlyStoppingConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig, changes_result=False)
    logging: LoggingConfig = section(LoggingConfig, changes_result=False)
    hooks: Annotated[HooksConfig, ChosenBy(hooks_class, by_name=False)] = section(
        lambda: hooks_class({})(), changes_result=False
    )
    profile: ProfileConfig = section(ProfileConfig, changes_result=False)
    mesh: MeshConfig = section(MeshConfig)

    def __init__(self, **values: Any):
        try:
            task = task_class(values.get("task"))
        except ConfigError as error:
            raise error.under("task") from None
        if task.reads_loss and values.get("loss") is None:
            values["loss"] = {}
        if not task.reads_loss and values.get("loss") is not None:
            raise ConfigError(
                f"unknown config key '{KEY}' for a task without labels",
                "no such section",
                "leave it out, or choose another task",
                key="loss",
            )
        super().__init__(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Returns nested dicts and lists, ready for JSON; without `hooks` if none is on."""
        mapping = super().to_mapping()
        return {key: value for key, value in mapping.items() if key != "hooks" or value}

    @property
    def label_loss(self) -> LabelLoss:
        """The loss of a task that reads it."""
        assert self.loss is not None
        return self.loss

    @property
    def evaluated_loss(self) -> str:
        """The task and the formula of the loss that its evaluations have."""
        options = {} if self.loss is None else self.loss.to_mapping()
        keys = {f"loss.{key}": value for key, value in options.items()}
        return formula_of({"task.name": self.task.name, **keys})

    @property
    def keeps_average(self) -> bool:
        """Whether the run keeps an average of the parameters, which is then evaluated."""
        own = self.ema_decay is not None or self.optimizer.averages_parameters
        return own or self.task.keeps_average

    def measures_classes(self, num_classes: int = 0) -> bool:
        """Whether the accuracy of each class is measured; with 0 classes, whether it may be."""
        if self.evaluation.by_class is None:
            is_own = self.task.name == "classification" and self.data.source == "folder"
            return is_own and num_classes <= _MOST_CLASSES
        return self.evaluation.by_class

    def check(self) -> None:
        check_duration(self, "train", required=True)
        if self.ema_decay is not None and self.optimizer.averages_parameters:
            raise ConfigError(
                f"is {self.ema_decay} with {self.optimizer.name}",
                "no EMA, because this optimizer averages the parameters itself",
                "unset ema_decay or choose another optimizer",
                key="ema_decay",
            )
        self.task.check_run(self)
        check_flexible(self)
        self._check_init()
        self._check_early_stopping()
        self._check_fewshot()
        steps = self.accumulation_steps
        if steps != AUTO and (steps < 1 or self.data.global_batch_size % steps):
            raise ConfigError(
                f"is {self.accumulation_steps}",
                f"a divisor of data.global_batch_size = {self.data.global_batch_size}",
                "change one of the two",
                key="accumulation_steps",
            )

    def _check_fewshot(self) -> None:
        given = [key for key, _, _ in differences(self.fewshot, FewshotConfig())]
        if given and not self.fewshot.datasets:
            raise ConfigError(
                f"is {getattr(self.fewshot, given[0])!r}, but fewshot.datasets is empty, so nothing"
                " reads it",
                "datasets",
                "set fewshot.datasets, or leave the section out",
                key=f"fewshot.{given[0]}",
            )

    def _check_early_stopping(self) -> None:
        metric = self.early_stopping.metric
        if metric is None:
            return
        metrics = ["accuracy_top1", "accuracy_top5", "loss"]
        metrics += ["accuracy_per_class_mean"] if self.measures_classes() else []
        metrics += self.evaluation.metrics
        known = {f"eval/{split}/{m}" for split in self.evaluation.splits for m in metrics}
        if metric not in known:
            raise ConfigError(
                f"is {metric!r}",
                "one of " + (", ".join(sorted(known)) or "the metrics of evaluation.splits"),
                "evaluate that split or name another metric",
                key="early_stopping.metric",
            )
        if not self.evaluation.has_interval:
            raise ConfigError(
                "is set, but evaluation happens only after training",
                "an interval between evaluations",
                "set evaluation.interval_steps",
                key="early_stopping.metric",
            )
        trained, scored = self.data.train_split, self.evaluation.splits[metric.split("/")[1]]
        if overlap(trained, scored):
            raise ConfigError(
                f"is {metric!r} on {scored!r}, which overlaps the training split {trained!r}",
                "a split without training examples",
                "train on the rest, e.g. data.train_split=train[:98%]",
                key="early_stopping.metric",
            )

    def _check_init(self) -> None:
        if self.init_from is not None:
            return
        if self.model.name == AUTO:
            raise ConfigError(
                "is 'auto' without 'init_from'",
                "weights to read the architecture from",
                "add --config.init_from=PATH, or name the model",
                key="model.name",
            )
        if self.init != InitConfig():
            raise ConfigError(
                "is set without 'init_from'",
                "weights to start from",
                "add --config.init_from=PATH",
                key="init",
            )
