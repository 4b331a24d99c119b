import os
import signal
import sys

import pytest
from processes import TINY, start_command

from vit_jax.closed_pipes import watch_pipes

TRAIN = ["--config.train_steps=3", "--config.logging.interval_steps=1"]


def start_without_reader(*arguments, stderr_too=False):
    """Starts a command whose standard output nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as closed:
        streams = {"stdout": closed, "stderr": closed if stderr_too else None}
        return start_command("-m", "vit_jax", *arguments, **streams)


@pytest.mark.parametrize("arguments", [["models", "ViT-Ti/16"], ["--help"], ["config"]])
def test_a_command_ends_quietly_with_141_if_its_reader_is_gone(arguments):
    process = start_without_reader(*arguments)
    assert process.wait(60) == 128 + signal.SIGPIPE
    assert os.pread(process._files[1].fileno(), 1 << 16, 0) == b""


@pytest.mark.parametrize(
    ("encoding", "written"), [("ascii", b"cr\\xe8me \\udcff"), ("utf-8", "crème \\udcff".encode())]
)
def test_a_character_that_the_locale_lacks_is_escaped(tmp_path, encoding, written, monkeypatch):
    with (tmp_path / "out").open("w", encoding=encoding) as file:
        monkeypatch.setattr(sys, "stdout", file)
        monkeypatch.setattr(sys, "stderr", file)
        watch_pipes("config")
        print("crème \udcff", end="", flush=True)
    assert (tmp_path / "out").read_bytes() == written


@pytest.mark.slow
@pytest.mark.parametrize("stderr_too", [False, True])
def test_training_goes_on_if_its_reader_is_gone(tmp_path, digits_dir, stderr_too):
    data = f"--config.data.data_dir={digits_dir}"
    arguments = ["train", f"--config={TINY}", f"--workdir={tmp_path / 'run'}", data, *TRAIN]
    assert start_without_reader(*arguments, stderr_too=stderr_too).wait(300) == 0
    assert (tmp_path / "run" / "result.json").exists()
    assert (tmp_path / "run" / "checkpoints" / "3").is_dir()
