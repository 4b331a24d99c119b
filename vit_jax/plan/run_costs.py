"""The times of a run for the simulator: measured by a run, or estimated by a plan.

Also reads traces of preemptions.
"""

import csv
import io
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, FileError, RunFolderError
from vit_jax.plan.estimate import Plan
from vit_jax.plan.preemption import RunCosts
from vit_jax.run.about import write_time_s
from vit_jax.run.time_account import read_sessions
from vit_jax.storage.files import parse_json, read_file

# Assumed rate at which a planned run copies its state off a device: PCIe 4.0 x16 at a third.
_COPY_BYTES_PER_S = 10e9
# Largest trace of preemptions.
_TRACE_BYTES = 1 << 28
_SAVED = ("parameters", "optimizer", "average")


def measured_costs(folder: Path, config: Config, steps: int | None = None) -> RunCosts:
    """Returns the times that a run has measured.

    Times of a session are medians over the sessions that trained; those after the first are taken
    if there are any, because they are the ones that a preempted run repeats.

    Args:
        folder: run folder.
        config: its config.
        steps: number of steps to simulate; None: those of the run.

    Raises:
        RunFolderError: the run has trained and saved nothing, or the file of its time is missing.
        ConfigError: the number of steps is unknown.
    """
    rows = read_sessions(folder)
    last: dict[str, Any] = rows[-1] if rows else {"step": 0}
    if not last["step"] or last["save_s"] is None:
        raise RunFolderError(
            f"{folder} has no account of a run that has trained and saved",
            "a run folder with a sessions.jsonl",
            "train some hundred steps there first, with one save",
        )
    steps = steps or config.train_steps
    if steps is None and last["event"] == "finished":
        steps = last["step"]
    if steps is None:
        raise ConfigError(
            f"the length of the run in {folder} is not known in steps",
            "a finished run, or train_steps",
            "add --steps=N",
        )
    seconds = last["seconds"]
    sessions = _trained_sessions(rows)
    again = sessions[1:] or sessions
    restores = [session["restore"] for session in sessions if session["restore"]]
    write_s = write_time_s(folder / "checkpoints") or last["save_s"]
    return RunCosts(
        steps=steps,
        step_s=sum(seconds[part] for part in ("steps", "data", "evaluation")) / last["step"],
        save_s=last["save_s"],
        write_s=max(write_s, last["save_s"]),
        start_s=statistics.median(session["start"] for session in again),
        compile_s=statistics.median(session["compile"] for session in again),
        restore_s=statistics.median(restores) if restores else write_s,
    )


def _trained_sessions(rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Returns part -> seconds for each session that made steps."""
    ends = list({row["session"]: row for row in rows}.values())
    before, found = dict.fromkeys(ends[0]["seconds"], 0.0), []
    for row in ends:
        own = {part: seconds - before[part] for part, seconds in row["seconds"].items()}
        before = row["seconds"]
        if own["steps"] + own["lost"] > 0:
            found.append(own)
    return found


def planned_costs(
    plan: Plan, mfu: float, start_s: float, storage_gb_per_s: float, steps: int | None = None
) -> RunCosts:
    """Returns the times of a planned run.

    Args:
        plan: the plan.
        mfu: MFU that the steps reach.
        start_s: time of a session before it compiles.
        storage_gb_per_s: rate at which all hosts together write and read a checkpoint.
        steps: number of steps to simulate; None: those of the run.

    Raises:
        ConfigError: the peak FLOP/s of the devices is unknown.
    """
    step_s = plan.roofline.seconds_at_mfu(mfu)
    if step_s is None:
        raise ConfigError(
            f"the time of a step on {plan.chip.name} is unknown",
            "a chip with published rates, or a measured run",
            "train some hundred steps, then plan with --run=FOLDER",
        )
    own = sum(plan.memory.state.get(part, 0) for part in _SAVED)
    copies = plan.mesh["fsdp"] * plan.mesh["tensor"]
    write_s = own * copies / (storage_gb_per_s * 1e9)
    return RunCosts(
        steps=steps or plan.total_steps,
        step_s=step_s,
        save_s=own / _COPY_BYTES_PER_S,
        write_s=max(write_s, own / _COPY_BYTES_PER_S),
        start_s=start_s,
        compile_s=plan.compile_s,
        restore_s=write_s,
    )


def read_trace(path: Path, down_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Reads a trace of preemptions.

    Args:
        path: a CSV file with a column up_s and perhaps down_s, or a JSON list of seconds or of
            objects with these keys.
        down_s: used where the trace has none.

    Returns:
        f64[n], how long each machine lasted, and f64[n], how long it took to get the next one.

    Raises:
        ConfigError: it cannot be read, or is not such a file.
    """
    expected = "CSV with a column up_s (and down_s), or a JSON list of seconds"
    try:
        # Excel begins a file with a mark.
        text = read_file(path, _TRACE_BYTES).decode("utf-8-sig")
        if path.suffix == ".json":
            rows = [row if isinstance(row, dict) else {"up_s": row} for row in parse_json(text)]
        else:
            rows = list(csv.DictReader(io.StringIO(text)))
        up = np.array([float(row["up_s"]) for row in rows])
        # A cell that is left out is None or "".
        down = np.array([float(down_s if row.get("down_s") in (None, "") else row["down_s"])
                         for row in rows])  # fmt: skip
    except FileError as error:
        raise ConfigError(f"--preemptions: {error.got}", expected, error.fix) from None
    except OSError as error:
        raise ConfigError(
            f"--preemptions={path}: {error.strerror}", expected, "check the path"
        ) from None
    except KeyError as error:
        raise ConfigError(
            f"--preemptions={path} has no {error.args[0]}", expected, "add it"
        ) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"--preemptions={path}: {error!r}", expected, "see --help") from None
    if not len(up) or not (np.isfinite(up) & np.isfinite(down) & (up > 0) & (down >= 0)).all():
        raise ConfigError(
            f"--preemptions={path} has no times, or some that are not positive",
            expected,
            "correct it",
        )
    return up, down
