"""Stand-ins for what launch files call elsewhere: git's server, uv, python, gcloud, SLURM.

    with_stand_ins(folder, EXIT_CODE="75")    # the environment of a script; folder/ran, ...
    Origin(folder)                            # a repository to launch from; `commit` moves it on

`uv` notes in `folder/installed` the commit and the digest of each lock file that it installs.
The python that it brings notes its variables and arguments in `folder/ran`, and runs while there is
a file `folder/hold`. `gcloud` notes its arguments in `folder/asked`, answers `describe` with the
next line of `folder/states` (the last one is repeated, and "error" is an error), and runs the
commands of workers here, in `folder/home`.
"""

import os
import shutil
import subprocess
from pathlib import Path

from processes import ROOT

LAUNCH = ROOT / "experiments" / "launch"
TIMEOUT_S = 60

_PYTHON = """#!/bin/bash
started="${JAX_COORDINATOR_ADDRESS:-} ${JAX_NUM_PROCESSES:-} ${JAX_PROCESS_ID:-}"
echo "$started $*" >> "$STAND_INS/ran"
while [[ -e "$STAND_INS/hold" ]]; do sleep 0.02; done
exit "${EXIT_CODE:-0}"
"""
_UV = """#!/bin/bash
case $1 in
  venv) mkdir -p "${@: -1}/bin" && cp "$STAND_INS/python" "${@: -1}/bin/python" ;;
  pip)
    for argument in "$@"; do
      [[ $argument == *.lock ]] || continue
      commit=$(git -C "$(dirname "$argument")" rev-parse HEAD) || exit 1
      digest=$(sha256sum < "$argument") || exit 1
      echo "$commit $(basename "$argument") $digest" >> "$STAND_INS/installed"
    done
    exit "${UV_EXIT_CODE:-0}" ;;
esac
"""
_GCLOUD = """#!/bin/bash
set -- "${@/#--command=/}"
echo "$*" | tr '\\n' ' ' >> "$STAND_INS/asked"
echo >> "$STAND_INS/asked"
case "$*" in
  *describe*)
    state=$(head -n 1 "$STAND_INS/states")
    [[ $(wc -l < "$STAND_INS/states") == 1 ]] || sed -i 1d "$STAND_INS/states"
    [[ $state != error ]] || { echo "ERROR: network unreachable" >&2; exit 1; }
    echo "$state" ;;
  *ssh*) cd "$STAND_INS/home" && exec env HOME="$STAND_INS/home" bash -c "${@: -1:1}" ;;
esac
"""
# Notes a start that finds the lock taken.
_FLOCK = """#!/bin/bash
PATH=${PATH#*:} flock "$@"
code=$?
[[ $code != 1 ]] || echo "$*" >> "$STAND_INS/locked"
exit $code
"""
_SRUN = '#!/bin/bash\nexec "${@:2}"\n'
_NOTED = '#!/bin/bash\necho "$(basename "$0") $*" >> "$STAND_INS/asked"\n'


def with_stand_ins(folder, states=(), **settings):
    """Writes the stand-ins and returns the environment that finds them."""
    programs = {
        "uv": _UV, "gcloud": _GCLOUD, "flock": _FLOCK,
        "srun": _SRUN, "sbatch": _NOTED, "scontrol": _NOTED,
    }  # fmt: skip
    if not (folder / "bin").exists():  # Later they may be running.
        (folder / "bin").mkdir(parents=True)
        (folder / "home").mkdir()
        write_program(folder / "python", _PYTHON)
        for name, text in programs.items():
            write_program(folder / "bin" / name, text)
    (folder / "states").write_text("".join(f"{state}\n" for state in states))
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "STAND_INS": str(folder), "PAUSE_S": "0.01", **settings}


def write_program(path, text):
    path.write_text(text)
    path.chmod(0o755)


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def bash(*command, cwd, env):
    return subprocess.run(
        ["bash", *map(str, command)], cwd=cwd, env=env, text=True, capture_output=True,
        timeout=TIMEOUT_S,
    )  # fmt: skip


class Origin:
    """A repository on a server, and a user's clone of it, with the launch files and small locks.

    Args:
        folder: gets the subfolders `origin` and `clone`.
    """

    def __init__(self, folder):
        self.url, self.clone = folder / "origin", folder / "clone"
        git("init", "--quiet", "--bare", self.url)
        git("clone", "--quiet", self.url, self.clone)
        shutil.copytree(LAUNCH, self.clone / "experiments" / "launch")
        for name in ("vit_jax", "configs"):
            (self.clone / name).mkdir()
            (self.clone / name / "code.py").write_text("")
        (self.clone / ".gitignore").write_text(".launch/\n")

    def commit(self, text, push=True):
        """Commits other code and other locks, and returns the commit."""
        for name in ("", "-cpu", "-cuda", "-tpu"):
            (self.clone / f"requirements{name}.lock").write_text(f"{text} {name}\n")
        (self.clone / "vit_jax" / "code.py").write_text(text)
        git("-C", self.clone, "add", "--all")
        git("-C", self.clone, "commit", "--quiet", "--message", text)
        if push:
            git("-C", self.clone, "push", "--quiet", "origin", "HEAD")
        return git("-C", self.clone, "rev-parse", "HEAD")


def git(*arguments):
    who = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    done = subprocess.run(
        ["git", *who, *map(str, arguments)], text=True, capture_output=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def installed(folder):
    """Returns the set of commits, and name -> set of digests, of all lock files installed."""
    rows = [line.split() for line in lines(Path(folder) / "installed")]
    digests = {name: {row[2] for row in rows if row[1] == name} for _, name, *_ in rows}
    return {row[0] for row in rows}, digests
