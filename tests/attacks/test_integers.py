"""Every integer of the config at sizes that no machine has: the run works or ends with one line."""

import resource
import subprocess

import pytest
from attacks.draws import Outcome, check
from processes import UNMIXED, start

from vit_jax.config.run import Config

SIZES = (10**6, 10**9, 10**18)
# Bytes of data that a run may allocate, and seconds that it may take.
MOST_BYTES, MOST_SECONDS = 8 * 10**9, 120
UNFINISHED = "none, it did not end"
# These fit the memory, and a step takes minutes.
SLOW = {
    ("data.global_batch_size", 10**6),
    ("evaluation.batch_size", 10**6),
    ("model.mlp_dim", 10**6),
}
# A run of 10**18 steps is what was asked for, and takes its time.
ENDLESS = {"train_steps", "train_epochs", "train_examples"}


def integer_keys(schema, definitions, prefix=""):
    """Returns the dotted names of all keys that take an integer."""
    found = []
    for name, field in schema.get("properties", {}).items():
        for kind in field.get("anyOf", [field]):
            kind = definitions[kind["$ref"].rpartition("/")[2]] if "$ref" in kind else kind
            if kind.get("type") == "integer":
                found.append(prefix + name)
            found += integer_keys(kind, definitions, f"{prefix}{name}.")
    return found


def all_keys():
    schema = Config.model_json_schema()
    keys = set(integer_keys(schema, schema.get("$defs", {})))
    vit = ["width", "depth", "mlp_dim", "num_heads", "patch_size", "representation_size"]
    return sorted((keys | {f"model.{name}" for name in vit}) - ENDLESS)


def train(workdir, digits_dir, *overrides):
    """Trains a run in a process with limited memory."""
    process = start(workdir, digits_dir, "--config.train_steps=2", *overrides, config=UNMIXED)
    resource.prlimit(process.pid, resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    try:
        code = process.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        code = UNFINISHED
    finally:
        process.kill()
    return Outcome(code, *process.communicate())


def test_the_config_has_integers_in_every_section():
    keys = all_keys()
    assert len(keys) > 40
    assert {"seed", "data.image_size", "checkpoint.keep_last", "model.width"} <= {*keys}


def test_the_limit_lets_a_run_through(slow_draw, tmp_path, digits_dir):
    outcome = train(tmp_path / "run", digits_dir)
    check(outcome, "no attack", codes=(0,))


@pytest.mark.parametrize("size", SIZES)
def test_a_huge_integer_is_used_or_refused(slow_draw, size, tmp_path, digits_dir):
    failed = []
    for i, key in enumerate(slow_draw.some(all_keys(), short=0)):
        outcome = train(tmp_path / f"{i}", digits_dir, f"--config.{key}={size}")
        codes = (0, 2, UNFINISHED) if (key, size) in SLOW else (0, 2)
        try:
            check(outcome, f"{key}={size}", codes)
        except AssertionError as error:
            failed.append(str(error)[:1500])
    assert not failed, "\n\n".join(failed)
