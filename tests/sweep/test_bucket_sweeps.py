"""Sweeps whose folder is in a bucket: real processes around a stand-in trainer."""

import pytest
from sweep_processes import STUB, stub_command

from vit_jax.__main__ import main
from vit_jax.run.job_folder import local_folder, read_attempt, read_progress
from vit_jax.storage.lock import is_locked
from vit_jax.storage.paths import user_path
from vit_jax.sweep import executor
from vit_jax.sweep.plan import PlannedJob


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def stub(tmp_path, monkeypatch, cache):
    """The folder of the files that control the stubs."""
    folder = tmp_path / "stub"
    folder.mkdir()
    monkeypatch.setenv("STUB", str(folder))
    monkeypatch.setattr(PlannedJob, "command", stub_command)
    monkeypatch.setattr(executor, "_BUCKET_POLL_S", 0.3)
    return folder


@pytest.mark.slow
def test_a_failed_job_shows_its_log_and_is_run_again(gcs, stub, capsys):
    (stub / "pretrain.fail").touch()
    command = ["sweep", f"--sweep={STUB}", f"--workdir={gcs.url}/sweep", "--at_once=2"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert f"pretrain: exit code 1; end of {gcs.url}/sweep/jobs/pretrain/log.txt:" in out
    shown = [line for line in out.splitlines() if line.startswith("  reason ")]
    assert shown == [f"  reason {n}" for n in range(28, 40)]
    jobs = user_path(f"{gcs.url}/sweep/jobs")
    assert (jobs / "tiny" / "log.txt").read_text() == "begins at step 0\n"
    assert (jobs / "tiny" / "result.json").exists()
    assert not (local_folder(jobs / "tiny") / "log.txt").exists()
    (stub / "pretrain.fail").unlink()
    assert main([*command, "--retry_failed"]) == 0
    assert len((stub / "tiny.calls").read_text().splitlines()) == 1
    assert read_attempt(jobs / "pretrain").number == 2
    # The log of both attempts.
    lines = (jobs / "pretrain" / "log.txt").read_text().splitlines()
    assert lines == ["begins at step 0", *(f"reason {n}" for n in range(40)), "begins at step 0"]
    assert read_progress(jobs / "tiny") == (5, None, {})
    assert not is_locked(user_path(f"{gcs.url}/sweep/.launcher"))
