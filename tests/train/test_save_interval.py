"""The interval between saves, fixed or chosen."""

import pytest
from processes import UNMIXED
from shared_programs import stop_after

from vit_jax.config.file import load_config
from vit_jax.config.run import CheckpointConfig
from vit_jax.errors import ConfigError
from vit_jax.run.metrics import read_metrics
from vit_jax.run.time_account import TimeAccount
from vit_jax.train import save_interval
from vit_jax.train.loop import train
from vit_jax.train.save_interval import AutoInterval, best_interval_s
from vit_jax.train.signals import Stopped, StopSignals

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("blocked_s", [0.05, 1.0, 40.0])
@pytest.mark.parametrize("write_s", [0.0, 30.0])
def test_no_other_interval_loses_less_time(blocked_s, write_s):
    between_failures_s = 4 * 3600

    def loss(interval_s):
        return blocked_s / interval_s + (interval_s / 2 + write_s) / between_failures_s

    best = best_interval_s(blocked_s, between_failures_s, write_s)
    assert best >= write_s
    for factor in (1.1, 2):
        assert loss(best) < loss(best * factor)
        assert loss(best) < loss(best / factor) or best == write_s


class Run:
    """A run whose steps and saves take the time that a test says."""

    def __init__(self, monkeypatch, tmp_path, hours, step=0):
        self.now = 1000.0
        for name in ("time", "perf_counter"):
            monkeypatch.setattr(f"vit_jax.run.time_account.time.{name}", lambda: self.now)
        self.account, self.step = TimeAccount(), step
        self.interval = AutoInterval(self.account, tmp_path, step, hours)

    def saves(self, steps, step_s, save_s):
        """Trains some steps; returns those after which it saved."""
        found = []
        for _ in range(steps):
            self.step += 1
            with self.account.part("steps"):
                self.now += step_s
            if self.interval.is_due(self.step):
                with self.account.part("saving"):
                    self.now += save_s
                self.account.add_save(save_s)
                self.interval.saved(self.step)
                found.append(self.step)
        return found


def test_the_interval_follows_the_measured_cost_in_logged_lines(monkeypatch, tmp_path, caplog):
    run = Run(monkeypatch, tmp_path, hours=2)
    with caplog.at_level("INFO", logger="vit_jax"):
        # The first save is assumed to cost 1 s: sqrt(2 * 1 * 7200) = 120 s. It costs 0.25 s: 60 s.
        assert run.saves(330, 0.5, 0.25) == [240]
        assert run.saves(270, 0.5, 0.25) == [360, 480, 600]
        # The median of five saves follows the new cost at the third: sqrt(2 * 4 * 7200) = 240 s.
        assert run.saves(1000, 0.5, 4.0) == [720, 840, 960, 1440]
    assert [record.message for record in caplog.records] == [
        "checkpoint interval: 240 steps = 2 min, because a save blocks training for 1 s (assumed)"
        " and a failure comes every 2 h (as configured)",
        "checkpoint interval: 120 steps = 60 s, because a save blocks training for 0.25 s"
        " (measured) and a failure comes every 2 h (as configured)",
        "checkpoint interval: 480 steps = 4 min, because a save blocks training for 4 s (measured)"
        " and a failure comes every 2 h (as configured)",
    ]


def test_without_a_configured_time_the_failures_of_the_run_count(monkeypatch, tmp_path, caplog):
    run = Run(monkeypatch, tmp_path, hours=None)
    run.account.failures = 3
    run.now += 8 * 3600  # Earlier sessions.
    with caplog.at_level("INFO", logger="vit_jax"):
        run.saves(10, 0.5, 0.25)
    (line,) = [record.message for record in caplog.records]
    assert "a failure comes every 8 h (3 seen in 8 h)" in line  # (24 + 8) / (1 + 3)


def test_a_save_is_not_due_before_the_last_one_is_complete(monkeypatch, tmp_path):
    run = Run(monkeypatch, tmp_path, hours=2)
    monkeypatch.setattr(save_interval, "write_time_s", lambda folder: 500.0)
    assert run.saves(1999, 1.0, 0.25) == [500, 1000, 1500]


def test_a_resumed_run_counts_from_its_checkpoint(monkeypatch, tmp_path):
    run = Run(monkeypatch, tmp_path, hours=2, step=1000)
    assert run.saves(250, 0.5, 0.25) == [1240]


CONFIG = ("checkpoint.interval=auto", "train_steps=40",
          "optimizer.schedule.warmup_steps=2", "logging.interval_steps=5")  # fmt: skip


@pytest.mark.slow
def test_a_run_with_auto_saves_more_often_than_its_end(tmp_path, digits_dir, monkeypatch, caplog):
    monkeypatch.setattr(save_interval, "_ASSUMED_SAVE_S", 1e-9)
    config = load_config(
        UNMIXED, [f"data.data_dir={digits_dir}", *CONFIG, "checkpoint.hours_between_failures=1e-6"]
    )
    with caplog.at_level("INFO", logger="vit_jax"):
        train(config, tmp_path, StopSignals())
    saved = [
        r["step"] for r in read_metrics(tmp_path / "metrics.jsonl") if "checkpoint/blocked_s" in r
    ]
    assert saved[0] == 10
    assert saved[-1] == 40
    assert len(saved) > 2
    assert "checkpoint interval: 1 steps" in caplog.text


@pytest.mark.slow
def test_a_stopped_run_with_auto_resumes(tmp_path, digits_dir, monkeypatch):
    config = load_config(UNMIXED, [f"data.data_dir={digits_dir}", *CONFIG])
    with pytest.raises(Stopped, match="step 15"):
        train(config, tmp_path, stop_after(15, monkeypatch))
    assert train(config, tmp_path, StopSignals())["step"] == 40


def test_auto_replaces_the_interval_of_a_recipe_and_the_other_way_round():
    auto = load_config(UNMIXED, ["checkpoint.interval=auto"]).checkpoint
    assert (auto.interval, auto.interval_steps) == ("auto", None)
    overrides = ["checkpoint.interval=auto", "checkpoint.interval_examples=640"]
    given = load_config(UNMIXED, overrides).checkpoint
    assert (given.interval, given.interval_examples) == (None, 640)
    with pytest.raises(ConfigError, match="is 'auto' and 'interval_steps' is given, too"):
        CheckpointConfig(interval="auto", interval_steps=10)


@pytest.mark.parametrize(
    ("overrides", "got"),
    [
        (["hours_between_failures=2"], "is 2.0 without interval=auto"),
        (["interval=100"], "'checkpoint.interval'"),
        (["hours_between_failures=0"], "'checkpoint.hours_between_failures'"),
    ],
)
def test_impossible_settings_are_refused(overrides, got):
    with pytest.raises(ConfigError) as caught:
        load_config(UNMIXED, [f"checkpoint.{o}" for o in overrides])
    assert got in str(caught.value)
