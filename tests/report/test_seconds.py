"""The bars that show where the time of runs went."""

import json

import pytest

from vit_jax.report.runs import Run
from vit_jax.report.seconds import draw_seconds, run_seconds
from vit_jax.run.time_account import PARTS

SECONDS = dict.fromkeys(PARTS, 0.0) | {"start": 10.0, "steps": 150.0, "lost": 30.0, "idle": 10.0}

SESSION = {
    "session": 1, "event": "running", "began": 0.0, "time": 3050.0, "step": 7,
    "seconds": SECONDS | {"steps": 3000.0},
}  # fmt: skip


def run_at(folder, name, **files):
    (folder / name).mkdir()
    for file, content in files.items():
        (folder / name / file.replace("_", ".")).write_text(json.dumps(content) + "\n")
    return Run(folder / name, name)


@pytest.fixture
def runs(tmp_path):
    """A finished run, one that is training, one of an older version."""
    return [
        run_at(tmp_path, "done", result_json={"step": 9, "seconds": SECONDS}),
        run_at(tmp_path, "training", sessions_jsonl=SESSION),
        run_at(tmp_path, "old", result_json={"step": 9}),
    ]


def test_each_run_has_a_bar_of_its_shares(runs):
    ((title, figure, notes, _),) = draw_seconds(runs)
    assert title == "Where the time went"
    assert len(notes) == 1
    (panel,) = figure.axes
    assert [label.get_text() for label in panel.get_yticklabels()] == [
        "done\n3.33 min", "training\n50.8 min",
    ]  # fmt: skip
    first = [bar for bar in panel.patches if round(bar.get_y() + bar.get_height() / 2) == 0]
    assert [bar.get_width() for bar in first] == pytest.approx([5, 75, 15, 5])
    assert [bar.get_x() for bar in first] == pytest.approx([0, 5, 80, 95])
    labels = [text.get_text() for text in panel.texts if text.xy[1] == 0]
    assert labels == ["5%", "steps 75%", "lost 15%", "5%"]
    for bar, text in zip(panel.patches, panel.texts, strict=True):
        if text.get_text():
            assert text.get_window_extent().width < bar.get_window_extent().width
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["start", "steps", "lost", "idle"]


def test_the_account_of_a_finished_run_is_that_of_its_result(runs):
    done, training, old = runs
    assert run_seconds(done) == SECONDS
    assert run_seconds(training)["steps"] == 3000
    assert run_seconds(old) == {}
    assert done.figures["seconds/lost"] == 30
    assert draw_seconds([old]) == []


def test_many_runs_have_no_bars(tmp_path):
    runs = [run_at(tmp_path, f"run{i}", result_json={"seconds": SECONDS}) for i in range(9)]
    assert len(draw_seconds(runs[:8])) == 1
    assert draw_seconds(runs) == []
