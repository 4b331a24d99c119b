import json
import re

import numpy as np
import pandas as pd
import pytest
from report.fake_runs import ENVIRONMENT, config, result, write

from vit_jax.errors import ConfigError
from vit_jax.report import intervals, vtab
from vit_jax.report.defaults import default_plots, default_tables
from vit_jax.report.differences import difference_table
from vit_jax.report.drawing import draw
from vit_jax.report.frame import run_frame
from vit_jax.report.labels import JOIN, format_metric
from vit_jax.report.latex import tables_tex
from vit_jax.report.overview import models_table
from vit_jax.report.plots import draw_plot, plot_points
from vit_jax.report.requests import PlotRequest, TableRequest, parse_requests
from vit_jax.report.runs import read_runs
from vit_jax.report.style import COLOURS, Palette
from vit_jax.report.tables import score_table

SCORE = "eval/test/accuracy_top1"
VTAB = [
    "vtab_caltech101", "vtab_cifar100", "vtab_dtd", "vtab_flowers", "vtab_pets", "vtab_sun397",
    "vtab_svhn", "vtab_camelyon", "vtab_eurosat", "vtab_resisc45", "vtab_retinopathy",
    "vtab_clevr_count", "vtab_clevr_distance", "vtab_dmlab", "vtab_dsprites_location",
    "vtab_dsprites_orientation", "vtab_kitti_distance", "vtab_smallnorb_azimuth",
    "vtab_smallnorb_elevation",
]  # fmt: skip


def read(folder):
    return run_frame(read_runs([folder]).runs)


def make_table(folder, metric=SCORE, **request):
    return score_table(TableRequest(metric=metric, **request), read(folder))


def cell(table, row, column):
    """Returns a cell by the headings of its row and column."""
    (cells,) = [cells for cells in table.rows if cells[0].text == row]
    return cells[table.header.index(column)]


def best(table):
    return {
        (row[0].text, name)
        for row in table.rows
        for name, one in zip(table.header, row, strict=True)
        if "best" in one.kind
    }


def make_points(folder, x, y=SCORE, **request):
    """Returns panel -> series -> x -> point, and the notes below the plot."""
    points, notes = plot_points(PlotRequest(x=x, y=y, **request), read(folder))
    panels = {}
    for point in points.itertuples():
        panels.setdefault(point.panel, {}).setdefault(point.series, {})[point.x] = point
    return panels, notes


def make_figure(folder, x, y=SCORE, **request):
    (drawing,) = draw_plot(PlotRequest(x=x, y=y, **request), read(folder), Palette())
    return draw(drawing)


def put(folder, name, score, *, labels=None, job=None, **settings):
    """Writes a finished run; `score` may be a dict of figures."""
    figures = score if isinstance(score, dict) else {SCORE: score}
    about = {"name": name, "labels": labels or {}, "stage": "final", **(job or {})}
    done = {k: v for k, v in result(0, 400).items() if not k.startswith("eval/")} | figures
    write(folder / name, job=about, config=config(**settings), result=done)


def put_seeds(folder, model, scores, *, metric=SCORE, figures=None, **labels):
    """Writes a finished run of each score, with the seeds 0, 1, ...; the dataset is "x"."""
    labels = {"model": model, "dataset": "x", **labels}
    for seed, score in enumerate(scores):
        name = "-".join(map(str, [*labels.values(), seed]))
        put(folder, name, {metric: score, **(figures or {})}, labels=labels, seed=seed)


def four(folder):
    """Two models on two datasets, seeds 0 and 1."""
    put_seeds(folder, "A", (0.5, 0.7))
    put_seeds(folder, "A", (0.2, 0.4), dataset="y")
    put_seeds(folder, "B", (0.55, 0.57))
    put_seeds(folder, "B", (0.3, 0.34), dataset="y")


def test_a_table_shows_means_with_intervals_and_the_best_in_bold(tmp_path):
    four(tmp_path)
    table = make_table(tmp_path)
    assert table.header == ["Model", "x", "y"]
    assert [row[0].text for row in table.rows] == ["A", "B"]
    # The variances 0.02 and 0.0002 of column x have two degrees of freedom together, and the 97.5 %
    # quantile of t is 4.303: 4.303 * sqrt(0.0202 / 2 / 2) = 0.3058.
    assert cell(table, "A", "x").text == "60.00 [29.42, 90.58]"
    assert cell(table, "B", "x").text == "56.00 [25.42, 86.58]"
    assert best(table) == {(model, dataset) for model in "AB" for dataset in "xy"}
    assert table.notes == [
        "Percent. Means of n = 2 runs [95 % interval over seeds].",
        "The seed deviation is pooled over 2 cells of the same dataset, with 2 degrees of freedom,"
        " assuming that it is the same for all models.",
        "Bold: the largest mean of its column, and means that do not differ significantly from it.",
    ]


def test_a_mean_that_is_told_apart_from_the_best_is_not_bold(tmp_path):
    put_seeds(tmp_path, "A", (0.500, 0.502))
    put_seeds(tmp_path, "B", (0.60, 0.602))
    put_seeds(tmp_path, "C", (0.601, 0.603))
    assert best(make_table(tmp_path)) == {("B", "x"), ("C", "x")}


def test_one_run_has_the_deviation_of_the_only_cell_with_several(tmp_path):
    put_seeds(tmp_path, "A", (0.500, 0.502))
    put_seeds(tmp_path, "B", (0.6,))
    assert make_table(tmp_path).notes[1] == (
        "The seed deviation is that of a single cell, with 1 degree of freedom, assuming that it is"
        " the same for all models of the same dataset."
    )


def test_one_run_has_no_interval(tmp_path):
    put(tmp_path, "a", 0.5, labels={"model": "A", "dataset": "x"})
    table = make_table(tmp_path)
    assert cell(table, "A", "x").text == "50.00"
    assert table.notes[0] == "Percent. One run each, too little for an interval."
    assert not best(table)  # There is nothing to compare with.


def test_the_last_row_is_chance_where_the_number_of_classes_is_known(tmp_path):
    for name, classes in (("x", ["a", "b", "c", "d"]), ("y", None)):
        put(tmp_path, name, 0.5, labels={"model": "A", "dataset": name})
        if classes:
            (tmp_path / name / "classes.json").write_text(json.dumps({"names": classes}))
    table = make_table(tmp_path)
    assert [row[0].text for row in table.rows] == ["A", "chance"]
    assert [cell(table, "chance", name).text for name in ("x", "y")] == ["25.00", "–"]
    assert not {"chance"} & {row for row, _ in best(table)}
    splits = {"splits": {"a": "imagenet_a", "real": "imagenet_real", "v2": "imagenet_v2[:9%]"}}
    figures = {f"eval/{split}/accuracy_top1": 0.5 for split in splits["splits"]}
    put(tmp_path, "i", figures, labels={"model": "I"}, evaluation=splits)
    (tmp_path / "i/classes.json").write_text(json.dumps({"names": [*map(str, range(1000))]}))
    table = make_table(tmp_path, "eval/{split}/accuracy_top1", columns="split")
    assert [cell(table, "chance", split).text for split in splits["splits"]] == [
        "0.50",
        "–",
        "0.10",
    ]
    shots = {"fewshot/z/5_shot/accuracy_top1": 0.5, "fewshot/z/classes": 5}
    put(tmp_path, "z", shots, labels={"model": "A"}, job={"command": "fewshot"})
    pattern = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
    table = make_table(tmp_path, pattern, columns="dataset")
    assert cell(table, "chance", "z").text == "20.00"


def test_a_model_may_be_called_chance(tmp_path):
    for name, score in (("chance", 0.25), ("A", 0.5)):
        put(tmp_path, name, score, labels={"model": name, "dataset": "x"})
        (tmp_path / name / "classes.json").write_text(json.dumps({"names": ["a", "b", "c", "d"]}))
    request = TableRequest(metric=SCORE, against="A")
    (row,) = difference_table(request, score_table(request, read(tmp_path))).rows
    assert [cell.text.split(" ")[0] for cell in row] == ["chance", "-25.00"]


def test_runs_without_a_place_are_named(tmp_path):
    put(tmp_path, "a", 0.5, labels={"pretrain": "jft"}, rate=0.1)
    put(tmp_path, "b", 0.6, rate=0.2)
    (row,) = (table := make_table(tmp_path, rows="pretrain")).rows
    assert row[0].text == "jft"
    assert table.notes[-1] == "Not in the table, because pretrain or dataset is not known: b."
    _, notes = make_points(tmp_path, "optimizer.learning_rate", series="pretrain")
    assert notes[-1] == (
        "Not in the plot, because optimizer.learning_rate or pretrain is not known: b."
    )
    put(tmp_path, "c", 0.0, labels={"pretrain": "jft"}, rate=0.3)
    _, notes = make_points(tmp_path, "optimizer.learning_rate", log_y=True)
    assert notes[-1].endswith("is not known, or not above 0: c.")


def test_without_a_source_of_uncertainty_nothing_is_certain(tmp_path):
    """One run of a loss, and three runs of other metrics that all agree, one up to rounding."""
    for model, loss, mine in (("A", 0.5, 0.7), ("B", 0.4, 0.8)):
        put(tmp_path, f"{model}-loss", {"eval/test/loss": loss}, model=model)
        put_seeds(tmp_path, model, (mine,) * 3, metric="eval/test/mine", dataset="z")
        rounded = (mine, mine + 2e-7, mine - 1e-7)
        put_seeds(tmp_path / "rounded", model, rounded, metric="eval/test/rounded", dataset="z")
    for metric in ("eval/test/loss", "eval/test/mine", "eval/test/rounded"):
        request = TableRequest(metric=metric, against="A", margin=0.5)
        table = score_table(request, read(tmp_path))
        assert table.means["low"].isna().all()
        assert {model for model, _ in best(table)} == {"B"}
        (row,) = difference_table(request, table).rows
        assert row[1].text.endswith("(uncertainty not known)")


def test_means_with_and_without_known_images_are_not_compared(tmp_path):
    """Images of A are known, B and C have seeds alone: their means lack the images' uncertainty."""
    top5 = "eval/test/accuracy_top5"
    for model, low, more in (("A", 0.50, {"eval/test/examples": 400}), ("B", 0.60, {}),
                             ("C", 0.70, {})):  # fmt: skip
        for seed in (0, 1):
            figures = {top5: low + 0.01 * seed, **more}
            put(tmp_path, f"{model}-{seed}", figures, model=model, dataset="x", seed=seed)
    request = TableRequest(metric=top5, against="A", margin=0.1)
    table = score_table(request, read(tmp_path))
    assert table.notes[0] == (
        "Percent. Means of n = 2 runs [95 % interval over 400 test images and seeds; images are"
        " not paired; over seeds alone: x B, x C]."
    )
    assert best(table) == {("C", "x")}
    assert table.notes[2] == (
        "Bold: the largest mean of its column, and means that are known not to differ significantly"
        " from it."
    )
    assert "mathbf" not in tables_tex([table])
    rows = difference_table(request, table).rows
    assert [row[1].text for row in rows] == [
        "10.00 (uncertainty not known)",
        "20.00 (uncertainty not known)",
    ]
    (_, row) = difference_table(request.replace(against="B", margin=None), table).rows
    # The difference of two draws of Student's t with three degrees of freedom, times 0.5 points.
    low, high = map(float, re.findall(r"[\d.]+", row[1].text)[1:])
    assert (low, high) == pytest.approx((10 - 2.30, 10 + 2.30), abs=0.15)
    assert row[1].text.endswith("better")


def test_a_mean_over_datasets_has_the_sources_that_all_of_them_have():
    drawn = pd.DataFrame(
        {
            "draws": [np.zeros(3)] * 3,
            "images": [400, 0, 100],
            "paired": "",
            "freedom": 2,
            "pooled": 2,
            "source": ["images and seeds", "seeds", "images"],
        },
        index=pd.MultiIndex.from_tuples([("x", "A"), ("y", "A"), ("z", "A")]),
    )
    sets = {"xy": ["x", "y"], "yz": ["y", "z"], "xz": ["x", "z"]}
    means = intervals.draw_means_over(sets, drawn, [(name, "A") for name in sets])
    assert [*means["source"]] == ["seeds", "", "images"]
    assert [*means["images"]] == [0, 0, 500]


def test_a_class_named_like_a_deviation_or_a_number_is_a_class(tmp_path):
    classes = {"leaf": 0.7, "leaf_std": 0.5, "01": 0.2, "1": 0.4, "²": 0.3, "T-shirt/top": 0.6}
    figures = {f"eval/test/accuracy_class/{name}": share for name, share in classes.items()}
    put(tmp_path, "a", figures, model="A")
    table = make_table(tmp_path, "eval/test/accuracy_class/{class}", columns="class")
    assert {name: cell(table, "A", name).text for name in table.header[1:]} == {
        "leaf": "70.00", "leaf_std": "50.00", "01": "20.00", "1": "40.00", "²": "30.00",
        "T-shirt/top": "60.00",
    }  # fmt: skip


def test_a_table_of_metrics_with_opposite_directions_is_refused(tmp_path):
    put(tmp_path, "a", {"eval/test/loss": 1.0, "eval/test/accuracy_top1": 0.5}, model="A")
    with pytest.raises(ConfigError, match="one table for each kind"):
        make_table(tmp_path, "eval/test/{metric}", columns="metric")
    with pytest.raises(ConfigError, match="lower=yes"):
        parse_requests([f"metric={SCORE},lower=yes"], TableRequest, "--table")


def test_metrics_that_would_share_a_place_are_refused(tmp_path):
    put(tmp_path, "a", {"eval/test/accuracy_top1": 0.5, "eval/dev/accuracy_top1": 0.7}, model="A")
    words = "several metrics into one place: eval/dev/accuracy_top1, eval/test/accuracy_top1"
    with pytest.raises(ConfigError, match=words):
        make_table(tmp_path, "eval/{split}/accuracy_top1")
    with pytest.raises(ConfigError, match=words):
        make_points(tmp_path, "model", "eval/{split}/accuracy_top1")
    table = make_table(tmp_path, "eval/{split}/accuracy_top1", columns="split")
    assert [cell(table, "A", split).text for split in ("dev", "test")] == ["70.00", "50.00"]


def test_a_run_whose_value_is_not_finite_is_named(tmp_path):
    put_seeds(tmp_path, "A", (0.5, 0.7, float("nan")))
    put_seeds(tmp_path, "B", (0.5, 0.7, 0.8), dataset="y")
    table = make_table(tmp_path)
    assert cell(table, "A", "x").value == pytest.approx(0.6)
    lost = next(run.name for run in read(tmp_path).index if run.not_finite)
    assert table.notes[-1] == f"Not in the means, because it is not finite: {lost}."
    assert not any("finite" in n for n in make_table(tmp_path, where={"dataset": "y"}).notes)


def test_intervals_of_values_outside_the_bounds_of_their_name_are_not_cut(tmp_path):
    """An accuracy of one's own in percent: 71 +- t(2 degrees) 4.303 / sqrt(3)."""
    put_seeds(tmp_path, "A", (70.0, 71.0, 72.0), metric="eval/test/accuracy_mine")
    means = make_table(tmp_path, "eval/test/accuracy_mine").means
    assert (means["low"].item(), means["high"].item()) == pytest.approx((68.52, 73.48), abs=0.02)


def test_a_table_of_the_wall_time(tmp_path):
    put(tmp_path, "a", {"wall_time_s": 3.5}, model="A")
    assert cell(make_table(tmp_path, "wall_time_s"), "A", "cifar10").text == "3.500"


def test_runs_with_the_same_seed_are_no_two_seeds(tmp_path):
    for name, score in (("a", 0.5), ("b", 0.7)):
        put(tmp_path, name, {"eval/test/mine": score}, model="A", seed=3)
    table = make_table(tmp_path, "eval/test/mine")
    assert [*table.means["n"]] == [1]
    assert table.means["low"].isna().all()
    assert cell(table, "A", "x" if "x" in table.header else table.header[1]).text == "0.6000"
    assert table.notes[0] == (
        "Means of 2 runs (n = 1, the number of seeds), whose uncertainty is not known."
    )


def test_a_row_of_a_seed_says_how_many_runs_it_has(tmp_path):
    for model in ("A", "B"):
        put_seeds(tmp_path, model, (0.5, 0.7))
    put(tmp_path, "c", 0.9, labels={"model": "C", "dataset": "x"}, seed=2)
    table = make_table(tmp_path, rows="seed")
    assert [row[1].text for row in table.rows] == ["50.00", "70.00", "90.00"]
    assert table.notes[0].startswith("Percent. Means of 1 to 2 runs (n = 1, the number of seeds)")


def test_unrelated_runs_are_named_by_their_folders(tmp_path):
    """Two settings differ: "0.001 · 40" would not say which run it is."""
    for name, rate, steps in (("first", 0.1, 40), ("second", 0.2, 80)):
        run = config(rate=rate, train_steps=steps)
        write(tmp_path / name, config=run, result=result(rate, 400))
    (request,) = default_tables(read(tmp_path))
    table = score_table(request, read(tmp_path))
    assert [row[0].text for row in table.rows] == ["first", "second"]
    # Two runs that differ in nothing are not two seeds of one setting.
    for name in ("c", "d"):
        write(tmp_path / "equal" / name, config=config(rate=0.1), result=result(0.5, 400))
    (request,) = default_tables(read(tmp_path / "equal"))
    assert request.rows == "name"


def test_a_request_says_that_smaller_is_better(tmp_path):
    four(tmp_path)
    request = TableRequest(metric=SCORE, columns="dataset", lower=True, where={"dataset": "y"})
    table = score_table(request, read(tmp_path))
    assert "Bold: the smallest mean of its column" in " ".join(table.notes)
    (parsed,) = parse_requests([f"metric={SCORE},lower"], TableRequest, "--table")
    comma = "metric=eval/test/accuracy_class/Pepper,_bell,lower,rows=model"
    (named,) = parse_requests([comma], TableRequest, "--table")
    assert (named.metric, named.lower) == ("eval/test/accuracy_class/Pepper,_bell", True)
    assert parsed.smallest_is_best


def test_an_error_is_never_below_zero(tmp_path):
    put_seeds(tmp_path, "A", (0.0, 0.1), metric="eval/test/relative_error")
    table = make_table(tmp_path, "eval/test/relative_error")
    assert cell(table, "A", "x").text == "0.0500 [0.0000, 0.6853]"  # 12.706 * 0.05 above it.


def test_table_and_plot_of_a_request_have_equal_intervals(tmp_path):
    """One has the images in columns, the other on the x-axis and the models in panels."""
    spread = {("A", 100): 0.01, ("A", 1000): 0.02, ("B", 100): 0.05, ("B", 1000): 0.001}
    examples = {"eval/test/examples": 500}
    for (model, images), half in spread.items():
        put_seeds(tmp_path, model, (0.5 - half, 0.5 + half), figures=examples, images=images)
    table = make_table(tmp_path, columns="images")
    panels, notes = make_points(tmp_path, "images", panel="model")
    found = table.means.to_dict("index")
    for model, images in spread:
        mean, point = found[str(images), model], panels[model][model][images]
        assert (mean["low"], mean["high"]) == (point.low, point.high)
        assert (mean["freedom"], mean["pooled"]) == (4, 4)
    assert table.notes[1] == notes[1]
    assert "pooled over 4 cells of the same dataset, with 4 degrees of freedom" in notes[1]


def test_trivial_baselines_are_not_pooled_with_models(tmp_path):
    put_seeds(tmp_path, "A", (0.4, 0.6))
    put_seeds(tmp_path, "BlockMeans-8", (0.3, 0.3))
    table = make_table(tmp_path)
    # One degree of freedom: 12.706 * sqrt(0.02 / 2) = 1.27.
    assert cell(table, "A", "x").text == "50.00 [0.00, 100.00]"
    assert cell(table, "BlockMeans-8", "x").text == "30.00"


def test_a_request_says_what_is_pooled(tmp_path):
    four(tmp_path)
    table = make_table(tmp_path, pool="model+dataset")
    # Of 0.5 and 0.7 alone: 12.706 * sqrt(0.02 / 2) = 1.27.
    assert cell(table, "A", "x").text == "60.00 [0.00, 100.00]"
    # Of 0.55 and 0.57: a tenth of this.
    assert cell(table, "B", "x").text == "56.00 [43.29, 68.71]"
    assert table.notes[1] == (
        "The seed deviation is that of each cell alone, with 1 degree of freedom."
    )


def test_models_are_listed_with_their_sizes_and_speeds(tmp_path):
    for name, rate in (("a", 100.0), ("b", 300.0)):
        figures = {
            SCORE: 0.5, "feature_width": 64, "train_exaflops": 64 * 400 * 3e6 / 1e18,
            "train/images_per_second": rate,
        }  # fmt: skip
        put(tmp_path, name, figures, labels={"model": "ViT-Micro/4"})
    table = models_table(read(tmp_path))
    (row,) = [dict(zip(table.header, cells, strict=True)) for cells in table.rows]
    assert {name: cell.text for name, cell in row.items()} == {
        "model": "ViT-Micro/4",
        "runs": "2",
        "parameters": "5,300,000",
        "feature width": "64",
        "MFLOPs an image": "3",
        "images/s": "100 to 300",
    }


def test_smaller_losses_are_better(tmp_path):
    for model, loss in (("A", 1.5), ("B", 0.5)):
        figures = {"eval/test/loss": loss}
        put(tmp_path, model, figures, labels={"model": model, "dataset": "x"})
    table = make_table(tmp_path, "eval/test/loss")
    assert best(table) == {("B", "x")}
    assert cell(table, "B", "x").text == "0.5000"


def test_placeholders_in_a_metric_name_become_columns(tmp_path):
    figures = {f"fewshot/{d}/{s}_shot/accuracy_top1": s / 100 for d in "xy" for s in (1, 10)}
    figures["fewshot/x/1_shot/accuracy_top1_std"] = 0.02
    put(tmp_path, "a", figures, labels={"model": "A"}, job={"command": "fewshot"})
    pattern = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
    table = make_table(tmp_path, pattern, columns="dataset+shots")
    assert table.header[1:] == [f"{d}{JOIN}{s}-shot" for d in "xy" for s in (1, 10)]
    assert cell(table, "A", f"x{JOIN}1-shot").text == "1.00 (± 2.00)"
    assert "draws of examples inside one run" in " ".join(table.notes)
    panels, _ = make_points(tmp_path, "shots", pattern, panel="dataset", log_x=True)
    assert {x: point.mean for x, point in panels["y"]["A"].items()} == {1: 0.01, 10: 0.1}


def test_vtab_gets_the_means_of_its_groups_over_seeds(tmp_path):
    for i, task in enumerate(VTAB):
        value = (i + 1) / 100
        put_seeds(tmp_path, "A", (value, value + 0.1), dataset=task)
    table = make_table(tmp_path)
    assert table.header[5] == "vtab_caltech101"
    panels, notes = make_points(tmp_path, "model", panel="dataset")
    assert "The 19 datasets have no panels of their own" in " ".join(notes)
    # The 19 columns have one degree of freedom each, so the draws of the mean are means of draws of
    # t with infinite variance: only the means are checked.
    means = {"natural": 9, "specialized": 14.5, "structured": 20.5, "VTAB (19)": 15}
    assert table.header[1:5] == [*panels] == [*means]
    for name, mean in means.items():
        assert cell(table, "A", name).text.startswith(f"{mean:.2f} [")
        assert panels[name]["A"]["A"].mean == pytest.approx(mean / 100)


def test_vtab_is_recognised_beside_other_datasets_if_all_19_tasks_are_there():
    groups = vtab.group_tasks([*VTAB, "pets", "cifar100"])
    assert groups["VTAB (19)"] == VTAB
    assert vtab.group_tasks(VTAB[1:]) == {}


def test_a_plot_shows_means_with_bars_and_every_seed(tmp_path):
    scores = {("A", 100): (0.4, 0.6), ("A", 1000): (0.7, 0.8), ("B", 100): (0.3, 0.3)}
    for (model, size), values in scores.items():
        put_seeds(tmp_path, model, values, figures={"train_examples": size}, size=size)
    panels, _ = make_points(tmp_path, "pretrain_examples", log_x=True)
    # Pooled over the panel: variances 0.02, 0.005 and 0 with three degrees of freedom.
    half = 3.1824 * (0.025 / 3 / 2) ** 0.5
    point = panels[""]["A"][1000]
    assert (point.low, point.high) == (
        pytest.approx(0.75 - half, rel=1e-3),
        pytest.approx(0.75 + half, rel=1e-3),
    )
    axes = make_figure(tmp_path, "pretrain_examples", log_x=True).axes[0]
    assert axes.get_xscale() == "log"
    (line, _, (bars,)), (lone, _, _) = axes.containers
    # Series that share a place are drawn beside it, at a distance of 1.2 % of the axis.
    assert line.get_ydata().tolist() == [50, 75]
    assert line.get_xdata().tolist() == pytest.approx([100 * 10**-0.006, 1000 * 10**-0.006])
    assert lone.get_xydata()[0].tolist() == pytest.approx([100 * 10**0.006, 30])
    top, bottom = bars.get_segments()[0][:, 1]
    assert abs(top - bottom) == pytest.approx(2 * 100 * half, rel=1e-3)
    seeds = [line.get_xydata().tolist() for line in axes.lines if line.get_alpha() is not None]
    assert [40, 60, 70, 80] in [[pytest.approx(y) for _, y in s] for s in seeds]
    assert line.get_color() != lone.get_color()
    assert line.get_marker() != lone.get_marker()


def test_a_label_may_have_the_name_of_an_axis(tmp_path):
    for name in ("a", "b"):
        put(tmp_path, name, 0.5, labels={"model": "M", "series": name, "rows": name})
    panels, _ = make_points(tmp_path, "series", series="model")
    assert list(panels[""]["M"]) == ["a", "b"]
    table = make_table(tmp_path, rows="model", columns="rows")
    assert table.header == ["Model", "a", "b"]


def test_lines_go_through_a_shared_point(tmp_path):
    """The base of a study is one run, and lies on the line of each dimension that is scaled."""
    for scaled, steps, score in (("base", 100, 0.5), ("depth", 200, 0.7), ("width", 400, 0.6)):
        figures = {SCORE: score, "train_exaflops": float(steps)}
        put(tmp_path, scaled, figures, labels={"scaled": scaled})
    asked = {"x": "train_exaflops", "series": "scaled", "log_x": True}
    panels, notes = make_points(tmp_path, through="base", **asked)
    means = {
        name: {x: point.mean for x, point in points.items()} for name, points in panels[""].items()
    }
    base = {100.0: 0.5}
    assert means == {"base": base, "depth": base | {200.0: 0.7}, "width": base | {400.0: 0.6}}
    assert notes == [
        "One run each, too little for an interval.",
        # 1e20 and 4e20 operations for 400 steps of 64 images.
        "The models differ in cost by more than twice: 3.91e+09 to 1.56e+10 MFLOPs for a training"
        " image.",
        "The lines of all series go through base.",
    ]
    with pytest.raises(ConfigError, match=r"through=bse.*one of base, depth, width.*'base'"):
        make_points(tmp_path, through="bse", **asked)


@pytest.mark.parametrize(("factor", "noted"), [(2.0, False), (2.1, True)])
def test_a_plot_says_when_its_models_differ_more_than_twice_in_cost(tmp_path, factor, noted):
    for model, exaflops in (("A", 0.01), ("B", 0.01 * factor)):
        put(tmp_path, model, {SCORE: 0.5, "train_exaflops": exaflops}, labels={"model": model})
    _, notes = make_points(tmp_path, x="examples_seen", series="model")
    assert any("differ in cost" in note for note in notes) == noted


def test_a_model_is_shown_with_the_sizes_that_differ_from_its_name(tmp_path):
    put(tmp_path, "a", 0.5, **{"model.name": "ViT-Ti/8", "model.width": 128, "model.depth": 6})
    put(tmp_path, "b", 0.6, **{"model.name": "ViT-Ti/8"})
    names = {run.name: run.model for run in read(tmp_path).index}
    assert names == {"a": "ViT-Ti/8 (width 128, depth 6)", "b": "ViT-Ti/8"}


def test_a_note_names_runs_whose_x_is_unknown(tmp_path):
    put(tmp_path, "a", 0.5, labels={"model": "A", "dataset": "x"}, init_from="/gone")
    put(tmp_path, "b", 0.6, labels={"model": "B", "dataset": "x"})
    panels, notes = make_points(tmp_path, "pretrain_examples", log_x=True)
    assert [len(points) for points in panels[""].values()] == [1]
    assert "not known (/gone no longer exists" in notes[-1]
    assert notes[-1].endswith(": a.")


def test_the_defaults_fit_the_runs(tmp_path):
    four(tmp_path)
    frame = read(tmp_path)
    assert [(t.metric, t.rows, t.columns) for t in default_tables(frame)] == [
        (SCORE, "model", "dataset")
    ]
    assert [(p.x, p.panel) for p in default_plots(frame)] == [("model", "dataset")]


def test_runs_without_labels_get_a_row_for_each_setting_that_differs(tmp_path):
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            write(
                tmp_path / f"{rate}-{seed}",
                config=config(rate=rate, seed=seed),
                result=result(rate, 400),
            )
    (request,) = default_tables(read(tmp_path))
    assert request.rows == "optimizer.learning_rate"
    table = score_table(request, read(tmp_path))
    assert [row[0].text for row in table.rows] == ["0.1", "0.2"]
    # Runs with equal scores leave the 500 images: Wilson's interval of 100 right ones.
    assert cell(table, "0.2", "cifar10").text == "20.00 [16.73, 23.73]"


def test_a_series_looks_the_same_in_every_picture():
    palette = Palette()
    first = palette.style("model", "A")
    palette.add("model+pretrain", [f"B{JOIN}10 %", f"A{JOIN}100 %", f"A{JOIN}10 %"])
    joined = palette.style("model+pretrain", f"A{JOIN}100 %")
    assert first["color"] == joined["color"] == COLOURS[3][0]
    assert palette.style("model", "B")["color"] == COLOURS[4][0]
    other = palette.style("model+pretrain", f"A{JOIN}10 %")
    assert (other["marker"], other["linestyle"]) != (joined["marker"], joined["linestyle"])
    styles = [palette.style("n", str(i)) for i in range(20)]
    seen = ("color", "marker", "linestyle", "fillstyle")
    assert len({tuple(str(style[key]) for key in seen) for style in styles}) == 20


def test_a_family_looks_the_same_in_all_reports_and_its_models_differ():
    reports = [Palette(), Palette()]
    reports[0].add("model", ["BiT-R50x1", "ViT-B/16", "ViT-L/16"])
    reports[1].add("model", ["R50+ViT-B/16", "ViT-L/16", "BlockMeans-8", "ours"])
    first, second = [p.style("model", "ViT-L/16") for p in reports]
    assert (first["color"], first["marker"]) == (second["color"], second["marker"])
    assert reports[0].style("model", "ViT-B/16")["linestyle"] != first["linestyle"]
    colours = [reports[1].style("model", m)["color"] for m in ("R50+ViT-B/16", "ViT-L/16", "ours")]
    assert len(set(colours)) == 3
    joined = [reports[0].style("model+head", f"ViT-L/16{JOIN}{h}") for h in ("token", "gap")]
    assert {style["color"] for style in joined} == {first["color"]}
    assert joined[0]["linestyle"] != joined[1]["linestyle"]
    assert joined[0]["fillstyle"] != joined[1]["fillstyle"]


@pytest.mark.parametrize("x", ["train_examples", "model"])
def test_a_plot_of_accuracy_has_a_line_at_chance(tmp_path, x):
    for name, images in (("a", 100), ("b", 1000)):
        figures = {SCORE: 0.5, "train_examples": images}
        put(tmp_path, name, figures, labels={"model": name, "dataset": "x"})
        (tmp_path / name / "classes.json").write_text(json.dumps({"names": ["a", "b", "c", "d"]}))
    (panel,) = make_figure(tmp_path, x).axes
    (text,) = panel.texts
    assert text.get_text() == "chance"
    line = panel.lines[-1]
    assert {*(line.get_ydata() if x == "train_examples" else line.get_xdata())} == {25.0}


def test_a_logarithmic_axis_shows_small_errors(tmp_path):
    for i, error in enumerate((0.7, 0.0005)):
        figures = {"eval/test/relative_error": error, "train_examples": 10 * (i + 1)}
        put(tmp_path, f"r{i}", figures, labels={"model": "A"})
    figure = make_figure(tmp_path, "train_examples", "eval/test/relative_error", log_y=True)
    assert figure.axes[0].get_yscale() == "log"


def test_numbers_are_rounded_by_metric_and_size():
    assert format_metric(0.88551, "eval/test/accuracy_top1") == "88.55"
    assert format_metric(0.98765, "eval/test/roc_auc") == "0.9877"
    assert format_metric(0.3, "train/loss", like=12.5) == "0.30"
    assert format_metric(1437.0, "train_examples") == "1437.0"
    assert format_metric(1.2e-6, "eval/test/loss") == "1.20e-06"  # not 0.0000
    assert format_metric(-3e-7, "eval/test/loss", like=2e-6) == "-3.00e-07"
    assert format_metric(0.0, "eval/test/loss") == "0.0000"


def test_what_is_not_zero_is_not_shown_as_zero():
    assert format_metric(4e-5, "eval/test/loss", like=2.3) == "4e-05"
    assert format_metric(-0.0004, "eval/test/loss", like=2.3) == "-0.0004"
    assert format_metric(-0.0006, "eval/test/loss", like=2.3) == "-0.001"
    assert format_metric(0.4, "train_examples", like=1437.0) == "0.4"
    assert format_metric(-3e-5, "eval/test/accuracy_top1", like=0.9) == "-0.003"
    assert format_metric(0.4, "train_examples", like=14370.0) == "0.4"
    # Zero, up to the rounding of numbers.
    assert format_metric(0.1 + 0.2 - 0.3, "eval/test/loss", like=0.3) == "0.0000"
    assert format_metric(0.3 - 0.1 - 0.2, "eval/test/accuracy_top1", like=0.9) == "0.00"


def test_a_small_difference_has_a_digit(tmp_path):
    for model, loss in (("A", 2.3), ("B", 2.30004)):
        put(tmp_path, model, {"eval/test/loss": loss}, labels={"model": model, "dataset": "x"})
    request = TableRequest(metric="eval/test/loss", against="A")
    table = difference_table(request, score_table(request, read(tmp_path)))
    assert cell(table, "B", "x").text == "4e-05 (uncertainty not known)"


@pytest.mark.parametrize(
    ("prints", "noted"),
    [
        (("1", "1"), None),
        (("1", "2"), "training examples"),
        ((None, None), "data.data_dir"),
        (("1", None), "data.data_dir"),
    ],
)
def test_runs_on_other_data_are_no_seeds_of_one_setting(tmp_path, prints, noted):
    for seed, fingerprint in enumerate(prints):
        name, place = f"run{seed}", f"/{seed}/photos"
        figures = {SCORE: 0.5 + 0.1 * seed}
        put(tmp_path, name, figures, seed=seed, data__source="folder", data__data_dir=place)
        write(tmp_path / name, data={"fingerprint": fingerprint})
    notes = make_table(tmp_path).notes
    found = [note.partition("seed: ")[2] for note in notes if "more than the seed" in note]
    assert found == ([f"{noted}."] if noted else [])
    (request,) = default_tables(read(tmp_path))
    assert request.rows == ("name" if noted else "model")


def test_few_shot_runs_on_folders_of_one_name_are_no_seeds_of_one_setting(tmp_path):
    metric = "fewshot/photos/5_shot/accuracy_top1"
    for place in "ab":
        photos = {"name": "photos", "source": "folder", "data_dir": f"/{place}/photos"}
        settings = {"model": {"name": "A"}, "fewshot": {"datasets": {"photos": photos}}}
        job = {"command": "fewshot", "labels": {"dataset": "photos"}}
        write(tmp_path / place, job=job, config=settings, result={"step": 0, metric: 0.5})
    notes = make_table(tmp_path, metric).notes
    assert "differ in more than the seed: fewshot.datasets.photos.data_dir." in " ".join(notes)


def test_runs_without_the_metric_of_their_cell_and_values_in_percent_are_named(tmp_path):
    put_seeds(tmp_path, "A", (50.0, 51.0))
    put(tmp_path, "none", {"eval/test/loss": 1.0}, labels={"model": "A", "dataset": "x"}, seed=2)
    put(tmp_path, "other", {"eval/test/loss": 1.0}, labels={"model": "B", "dataset": "x"})
    notes = make_table(tmp_path).notes
    assert "Not in the means, because they did not measure it: none." in notes
    assert "Not between 0 and 1, and shown times 100: the values of A-x-0, A-x-1." in notes


def test_intervals_of_negative_losses_are_not_cut_at_zero(tmp_path):
    put_seeds(tmp_path, "A", (-0.1, 0.2), metric="eval/test/loss")
    (low,) = make_table(tmp_path, "eval/test/loss").means["low"]
    assert low < 0


def test_what_may_mislead_is_said(tmp_path):
    """Weights that the shown split chose, losses of two formulas, times of two devices."""
    config = {"early_stopping": {"metric": SCORE}, "task": {"name": "classification"}}
    for model, loss in (("A", "softmax"), ("B", "sigmoid")):
        figures = {SCORE: 0.5, "eval/dev/accuracy_top1": 0.6, "eval/test/loss": 1.0}
        about = config | {"loss": {"name": loss}}
        put(tmp_path, model, figures | {"wall_time_s": 3.0}, labels={"model": model}, **about)
    words = ("Too good", "losses differ in formula", "different devices")

    def said(metric):
        notes = " ".join(make_table(tmp_path, metric).notes)
        return [word for word in words if word in notes]

    assert said(SCORE) == ["Too good"]
    assert said("eval/dev/accuracy_top1") == []
    assert said("eval/test/loss") == ["Too good", "losses differ in formula"]
    assert said("wall_time_s") == []
    for model, kind in (("A", "cpu"), ("B", "H200")):
        write(tmp_path / model, env=ENVIRONMENT | {"device_kind": kind})
    assert said("wall_time_s") == ["different devices"]
