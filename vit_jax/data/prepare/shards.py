"""Writes ArrayRecord shards one by one, so that a killed process loses at most one shard."""

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vit_jax.data.sources.tfds import CHECKSUMS
from vit_jax.errors import DataError, LockedError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import copy_file, json_text, write_atomically
from vit_jax.storage.lock import locked
from vit_jax.storage.paths import is_bucket

JOURNAL = "prepare.jsonl"
"""First line: the plan, which determines the content of the shards; then one line per shard."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished shard."""

    name: str
    examples: int  # Number of records.
    num_bytes: int  # Of the records.
    sha256: str  # Of the file.
    file_bytes: int  # Of the file.
    facts: dict[str, Any]  # Other information that the caller wants to keep.


class ShardFolder:
    """Writes a folder of shards; use as a context manager.

    A complete shard is flushed to disk, gets its final name, and then a line in the journal. A
    later process with the same plan resumes after the last line. The same records give the same
    bytes. For a bucket, a shard is written to a temporary local file, which is then uploaded.

    The plan is JSON-like and determines the content of all shards. Only one process can write a
    folder, and only with the plan that it was started with.
    """

    def __init__(self, path: Path, plan: dict[str, Any]):
        self.path, self.shards = path, dict[str, Shard]()
        self._in_bucket = is_bucket(path)
        # Where shards are written before they are complete.
        self._staging = path
        self._journal = ""
        self._plan = json.loads(json.dumps(plan))
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> "ShardFolder":
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path / ".prepare.lock"))
            except LockedError:
                raise DataError(
                    f"another process is writing {self.path}",
                    "one process at a time",
                    "wait for it to end",
                ) from None
            except OSError as error:
                raise _unwritable_error(self.path, error.strerror) from None
            if self._in_bucket:
                self._staging = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self._resume()
            self._lock = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()

    def write(self, name: str, records: Iterable[bytes], facts: dict[str, Any]) -> None:
        """Writes a shard. Reads `facts` after the last record."""
        from array_record.python.array_record_module import ArrayRecordWriter

        incomplete = self._staging / f".{name}.incomplete"
        examples = num_bytes = 0
        try:
            writer = ArrayRecordWriter(str(incomplete), "group_size:1")
            try:
                for record in records:
                    writer.write(record)
                    examples += 1
                    num_bytes += len(record)
            finally:
                writer.close()
            checksum = sha256_of(incomplete, sync=True)
            file_bytes = incomplete.stat().st_size
            if self._in_bucket:
                copy_file(incomplete, self.path / name)
                incomplete.unlink()
            else:
                incomplete.replace(self.path / name)
            shard = Shard(name, examples, num_bytes, checksum, file_bytes, dict(facts))
            self._append_to_journal(dataclasses.asdict(shard))
        except (RuntimeError, OSError) as error:  # ArrayRecord's own errors are RuntimeErrors.
            reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
            raise _unwritable_error(self.path / name, reason) from None
        self.shards[name] = shard

    def write_checksums(self) -> None:
        """Writes the checksums of all shards in the format of `sha256sum`."""
        lines = [f"{s.sha256}  {s.name}\n" for _, s in sorted(self.shards.items())]
        write_atomically(self.path / CHECKSUMS, "".join(lines))

    def _resume(self) -> None:
        """Reads the journal of an earlier process, or starts one."""
        for path in self._staging.glob(".*.incomplete"):
            path.unlink()
        journal = self.path / JOURNAL
        # If the process was killed, the last line may be incomplete.
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        if not lines:
            journal.unlink(missing_ok=True)
            self._append_to_journal(self._plan)
            return
        plan, earlier = self._plan, json.loads(lines[0])
        changed = sorted(k for k in plan.keys() | earlier.keys() if plan.get(k) != earlier.get(k))
        if changed:
            raise DataError(
                f"{self.path} was started with other inputs ({', '.join(changed)} changed)",
                "the same images and options",
                "remove that folder, or choose another name",
            )
        self._journal = "".join(f"{line.decode()}\n" for line in lines)
        if not self._in_bucket and journal.stat().st_size != len(self._journal.encode()):
            os.truncate(journal, len(self._journal.encode()))
        sizes = _sizes_in(self.path)
        for line in lines[1:]:
            shard = Shard(**json.loads(line))
            if sizes.get(shard.name) == shard.file_bytes:
                self.shards[shard.name] = shard
            else:  # Missing or truncated. An earlier line may name the same shard.
                self.shards.pop(shard.name, None)

    def _append_to_journal(self, content: dict[str, Any]) -> None:
        line = json_text(content, what=JOURNAL) + "\n"
        self._journal += line
        if self._in_bucket:  # Objects cannot be appended to.
            write_atomically(self.path / JOURNAL, self._journal)
            return
        with (self.path / JOURNAL).open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def _sizes_in(folder: Path) -> dict[str, int]:
    """Returns name -> size in bytes of the files in a folder."""
    if isinstance(folder, BucketPath):
        return {path.name: size for path, size in folder.find()}
    return {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}


def _unwritable_error(path: Path, reason: str | None) -> DataError:
    return DataError(
        f"cannot write {path}: {reason}",
        "a writable folder with free space",
        "free some space and run the same command again, or choose another folder",
    )


def sha256_of(path: Path, *, sync: bool = False) -> str:
    """Returns the checksum of a file. With `sync`, flushes the file to disk first."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
