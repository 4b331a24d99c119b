"""One session of a run: what its parts share, from opening its folder to closing its files."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.run import Config
from vit_jax.data.sources import Source
from vit_jax.parallel.mesh import host_rows
from vit_jax.parallel.processes import StopAgreement
from vit_jax.run.checkpoints import CheckpointFolder
from vit_jax.run.folder import RunFolder
from vit_jax.run.metrics import ExampleLog, MetricsWriter
from vit_jax.run.time_account import FILE as SESSIONS
from vit_jax.run.time_account import TimeAccount
from vit_jax.storage.log_file import log_exists
from vit_jax.storage.private import without_private
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.inputs import Evaluators, RunInputs
from vit_jax.train.kernel_check import FILE as ATTENTION
from vit_jax.train.program import Program
from vit_jax.train.progress import ProgressView
from vit_jax.train.signals import StopSignals
from vit_jax.train.start import Start, restore_or_init


@dataclasses.dataclass(frozen=True)
class Session:
    """One session of a run: its program, data, folder and outputs."""

    config: Config
    program: Program
    frozen: tuple[Any, ...]  # last arguments of the training and evaluation steps
    source: Source
    start: Start
    folder: Path
    checkpoints: CheckpointFolder
    metrics: MetricsWriter
    examples: ExampleLog
    progress: ProgressView
    early_stopping: EarlyStopping
    evaluators: Evaluators
    stop_requested: Callable[[], bool]  # all processes must call it at the same points
    on_exit: Callable[[Callable[[], None]], Any]  # registers what to call, also after an error
    begin_s: float  # start of the run, shifted by the breaks between its sessions
    account: TimeAccount

    def is_last(self, step: int) -> bool:
        return step == self.program.total_steps or self.early_stopping.should_stop

    def wait_for_save(self) -> None:
        """Waits until the latest checkpoint is complete."""
        with self.account.part("saving"):
            self.checkpoints.wait()

    def result(self, step: int, metrics: dict[str, Any]) -> dict[str, Any]:
        """Returns the content of result.json after the last step."""
        examples_seen = step * self.config.data.global_batch_size
        width = self.program.feature_width
        return {
            "step": step,
            "parameters": self.program.num_parameters(),
            **({"feature_width": width} if width is not None else {}),
            "train_examples": len(self.source),
            "examples_seen": examples_seen,
            "train_exaflops": examples_seen * self.program.flops_per_image / 1e18,
            "wall_time_s": time.perf_counter() - self.begin_s,
            **metrics,
        }


@contextlib.contextmanager
def open_session(
    inputs: RunInputs,
    folder: RunFolder,
    stop: StopSignals,
    account: TimeAccount,
    *,
    verbose: bool,
) -> Iterator[Session]:
    """Restores or initialises a run, and opens its outputs.

    `account` is opened in the run folder and told where the run continues.
    """
    config, program, training = inputs.config, inputs.program, inputs.training
    with contextlib.ExitStack() as stack:
        checkpoints = CheckpointFolder(folder.path / "checkpoints", config.checkpoint)
        stack.enter_context(checkpoints)
        if log_exists(folder.path / SESSIONS) and folder.is_writer:
            account.open(folder.path)
        begin = time.perf_counter()
        start = restore_or_init(program, checkpoints, training.source)
        if start.step:
            account.move(time.perf_counter() - begin, "restore")
        folder.write_config(start.step)
        if inputs.attention is not None:
            folder.write_json(ATTENTION, inputs.attention)
        if folder.is_writer:
            account.open(folder.path)
        account.total_steps = program.total_steps
        account.resume(start.step, start.seconds)
        folder.write_json("classes.json", {"names": training.source.class_names})
        evaluators = inputs.evaluators
        evaluated = evaluators.splits.fingerprints | evaluators.final_splits.fingerprints
        of_data = {"fingerprint": training.source.fingerprint, "evaluated": evaluated}
        folder.write_json("data.json", of_data)
        if start.report is not None:
            folder.write_json("init.json", without_private(start.report.to_mapping()))
            if folder.is_writer and verbose:
                start.report.print()
        if training.manifest is not None:
            folder.write_json("subset.json", training.manifest)
        metrics = MetricsWriter(
            folder.path,
            config.logging,
            start_step=start.step,
            run_config=config.to_mapping(),
            enabled=folder.is_writer,
        )
        examples = ExampleLog(
            folder.path,
            jax.process_index(),
            host_rows(program.mesh, config.data.global_batch_size),
            start_step=start.step,
            kind=config.logging.example_ids,
        )
        progress = ProgressView(
            program.total_steps, start.step, enabled=folder.is_writer and verbose
        )
        yield Session(
            config=config,
            program=program,
            frozen=program.load_frozen(),
            source=training.source,
            start=start,
            folder=folder.path,
            checkpoints=checkpoints,
            metrics=stack.enter_context(metrics),
            examples=stack.enter_context(examples),
            progress=stack.enter_context(progress),
            early_stopping=EarlyStopping(config.early_stopping, start.early_stopping),
            evaluators=evaluators,
            stop_requested=StopAgreement(lambda: stop.requested).reached,
            on_exit=stack.callback,
            begin_s=time.perf_counter() - start.elapsed_s,
            account=account,
        )
