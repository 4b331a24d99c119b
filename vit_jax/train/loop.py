"""The training loop."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vit_jax.config.run import Config
from vit_jax.data.suspicious import training_warnings
from vit_jax.parallel.processes import barrier, on_first_host
from vit_jax.rng import fixed_jax_settings
from vit_jax.run.folder import RunFolder
from vit_jax.run.time_account import TimeAccount
from vit_jax.train.evaluations import Evaluations
from vit_jax.train.feed import TrainingFeed
from vit_jax.train.hooks import Hooks
from vit_jax.train.inputs import RunInputs, open_inputs
from vit_jax.train.profile import Profile
from vit_jax.train.program import Program
from vit_jax.train.saves import Saves
from vit_jax.train.session import Session, open_session
from vit_jax.train.signals import Stopped, StopSignals
from vit_jax.train.state import TrainState
from vit_jax.train.step_log import StepLog

log = logging.getLogger(__name__)

# A warning is logged if initial parameters are more than this share of the final average.
_LARGEST_INITIAL_SHARE = 0.05


@fixed_jax_settings()
def train(
    config: Config,
    workdir: Path,
    stop: StopSignals,
    program: Program | None = None,
    began_s: float | None = None,
    verbose: bool = True,
    new_code: bool = False,
) -> dict[str, Any]:
    """Trains to the end of a run, resuming it if it was interrupted; returns result.json's content.

    Args:
        config: the run.
        workdir: run folder. A run that was started there with the same config is resumed.
        stop: asks the run to stop.
        program: program of this config, if it is already built.
        began_s: start of this session in unix seconds, for the account of its time; None: now.
        verbose: whether to print the progress.
        new_code: whether to resume with other code or packages than those of the session before.

    Raises:
        DivergenceError: loss, gradient or update are not finite.
        Stopped: the run was asked to stop; its state is saved.
    """
    account = TimeAccount(began_s)
    inputs = open_inputs(config, workdir, program)
    with RunFolder(workdir, inputs.config, new_code=new_code) as folder:
        result = on_first_host("look for a result", lambda: folder.result)
        if result is not None:
            log.info("run in %s is already finished; nothing to do", folder.path)
            return result
        if folder.is_writer:
            _warn_of_data(inputs)
            _warn_of_average(inputs.config, inputs.program.total_steps)
        with (
            _closing(account),
            open_session(inputs, folder, stop, account, verbose=verbose) as session,
        ):
            result = _train(session)
            for splits in (inputs.evaluators.splits, inputs.evaluators.final_splits):
                splits.write_mistakes()
        result["seconds"] = account.seconds()
        folder.write_json("result.json", result)
    return result


def _warn_of_data(inputs: RunInputs) -> None:
    """Logs what is suspicious about the training and evaluation data."""
    config, evaluators = inputs.config, inputs.evaluators
    evaluated = evaluators.splits.sources | evaluators.final_splits.sources
    uses_labels = config.task.uses_labels
    for warning in training_warnings(inputs.training.source, evaluated, uses_labels=uses_labels):
        log.warning("data: %s", warning)


def _warn_of_average(config: Config, total_steps: int) -> None:
    """Logs a warning if much of the final average is the initial parameters."""
    if config.ema_decay is None:
        return
    initial = config.ema_decay**total_steps
    if initial > _LARGEST_INITIAL_SHARE:
        log.warning(
            "ema_decay %g averages over %s steps, and the run has %s: the final average is %.0f %%"
            " initial parameters; use a smaller ema_decay",
            config.ema_decay,
            f"{1 / (1 - config.ema_decay):,.0f}",
            f"{total_steps:,}",
            100 * initial,
        )


@contextlib.contextmanager
def _closing(account: TimeAccount) -> Iterator[None]:
    """Closes the account, and notes in it how the session has ended."""
    try:
        yield
    except Stopped:
        account.close("stopped")
        raise
    except BaseException as error:
        account.close("failed", error)
        raise
    account.close("finished")


def _train(session: Session) -> dict[str, Any]:
    """Trains from `session.start` to the end; returns the content of result.json."""
    step_log, evaluations, saves = StepLog(session), Evaluations(session), Saves(session)
    session.progress.upcoming |= {"evaluation": evaluations.next_step, "save": saves.next_step}
    step, state = session.start.step, session.start.state
    evaluations.finish_saved_step()
    if not session.is_last(step):
        step, state = _run_steps(session, step_log, evaluations, saves)
    with session.account.part("evaluation"):
        return session.result(step, step_log.figures() | evaluations.final_metrics(step, state))


def _run_steps(
    session: Session, step_log: StepLog, evaluations: Evaluations, saves: Saves
) -> tuple[int, TrainState]:
    """Runs the remaining training steps; returns the last step and the state after it."""
    step, state = session.start.step, session.start.state
    profile, hooks = Profile(session, step_log.paused), Hooks(session.config.hooks)
    with session.account.part("compile"):
        step_log.compile_steps()
        # Gloo fails if processes reach the first collective more than 30 s apart.
        barrier("compile the training step")
    with session.account.part("steps"), TrainingFeed(session) as feed:
        step_log.restart_clock()
        while not session.is_last(step):
            step += 1
            # A run with several patch sizes has a program for each; the feed draws one of them.
            with step_log.waiting():
                program, batch = next(feed)
            state, metrics = program.compiled(state, batch, *session.frozen)
            step_log.add(step, metrics, feed.skipped)
            # Each `paused` raises if a metric so far is not finite: no such state leaves the loop.
            if hooks.are_due(step):
                with step_log.paused():
                    hooks.run(step, state, metrics)

            # Evaluated before it is saved, because a new best score makes a save due.
            if evaluations.is_due(step) and not session.stop_requested():
                with step_log.paused():
                    evaluations.run_due(step, state.eval_params)
            stopping = session.stop_requested()  # Also one that came during the evaluation.
            session.checkpoints.raise_failed_save()
            if stopping or saves.is_due(step):
                with step_log.paused():
                    saves.save(step, state, step_log.to_json())
            # A stop at the last step is ignored if it is evaluated, too: the run is complete.
            if stopping and not (session.is_last(step) and evaluations.is_complete(step)):
                session.wait_for_save()
                raise Stopped(step)
            profile.after_step(step)
    return step, state
