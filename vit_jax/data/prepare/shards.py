"""ArrayRecord shards that are written one by one, so that a killed process loses one at most."""

import dataclasses
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vit_jax.data.sources.tfds import CHECKSUMS
from vit_jax.errors import DataError
from vit_jax.files import write_atomically

JOURNAL = "prepare.jsonl"
"""First line: what the shards are made of and how; then a line for each finished one."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """A finished shard.

    Attributes:
        name: of the file.
        examples: number of records.
        num_bytes: of the records.
        sha256: of the file.
        file_bytes: its size.
        facts: what else there is to remember.
    """

    name: str
    examples: int
    num_bytes: int
    sha256: str
    file_bytes: int
    facts: dict[str, Any]


class ShardFolder:
    """A folder that shards are written to; use as a context manager.

    A shard gets its name when it is complete and on disk, and a line in the journal after that. The
    next process goes on from there, if it has the same plan. The same records give the same bytes.

    Args:
        path: made when missing.
        plan: decides the content of all shards.

    Raises:
        DataError: another process writes there, or the folder was begun with another plan.
    """

    def __init__(self, path: Path, plan: dict[str, Any]):
        self.path, self.shards = path, dict[str, Shard]()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".prepare.lock").open("w")
        except OSError as error:
            raise _unwritable(path, error.strerror) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise DataError(
                f"{path} is being written by another process", "one at a time", "wait for it"
            ) from None
        except OSError:  # Some network file systems have no locks.
            pass
        try:
            self._take_up(json.loads(json.dumps(plan)))
        except BaseException:
            self._lock.close()
            raise

    def __enter__(self) -> "ShardFolder":
        return self

    def __exit__(self, *exception: object) -> None:
        self._lock.close()

    def write(self, name: str, records: Iterable[bytes], facts: dict[str, Any]) -> Shard:
        """Writes a shard; `facts` are noted after the last record was taken."""
        from array_record.python.array_record_module import ArrayRecordWriter

        incomplete = self.path / f".{name}.incomplete"
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
        except (RuntimeError, OSError) as error:  # ArrayRecord's own errors are RuntimeErrors.
            reason = getattr(error, "strerror", None) or (str(error).splitlines() or [""])[0]
            raise _unwritable(self.path / name, reason) from None
        file_bytes = incomplete.stat().st_size
        incomplete.replace(self.path / name)
        shard = Shard(name, examples, num_bytes, checksum, file_bytes, dict(facts))
        self._note(dataclasses.asdict(shard))
        self.shards[name] = shard
        return shard

    def write_checksums(self) -> None:
        """Writes the sums of all shards as `sha256sum` does."""
        lines = [f"{s.sha256}  {s.name}\n" for _, s in sorted(self.shards.items())]
        write_atomically(self.path / CHECKSUMS, "".join(lines))

    def _take_up(self, plan: dict[str, Any]) -> None:
        """Reads the journal of an earlier process, or begins one."""
        for path in self.path.glob(".*.incomplete"):
            path.unlink()
        journal = self.path / JOURNAL
        # A line that a kill cut off has no end.
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        if not lines:
            journal.unlink(missing_ok=True)
            self._note(plan)
            return
        there = json.loads(lines[0])
        changed = sorted(k for k in plan.keys() | there.keys() if plan.get(k) != there.get(k))
        if changed:
            raise DataError(
                f"{self.path} was begun otherwise ({', '.join(changed)} differ)",
                "the same images and options",
                "remove that folder, or choose another name",
            )
        whole = sum(len(line) + 1 for line in lines)
        if journal.stat().st_size != whole:
            os.truncate(journal, whole)
        for line in lines[1:]:
            shard = Shard(**json.loads(line))
            path = self.path / shard.name
            if path.is_file() and path.stat().st_size == shard.file_bytes:
                self.shards[shard.name] = shard
            else:  # Lost or cut off since; an earlier line may be of the same shard.
                self.shards.pop(shard.name, None)

    def _note(self, content: dict[str, Any]) -> None:
        with (self.path / JOURNAL).open("ab") as file:
            file.write(json.dumps(content).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _unwritable(path: Path, reason: str | None) -> DataError:
    return DataError(
        f"cannot write {path}: {reason}",
        "a writable folder with free space",
        "free some space and run the same command again, or choose another folder",
    )


def sha256_of(path: Path, *, sync: bool = False) -> str:
    """Returns the checksum of a file, which is brought to the disk first if wanted."""
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
