"""Training runs of several processes on this machine's loopback, and the files they leave."""

import json
import os
import socket
import time

from processes import ROOT, start_command

RECORDED = ROOT / "tests" / "multihost" / "recorded.py"
FLAGS = os.environ["XLA_FLAGS"]
# Of a whole run, from start to end, on the slowest machines.
TIMEOUT_S = 600


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


class Run:
    """Several processes of one run.

    Args:
        folder: it gets what the processes print and record.
        config: a recipe.
        digits_dir: folder of the digits dataset.
        overrides: arguments for all processes.
        count: number of processes.
        devices: number of CPU devices of each process.
        own: process -> arguments for this process only.
        expected: number of processes to announce; None: `count`.
        extra: environment variables, see `recorded.py`.
        workdir: the run folder; None: the subfolder `run`.
    """

    def __init__(
        self,
        folder,
        config,
        digits_dir,
        *overrides,
        count,
        devices=1,
        own=None,
        expected=None,
        extra=None,
        workdir=None,
    ):
        self.folder, self.workdir = folder, workdir or folder / "run"
        self.processes = []
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        environment = {
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"{FLAGS} --xla_force_host_platform_device_count={devices}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            **(extra or {}),
        }
        for process in range(count):
            command = [RECORDED, str(folder / f"rows{process}.jsonl"), "train"]
            command += [f"--config={config}", f"--workdir={self.workdir}"]
            command += [f"--config.data.data_dir={digits_dir}", *overrides]
            if (expected or count) > 1:
                command += [f"--coordinator=127.0.0.1:{port}", f"--process_id={process}"]
                command += [f"--num_processes={expected or count}"]
            command += (own or {}).get(process, [])
            out, err = (self.path(process, kind) for kind in ("out", "err"))
            with out.open("w") as out, err.open("w") as err:
                started = start_command(*command, env=environment, stdout=out, stderr=err)
            self.processes.append(started)

    def path(self, process, kind):
        return self.folder / f"{process}.{kind}"

    def printed(self, process, kind="err"):
        return self.path(process, kind).read_text()

    def codes(self):
        """Waits for all processes and returns their exit codes."""
        try:
            return [process.wait(timeout=TIMEOUT_S) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()

    def succeeds(self):
        """Waits for all processes, which must end without an error, and returns this run."""
        codes = self.codes()
        assert not any(codes), [self.printed(i) for i in range(len(codes))]
        return self

    def wait_for(self, condition):
        """Polls until the condition holds; fails when a process ends before."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            ended = [p for p in self.processes if p.poll() is not None]
            if ended or time.monotonic() > deadline:
                for process in self.processes:
                    process.kill()
                raise AssertionError([self.printed(i) for i in range(len(self.processes))])
            time.sleep(0.002)

    def rows(self):
        """Returns for every step the hash of each row of the global batch, over all processes."""
        steps = []
        for process in range(len(self.processes)):
            lines = (self.folder / f"rows{process}.jsonl").read_text().splitlines()
            for index, line in enumerate(lines):
                if index == len(steps):
                    steps.append([])
                steps[index] += json.loads(line)
        return steps

    def states(self, process):
        """Returns (what was done, step) -> digest of the state, as the process noted them."""
        lines = (self.folder / f"rows{process}.jsonl.states").read_text().splitlines()
        return {(what, step): digest for what, step, digest in map(json.loads, lines)}

    def saved(self):
        """Returns the steps of the complete checkpoints."""
        found = (self.workdir / "checkpoints").glob("*")
        return sorted(int(path.name) for path in found if path.name.isdigit())
