"""Stops a run on request, after saving it."""

from vit_jax.train.context import RunContext, StepOutput
from vit_jax.train.hooks.evaluate import EvaluateHook
from vit_jax.train.hooks.save import SaveHook
from vit_jax.train.signals import Stopped


class StopHook:
    """Saves and raises `Stopped` after the step at which the processes agree to stop.

    If the last step is evaluated, the run ends normally.
    """

    def __init__(self, evaluation: EvaluateHook, save: SaveHook):
        self._evaluation, self._save = evaluation, save

    def after_step(self, context: RunContext, output: StepOutput) -> None:
        if not context.stop_requested():
            return
        self._save.save(context, output)
        if not (context.is_last(output.step) and self._evaluation.is_complete(output.step)):
            with context.account.part("saving"):
                context.checkpoints.wait()
            raise Stopped(output.step)
