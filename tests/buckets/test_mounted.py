"""The mounted bucket differs from a disk in the ways in which gcsfuse does."""

import errno
import fcntl
import os
from pathlib import Path

import pytest
from buckets.mounted import TYPE


def test_the_mount_has_the_type_of_gcsfuse(mount_bucket):
    here = mount_bucket()
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    types = {point: kind for _, point, kind, *_ in mounts}
    assert types[str(here)] == TYPE


def test_others_see_a_file_when_it_is_closed(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    with (here / "file").open("w") as file:
        file.write("one")
        file.flush()
        os.fsync(file.fileno())
        assert (here / "file").read_text() == "one"
        assert not (there / "file").exists()
        assert list(there.iterdir()) == []
    assert (there / "file").read_text() == "one"
    assert [path.name for path in there.iterdir()] == ["file"]


def test_what_is_appended_is_seen_when_it_is_closed(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    (here / "log").write_text("one\n")
    with (here / "log").open("a") as file:
        file.write("two\n")
        file.flush()
        assert (there / "log").read_text() == "one\n"
    assert (there / "log").read_text() == "one\ntwo\n"
    os.truncate(here / "log", 4)
    assert (there / "log").read_text() == "one\n"


def test_content_of_many_blocks_comes_back(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    content = os.urandom(3 << 20)
    (here / "folder").mkdir()
    (here / "folder" / "large").write_bytes(content)
    assert (there / "folder" / "large").read_bytes() == content
    with (there / "folder" / "large").open("rb") as file:
        file.seek(1 << 20)
        assert file.read(10) == content[1 << 20 :][:10]


def test_a_file_is_renamed_and_a_full_folder_is_not(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    (here / "folder").mkdir()
    (here / "folder").rename(here / "other")
    (here / "other" / "file.tmp").write_text("new")
    (here / "other" / "file").write_text("old")
    (here / "other" / "file.tmp").replace(here / "other" / "file")
    assert (there / "other" / "file").read_text() == "new"
    with pytest.raises(OSError, match="Too many open files") as error:
        (here / "other").rename(here / "folder")
    assert error.value.errno == errno.EMFILE
    with pytest.raises(OSError, match="not empty"):
        (there / "other").rmdir()
    (there / "other" / "file").unlink()
    assert list((here / "other").iterdir()) == []


def test_locks_hold_on_one_host_only(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    with (here / "lock").open("w") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with (here / "lock").open("w") as second, pytest.raises(BlockingIOError):
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with (there / "lock").open("w") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_first_of_two_writers_wins(mount_bucket):
    here, there = mount_bucket(), mount_bucket()
    first, second = (here / "file").open("x"), (there / "file").open("x")
    first.write("one")
    second.write("two")
    first.close()
    with pytest.raises(OSError, match=r"\[Errno") as error:
        second.close()
    assert error.value.errno == errno.ESTALE
    assert (here / "file").read_text() == (there / "file").read_text() == "one"


def test_there_are_no_hard_links(mount_bucket):
    here = mount_bucket()
    (here / "file").write_text("x")
    with pytest.raises(OSError, match=r"\[Errno"):
        os.link(here / "file", here / "link")
