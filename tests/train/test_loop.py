import json
import math
import shutil
import tempfile

import jax
import pytest
from task_runs import digits_config, program_of, stop_in_evaluation

from vit_jax.errors import ConfigError, NonFiniteError
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.run.metrics import read_metrics
from vit_jax.train import trace
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals


@pytest.fixture(scope="module")
def config(digits_dir):
    return digits_config(digits_dir)


def rows(workdir, prefix):
    return [
        {k: v for k, v in row.items() if k == "step" or k.startswith(prefix)}
        for row in read_metrics(workdir / "metrics.jsonl")
        if any(k.startswith(prefix) for k in row)
    ]


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of an uninterrupted run, and its result."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, train(config, workdir, StopSignals())


@pytest.fixture
def damaged(finished, tmp_path):
    """A copy of the finished run that may be changed, and its result."""
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy", finished[1]


@pytest.mark.slow
def test_metrics_of_an_evaluation_that_are_not_finite_are_named(
    config, tmp_path, monkeypatch, caplog
):
    original = SplitEvaluator.__call__

    def evaluate(self, eval_step, params, **options):
        found = original(self, eval_step, params, **options)
        return found | {"eval/test/loss": math.nan}

    monkeypatch.setattr(SplitEvaluator, "__call__", evaluate)
    with pytest.raises(NonFiniteError, match=r"eval/test/loss = nan in .*result.json"):
        train(config, tmp_path, StopSignals())
    for step in (10, 20):
        assert f"evaluation at step {step} is not finite: eval/test/loss = nan" in caplog.messages


@pytest.mark.slow
def test_a_stop_during_an_evaluation_saves_and_the_next_session_evaluates(
    config, finished, tmp_path, monkeypatch
):
    (reference, want), stopped = finished, tmp_path
    for _ in range(2):  # Once more in the evaluation that the next session makes up for.
        stop_in_evaluation(SplitEvaluator, 1, 10, config, stopped, monkeypatch)
    assert rows(stopped, "eval/") == []
    got = train(config, stopped, StopSignals())
    assert [row["step"] for row in rows(stopped, "eval/")] == [10, 20]
    assert rows(stopped, "eval/") == rows(reference, "eval/")
    assert rows(stopped, "train/loss") == rows(reference, "train/loss")
    assert got | {"wall_time_s": 0, "seconds": 0} == want | {"wall_time_s": 0, "seconds": 0}


@pytest.mark.slow
def test_after_a_stop_during_the_last_evaluation_only_that_evaluation_is_repeated(
    config, tmp_path, monkeypatch
):
    stop_in_evaluation(SplitEvaluator, 2, 20, config, tmp_path, monkeypatch)
    result = train(config, tmp_path, StopSignals())
    assert result["step"] == 20
    batch_size = config.data.global_batch_size
    assert (result["train_examples"], result["examples_seen"]) == (1437, 20 * batch_size)
    program = program_of(config)
    flops = 20 * batch_size * program.flops_per_image
    assert result["train_exaflops"] * 1e18 == pytest.approx(flops)
    assert [row["step"] for row in rows(tmp_path, "eval/")] == [10, 20]


@pytest.mark.slow
def test_a_run_killed_before_its_result_resumes_without_duplicate_lines(config, damaged):
    tmp_path, want = damaged
    before = (tmp_path / "metrics.jsonl").read_bytes()
    (tmp_path / "result.json").unlink()
    got = train(config, tmp_path, StopSignals())
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    assert got | {"wall_time_s": 0, "seconds": 0} == want | {"wall_time_s": 0, "seconds": 0}
    assert 0.5 * want["wall_time_s"] < got["wall_time_s"]  # Includes the earlier session.
    assert json.loads((tmp_path / "result.json").read_text()) == got


@pytest.mark.slow
def test_every_training_line_has_the_figures_named_in_the_readme(finished):
    lines = [r for r in read_metrics(finished[0] / "metrics.jsonl") if "train/loss" in r]
    assert [line["step"] for line in lines] == [5, 10, 15, 20]
    promised = {
        "step", "time", "train/loss", "train/learning_rate", "train/gradient_norm",
        "train/parameter_norm", "train/update_norm", "train/images_per_second",
        "train/images_per_second_per_device", "train/step_time_s", "train/data_wait_fraction",
        "train/compile_time_s", "host/rss_mb",
    }  # fmt: skip
    for line in lines:
        assert promised <= set(line)
        assert 0 <= line["train/data_wait_fraction"] <= 1


# Raised while jaxlib reads the trace, this warning as an error aborts the process.
@pytest.mark.filterwarnings("ignore:builtin type event_stats:DeprecationWarning")
@pytest.mark.slow
def test_steps_are_profiled(config, tmp_path, capsys):
    profile = config.profile.replace(steps="12:13")
    train(config.replace(profile=profile), tmp_path, StopSignals())
    folder = tmp_path / "profile" / "plugins" / "profile" / "steps-12-13"
    assert {path.name for path in folder.iterdir()} == {
        "process-0.xplane.pb", "process-0.trace.json.gz", "process-0.perfetto.json.gz",
    }  # fmt: skip
    data = jax.profiler.ProfileData.from_file(str(folder / "process-0.xplane.pb"))
    (host,) = (plane for plane in data.planes if plane.name == "/host:CPU")
    events = (event for line in host.lines for event in line.events if event.name == "train")
    assert [dict(event.stats)["step_num"] for event in events] == [12, 13]


@pytest.mark.parametrize("traced_before", [True, False])
@pytest.mark.slow
def test_a_resumed_run_warns_of_steps_that_were_not_traced(
    traced_before, config, tmp_path, monkeypatch, caplog
):
    traces = config.replace(profile=config.profile.replace(steps="3:4"))
    first = traces if traced_before else config
    stop_in_evaluation(SplitEvaluator, 1, 10, first, tmp_path, monkeypatch)
    train(traces, tmp_path, StopSignals())
    warned = [line for line in caplog.messages if line.startswith("no profile")]
    assert warned == ["no profile of steps 3 to 4: the run is at step 10"] * (not traced_before)


@pytest.mark.slow
def test_a_trace_ends_with_the_run(config, tmp_path):
    profile = config.profile.replace(steps="20:99")
    train(config.replace(profile=profile), tmp_path / "here", StopSignals())
    folder = tmp_path / "here" / "profile" / "plugins" / "profile" / "steps-20-99"
    assert (folder / "process-0.xplane.pb").is_file()
    late = config.replace(profile=profile.replace(steps="21:22"))
    with pytest.raises(ConfigError, match=r"'profile\.steps' is 21:22, and the run has 20 steps"):
        train(late, tmp_path / "late", StopSignals())


@pytest.mark.slow
def test_a_program_is_built_once_for_several_runs(config, finished, tmp_path):
    program = program_of(config)
    compiled = program.compiled
    for name in ("one", "two"):
        result = train(config, tmp_path / name, StopSignals(), program)
        clocked = {"wall_time_s": 0, "seconds": 0}
        assert result | clocked == finished[1] | clocked
    assert program.compiled is compiled


@pytest.mark.slow
def test_a_profile_that_fails_does_not_end_the_run(config, tmp_path, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise ValueError("no such plane")

    with monkeypatch.context() as patch:
        patch.setattr(jax.profiler, "start_trace", fail)
        patch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
        (tmp_path / "temporary").mkdir()
        with pytest.raises(ValueError, match="no such plane"):
            trace.Trace("steps-1-2")
        assert list((tmp_path / "temporary").iterdir()) == []
    stop = jax.profiler.stop_trace
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: (stop(), fail()))
    profile = config.profile.replace(steps="12:13")
    assert train(config.replace(profile=profile), tmp_path, StopSignals())["step"] == 20
    assert "the profile is not complete: ValueError('no such plane')" in caplog.messages
