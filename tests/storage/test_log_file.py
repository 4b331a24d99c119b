"""Files of JSON lines, on a local disk."""

import pytest

from vit_jax.storage.log_file import LogFile, log_exists, read_log


def test_lines_are_there_at_once_and_are_appended(tmp_path):
    path = tmp_path / "a.jsonl"
    assert read_log(path) == []
    assert not log_exists(path)
    log = LogFile(path)
    log.write({"a": 1})
    assert read_log(path) == [{"a": 1}]
    log.close()
    log = LogFile(path)
    log.write({"a": 2})
    log.close()
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'
    assert log_exists(path)


def test_a_line_that_a_crash_cut_off_is_left_out_and_deleted_by_the_next_writer(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3')
    assert read_log(path) == [{"a": 1}, {"a": 2}]
    log = LogFile(path)
    log.write({"a": 4})
    log.close()
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n{"a": 4}\n'


@pytest.mark.parametrize("bad", ['{"a": ', "[1]", "\\xff"])
def test_a_damaged_line_in_the_middle_is_warned_about_and_nothing_else_is_lost(
    bad, tmp_path, caplog
):
    path = tmp_path / "a.jsonl"
    content = b'{"a": 1}\n' + bad.encode() + b'\n{"a": 3}\n'
    path.write_bytes(content)
    assert read_log(path) == [{"a": 1}, {"a": 3}]
    assert f"line 2 of {path} is damaged and left out" in caplog.text
    LogFile(path).close()
    assert path.read_bytes() == content


def test_lines_that_are_not_kept_are_deleted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n{"a": 3}')
    LogFile(path, keep=lambda row: row["a"] != 2).close()
    assert path.read_text() == '{"a": 1}\n{"a": 3}\n'


def test_segments_of_a_folder_that_was_copied_from_a_bucket_become_one_file(tmp_path):
    (tmp_path / "a-000001.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "a-000002.jsonl").write_text('{"a": 2}\n')
    assert read_log(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]
    LogFile(tmp_path / "a.jsonl").close()
    assert [p.name for p in tmp_path.iterdir()] == ["a.jsonl"]
    assert read_log(tmp_path / "a.jsonl") == [{"a": 1}, {"a": 2}]
