"""A flipped bit in any file of a checkpoint is found, or the content is the same without it."""

import shutil

import numpy as np
import pytest
from attacks.draws import Commands, check

from vit_jax.run.damage import check_arrays, read_about, read_item
from vit_jax.run.digest import tree_digests
from vit_jax.run.verify import restore_numpy, verify_checkpoint

# The largest number of bytes of one file that are attacked; every k-th one if there are more.
MOST_BYTES = 8

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),  # One device here.
    # A failed restore leaves threads and an event loop of Orbax behind.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def read(at):
    """Returns everything that a resume reads from a checkpoint, after the checks of a resume."""
    about = read_about(at)
    items = {item: read_item(at, item, about) for item in ("data", "config")}
    arrays = {item: restore_numpy(at / item) for item in ("params", "optimizer", "ema")}
    check_arrays(at, about, tree_digests(arrays))
    return about, items, arrays


def positions(size, draw):
    """Every k-th byte, from a random one on."""
    step = max(1, size // MOST_BYTES)
    return range(draw.random.randrange(min(step, size)), size, step) if size else ()


def flips(folder, draw):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        (path.relative_to(folder), at, 1 << draw.random.randrange(8))
        for path in files
        for at in positions(path.stat().st_size, draw)
    ]


def flip(path, at, bit):
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


def test_a_flipped_bit_is_found_or_changes_nothing(draw, finished, tmp_path):
    at = shutil.copytree(finished / "checkpoints" / "30", tmp_path / "30")
    good = read(at)
    for name, byte, bit in draw.some(flips(at, draw), few=4):
        flip(at / name, byte, bit)
        try:
            about, items, arrays = read(at)
        except Exception:  # Orbax raises many classes; `train` and `eval` turn them into one line.
            assert verify_checkpoint(at, lambda line: None), (name, byte, bit)
        else:
            assert verify_checkpoint(at, lambda line: None) == [], (name, byte, bit)
            assert (about, items) == good[:2], (name, byte, bit)
            for item, wanted in good[2].items():
                for key, array in wanted.items():
                    np.testing.assert_array_equal(arrays[item][key], array, f"{name} {byte} {bit}")
        flip(at / name, byte, bit)
    assert verify_checkpoint(at, lambda line: None) == []


def test_commands_refuse_it_with_one_line_or_agree(draw, run, capfd, caplog):
    command, at = Commands(capfd, caplog), run / "checkpoints" / "30"
    good = command("eval", f"--workdir={run}", "--json")
    check(good, "no damage")
    assert good.code == 0
    for name, byte, bit in draw.some(flips(at, draw), few=2):
        flip(at / name, byte, bit)
        outcome = command("eval", f"--workdir={run}", "--json")
        check(outcome, (name, byte, bit))
        assert outcome.code == 2 or outcome.out == good.out, (name, byte, bit)
        flip(at / name, byte, bit)
