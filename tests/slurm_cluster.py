"""Starts and stops a SLURM cluster with emulated nodes on this machine, for a test.

Its daemons run as root, on loopback and free ports, and keep all their files in one folder. The
machine's own SLURM configuration is not changed.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "srun")
_PATH = os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin"
_TIMEOUT_S = 120

_CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdLogFile={folder}/slurmd.%n.log
SlurmdSpoolDir={folder}/spool.%n
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
KillWait=300
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Returns why a cluster cannot run here; None: it can."""
    missing = [name for name in NEEDED if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"SLURM is not installed: no {', '.join(missing)}"
    if os.geteuid() != 0:
        return "SLURM's daemons need root here"
    try:
        address = socket.gethostbyname(_host())
    except OSError:
        address = "nothing"
    if address != "127.0.0.1":
        return f"the host's name resolves to {address}, not to 127.0.0.1"
    return None


class SlurmCluster:
    """A controller with nodes 127.0.0.1, 127.0.0.2, ...; a context manager.

    Args:
        folder: an empty folder; its path must be short, because it holds a socket.
        nodes: number of nodes.
    """

    def __init__(self, folder, nodes):
        self.folder, self.nodes = Path(folder), nodes
        self.environment = {
            **os.environ,
            "PATH": _PATH,
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exception):
        self._stop()

    def call(self, *command, **more):
        """Runs a command of SLURM and returns what it prints."""
        done = subprocess.run(
            command,
            env=self.environment | more.pop("env", {}),
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
            **more,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout

    def job(self, number):
        """Returns what `scontrol show job` says, as a dict."""
        text = self.call("scontrol", "-o", "show", "job", str(number))
        return dict(part.split("=", 1) for part in text.split() if "=" in part)

    def _start(self):
        folder = self.folder
        folder.chmod(0o755)
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        with contextlib.ExitStack() as held:  # Open together, so that all ports differ.
            servers = [
                held.enter_context(socket.create_server(("127.0.0.1", 0)))
                for _ in range(self.nodes + 1)
            ]
            ports = [server.getsockname()[1] for server in servers]
        lines = _CONFIG.format(host=_host(), folder=folder, ports=ports)
        for number, port in enumerate(ports[1:], start=1):
            lines += (
                f"NodeName=127.0.0.{number} NodeHostname={_host()} NodeAddr=127.0.0.1 Port={port} "
                "CPUs=8 RealMemory=1000 State=UNKNOWN\n"
            )
            (folder / f"spool.127.0.0.{number}").mkdir()
        (folder / "slurm.conf").write_text(lines)
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup_v1\n")
        self.call(
            "munged",
            f"--key-file={key}",
            f"--socket={folder}/munge.socket",
            f"--pid-file={folder}/munged.pid",
            f"--log-file={folder}/munged.log",
            f"--seed-file={folder}/munged.seed",
        )
        self.call("slurmctld", "-f", str(folder / "slurm.conf"))
        for number in range(1, self.nodes + 1):
            self.call("slurmd", "-N", f"127.0.0.{number}", "-f", str(folder / "slurm.conf"))
        deadline = time.monotonic() + _TIMEOUT_S
        while self._idle() != self.nodes:
            logs = {p.name: p.read_text()[-2000:] for p in folder.glob("*.log")}
            assert time.monotonic() < deadline, logs
            time.sleep(0.1)

    def _idle(self):
        done = subprocess.run(
            ["sinfo", "-h", "-t", "idle", "-o", "%D"],
            env=self.environment,
            text=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )
        return int(done.stdout) if done.stdout.strip().isdigit() else 0

    def _stop(self):
        def quietly(*command):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return subprocess.run(
                    command, env=self.environment, text=True, capture_output=True, timeout=20
                ).stdout
            return ""

        jobs = sorted(set(quietly("squeue", "-h", "-o", "%A").split()))
        if jobs:
            quietly("scancel", "--signal=KILL", *jobs)
            quietly("scancel", *jobs)
            deadline = time.monotonic() + 60
            while quietly("squeue", "-h").strip() and time.monotonic() < deadline:
                time.sleep(0.2)
        numbers = [int(p.read_text()) for p in self.folder.glob("*.pid") if p.read_text().strip()]
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGTERM)
        deadline = time.monotonic() + 60
        while any(_alive(number) for number in numbers) and time.monotonic() < deadline:
            time.sleep(0.1)


def _alive(number):
    status = Path(f"/proc/{number}/stat")
    try:
        return status.read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _host():
    return socket.gethostname().split(".")[0]


@contextlib.contextmanager
def running_cluster(nodes):
    """Runs a cluster for a test, or skips the test with the reason why there is none."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    # pytest's folders are too long: a socket's path has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder,
        SlurmCluster(folder, nodes=nodes) as running,
    ):
        yield running
