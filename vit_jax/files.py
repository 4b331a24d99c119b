"""Files that are written whole or not at all."""

import contextlib
import os
import uuid
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Writes a file so that a reader, and a crash, find the old one or the whole new one.

    Args:
        path: of the file; its folder is made when missing.
        text: all of its content.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Several processes may write the same file at once.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
