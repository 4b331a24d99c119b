import random
import re

import pytest
from PIL import Image
from report.fake_runs import config, curve, result
from report.fake_runs import write as put

from vit_jax.__main__ import main
from vit_jax.report.curves import draw_learning_curves, main_score
from vit_jax.report.defaults import default_curves, row_column
from vit_jax.report.drawing import draw
from vit_jax.report.frame import run_frame
from vit_jax.report.requests import CurvesRequest
from vit_jax.report.run_curves import draw_curves
from vit_jax.report.runs import read_runs
from vit_jax.report.style import Palette, page_look

ROWS = [
    {"step": 1, "time": 0, "train/loss": 2.0, "train/learning_rate": 0.1},
    {"step": 2, "time": 1, "train/loss": 1.0, "train/learning_rate": 0.2},
    {"step": 2, "time": 2, "eval/test/loss": 1.5, "eval/test/accuracy_top1": 0.5},
]


def sheets(folder, **request):
    """Returns the drawings of a request."""
    frame = run_frame(read_runs([folder]).runs)
    return draw_learning_curves(CurvesRequest(**request), frame, Palette())


def test_a_picture_with_three_panels_is_drawn(tmp_path):
    put(tmp_path / "run", metrics=ROWS)
    path = draw_curves(tmp_path / "run")
    assert path == tmp_path / "run" / "report" / "curves.png"
    image = Image.open(path)
    assert image.width > 2 * image.height
    assert len(set(image.convert("L").tobytes())) > 20  # Not an empty sheet.


def test_few_shot_accuracy_is_drawn_if_there_is_no_other_score(tmp_path):
    """As in Figure 9 of the paper: pretraining without held-out data."""
    for i, name in enumerate(("a", "b")):
        five, more = (f"fewshot/pets/{n}_shot/accuracy_top1" for n in (5, 25))
        rows = [ROWS[0], *({"step": s, five: 0.1 * (s + i), more: 0.9} for s in (1, 2))]
        job = {"name": name, "labels": {"model": name, "dataset": "jft"}}
        put(tmp_path / name, job=job, config=config(), metrics=rows, result=result(0, 2))
    (drawing,) = sheets(tmp_path)
    _, right = drawing.panels
    assert [trace.y for trace in right.traces] == [pytest.approx(y) for y in ([10, 20], [20, 30])]
    assert right.title == "jft, few-shot top-1 accuracy, pets, 5-shot, %"


@pytest.mark.parametrize("count", [2, 13])
def test_a_step_that_was_evaluated_again_at_the_end_is_drawn_once(tmp_path, count):
    metric = "eval/test/accuracy_top1"
    for i in range(count):
        losses = [{"step": s, "time": s, "train/loss": 1.0} for s in (1, 2, 3)]
        scores = [{"step": s, "time": s, metric: s / 10} for s in (1, 2, 3, 1 + i % 2)]
        write = {"config": config(seed=i), "metrics": [*losses, *scores]}
        put(tmp_path / f"run{i}", result=result(0.3, 3), **write)
    (drawing,) = sheets(tmp_path)
    for trace in drawing.panels[1].traces:
        assert (trace.x, trace.y) == ([1, 2, 3], pytest.approx([10, 20, 30]))


def test_every_run_is_a_line_and_a_cross_marks_the_end_of_an_unfinished_one(tmp_path):
    state = random.Random(0)
    rows = curve(0.5, 400, "test", state)
    put(tmp_path / "a", config=config(seed=0), metrics=rows, result=result(0.5, 400))
    put(tmp_path / "b", config=config(seed=1), metrics=rows[:8])
    (drawing,) = sheets(tmp_path)
    loss, score = drawing.panels
    steps = [row["step"] for row in rows if "train/loss" in row]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    whole, cut, end, *evaluated = loss.traces
    assert loss.title.endswith("training loss, dotted: test")
    assert list(evaluated[0].y) == [
        row["eval/test/loss"] for row in rows if "eval/test/loss" in row
    ]
    assert page_look(evaluated[0].style)["dash"] == "dot"
    assert (whole.x, whole.y) == (steps, losses)
    assert len(cut.x) == sum("train/loss" in row for row in rows[:8])
    assert (end.kind, end.x, end.y) == ("end", cut.x[-1:], cut.y[-1:])
    accuracy = [100 * row["eval/test/accuracy_top1"] for row in rows if "eval/test/loss" in row]
    assert score.traces[0].y == accuracy
    cross_note = "A cross marks the end of a run without a result."
    assert drawing.notes == [f"A line for each of 2 runs. {cross_note}"]
    left, right = draw(drawing).axes
    assert [line.get_marker() for line in left.lines] == ["o", "o", "x", "o", "o"]
    assert right.lines[0].get_ydata().tolist() == accuracy
    assert left.get_ylim()[0] == 0 < right.get_ylim()[0]


def test_many_runs_become_means_of_their_series_and_many_series_several_panels(tmp_path):
    for name, seeds in ((f"m{i}", (0, 1)) for i in range(14)):
        for seed in seeds:
            at = f"{name}-{seed}"
            rows = [{"step": s, "train/loss": 4.0 + seed - s} for s in (1, 2)]
            job = {"name": at, "labels": {"model": name}}
            done = result(0.5, 2) if at != "m3-1" else None
            put(tmp_path / at, job=job, config=config(seed=seed), metrics=rows, result=done)
    (drawing,) = sheets(tmp_path)
    first, second = drawing.panels
    assert [len(panel.traces) for panel in (first, second)] == [12, 2]
    assert first.title == "cifar10 (1 of 2), training loss"
    drawn = [trace.y for trace in first.traces]
    # The mean of losses 3, 2 and 4, 3; the unfinished run is left out.
    assert drawn == [[3.0, 2.0] if i == 3 else [3.5, 2.5] for i in range(12)]
    assert drawing.notes == ["Lines: means of the runs that differ only by their seed."]
    for number in range(2):
        rows = [{"step": s, "train/loss": 4.0} for s in range(1, 4)]
        settings = config(seed=number, rate=1.0)
        job = {"name": f"other{number}", "labels": {"model": "m0"}}
        put(tmp_path / f"o{number}", job=job, config=settings, metrics=rows, result=result(0.5, 3))
    assert sheets(tmp_path)[0].notes == [
        "Lines: means of the runs that differ in optimizer.learning_rate. At some steps, not all of"
        " them have values."
    ]


def test_a_long_loss_is_smoothed_by_a_rolling_mean(tmp_path):
    rows = [{"step": s, "train/loss": 1.0 + s % 2} for s in range(1, 121)]
    put(tmp_path / "a", config=config(), metrics=rows, result=result(0.5, 120))
    (drawing,) = sheets(tmp_path)
    (line,) = drawing.panels[0].traces
    # Over three steps: 1.5 at the ends, else two of one kind and one of the other.
    wanted = [1.5, *(4 / 3 if s % 2 == 0 else 5 / 3 for s in range(1, 119)), 1.5]
    assert line.y == pytest.approx(wanted)
    assert drawing.notes == ["One run. Training loss: rolling means over 3 logged steps."]


def test_the_main_score_is_the_test_accuracy_if_there_is_one():
    names = {"eval/dev/accuracy_top1", "eval/test/accuracy_top1", "eval/train/accuracy_top1"}
    assert main_score(names) == "eval/test/accuracy_top1"
    assert main_score({"eval/train/accuracy_top1"}) == "eval/train/accuracy_top1"
    assert main_score({"eval/test/loss", "eval/test/accuracy_class/a/accuracy_top1"}) is None


def test_a_score_measured_only_once_is_not_drawn(tmp_path):
    rows = [{"step": s, "train/loss": 1.0, "eval/dev/accuracy_top1": 0.1 * s} for s in (1, 2)]
    rows.append({"step": 2, "eval/test/accuracy_top1": 0.3})
    put(tmp_path / "a", config=config(), metrics=rows)
    (drawing,) = sheets(tmp_path)
    assert [panel.y for panel in drawing.panels] == ["training loss", "top-1 accuracy, dev, %"]


def test_runs_that_are_not_evaluated_have_one_panel_across_the_page(tmp_path):
    put(tmp_path / "a", config=config(), metrics=ROWS[:2])
    (drawing,) = sheets(tmp_path)
    (panel,) = drawing.panels
    assert (panel.title, panel.x, drawing.columns) == ("cifar10, training loss", "step", 1)


def test_colours_show_the_settings_that_differ_between_runs(tmp_path):
    for name, placement in (("a", "stem"), ("b", "shared")):
        job = {"name": name, "labels": {"model": "ViT-Micro/4", "placement": placement}}
        put(tmp_path / name, job=job, config=config(), metrics=ROWS, result=result(0.5, 2))
    frame = run_frame(read_runs([tmp_path]).runs)
    assert row_column(frame) == "placement"
    (request,) = default_curves(frame)
    (drawing,) = sheets(tmp_path, series=request.series)
    assert len({trace.style["color"] for trace in drawing.panels[0].traces}) == 2


def test_panels_colours_and_runs_follow_the_request(tmp_path):
    for task in ("classification", "masked"):
        for size in (10, 100):
            labels = {"model": f"ViT-{size}", "task": task, "size": size}
            job = {"name": f"{task}{size}", "labels": labels}
            put(tmp_path / f"{task}{size}", job=job, config=config(), metrics=ROWS)
    (drawing,) = sheets(tmp_path, panel="size+task", series="task", title="Both")
    titles = [panel.title.partition(", ")[0] for panel in drawing.panels]
    assert titles == ["10 · classification", "10 · masked", "100 · classification", "100 · masked"]
    assert drawing.title == "Both"
    first, second = (panel.traces[0].style for panel in drawing.panels[:2])
    assert first["color"] != second["color"]
    (drawing,) = sheets(tmp_path, where={"task": "masked"})
    assert drawing.notes == [
        "A line for each of 2 runs. A cross marks the end of a run without a result."
    ]
    first, _, second, _ = (trace.style for trace in drawing.panels[0].traces)  # Each has its cross.
    assert first["color"] == second["color"]  # Both are ViTs.
    assert first["linestyle"] != second["linestyle"]


def test_every_stage_has_a_picture_and_search_comes_last(tmp_path):
    for stage in ("search", "final", None):
        job = {"name": f"{stage}", "labels": {"model": "ViT"}, "stage": stage}
        put(tmp_path / f"{stage}", job=job, config=config(), metrics=ROWS)
    asked = default_curves(run_frame(read_runs([tmp_path]).runs))
    assert [(r.title, r.where) for r in asked] == [
        ("Stage “final”", {"stage": "final"}),
        ("Other runs", {"stage": ""}),
        ("Stage “search”", {"stage": "search"}),
    ]


def test_a_label_called_stage_does_not_hide_the_stage(tmp_path):
    for name in ("a", "b"):
        job = {"name": name, "labels": {"model": "ViT", "stage": name}, "stage": "final"}
        put(tmp_path / name, job=job, config=config(), metrics=ROWS, result=result(0.5, 2))
    (request,) = default_curves(run_frame(read_runs([tmp_path]).runs))
    (drawing,) = sheets(tmp_path, series=request.series, where=request.where)
    assert drawing.notes == ["A line for each of 2 runs."]


def test_the_command_draws_the_curves_of_its_options_and_no_others(tmp_path, capsys):
    for name in ("a", "b"):
        job = {"name": name, "labels": {"model": "ViT", "size": name}}
        put(tmp_path / name, job=job, config=config(), metrics=ROWS, result=result(0.5, 2))
    arguments = ["report", str(tmp_path), f"--output={tmp_path / 'out'}"]
    asked = ["--curves=panel=size,title=By size", "--curves=series=size,where.size=a"]
    assert main([*arguments, *asked]) == 0
    page = (tmp_path / "out" / "report.md").read_text()
    assert re.findall("## Learning curves: (.*)", page) == ["By size", "Runs"]
    for wrong, message in (
        ("panel=sise", "panel=sise: no run has such a label"),
        ("where.size=c", "where.size=c: no remaining run has it"),
        ("panels=size", "did you mean 'panel'?"),
        ("where", "'where' is True"),
    ):
        capsys.readouterr()
        assert main([*arguments, f"--curves={wrong}"]) == 2
        assert message in capsys.readouterr().err


def test_names_with_dollars_are_drawn_as_they_are(tmp_path):
    for seed, name in enumerate(("$5 and $1", "$2 and $3")):
        job = {"name": name, "labels": {"model": name}}
        put(tmp_path / str(seed), metrics=ROWS, config=config(), result=result(0.5, 2), job=job)
    (drawing,) = sheets(tmp_path, series="model", panel="model")
    figure = draw(drawing)
    shown = [t for axes in figure.axes for t in (axes.title, axes.xaxis.label, axes.yaxis.label)]
    shown += figure.legends[0].get_texts() if figure.legends else []
    named = [text for text in shown if "$" in text.get_text()]
    assert len(named) >= 2
    assert not any(text.get_parse_math() for text in named)


def test_losses_of_two_formulas_in_one_panel_are_said(tmp_path):
    for name in ("softmax", "sigmoid"):
        loss = {"name": f"{name}_cross_entropy"}
        put(tmp_path / name, metrics=ROWS, config=config(loss=loss), result=result(0.5, 2))
    words = "losses differ in formula"
    assert words in " ".join(sheets(tmp_path)[0].notes)
    assert words not in " ".join(sheets(tmp_path, panel="loss.name")[0].notes)
