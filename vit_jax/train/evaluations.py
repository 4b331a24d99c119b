"""Evaluates splits and frozen features at intervals and at the end."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from vit_jax.config.durations import is_due, next_due
from vit_jax.errors import first_few
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.parallel.processes import is_first_host, on_first_host
from vit_jax.run.about import evaluated_item
from vit_jax.run.damage import weights_digest
from vit_jax.tasks.task import Evaluator
from vit_jax.train.session import Session
from vit_jax.train.signals import Stopped
from vit_jax.train.state import TrainState

log = logging.getLogger(__name__)

_FEATURE_PREFIXES = ("fewshot/", "knn/", "linear_probe/")


class Evaluations:
    """The evaluations of a run: of its splits, and of frozen features.

    Metrics that an earlier session wrote are read instead.
    """

    def __init__(self, session: Session):
        self._session = session
        evaluators = session.evaluators
        self._splits = self._of_splits(evaluators.splits, evaluators.of_task)
        self._final_splits = self._of_splits(evaluators.final_splits)
        self._features = _Evaluation(
            session,
            lambda params: evaluators.features(params, session.stop_requested),
            _FEATURE_PREFIXES,
        )

    def is_due(self, step: int) -> bool:
        """Whether something is evaluated after a step."""
        return self._splits_due(step) or self._features_due(step)

    def run_due(self, step: int, params: Any) -> None:
        """Runs the evaluations that are due after a step, until the run is asked to stop."""
        if self._splits_due(step):
            self._splits.run(step, params)
            if self._splits.step == step:
                self._session.early_stopping.update(step, self._splits.metrics)
        if self._features_due(step) and not self._session.stop_requested():
            self._features.run(step, params)

    def finish_saved_step(self) -> None:
        """In a resumed run, reads what was evaluated at the saved step, and evaluates the rest.

        Raises Stopped if the run was asked to stop: the interrupted evaluation belongs to this
        step, so it must finish before the next step.
        """
        start, session = self._session.start, self._session
        if start.step == 0:
            return
        now = session.evaluators.splits.fingerprints
        changed = [
            name for name, before in start.evaluated.items() if now.get(name, before) != before
        ]
        if changed and is_first_host():
            log.warning(
                "the data of evaluation split %s have changed since step %d: scores before and"
                " after it are not of the same examples",
                *(first_few(list(map(repr, changed)), 3), start.step),
            )
        self._splits.read(start.step)
        self._features.read(start.step)
        self.run_due(start.step, start.state.eval_params)
        if session.stop_requested() and not session.is_last(start.step):
            raise Stopped(start.step)

    def is_complete(self, step: int) -> bool:
        """Whether all evaluations that are due after a step are done."""
        splits = not self._splits_due(step) or self._splits.step == step
        return splits and (not self._features_due(step) or self._features.step == step)

    def next_step(self, step: int) -> int | None:
        """Returns the next step after which something is evaluated; None: nothing ever is."""
        evaluators, total = self._session.evaluators, self._session.program.total_steps
        due = [next_due(step, n) for n in (evaluators.splits_every, evaluators.features_every)]
        if evaluators.splits.splits or evaluators.of_task:
            due.append(total)
        return min((n for n in due if n is not None and n <= total), default=None)

    def final_metrics(self, step: int, state: TrainState) -> dict[str, Any]:
        """Returns the final metrics of the run, and waits until its last checkpoint is complete.

        With early stopping, the best step is evaluated, otherwise the last. The state after the
        last step is already saved or being saved. Raises Stopped if the run was asked to stop.
        """
        session, metrics = self._session, dict[str, Any]()
        best, params = self._result_params(step, state)
        if session.early_stopping.enabled:
            metrics["best_step"] = best
        for evaluation in (self._splits, self._final_splits, self._features):
            evaluation.read(best)
            # The files of the splits in report/ are of the latest evaluation, so those of an
            # earlier step have to be written again.
            evaluation.run(best, params, again=evaluation is self._splits and best != step)
            if evaluation.step != best:
                session.wait_for_save()
                raise Stopped(step)
            metrics |= evaluation.metrics
        session.wait_for_save()
        digest = on_first_host("read the digest of the weights", lambda: self._weights_digest(best))
        return metrics | {"weights_digest": digest}

    def _weights_digest(self, step: int) -> str:
        item = evaluated_item(self._session.config.to_mapping())
        return weights_digest(self._session.checkpoints.folder / str(step), item)

    def _of_splits(
        self, evaluator: SplitEvaluator, of_task: Evaluator | None = None
    ) -> "_Evaluation":
        session = self._session

        def evaluate(params: Any) -> dict[str, float] | None:
            found = evaluator(
                session.program.eval_step,
                params,
                frozen=session.frozen,
                stop=session.stop_requested,
            )
            if found is None or of_task is None:
                return found
            more = of_task(params, session.stop_requested)
            return None if more is None else found | more

        prefixes = [f"eval/{name}/" for name in evaluator.names]
        return _Evaluation(session, evaluate, prefixes + (of_task.prefixes if of_task else []))

    def _splits_due(self, step: int) -> bool:
        every = self._session.evaluators.splits_every
        return is_due(step, every) or step == self._session.program.total_steps

    def _features_due(self, step: int) -> bool:
        return is_due(step, self._session.evaluators.features_every)

    def _result_params(self, step: int, state: TrainState) -> tuple[int, Any]:
        """Returns the step whose weights are the final ones, and these weights."""
        session, best = self._session, self._session.early_stopping.best_step
        if best is None or best == step:
            return step, state.eval_params
        session.progress.print_line(f"restoring step {best}, the best evaluation")
        session.wait_for_save()
        item = evaluated_item(session.config.to_mapping())
        shapes = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state.eval_params
        )
        return best, session.checkpoints.restore({item: shapes}, best).arrays[item]


class _Evaluation:
    """One kind of evaluation and its latest metrics.

    `evaluate` returns None if the run was asked to stop meanwhile. `prefixes` start the names of
    its metrics. `step` is -1 before the first evaluation.
    """

    def __init__(
        self,
        session: Session,
        evaluate: Callable[[Any], dict[str, float] | None],
        prefixes: Sequence[str],
    ):
        self._session, self._evaluate, self._prefixes = session, evaluate, tuple(prefixes)
        self.step, self.metrics = -1, dict[str, float]()

    def read(self, step: int) -> None:
        """Reads the metrics of a step from metrics.jsonl, if an earlier session wrote them."""
        if self.step == step:
            return
        writer = self._session.metrics
        found = on_first_host(
            "read the evaluation", lambda: writer.evaluation_at(step, self._prefixes)
        )
        if found:
            self.step, self.metrics = step, found

    def run(self, step: int, params: Any, *, again: bool = False) -> None:
        """Evaluates and writes the metrics, unless this was done at this step or the run stops.

        With `again` it evaluates in any case.
        """
        known = self.step == step
        if known and not again:
            return
        self.step = -1
        session = self._session
        with session.account.part("evaluation"), session.progress.stage("evaluating"):
            metrics = self._evaluate(params)
        if metrics is None:
            return
        self.step = step
        if known:
            return
        self.metrics = metrics
        if metrics:
            _warn_of_non_finite(step, metrics)
            self._session.metrics.write(step, metrics)
            self._session.progress.show_evaluation(step, metrics)


def _warn_of_non_finite(step: int, metrics: Mapping[str, float]) -> None:
    """Logs the metrics that are NaN or infinite. metrics.jsonl has null for them."""
    bad = [f"{name} = {value}" for name, value in metrics.items() if not math.isfinite(value)]
    if bad and is_first_host():
        log.warning("evaluation at step %d is not finite: %s", step, first_few(bad, 3))
