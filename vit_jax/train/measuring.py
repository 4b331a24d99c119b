"""What a run measures of its weights: splits and frozen features, at intervals and at the end."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax.config.durations import duration_in_steps, is_due
from vit_jax.config.run import Config
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.parallel.processes import on_first_host
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.metrics import MetricsWriter
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.fewshot import FewshotWatch
from vit_jax.train.program import Program
from vit_jax.train.progress import ProgressView
from vit_jax.train.start import Start
from vit_jax.train.state import TrainState


@dataclasses.dataclass(frozen=True)
class Evaluators:
    """The data that a run is measured on, opened before training starts.

    Attributes:
        every: steps between evaluations; None: only at the end.
        splits: those evaluated at an interval and at the end.
        final_splits: those evaluated only at the end.
        fewshot: frozen features.
    """

    every: int | None
    splits: SplitEvaluator
    final_splits: SplitEvaluator
    fewshot: FewshotWatch


def open_evaluators(
    config: Config, mesh: Mesh, *, num_classes: int, num_examples: int, report: Path
) -> Evaluators:
    """Opens everything that a config asks to evaluate.

    Args:
        config: the run.
        mesh: devices.
        num_classes: C.
        num_examples: examples an epoch.
        report: folder for confusion matrices.

    Raises:
        DataError: a split or dataset that is not there.
        ConfigError: a batch that does not divide over the devices.
    """
    at_interval, at_end = (
        SplitEvaluator(config, splits, mesh, num_classes=num_classes, report=report)
        for splits in (config.evaluation.splits, config.evaluation.final_splits)
    )
    every = duration_in_steps(
        config.evaluation, "interval",
        batch_size=config.data.global_batch_size, num_examples=num_examples,
    )  # fmt: skip
    fewshot = FewshotWatch(config, mesh, num_examples=num_examples)
    return Evaluators(every, at_interval, at_end, fewshot)


class Measuring:
    """Evaluates, writes the figures, and knows which weights are the best.

    Every figure is found once: what an earlier session wrote is read.

    Args:
        evaluators: what to evaluate on.
        program: of the run.
        checkpoints: of the run.
        writer: where figures go.
        view: where they are shown.
        stop: asked before each batch; when it says so, an evaluation ends and leaves no figures.
        start: where this session starts.

    Attributes:
        early: which evaluation was the best.
        evaluated: step and figures of the latest evaluation of the splits at an interval.
    """

    def __init__(
        self,
        evaluators: Evaluators,
        program: Program,
        checkpoints: CheckpointFolder,
        writer: MetricsWriter,
        view: ProgressView,
        stop: Callable[[], bool],
        start: Start,
    ):
        self._splits, self._final = evaluators.splits, evaluators.final_splits
        self._fewshot, self._program, self._checkpoints = evaluators.fewshot, program, checkpoints
        self._writer, self._view, self._stop = writer, view, stop
        self.early = EarlyStopping(program.config.early_stopping, start.early_stopping)
        self.evaluated: tuple[int, dict[str, float]] = (-1, {})
        self._every = evaluators.every

    def is_last(self, step: int) -> bool:
        """Whether no step comes after this one."""
        return step == self._program.total_steps or self.early.is_over

    def due(self, step: int) -> bool:
        """Whether there is something to measure after a step."""
        return self._evaluates(step) or self._fewshot.due(step)

    def is_measured(self, step: int) -> bool:
        """Whether all that is due after a step has been found."""
        evaluated = not self._evaluates(step) or self.evaluated[0] == step
        return evaluated and (not self._fewshot.due(step) or self._fewshot.step == step)

    def pick_up(self, step: int, params: Any) -> None:
        """Notes what the earlier session found at the step it saved, and finds what it did not."""
        self._read(step)
        self._read_fewshot(step)
        self.at_interval(step, params)

    def at_interval(self, step: int, params: Any) -> None:
        """Measures what is due after a step."""
        if self._evaluates(step):
            self.evaluate(step, params)
            if self.evaluated[0] == step:
                self.early.note(step, self.evaluated[1])
        if self._fewshot.due(step) and not self._stop():
            self._evaluate_fewshot(step, params)

    def evaluate(self, step: int, params: Any) -> None:
        """Evaluates the splits at an interval, if these weights have not been yet."""
        if self.evaluated[0] != step:
            figures = self._new_figures(self._splits, step, params)
            if figures is not None:
                self.evaluated = (step, figures)

    def of_result(self, step: int, state: TrainState) -> dict[str, Any] | None:
        """Returns the figures of the weights that are the run's result; None where stopped.

        Args:
            step: the last one.
            state: after it; it is saved already.
        """
        at, params = self._result(step, state)
        # Confusion matrices on disk are those of the latest evaluation: they are made again.
        if at == step or not self._program.config.evaluation.by_class:
            self._read(at)
        self.evaluate(at, params)
        names = tuple(f"eval/{name}/" for name in self._final.splits)
        final: dict[str, float] | None = self._written(at, names)
        if not final and self.evaluated[0] == at:
            final = self._new_figures(self._final, at, params)
        if final is None or self.evaluated[0] != at:
            return None
        self._read_fewshot(at)
        self._evaluate_fewshot(at, params)
        if self._fewshot.step != at:
            return None
        said = {"best_step": at} if self.early.is_on else {}
        return said | self.evaluated[1] | final | self._fewshot.figures

    def _evaluates(self, step: int) -> bool:
        return is_due(step, self._every) or step == self._program.total_steps

    def _result(self, step: int, state: TrainState) -> tuple[int, Any]:
        """Returns the step whose weights are the result, and these."""
        best = self.early.best_step
        if best is None or best == step:
            return step, state.eval_params
        self._view.say(f"taking the weights of step {best}, the best of the evaluations")
        self._checkpoints.wait()
        item, tree = ("params", state.params) if state.ema is None else ("ema", state.ema)
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree
        )
        return best, self._checkpoints.restore({item: shapes}, best).arrays[item]

    def _read(self, step: int) -> None:
        """Takes what has been written of the splits at a step."""
        if self.evaluated[0] != step:
            figures = self._written(step, tuple(f"eval/{name}/" for name in self._splits.splits))
            self.evaluated = (step, figures) if figures else self.evaluated

    def _read_fewshot(self, step: int) -> None:
        """Does the same of frozen features."""
        if self._fewshot.step != step:
            self._fewshot.pick_up(step, self._writer)

    def _written(self, step: int, prefixes: tuple[str, ...]) -> dict[str, float]:
        return on_first_host("evaluation", lambda: self._writer.evaluation_at(step, prefixes))

    def _new_figures(
        self, evaluator: SplitEvaluator, step: int, params: Any
    ) -> dict[str, float] | None:
        figures = evaluator(self._program.eval_step, params, self._stop)
        if figures:
            self._writer.write(step, figures)
            self._view.evaluated(step, figures)
        return figures

    def _evaluate_fewshot(self, step: int, params: Any) -> None:
        if self._fewshot.run(step, params, self._stop):
            self._writer.write(step, self._fewshot.figures)
            self._view.evaluated(step, self._fewshot.figures)
