"""JSON items of checkpoints, whose content may be known only after the save has started."""

import dataclasses
from collections.abc import Callable
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import future

from vit_jax.parallel.processes import is_first_host
from vit_jax.run.damage import JSON_FILE
from vit_jax.storage.files import json_text


class JsonItemHandler(ocp.AsyncCheckpointHandler):
    """Writes the JSON that a function returns, on Orbax's background thread.

    The files are those of `ocp.JsonCheckpointHandler`, but never hold NaN or Infinity.
    `run.damage` reads them.
    """

    async def async_save(self, directory: Any, args: "JsonItem") -> list[ocp.Future]:
        """Returns at once. Orbax makes `directory`, an `epath.Path`, in the background."""
        write = _write(directory / JSON_FILE, args.content)
        return [future.CommitFutureAwaitingContractedSignals(write, name="save JSON")]

    def save(self, directory: Any, args: "JsonItem") -> None:
        """Is not needed, because all saves are asynchronous."""
        raise NotImplementedError

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Is not needed, because `run.damage` reads the files."""
        raise NotImplementedError


@ocp.args.register_with_handler(JsonItemHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class JsonItem(ocp.args.CheckpointArgs):
    """What `JsonItemHandler` writes. `content` is called on all processes."""

    content: Callable[[], dict[str, Any]]


async def _write(path: Any, content: Callable[[], dict[str, Any]]) -> None:
    found = content()
    if is_first_host():
        path.write_text(json_text(found, what="the JSON of a checkpoint"), encoding="utf-8")
