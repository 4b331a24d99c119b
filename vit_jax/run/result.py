"""result.json, the final figures of a finished run: one rule for all who read it.

A run is finished if the file holds a JSON object with at least one figure. A damaged file is an
error of the commands that work on one run. Reports and sweeps warn and count the run as unfinished.
"""

from pathlib import Path
from typing import Any

from vit_jax.errors import RunFolderError, UserError
from vit_jax.storage.files import read_json

RESULT = "result.json"
WEIGHTS = "weights_digest"
# What `eval` has measured since of the same WEIGHTS, for reports: figure -> its latest value.
EVALUATIONS = "report/evaluations.json"
# Its key with "eval/SPLIT" -> the settings of that evaluation that were not the run's own.
SETTINGS = "settings"
FIX = "remove it to finish the run again"


def read_result(folder: Path, error: type[UserError] = RunFolderError) -> dict[str, Any] | None:
    """Returns the final figures of a run; None if it is not finished.

    A damaged file raises `error`.
    """
    path = folder / RESULT
    if not path.exists():
        return None
    result = read_json(path, error=error, fix=FIX)
    if not result:
        raise error(f"{path} holds no figures", "the final figures of a run", FIX)
    seconds = result.get("seconds", {})
    if not isinstance(seconds, dict) or any(type(n) not in (int, float) for n in seconds.values()):
        raise error(f"{path}: seconds = {str(seconds)[:80]}", "part of the run -> seconds", FIX)
    return result
