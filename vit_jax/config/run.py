"""The schema of a run: every key a config may have, its type, range, default and meaning.

Sections are frozen and check themselves (`vit_jax.schema`); `vit_jax.config.file` reads them from
files and the command line. Nothing downstream reads a raw dictionary.
"""

import dataclasses
from typing import Literal

from vit_jax.config.data import DataConfig
from vit_jax.config.durations import check_duration
from vit_jax.config.early_stopping import EarlyStoppingConfig
from vit_jax.config.evaluation import EvaluationConfig
from vit_jax.config.fewshot import FewshotConfig
from vit_jax.config.init import AUTO, InitConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.model import ModelConfig
from vit_jax.config.optimizer import OptimizerConfig
from vit_jax.config.split_overlap import shares
from vit_jax.config.task import check_task
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section
from vit_jax.tasks.classification.config import LossConfig, MixingConfig
from vit_jax.tasks.distillation.config import DistillationConfig
from vit_jax.tasks.masked_patches.config import MaskedPatchesConfig

# Metrics of an evaluated split of which more is better.
_SHARES = ("accuracy_top1", "accuracy_top5")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    """When to save (if not said: every 1,000 steps) and what to keep. The end is always saved."""

    interval_steps: int | None = option(None, at_least=1)
    interval_epochs: float | None = option(None, above=0)
    interval_examples: int | None = option(None, at_least=1)
    keep_last: int = option(2, at_least=1)
    # Also keep this many of the best by `best_metric` (higher is better), which is then measured
    # before every save.
    keep_best: int = option(0, at_least=0)
    best_metric: str | None = option(None)

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        if self.keep_best and self.best_metric is None:
            raise ConfigError(
                f"'keep_best' is {self.keep_best} without a 'best_metric'",
                "a metric of an evaluated split",
                "set best_metric, e.g. eval/test/accuracy_top1",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingConfig(Section):
    """Where numbers go, how often."""

    interval_steps: int = option(50, at_least=1)
    tensorboard: bool = option(True)
    # Weights & Biases project; None: not used.
    wandb_project: str | None = option(None)
    # Draw report/curves.png at the end.
    curves: bool = option(True)
    # How often to log the largest attention logit of every layer, on a few images of the batch.
    # Where it grows into the hundreds, training may diverge: see model.qk_norm (arXiv:2302.05442).
    attention_interval_steps: int | None = option(None, at_least=1)
    # Which examples each step was made of, in examples-HOST.jsonl: a "hash" of them, or "all".
    example_ids: Literal["none", "hash", "all"] = option("none")
    # First and last step of a profiler trace, written to the folder `profile` of the run.
    profile_steps: tuple[int, int] | None = option(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DivergenceConfig(Section):
    """What to do when the loss, a gradient or an update is no longer finite."""

    # So many times, go back to the last checkpoint and leave out the batches since then and
    # `skip_steps` more, as in arXiv:2204.02311, section 5.1. Then, or with 0 at once, stop.
    rewinds: int = option(0, at_least=0)
    skip_steps: int = option(100, at_least=1)
    # Before stopping, run from the last checkpoint to that step again and name the first tensor
    # that is not finite.
    report: bool = option(True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Section):
    """One run."""

    seed: int = option(0, at_least=0, below=2**32)
    # What the run learns, see `vit_jax.tasks`.
    task: Literal["classification", "masked_patches", "distillation"] = option("classification")
    distillation: DistillationConfig = section(DistillationConfig)
    masked_patches: MaskedPatchesConfig = section(MaskedPatchesConfig)
    model: ModelConfig = section()
    data: DataConfig = section()
    mixing: MixingConfig = section(MixingConfig)
    loss: LossConfig = section(LossConfig)
    optimizer: OptimizerConfig = section()
    train_steps: int | None = option(None, at_least=1, below=2**31)
    train_epochs: float | None = option(None, above=0)
    train_examples: int | None = option(None, at_least=1)
    # Microbatches a step; their mean gradient equals that of the whole batch.
    accumulation_steps: int = option(1, at_least=1)
    # XLA options for the compiled step, e.g. {"xla_cpu_use_onednn": True}.
    compiler_options: dict[str, bool | int | str] = option({}, changes_result=False)
    # Exponential moving average of the parameters (Polyak); None: not kept.
    ema_decay: float | None = option(None, above=0, below=1)
    # Weights that training starts from: a run folder or checkpoint, a published npz, timm's or
    # Hugging Face's files; local, hf:// or gs://. `init` says how they are made to fit.
    init_from: str | None = option(None)
    init: InitConfig = section(InitConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    fewshot: FewshotConfig = section(FewshotConfig)
    early_stopping: EarlyStoppingConfig = section(EarlyStoppingConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig, changes_result=False)
    logging: LoggingConfig = section(LoggingConfig, changes_result=False)
    divergence: DivergenceConfig = section(DivergenceConfig, changes_result=False)
    mesh: MeshConfig = section(MeshConfig)

    def check(self) -> None:
        check_duration(self, "train", required=True)
        check_task(self)
        self._check_init()
        self._check_metric("checkpoint.best_metric", self.checkpoint.best_metric, _SHARES)
        self._check_metric("early_stopping.metric", self.early_stopping.metric, (*_SHARES, "loss"))
        self._check_early_stopping()
        if self.data.global_batch_size % self.accumulation_steps:
            raise ConfigError(
                f"'accumulation_steps' is {self.accumulation_steps}",
                f"a divisor of data.global_batch_size = {self.data.global_batch_size}",
                "change one of the two",
            )

    def _check_early_stopping(self) -> None:
        metric = self.early_stopping.metric
        if metric is None:
            return
        if not self.evaluation.has_interval:
            raise ConfigError(
                "'early_stopping.metric' given and evaluations only at the end",
                "an interval between evaluations", "set evaluation.interval_steps",
            )  # fmt: skip
        trained, scored = self.data.train_split, self.evaluation.splits[metric.split("/")[1]]
        if not self.data.mixture and shares(trained, scored):
            raise ConfigError(
                f"'early_stopping.metric' is {metric!r}, of {scored!r}, and {trained!r} is"
                " trained on",
                "held-out examples", "train on the rest, e.g. data.train_split=train[:98%]",
            )  # fmt: skip

    def _check_metric(self, key: str, metric: str | None, of: tuple[str, ...]) -> None:
        """Raises ConfigError unless a metric is one of those of the splits at an interval."""
        by_class = ("accuracy_per_class_mean",) if self.evaluation.by_class else ()
        known = {f"eval/{split}/{m}" for split in self.evaluation.splits for m in (*of, *by_class)}
        if metric is not None and metric not in known:
            raise ConfigError(
                f"'{key}' is {metric!r}",
                "one of " + (", ".join(sorted(known)) or "the metrics of evaluation.splits"),
                "evaluate that split or name another metric",
            )

    def _check_init(self) -> None:
        if self.init_from is not None:
            return
        if self.model.name == AUTO:
            raise ConfigError(
                "'model.name' is 'auto' and there is no 'init_from'",
                "weights that say which model it is",
                "add --config.init_from=PATH, or name the model",
            )
        if self.init != InitConfig():
            raise ConfigError(
                "'init' given without 'init_from'", "weights to start from",
                "add --config.init_from=PATH",
            )  # fmt: skip
