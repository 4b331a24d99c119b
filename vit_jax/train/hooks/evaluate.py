"""Evaluates splits and frozen features at intervals and at the end."""

from typing import Any

import jax

from vit_jax.config.durations import duration_in_steps, is_due
from vit_jax.config.run import Config
from vit_jax.data.sources import Source
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.parallel.processes import on_first_host
from vit_jax.run.about import evaluated_item
from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.fewshot import FewshotEvaluator
from vit_jax.train.hooks.log import LogHook
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState


class Evaluators:
    """The datasets that a run is evaluated on, opened before training to raise errors early.

    Args:
        config: the run.
        program: program of the run.
        source: training examples.
        report: folder for tables.

    Attributes:
        every: steps between evaluations; None: only at the end.
        splits: evaluated at intervals and at the end.
        final_splits: evaluated only at the end.
        fewshot: evaluates frozen features.

    Raises:
        DataError: a split or dataset that does not exist.
        ConfigError: a batch size that the number of devices does not divide.
    """

    def __init__(self, config: Config, program: Program, source: Source, report: Any):
        self.splits, self.final_splits = (
            SplitEvaluator(
                config,
                splits,
                program.mesh,
                preprocessing=program.task.eval_preprocessing,
                make_totals=program.task.make_totals,
                report=report,
            )
            for splits in (config.evaluation.splits, config.evaluation.final_splits)
        )
        self.every = duration_in_steps(
            config.evaluation,
            "interval",
            batch_size=config.data.global_batch_size,
            num_examples=len(source),
        )
        self.fewshot = FewshotEvaluator(config, program.mesh, num_examples=len(source))


class EvaluateHook:
    """Evaluates and writes metrics. Those that an earlier session wrote are read instead.

    Args:
        context: the run.
        log: the log hook of the run.
        evaluators: datasets to evaluate on.
    """

    def __init__(self, context: RunContext, log: LogHook, evaluators: Evaluators):
        self._context, self._log = context, log
        self._every, self._fewshot = evaluators.every, evaluators.fewshot
        self._splits, self._final = evaluators.splits, evaluators.final_splits
        # Step and metrics of the latest evaluation of the splits.
        self._evaluated: tuple[int, dict[str, float]] = (-1, {})

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        """Runs the evaluations that are due, unless the run is about to stop."""
        if self._is_due(output.step) and not context.stop_requested():
            with self._log.paused():
                self._evaluate_due(output.step, output.state.eval_params)

    def resume(self) -> None:
        """Reads what an earlier session evaluated at the saved step, and evaluates the rest."""
        step = self._context.start.step
        with self._log.paused():
            self._read_splits(step)
            self._read_fewshot(step)
            self._evaluate_due(step, self._context.start.state.eval_params)

    def metrics_at(self, step: int) -> dict[str, float] | None:
        """Returns the metrics of the splits at a step; None if it is not the latest evaluation."""
        return self._evaluated[1] if self._evaluated[0] == step else None

    def is_complete(self, step: int) -> bool:
        """Whether all evaluations that are due after a step are done."""
        splits = not self._splits_due(step) or self._evaluated[0] == step
        return splits and (not self._fewshot.is_due(step) or self._fewshot.step == step)

    def evaluate_splits(self, step: int, params: Any) -> None:
        """Evaluates the splits, unless this was done at this step."""
        if self._evaluated[0] != step:
            metrics = self._evaluate(self._splits, step, params)
            if metrics is not None:
                self._evaluated = (step, metrics)

    def final_metrics(self, step: int, state: TrainState) -> dict[str, Any] | None:
        """Returns the final metrics of the run; None if the run was stopped meanwhile.

        With early stopping, the best step is evaluated, otherwise the last.

        Args:
            step: the last step.
            state: state after the last step, already saved.
        """
        best, params = self._result_params(step, state)
        # The tables on disk are of the latest evaluation, so they may have to be written again.
        if best == step or not self._context.config.evaluation.by_class:
            self._read_splits(best)
        self.evaluate_splits(best, params)
        final: dict[str, float] | None = self._written(best, self._final)
        if not final and self._evaluated[0] == best:
            final = self._evaluate(self._final, best, params)
        if final is None or self._evaluated[0] != best:
            return None
        self._read_fewshot(best)
        self._evaluate_fewshot(best, params)
        if self._fewshot.step != best:
            return None
        best_step = {"best_step": best} if self._context.early_stopping.enabled else {}
        return best_step | self._evaluated[1] | final | self._fewshot.metrics

    def _is_due(self, step: int) -> bool:
        return self._splits_due(step) or self._fewshot.is_due(step)

    def _splits_due(self, step: int) -> bool:
        return is_due(step, self._every) or step == self._context.program.total_steps

    def _evaluate_due(self, step: int, params: Any) -> None:
        if self._splits_due(step):
            self.evaluate_splits(step, params)
            if self._evaluated[0] == step:
                self._context.early_stopping.update(step, self._evaluated[1])
        if self._fewshot.is_due(step) and not self._context.stop_requested():
            self._evaluate_fewshot(step, params)

    def _result_params(self, step: int, state: TrainState) -> tuple[int, Any]:
        """Returns the step whose weights are the final ones, and these weights."""
        best = self._context.early_stopping.best_step
        if best is None or best == step:
            return step, state.eval_params
        self._context.progress.print_line(f"restoring step {best}, the best evaluation")
        self._context.checkpoints.wait()
        item = evaluated_item(self._context.config.to_mapping())
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding),
            state.eval_params,
        )
        return best, self._context.checkpoints.restore({item: shapes}, best).arrays[item]

    def _read_splits(self, step: int) -> None:
        """Reads the metrics of the splits at a step, if an earlier session wrote them."""
        if self._evaluated[0] != step:
            metrics = self._written(step, self._splits)
            self._evaluated = (step, metrics) if metrics else self._evaluated

    def _read_fewshot(self, step: int) -> None:
        if self._fewshot.step != step:
            self._fewshot.read(step, self._context.metrics)

    def _written(self, step: int, evaluator: SplitEvaluator) -> dict[str, float]:
        prefixes = tuple(f"eval/{name}/" for name in evaluator.splits)
        metrics = self._context.metrics
        return on_first_host("read the evaluation", lambda: metrics.evaluation_at(step, prefixes))

    def _evaluate(
        self, evaluator: SplitEvaluator, step: int, params: Any
    ) -> dict[str, float] | None:
        context = self._context
        metrics = evaluator(
            context.program.eval_step, params, frozen=context.frozen, stop=context.stop_requested
        )
        if metrics:
            self._write(step, metrics)
        return metrics

    def _evaluate_fewshot(self, step: int, params: Any) -> None:
        if self._fewshot.run(step, params, self._context.stop_requested):
            self._write(step, self._fewshot.metrics)

    def _write(self, step: int, metrics: dict[str, float]) -> None:
        self._context.metrics.write(step, metrics)
        self._context.progress.show_evaluation(step, metrics)
