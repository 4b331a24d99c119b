"""A run names the code and packages of each session, and stops if they have changed."""

import copy
import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ROOT, TIMEOUT_S, TINY, one_line, wait_for
from short_runs import content, train

from vit_jax.__main__ import main
from vit_jax.errors import RunFolderError
from vit_jax.run import environment
from vit_jax.run.default_folder import default_folder
from vit_jax.run.environment import (
    append_environment,
    changed_code,
    check_code,
    code_environment,
    code_versions,
    differences,
    hash_of_files,
    hash_of_sources,
    read_environments,
)
from vit_jax.run.status import read_status
from vit_jax.run.time_account import read_sessions

BEFORE = {
    "git_revision": "abc",
    "sources": "0123",
    "python": "3.12.1",
    "packages": {"jax": "0.10.2", "turbojpeg": None, "libtpu": "0.0.42"},
}
NOTE = "resumed with other code or packages"


@pytest.fixture
def stopped(run):
    """A run that was killed before it wrote its result."""
    (run / "result.json").unlink()
    return run


@pytest.fixture
def edited(monkeypatch):
    """As if a file of the package had been edited."""
    monkeypatch.setattr(environment, "hash_of_sources", lambda: "edited")


def files(run):
    return {path: data for path, data in content(run).items() if path != ".lock"}


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({}, []),
        ({"git_revision": "abd-dirty"}, []),
        ({"python": "3.12.9"}, []),
        ({"python": "3.13.0"}, ["python 3.12 -> 3.13"]),
        ({"sources": "4567", "git_revision": None},
         ["vit_jax 0123 (revision abc) -> 4567 (revision None)"]),
        # A plug-in counts on its platform, where both list it.
        ({"packages": {"jax": "0.12.0", "turbojpeg": "1.0"}},
         ["jax 0.10.2 -> 0.12.0", "turbojpeg None -> 1.0"]),
        ({"packages": {"jax": "0.10.2", "libtpu": "0.0.50"}}, ["libtpu 0.0.42 -> 0.0.50"]),
    ],
)  # fmt: skip
def test_changes_that_may_change_the_result_are_named(change, rows):
    assert differences(BEFORE, copy.deepcopy(BEFORE) | change) == rows


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("rng.py", True),
        ("train/step_memory.csv", True),
        ("report/tables.py", False),
        ("commands/runs.py", False),
        ("train/__pycache__/step.cpython-313.pyc", False),
        ("recipes/quickstart.py", False),  # Of a wheel; a clone has it in configs/.
    ],
)
def test_the_hash_is_of_the_sources_that_training_imports(tmp_path, file, counts):
    copied = shutil.copytree(ROOT / "vit_jax", tmp_path / "vit_jax")
    (copied / "train" / ".#step.py").symlink_to("nowhere")  # The lock file of an editor.
    before = hash_of_files(copied)
    assert before == hash_of_sources()
    path = copied / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"\n")
    assert (hash_of_files(copied) != before) is counts


def test_training_imports_nothing_that_the_hash_leaves_out():
    left_out = "|".join(environment._NOT_IN_TRAINING)
    package = ROOT / "vit_jax"
    kept = [
        path
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] not in (*environment._NOT_IN_TRAINING, "__main__.py")
    ]
    assert package / "train" / "loop.py" in kept
    imports = re.compile(rf"(from|import) vit_jax(\.| import .*\b)({left_out})\b")
    assert [path for path in kept if imports.search(path.read_text())] == []


def test_an_image_without_git_has_the_revision_of_its_build(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("VIT_JAX_REVISION", raising=False)
    assert code_versions()["git_revision"] is None
    monkeypatch.setenv("VIT_JAX_REVISION", "4caaa25")
    assert code_versions()["git_revision"] == "4caaa25"


def test_a_session_appends_its_environment(run):
    (row,) = read_environments(run)
    env = json.loads((run / "env.json").read_text())
    assert {key: row[key] for key in env} == env
    assert (row["step"], row["changes"]) == (0, [])
    assert row["sources"] == hash_of_sources()


def test_a_restart_from_the_beginning_begins_the_record_again(tmp_path):
    found = code_environment()
    for step, changes in ((0, []), (5, ["jax 1 -> 2"]), (0, []), (7, [])):
        append_environment(tmp_path, found, step=step, changes=changes)
    assert [row["step"] for row in read_environments(tmp_path)] == [0, 7]
    assert not changed_code(tmp_path)
    assert len((tmp_path / "environments.jsonl").read_text().splitlines()) == 4


def test_a_run_of_other_code_is_refused_in_one_line_and_not_changed(
    stopped, digits_dir, edited, capfd
):
    before = files(stopped)
    assert train(stopped, digits_dir) == 2
    line = one_line(capfd)
    assert f"run folder {stopped} was last run with other code or packages (vit_jax " in line
    assert re.search(r" [0-9a-f]{12} \(revision [0-9a-f]{40}\S*\) -> edited \(revision ", line)
    assert "add --new_code (in Python new_code=True) to continue" in line
    assert files(stopped) == before


def test_other_packages_are_named(stopped, digits_dir, monkeypatch, capfd):
    monkeypatch.setattr(environment, "_version", lambda name: "9.9")
    assert train(stopped, digits_dir) == 2
    assert re.search(
        r"\(jax [\d.]+ -> 9\.9; jaxlib [\d.]+ -> 9\.9; .* and \d+ more\)", one_line(capfd)
    )


def test_new_code_continues_and_the_record_says_so(stopped, digits_dir, edited, capfd):
    first = (stopped / "env.json").read_bytes()
    assert train(stopped, digits_dir, "--new_code") == 0
    assert (stopped / "env.json").read_bytes() == first
    before, now = read_environments(stopped)
    assert (before["changes"], now["step"], now["sources"]) == ([], 30, "edited")
    assert now["changes"][0].startswith("vit_jax ")
    # The next session has the same code, and needs no flag.
    (stopped / "result.json").unlink()
    assert train(stopped, digits_dir) == 0
    assert len(read_environments(stopped)) == 3
    assert changed_code(stopped)
    assert read_status(stopped).changed_code
    capfd.readouterr()
    assert main(["runs", str(stopped)]) == 0
    assert f"finished, {NOTE}" in capfd.readouterr().out
    assert main(["report", str(stopped)]) == 0
    assert NOTE in (stopped / "report" / "runs.csv").read_text()


def test_a_finished_run_says_so_with_any_code(run, digits_dir, edited, caplog):
    with caplog.at_level("INFO", logger="vit_jax"):
        assert train(run, digits_dir) == 0
    assert "is already finished" in caplog.text


@pytest.mark.usefixtures("optax_promotes")
def test_a_run_that_has_saved_nothing_starts_again_with_any_code(stopped, digits_dir, edited):
    shutil.rmtree(stopped / "checkpoints")
    assert train(stopped, digits_dir) == 0
    (row,) = read_environments(stopped)
    assert (row["step"], row["sources"], row["changes"]) == (0, "edited", [])
    assert json.loads((stopped / "env.json").read_text())["sources"] == "edited"
    assert not changed_code(stopped)


@pytest.mark.usefixtures("optax_promotes")
def test_a_first_save_that_was_cut_off_is_no_checkpoint(stopped, digits_dir, edited):
    shutil.rmtree(stopped / "checkpoints")
    (stopped / "checkpoints" / "20.orbax-checkpoint-tmp").mkdir(parents=True)
    assert train(stopped, digits_dir) == 0
    assert [row["step"] for row in read_environments(stopped)] == [0]


def test_a_folder_without_the_record_is_refused(stopped, digits_dir, capfd):
    (stopped / "environments.jsonl").unlink()
    assert train(stopped, digits_dir) == 2
    assert "(no environments.jsonl)" in one_line(capfd)
    now = code_environment()
    with pytest.raises(RunFolderError):
        check_code("it", stopped, now, new_code=False)
    assert check_code("it", stopped, now, new_code=True) == ["no environments.jsonl"]
    (stopped / "environments.jsonl").write_text('{"step": 0}\n')
    assert check_code("it", stopped, now, new_code=True) == ["environments.jsonl cannot be read"]


def test_the_same_command_continues_its_run_with_the_flag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "quickstart-2026-01-01"
    folder.mkdir(parents=True)
    command = ["train", "--config=quickstart"]
    (folder / "env.json").write_text(json.dumps({"command": ["vit-jax", *command]}))
    monkeypatch.setattr(sys, "argv", ["vit-jax", *command, "--new_code"])
    assert default_folder("quickstart") == Path("runs/quickstart-2026-01-01")


@pytest.mark.slow
def test_an_edit_between_two_sessions_stops_the_run(tmp_path, digits_dir):
    """A line is added to rng.py while the run is stopped, and then to a file of `report`."""
    package = shutil.copytree(ROOT / "vit_jax", tmp_path / "vit_jax")
    command = [sys.executable, "-m", "vit_jax", "train", f"--config={TINY}", "--workdir=run",
               f"--config.data.data_dir={digits_dir}", "--config.train_steps=300"]  # fmt: skip

    def session(*more, stop=False):
        """Runs the command to its end, or stops it at its first save; returns code and stderr."""
        process = subprocess.Popen(
            [*command, *more], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )
        if stop:
            sessions = len(read_sessions(tmp_path / "run"))
            wait_for(lambda: len(read_sessions(tmp_path / "run")) > sessions + 3, process)
            process.send_signal(signal.SIGTERM)
        return process.communicate(timeout=TIMEOUT_S)[1], process.returncode

    def edit(name):
        with (package / name).open("a") as file:
            file.write("# edited\n")

    assert session(stop=True)[1] == 75
    edit("report/run.py")
    assert session(stop=True)[1] == 75
    edit("rng.py")
    err, code = session()
    assert (code, "add --new_code" in err, "Traceback" in err) == (2, True, False)
    assert session("--new_code")[1] == 0
    assert [bool(row["changes"]) for row in read_environments(tmp_path / "run")] == [0, 0, 1]
