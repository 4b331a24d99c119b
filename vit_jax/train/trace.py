"""Records a profiler trace of some steps, which xprof, TensorBoard and Perfetto open.

A trace is recorded into a folder of this machine and then copied to the run folder, which may be a
bucket:

    FOLDER/plugins/profile/NAME/process-0.xplane.pb             xprof and TensorBoard
    FOLDER/plugins/profile/NAME/process-0.perfetto.json.gz      Perfetto, ui.perfetto.dev
    FOLDER/plugins/profile/NAME/process-0.trace.json.gz         Chrome, chrome://tracing
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

import jax


class Trace:
    """A trace of this process, e.g. "steps-100-110", from `__init__` to `finish` or `cancel`."""

    def __init__(self, name: str):
        self.name = name
        self._local = Path(tempfile.mkdtemp(prefix="vit_jax-trace-"))
        self._step = contextlib.ExitStack()
        options = jax.profiler.ProfileOptions()
        options.session_id = name
        # Python's own calls would fill the trace, whose size is limited.
        options.python_tracer_level = 0
        try:
            jax.profiler.start_trace(
                self._local, create_perfetto_trace=True, profiler_options=options
            )
        except BaseException:
            shutil.rmtree(self._local, ignore_errors=True)
            raise

    def begin_step(self, step: int) -> None:
        """Ends the step before and begins another one. Call it between steps."""
        self._step.close()
        self._step.enter_context(jax.profiler.StepTraceAnnotation("train", step_num=step))

    def finish(self, folder: Path) -> None:
        """Ends the trace, when all steps are computed, and copies it to a folder."""
        process = f"process-{jax.process_index()}"
        target = folder / "plugins" / "profile" / self.name
        try:
            self._stop()
            source = self._local / "plugins" / "profile" / self.name
            (xplane,) = source.glob("*.xplane.pb")
            target.mkdir(parents=True, exist_ok=True)
            for path in source.iterdir():
                kind = path.name.removeprefix(xplane.name.removesuffix("xplane.pb"))
                kind = kind.replace("perfetto_trace", "perfetto")
                (target / f"{process}.{kind}").write_bytes(path.read_bytes())
        finally:
            shutil.rmtree(self._local, ignore_errors=True)

    def cancel(self) -> None:
        self._stop()
        shutil.rmtree(self._local, ignore_errors=True)

    def _stop(self) -> None:
        self._step.close()
        jax.profiler.stop_trace()
