import contextlib

import numpy as np
import pytest
from shared_programs import shared_program
from short_runs import saved_steps
from task_runs import digits_config

import vit_jax
from vit_jax.config.early_stopping import EarlyStoppingConfig
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.evaluation.correct import read_correct
from vit_jax.evaluation.splits import SplitEvaluator
from vit_jax.parallel.mesh import make_mesh
from vit_jax.run.about import choose_checkpoint
from vit_jax.run.checkpoints import result_params
from vit_jax.run.metrics import read_metrics
from vit_jax.train.early_stopping import EarlyStopping
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals

METRIC = "eval/dev/accuracy_top1"
SPLITS = ["data.train_split=train[:80%]", "evaluation.splits={'dev': 'train[80%:]'}"]
# Scores that the tests give to the evaluations of a run: step 10 is best, 25 is the last.
SCORES = {5: 0.3, 10: 0.6, 15: 0.6, 20: 0.5, 25: 0.55, 30: 0.9}


def noted(scores, metric="eval/dev/accuracy_top1", patience=2, saved=None):
    early = EarlyStopping(EarlyStoppingConfig(metric=metric, patience_evaluations=patience), saved)
    for step, score in scores:
        early.update(step, {metric: score})
    return early


def test_of_equal_scores_the_first_is_best_and_patience_counts_from_it():
    scores = [(1, 0.5), (2, 0.7), (3, 0.7)]
    assert (noted(scores).best_step, noted(scores).should_stop) == (2, False)
    assert noted([*scores, (4, 0.1)]).should_stop
    assert not noted([*scores, (4, 0.1)], patience=None).should_stop
    assert not noted([*scores, (4, 0.8)]).should_stop


def test_the_smallest_loss_is_best_and_nan_never_is():
    early = noted([(1, float("nan")), (2, 3.0), (3, 2.0), (4, float("nan"))], "eval/dev/loss")
    assert (early.best_step, early.should_stop) == (3, False)
    assert noted([(1, float("nan"))]).best_step is None
    # A class may be named "loss"; of its accuracy the largest is best.
    assert noted([(1, 0.5), (2, 0.9)], "eval/dev/accuracy_class/loss").best_step == 2


def test_restored_state_continues_and_counts_an_evaluation_once():
    scores = [(1, 0.5), (2, 0.4), (3, 0.45)]
    first = noted(scores[:2])
    saved = first.to_json()["early_stopping"]
    first.update(2, {"eval/dev/accuracy_top1": 0.4})
    assert first.to_json()["early_stopping"] == saved
    assert noted(scores[2:], saved=saved).to_json() == noted(scores).to_json()
    assert EarlyStopping(EarlyStoppingConfig()).to_json() == {}


def tiny(digits_dir, *more) -> Config:
    overrides = [
        *SPLITS,
        "evaluation.final_splits={'test': 'test'}",
        "train_steps=30",
        "evaluation.interval_steps=5",
        "checkpoint.interval_steps=100",
        "checkpoint.keep_last=1",
        f"early_stopping.metric={METRIC}",
        "early_stopping.patience_evaluations=3",
    ]
    return digits_config(digits_dir, *overrides, *more)


@contextlib.contextmanager
def scripted_evaluations():
    """Gives the evaluations at intervals the scores of SCORES. The final one is real."""
    original = SplitEvaluator.__call__
    state = {"evaluations": 0}

    def evaluate(self, eval_step, params, **options):
        found = original(self, eval_step, params, **options)
        if found and METRIC in found:
            state["evaluations"] += 1
            found[METRIC] = SCORES[5 * state["evaluations"]]
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SplitEvaluator, "__call__", evaluate)
        yield state


@pytest.fixture
def scripted():
    with scripted_evaluations() as state:
        yield state


@pytest.fixture(scope="module")
def finished(digits_dir, tmp_path_factory):
    """The folder of an uninterrupted run, and its result."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    with scripted_evaluations():
        return folder, train(tiny(digits_dir), folder, StopSignals())


@pytest.mark.slow
def test_a_run_stops_early_and_its_best_weights_are_its_result(digits_dir, finished):
    config = tiny(digits_dir)
    tmp_path, result = finished
    assert (result["step"], result["best_step"], result[METRIC]) == (25, 10, 0.6)
    assert result["examples_seen"] == 25 * config.data.global_batch_size
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows if METRIC in row] == [5, 10, 15, 20, 25]
    assert [row["step"] for row in rows if "eval/test/loss" in row] == [10]
    # Two checkpoints are kept, the best and the last. Readers of the run get the best.
    assert saved_steps(tmp_path) == [10, 25]
    assert choose_checkpoint(tmp_path).name == "10"
    program = shared_program(config, make_mesh(config.mesh), num_classes=10, num_examples=1150)
    params, _ = result_params(tmp_path, program.abstract.params)
    evaluator = SplitEvaluator(
        config.data,
        config.evaluation.all_splits,
        program.mesh,
        batch_size=config.evaluation.batch_size or config.data.global_batch_size,
        num_classes=program.task.num_outputs,
        preprocessing=program.task.eval_preprocessing,
        make_totals=program.task.totals,
    )
    again = evaluator(program.eval_step, params)
    # The files in report/ are of the best weights, too.
    correct = read_correct(tmp_path / "report" / "correct-dev.json")
    assert correct.accuracy == pytest.approx(again.pop(METRIC))
    assert again == {name: result[name] for name in again}
    images = np.linspace(-1, 1, 2 * 8 * 8 * 3, dtype=np.float32).reshape(2, 8, 8, 3)
    places = ("", "checkpoints/10", "checkpoints/25")
    by_run, best, last = (vit_jax.load_pretrained(tmp_path / place)(images) for place in places)
    np.testing.assert_array_equal(by_run, best)
    assert not np.array_equal(by_run, last)


@pytest.mark.slow
def test_a_stopped_run_remembers_its_best_step_and_patience(
    digits_dir, finished, tmp_path, scripted, monkeypatch
):
    config = tiny(digits_dir)
    reference, want = finished
    for evaluations in (3, 5):  # In the middle, and right after the last evaluation.
        stop = StopSignals()
        counted = SplitEvaluator.__call__

        def evaluate(self, *args, counted=counted, wanted=stop, most=evaluations, **options):
            found = counted(self, *args, **options)
            wanted.requested = scripted["evaluations"] >= most
            return found

        with monkeypatch.context() as patch:
            patch.setattr(SplitEvaluator, "__call__", evaluate)
            with pytest.raises(Stopped, match=f"step {evaluations * 5}"):
                train(config, tmp_path / "run", stop)
    got = train(config, tmp_path / "run", StopSignals())
    assert got | {"wall_time_s": 0, "seconds": 0} == want | {"wall_time_s": 0, "seconds": 0}
    texts = [
        [
            {k: v for k, v in row.items() if k.startswith("eval/") or k in ("step", "train/loss")}
            for row in read_metrics(folder / "metrics.jsonl")
        ]
        for folder in (tmp_path / "run", reference)
    ]
    assert [r for r in texts[0] if len(r) > 1] == [r for r in texts[1] if len(r) > 1]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["early_stopping.metric=eval/test/accuracy_top1"], "one of eval/dev/accuracy_top1"),
        (["evaluation.interval_steps=none"], "evaluation happens only after training"),
        (["early_stopping.metric=none"], "'early_stopping.patience_evaluations' is 3 without"),
        (["data.train_split=train"], "overlaps the training split 'train'"),
        (["evaluation.splits={'a/b': 'train[80%:]'}"], "has the name 'a/b'"),
        (["evaluation.final_splits={'dev': 'test'}"], "splits' and 'final_splits' both have 'dev'"),
    ],
)
def test_impossible_configs_are_config_errors(digits_dir, overrides, said):
    with pytest.raises(ConfigError) as error:
        tiny(digits_dir, *overrides)
    assert said in str(error.value)
