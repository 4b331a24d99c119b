"""Files of JSON lines, on a local disk and in a bucket."""

import math
import threading
import time

import pytest

from vit_jax.errors import NonFiniteError
from vit_jax.storage import log_file
from vit_jax.storage.log_file import LogFile, log_exists, read_log, read_log_end, segments
from vit_jax.storage.paths import user_path


def append(path, *rows, **options):
    """Appends rows to a log as a process does, from opening to closing it."""
    log = LogFile(path, **options)
    for row in rows:
        log.write(row)
    log.close()


def test_lines_are_there_at_once_and_are_appended(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_log(path) == []
    assert not log_exists(path)
    log = LogFile(path)
    log.write({"a": 1})
    assert read_log(path) == [{"a": 1}]
    log.close()
    append(path, {"a": 2})
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
    assert log_exists(path)


def test_a_line_that_a_crash_cut_off_is_left_out_and_deleted_by_the_next_writer(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    assert read_log(path) == [{"a": 1}, {"a": 2}]
    append(path, {"a": 4})
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 4}\n'


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_number_that_json_cannot_hold_is_an_error_and_is_not_written(value, tmp_path):
    log = LogFile(tmp_path / "a.jsonl")
    log.write({"a": 1})
    with pytest.raises(NonFiniteError, match=f"b.0 = {value} in a line of"):
        log.write({"b": [value]})
    log.close()
    assert (tmp_path / "a.jsonl").read_text() == '{"a": 1}\n'


BAD = [b'{"a": ', b"[1]", b"{}", b'{"a": "\xff"}', b"[" * 100_000, b"\0" * 40]


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_damaged_line_stays_and_is_left_out(bad, at, tmp_path, caplog):
    path, lines = tmp_path / "a.jsonl", [b'{"a": 1}', b'{"a": 3}']
    lines.insert(at, bad)
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert read_log(path) == [{"a": 1}, {"a": 3}]
    assert caplog.messages == [f"{path}: lines left out, not valid: {at + 1}"]
    append(path, {"a": 4})
    assert path.read_bytes() == b"\n".join([*lines, b'{"a": 4}', b""])


def test_a_line_that_is_not_valid_for_the_caller_is_damaged(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"b": 2}\n{"a": 3}\n')
    assert read_log(path, lambda row: "a" in row) == [{"a": 1}, {"a": 3}]
    append(path, keep=lambda row: row["a"] < 3, is_valid=lambda row: "a" in row)
    assert path.read_text() == '{"a": 1}\n{"b": 2}\n'


def test_the_end_of_a_file_is_read_without_a_line_that_starts_before(tmp_path, bucket):
    for path in (tmp_path / "a.jsonl", user_path(f"{bucket.url}/run/a.jsonl")):
        assert read_log_end(path, 100) == []
        append(path, *({"a": number} for number in range(10)))
        assert read_log_end(path, 20) == [{"a": 8}, {"a": 9}]


def test_lines_that_are_not_kept_are_deleted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}')
    LogFile(path, keep=lambda row: row["a"] != 2).close()
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_segments_of_a_folder_that_was_copied_from_a_bucket_become_one_file(tmp_path):
    (tmp_path / "a-000001.jsonl").write_text('{"a": 1}\n{"a": ')  # The last line is cut off.
    (tmp_path / "a-000002.jsonl").write_text('{"a": 2}\n')
    assert read_log(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]
    append(tmp_path / "a.jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    assert read_log(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]


@pytest.fixture
def remote(bucket):
    return user_path(f"{bucket.url}/run/a.jsonl")


def test_lines_in_a_bucket_are_there_after_a_flush_and_after_a_while(remote, monkeypatch):
    assert read_log(remote) == []
    assert not log_exists(remote)
    log = LogFile(remote)
    log.write({"a": 1})
    log.flush()
    assert read_log(remote) == [{"a": 1}]
    assert log_exists(remote)
    log.write({"a": 2})
    log.close()
    assert [path.name for path in remote.parent.iterdir()] == ["a-000001.jsonl"]
    monkeypatch.setattr(log_file, "FLUSH_INTERVAL_S", 0.1)
    log = LogFile(remote)
    log.write({"a": 3})
    deadline = time.monotonic() + 20
    while len(read_log(remote)) < 3 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert read_log(remote) == [{"a": 1}, {"a": 2}, {"a": 3}]
    log.close()


def test_a_segment_in_a_bucket_is_closed_when_it_is_large(remote, monkeypatch):
    monkeypatch.setattr(log_file, "_SEGMENT_CHARACTERS", 20)
    log = LogFile(remote)
    for number in range(7):
        log.write({"a": number})
        log.flush()
    log.close()
    assert [path.name for path in segments(remote)] == [f"a-{n:06}.jsonl" for n in (1, 2, 3)]
    assert read_log(remote) == [{"a": number} for number in range(7)]
    LogFile(remote, keep=lambda row: row["a"] not in (1, 2)).close()
    assert [row["a"] for row in read_log(remote)] == [0, 3, 4, 5, 6]


@pytest.mark.slow
def test_writing_lines_does_not_wait_for_the_bucket(remote, bucket):
    log = LogFile(remote)
    log.write({"a": 0})
    bucket.server.faults(latency_s=3, only="write")
    thread = threading.Thread(target=log.flush)
    thread.start()
    time.sleep(0.5)
    begin = time.monotonic()
    log.write({"a": 1})
    assert time.monotonic() - begin < 2
    thread.join()
    bucket.server.faults()
    log.close()
    assert read_log(remote) == [{"a": 0}, {"a": 1}]


@pytest.mark.slow
def test_a_bucket_that_cannot_be_written_is_an_error_of_a_later_line(remote, bucket, monkeypatch):
    monkeypatch.setattr(log_file, "FLUSH_INTERVAL_S", 0.1)
    log = LogFile(remote)
    bucket.server.faults(read_only=True)
    log.write({"a": 0})
    time.sleep(2)
    with pytest.raises(PermissionError, match=r"a-000001\.jsonl"):
        log.write({"a": 1})
    bucket.server.faults()
    log.close()
    assert read_log(remote)[0] == {"a": 0}


def test_a_file_that_was_copied_to_a_bucket_becomes_a_segment(remote):
    remote.write_text('{"a": 1}\n')
    assert read_log(remote) == [{"a": 1}]
    append(remote, {"a": 2})
    assert read_log(remote) == [{"a": 1}, {"a": 2}]
    assert not remote.exists()
