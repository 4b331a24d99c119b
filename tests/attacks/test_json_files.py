"""JSON files of wrong content: every command that reads one works or ends with one line."""

import json
import shutil
from pathlib import Path

import pytest
from attacks.draws import Commands, check
from short_runs import SHORT, content
from weight_files import random_weights

# What stands in place of a file, or of one of its values.
CONTENTS = {
    "array": "[]",
    "number": "3",
    "object": "{}",
    "text": '""',
    "null": "null",
    "nested": "[" * 100_000,
    "nothing": "",
    "NaN": "NaN",
    "bytes": b"\xff\xfe\x00",
}
VALUES = [None, [], {}, "", "x", -1, 0, 1.5, 10**30, True, [[]], {"a": {"b": 1}}]
# Files that a command may write again, because they say what it has found.
WRITTEN = {"report", "metrics.jsonl", "sessions.jsonl", "env.json", "environments.jsonl",
           "init.json", "examples-0.jsonl"}  # fmt: skip

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sharding info not provided"),  # One device here.
    # A failed restore leaves threads and an event loop of Orbax behind.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]


def paths_of_values(tree, path=()):
    """Returns the path of every value in a JSON tree."""
    found = [path] if path else []
    items = tree.items() if isinstance(tree, dict) else ()
    return found + [p for key, value in items for p in paths_of_values(value, (*path, key))]


def with_value(tree, path, value):
    changed = json.loads(json.dumps(tree))
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(changed)


def attacks_on(folder, files, draw, values_of_each):
    """Returns (file, name of the attack, new content)."""
    made = []
    for file in files:
        tree = json.loads((folder / file).read_text())
        made += [(file, name, text) for name, text in CONTENTS.items()]
        paths = paths_of_values(tree)
        for path in draw.random.sample(paths, min(len(paths), values_of_each)):
            value = draw.random.choice(VALUES)
            made.append((file, f"{'.'.join(path)} = {value!r}", with_value(tree, path, value)))
    return made


def put(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())


def json_files(folder):
    """Returns the JSON files of a folder that are not Orbax's own."""
    found = [p for p in folder.rglob("*") if p.is_file() and "ocdbt" not in str(p)]
    return sorted(
        str(p.relative_to(folder))
        for p in found
        if p.suffix == ".json" or p.name in ("_CHECKPOINT_METADATA", "metadata", "_METADATA")
    )


def test_files_of_a_run_folder(draw, finished, digits_dir, tmp_path, capfd, caplog):
    command = Commands(capfd, caplog)
    config = shutil.copy(finished / "config.json", tmp_path / "config.json")
    run, weights = tmp_path / "run", tmp_path / "weights.npz"
    train = ("train", f"--config={config}", f"--config.data.data_dir={digits_dir}", *SHORT)
    commands = [
        (*train, f"--workdir={run}"),
        ("eval", f"--workdir={run}"),
        ("report", run),
        ("checkpoint", "verify", run),
        ("convert", run, weights, "--format=vision_transformer"),
        ("config", f"--config={run / 'config.json'}"),
    ]
    attacks = [
        (file, about, text, arguments)
        for file, about, text in attacks_on(finished, json_files(finished), draw, 6)
        for arguments in commands
    ]
    for file, about, text, arguments in draw.some(attacks, few=3):
        shutil.copytree(finished, run)
        put(run / file, text)
        before = content(run)
        attack = f"{arguments[:2]} with {file}: {about}"
        outcome = command(*arguments)
        check(outcome, attack)
        after = content(run)
        lost = [p for p in before if after.get(p) != before[p] and not WRITTEN & {*Path(p).parts}]
        if arguments[0] == "train" and outcome.code == 0:
            lost = [p for p in lost if not p.startswith("checkpoints/") and p != file]
        assert not lost, (attack, outcome.err[-1000:])
        shutil.rmtree(run)
        weights.unlink(missing_ok=True)


def test_files_of_a_weights_folder(draw, tmp_path, capfd, caplog):
    command, good = Commands(capfd, caplog), tmp_path / "good"
    random_weights(good)
    attacks = attacks_on(good, json_files(good), draw, 12)
    for i, (file, about, text) in enumerate(draw.some(attacks, few=5)):
        folder = shutil.copytree(good, tmp_path / f"{i}")
        put(folder / file, text)
        before = content(folder)
        there = tmp_path / f"{i}.npz"
        check(command("convert", folder, there, "--format=vision_transformer"), f"{file}: {about}")
        assert content(folder) == before
