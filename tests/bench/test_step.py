import json

import jax
import pytest
from processes import user_error

from vit_jax.__main__ import main
from vit_jax.bench.step import Measurement, fastest_batch_size, measure_interleaved
from vit_jax.errors import UserError

pytestmark = pytest.mark.usefixtures("optax_promotes")


class Fake:
    """A step with given timings that records when it runs."""

    def __init__(self, name, seconds, turns=None):
        self.measurement = Measurement(name, "ViT-B/16", 10, 2_000, 0.0, None)
        self._seconds, self._turns = iter(seconds), [] if turns is None else turns

    def time(self, steps):
        self._turns.append(self.measurement.name)
        return next(self._seconds)

    def close(self):
        self._turns.append(f"{self.measurement.name} closed")


def test_implementations_alternate_and_medians_are_reported():
    turns = []
    steps = [Fake("a", [0.1, 5.0, 0.2], turns), Fake("b", [0.4, 0.4, 0.4], turns)]
    a, b = measure_interleaved(steps, rounds=3, steps_per_round=1)
    assert turns == ["a", "b"] * 3 + ["a closed", "b closed"]
    assert a.images_per_second == pytest.approx(10 / 0.2)
    assert b.images_per_second == pytest.approx(10 / 0.4)
    assert a.row()["step_ms_max"] == pytest.approx(5000)
    assert a.row()["tflops_per_second"] == pytest.approx(50 * 2_000 / 1e12)
    assert a.mfu is None


def test_mfu_by_hand(monkeypatch):
    monkeypatch.setattr("vit_jax.bench.step.peak_flops", lambda kind: 200_000.0)
    (measured,) = measure_interleaved([Fake("a", [0.2])], rounds=1, steps_per_round=1)
    assert measured.mfu == pytest.approx(50 * 2_000 / 200_000)


def test_the_search_for_a_batch_size_ends_at_full_memory_and_returns_the_fastest():
    seconds = {32: 1.0, 64: 1.5, 128: 4.0}  # 32, 43 and 32 images per second

    def make(size):
        if size > 128:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory")
        return Fake("a", [seconds[size]] * 2)

    assert fastest_batch_size(make, start=32, limit=4096) == 64
    with pytest.raises(UserError, match="batch size 256 does not fit"):
        fastest_batch_size(make, start=256, limit=4096)

    def broken(size):
        raise jax.errors.JaxRuntimeError("INTERNAL: broken")

    with pytest.raises(jax.errors.JaxRuntimeError, match="broken"):
        fastest_batch_size(broken, start=32, limit=64)


SMALL = ["--model=ViT-Ti/16", "--batch_size=2", "--image_size=32", "--rounds=1", "--steps=1"]


def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
    output = tmp_path / "bench.json"
    profile = f"--profile={tmp_path / 'profile'}"
    options = [f"--output={output}", profile, "--config.model.depth=1"]
    assert main(["bench", "step", *SMALL, *options]) == 0
    assert "images/s" in capsys.readouterr().out
    content = json.loads(output.read_text())
    assert list(tmp_path.glob("profile/**/*.xplane.pb"))
    assert content["environment"]["device_count"] == 1
    (row,) = content["rows"]
    assert (row["name"], row["model"], row["batch_size"]) == ("vit_jax", "ViT-Ti/16", 2)
    assert row["attention"] == "einsum"
    assert row["images_per_second"] == pytest.approx(2 / (row["step_ms"] / 1e3))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--rounds=0"], "'0' is not a positive whole number"),
        (["--output=/no/such/folder/x.json"], "is not in an existing folder"),
        (["--model=ViT-Z/16"], "unknown model 'ViT-Z/16'"),
        (["--config.model.dpth=3"], "did you mean 'model.depth'"),
        (["--config.compiler_options.xla_nonsense=3"], "compiler_options"),
    ],
)
def test_errors_are_one_line(options, words, capsys):
    assert words in user_error(capsys, ["bench", "step", *SMALL, *options])
