"""Damaged files of a TFDS dataset: all commands that read it agree on whether it can be used."""

import json
import shutil

import pytest
from attacks.draws import Commands, check
from processes import UNMIXED

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.


def cut(data, draw):
    return data[: len(data) // 2]


def empty(data, draw):
    return b""


def flipped(data, draw):
    changed = bytearray(data)
    for at in draw.random.sample(range(len(data)), min(20, len(data))):
        changed[at] ^= draw.random.randrange(1, 256)
    return bytes(changed)


def missing(data, draw):
    return None


def renamed_features(data, draw):
    return data.replace(b'"image"', b'"picture"').replace(b'"label"', b'"category"')


def no_examples(data, draw):
    info = json.loads(data)
    for split in info["splits"]:
        split["shardLengths"] = ["0"] * len(split["shardLengths"])
    return json.dumps(info).encode()


def wrong_lengths(data, draw):
    info = json.loads(data)
    for split in info["splits"]:
        split["shardLengths"] = [str(int(n) + 7) for n in split["shardLengths"]]
    return json.dumps(info).encode()


DAMAGES = {
    "dataset_info.json": (cut, empty, flipped, missing, no_examples, wrong_lengths),
    "features.json": (cut, empty, flipped, missing, renamed_features),
    "record": (cut, empty, flipped, missing),
}
# After these, no command can use the data; `data info` may show what the metadata say. The features
# of a bundled dataset come from its code.
UNUSABLE = {("dataset_info.json", d) for d in (cut, empty, missing, no_examples, wrong_lengths)} | {
    ("record", d) for d in (cut, empty, missing)
}


def test_all_commands_agree(draw, digits_dir, tmp_path, capfd, caplog):
    command = Commands(capfd, caplog)
    (version,) = (digits_dir / "digits").iterdir()
    files = sorted(path.relative_to(digits_dir) for path in version.iterdir())
    attacks = [
        (file, kind, damage)
        for file in files
        for kind, damages in DAMAGES.items()
        if kind in file.name
        for damage in damages
    ]
    assert {kind for _, kind, _ in attacks} == {*DAMAGES}
    for i, (file, kind, damage) in enumerate(draw.some(attacks, few=1)):
        folder = shutil.copytree(digits_dir, tmp_path / f"data{i}")
        changed = damage((folder / file).read_bytes(), draw)
        if changed is None:
            (folder / file).unlink()
        else:
            (folder / file).write_bytes(changed)
        data = f"--config.data.data_dir={folder}"
        found = {
            "info": command("data", "info", "digits", f"--data_dir={folder}"),
            "check": command("data", "check", "digits", f"--data_dir={folder}"),
            "train": command(
                "train", f"--config={UNMIXED}", f"--workdir={tmp_path / f'run{i}'}", data,
                "--config.train_steps=60",
            ),
            "feed": command(
                "bench", "feed", f"--config={UNMIXED}", data, "--seconds=0.3", "--rounds=1",
                "--processes=0",
            ),
        }  # fmt: skip
        about = f"{damage.__name__} {file.name}"
        codes = {name: outcome.code for name, outcome in found.items()}
        for name, outcome in found.items():
            codes_of = f"{about}: {name}, {codes}"
            assert outcome.code in (0, 2), f"{codes_of}\n{outcome.err[-2000:]}"
            if name != "check":  # It lists what is damaged.
                check(outcome, codes_of)
        if codes["check"] == 0:
            assert set(codes.values()) == {0}, (
                about
                + "\n"
                + "\n".join(error for outcome in found.values() for error in outcome.errors)
            )
        if (kind, damage) in UNUSABLE:
            refused = {name for name, code in codes.items() if code == 2}
            readers = {"check", "train"} if "test" in file.name else {"check", "train", "feed"}
            assert refused >= readers, f"{about}: {codes}"
        shutil.rmtree(folder)
