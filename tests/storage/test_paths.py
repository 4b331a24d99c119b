"""The door from what a user writes to a path."""

import importlib.util
import subprocess
import sys
import types
from pathlib import Path

import pytest

from vit_jax.__main__ import main
from vit_jax.errors import FileError, RunFolderError
from vit_jax.storage import paths
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import check_output_folder, is_bucket, local_path, user_path

ROOT = Path(__file__).resolve().parents[2]


def test_a_local_path_is_a_local_path(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_path("runs/a b") == Path("runs/a b")
    assert user_path("~/run") == tmp_path / "run"
    assert user_path(Path("~/run")) == tmp_path / "run"
    assert not isinstance(user_path("gs/a"), BucketPath)
    assert local_path("~/x.py", "a config file") == tmp_path / "x.py"


def test_an_address_is_a_path_in_a_bucket():
    path = user_path("gs://bucket/a folder/x#1?.npz")
    assert isinstance(path, BucketPath)
    assert str(path) == "gs://bucket/a folder/x#1?.npz"
    assert user_path(path) is path
    assert user_path("s3://bucket/") == BucketPath("s3://bucket")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("http://host/run", "the address 'http://host/run'; expected a local path, gs://BUCKET"),
        ("gss://bucket/run", "did you mean gs://bucket/run?"),
        ("GS://bucket/run", "did you mean gs://bucket/run?"),
        ("file:///run", "expected a local path, gs://BUCKET/... or s3://BUCKET/..."),
        ("gs://", "the address 'gs://'; expected gs://BUCKET/...; add the bucket"),
        ("gs:/bucket/run", "expected two slashes; write gs://bucket/run"),
        (Path("s3://bucket/run"), "expected two slashes; write s3://bucket/run"),
        ("  ", "the path is empty"),
        ("~nobody-here/run", "expected a known user"),
        ("runs/\udcff", "the path 'runs/\\\\xff' is not UTF-8"),
        ("runs/a\0b", "the path 'runs/a\\x00b' has a zero byte"),
        ("runs/" + "é" * 128, "has a name of 256 bytes"),
        ("a/" * 2000, "has 4,000 bytes"),
    ],
)
def test_what_is_no_path_or_address_is_an_error(text, error):
    with pytest.raises(FileError) as caught:
        user_path(text)
    assert error in str(caught.value)
    assert user_path("runs/" + "é" * 127).name == "é" * 127


@pytest.mark.parametrize(("scheme", "package"), [("gs", "gcsfs"), ("s3", "s3fs")])
def test_a_missing_package_is_one_line_that_names_it(scheme, package, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else find(name)
    )
    with pytest.raises(FileError) as caught:
        user_path(f"{scheme}://bucket/run")
    assert str(caught.value) == (
        f"{scheme}://bucket/run cannot be opened: {package} is not installed; expected the package"
        f" {package}; run: pip install {package}"
    )


def test_what_must_be_local_cannot_be_in_a_bucket():
    with pytest.raises(FileError, match=r"a config file at gs://bucket/x.py; expected a local"):
        local_path("gs://bucket/x.py", "a config file")


COMMANDS = {
    "train": ["--config=configs/quickstart.py", "--workdir={}"],
    "eval": ["--workdir={}"],
    "fewshot": ["x.npz", "--workdir={}"],
    "checkpoint": ["verify", "{}"],
    "predict": ["{}", "--model=x.npz"],
    "analyze": ["x.npz", "--output={}"],
    "convert": ["x.npz", "{}", "--format=orbax"],
    "plan": ["--config=configs/quickstart.py", "--topology=cpu:1", "--output={}"],
    "bench": ["step", "--output={}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_address_is_one_line_before_anything_is_made(
    command, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    arguments = [text.format("gss://bucket/run") for text in COMMANDS[command]]
    assert main([command, *arguments]) == 2
    line = capsys.readouterr().err
    assert line.endswith("did you mean gs://bucket/run?\n")
    assert ": the address 'gss://bucket/run'; expected a local path" in line
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_mounted_bucket_is_a_bucket(tmp_path, monkeypatch):
    mounted = tmp_path / "my bucket"
    (mounted / "disk").mkdir(parents=True)
    (tmp_path / "link").symlink_to(mounted)
    text = str(mounted).replace(" ", "\\040")
    mountinfo = (
        "21 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"22 21 0:42 / {text} rw,relatime - fuse.gcsfuse bucket rw\n"
        f"23 22 0:43 / {text}/disk rw - tmpfs tmpfs rw\n"
    )
    file = types.SimpleNamespace(read_text=lambda encoding: mountinfo)
    monkeypatch.setattr(paths, "Path", lambda name: file)
    assert is_bucket(mounted / "run")
    assert is_bucket(tmp_path / "link" / "run")
    assert not is_bucket(tmp_path / "run")
    assert not is_bucket(mounted / "disk" / "run")


def test_local_paths_import_no_storage_client():
    code = (
        "import sys; from vit_jax.storage.paths import user_path, is_bucket;"
        "from vit_jax.storage import files, lock, log_file;"
        "is_bucket(user_path('runs/x'));"
        "print([n for n in ('fsspec', 'gcsfs', 's3fs', 'aiohttp', 'botocore') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"


def test_a_folder_for_results_is_checked_before_the_work(tmp_path):
    check_output_folder(tmp_path / "new" / "run", ["report"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path, got in (
        (tmp_path / "file", f"{tmp_path / 'file'} is a file"),
        (tmp_path / "file" / "run", f"{tmp_path / 'file'} is a file"),
        (tmp_path / "loop" / "run", f"{tmp_path / 'loop'} is a link that leads nowhere"),
    ):
        with pytest.raises(RunFolderError) as caught:
            check_output_folder(path)
        assert caught.value.got == got
    with pytest.raises(RunFolderError, match="file is a file; expected a folder"):
        check_output_folder(tmp_path, ["file"])
