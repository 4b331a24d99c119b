import dataclasses
import statistics

import pytest
from report.fake_runs import config, result, write

from vit_jax.errors import ConfigError
from vit_jax.report import vtab
from vit_jax.report.defaults import suggested_plots, suggested_tables
from vit_jax.report.fields import Fields
from vit_jax.report.lineage import efforts
from vit_jax.report.plots import draw, plot_data
from vit_jax.report.requests import PlotRequest, TableRequest
from vit_jax.report.runs import find_runs
from vit_jax.report.style import COLOURS, Palette, house_style, inline_svg, save
from vit_jax.report.tables import build_table
from vit_jax.report.words import JOIN, number_text

SCORE = "eval/test/accuracy_top1"


def read(folder):
    runs = find_runs([folder]).runs
    return runs, Fields(runs, efforts(runs))


def put(folder, name, score, *, labels=None, job=None, **settings):
    """Writes a finished run; `score` may be a dict of figures."""
    figures = score if isinstance(score, dict) else {SCORE: score}
    about = {"name": name, "labels": labels or {}, "stage": "final", **(job or {})}
    done = {k: v for k, v in result(0, 400).items() if not k.startswith("eval/")} | figures
    write(folder / name, job=about, config=config(**settings), result=done)


def four(folder):
    """Two models on two datasets, seeds 0 and 1."""
    scores = {("A", "x"): (0.5, 0.7), ("A", "y"): (0.2, 0.4), ("B", "x"): (0.55, 0.57),
              ("B", "y"): (0.3, 0.34)}  # fmt: skip
    for (model, dataset), values in scores.items():
        for seed, value in enumerate(values):
            labels = {"model": model, "dataset": dataset}
            put(folder, f"{model}-{dataset}-{seed}", value, labels=labels, seed=seed)
    return scores


def test_a_table_has_means_deviations_with_n_minus_1_and_the_best_in_bold(tmp_path):
    four(tmp_path)
    runs, fields = read(tmp_path)
    table = build_table(TableRequest(SCORE), runs, fields)
    assert (table.rows, table.columns, table.corner) == (["A", "B"], ["x", "y"], "Model")
    assert table.text("A", "x") == "60.00 ± 14.14"  # 0.1 * sqrt(2).
    assert table.text("B", "y") == "32.00 ± 2.83"
    assert {key for key, cell in table.cells.items() if cell.best} == {("A", "x"), ("B", "y")}
    assert table.notes[0].startswith("Percent. Mean ± standard deviation (n - 1) over n = 2 runs")


def test_one_run_has_no_deviation(tmp_path):
    put(tmp_path, "a", 0.5, labels={"model": "A", "dataset": "x"})
    runs, fields = read(tmp_path)
    table = build_table(TableRequest(SCORE), runs, fields)
    assert table.text("A", "x") == "50.00"
    assert "no dispersion" in table.notes[0]
    assert not any(cell.best for cell in table.cells.values())  # Best of one.


def test_smaller_losses_are_better(tmp_path):
    for model, loss in (("A", 1.5), ("B", 0.5)):
        figures = {"eval/test/loss": loss}
        put(tmp_path, model, figures, labels={"model": model, "dataset": "x"})
    runs, fields = read(tmp_path)
    table = build_table(TableRequest("eval/test/loss"), runs, fields)
    assert table.cells["B", "x"].best
    assert table.text("B", "x") == "0.5000"


def test_runs_that_differ_by_more_than_their_seed_are_told(tmp_path):
    for seed in (0, 1):
        put(tmp_path, f"{seed}", 0.5, labels={"model": "A", "dataset": "x"}, seed=seed,
            rate=0.1 * (seed + 1))  # fmt: skip
    runs, fields = read(tmp_path)
    notes = build_table(TableRequest(SCORE), runs, fields).notes
    assert (
        "Runs of one cell differ not in their seed alone but in optimizer.learning_rate." in notes
    )


def test_parts_of_a_metric_become_fields(tmp_path):
    figures = {f"fewshot/{d}/{s}_shot/accuracy_top1": s / 100 for d in "xy" for s in (1, 10)}
    figures["fewshot/x/1_shot/accuracy_top1_std"] = 0.02
    put(tmp_path, "a", figures, labels={"model": "A"}, job={"command": "fewshot"})
    runs, fields = read(tmp_path)
    pattern = "fewshot/{dataset}/{shots}_shot/accuracy_top1"
    table = build_table(TableRequest(pattern, columns="dataset+shots"), runs, fields)
    assert table.columns == [f"{d}{JOIN}{s}-shot" for d in "xy" for s in (1, 10)]
    assert table.text("A", f"x{JOIN}1-shot") == "1.00 (± 2.00)"
    assert "draws of examples inside one run" in " ".join(table.notes)
    data = plot_data(PlotRequest("shots", pattern, panel="dataset", log_x=True), runs, fields)
    assert {x: s.mean for x, s in data.panels["y"]["A"].items()} == {1: 0.01, 10: 0.1}


def test_vtab_gets_the_means_of_its_groups_over_seeds(tmp_path):
    tasks = [task for group in vtab.GROUPS.values() for task in group]
    assert len(tasks) == 19
    for seed in (0, 1):
        for i, task in enumerate(tasks):
            value = (i + 1) / 100 + 0.1 * seed
            labels = {"model": "A", "dataset": f"vtab_{task.lower().replace('-', '_')}"}
            put(tmp_path, f"{task}-{seed}", value, labels=labels, seed=seed)
    runs, fields = read(tmp_path)
    table = build_table(TableRequest(SCORE), runs, fields)
    assert table.columns[:4] == ["natural", "specialized", "structured", "VTAB (19)"]
    assert table.columns[4] == "vtab_caltech101"
    deviation = statistics.stdev([0.0, 10.0])
    for column, mean in (("natural", 4), ("specialized", 9.5), ("structured", 15.5),
                         ("VTAB (19)", 10)):  # fmt: skip
        assert table.text("A", column) == f"{mean + 5:.2f} ± {deviation:.2f}"


def test_vtab_gets_a_panel_for_each_group(tmp_path):
    for i, task in enumerate(task for group in vtab.GROUPS.values() for task in group):
        labels = {"model": "A", "dataset": f"vtab_{task.lower()}"}
        put(tmp_path, task, (i + 1) / 100, labels=labels)
    runs, fields = read(tmp_path)
    data = plot_data(PlotRequest("model", SCORE, panel="dataset"), runs, fields)
    assert {name: panel["A"]["A"].mean for name, panel in data.panels.items()} == {
        "natural": pytest.approx(0.04), "specialized": pytest.approx(0.095),
        "structured": pytest.approx(0.155), "VTAB (19)": pytest.approx(0.1),
    }  # fmt: skip
    assert "Panels of the 19 datasets are left out" in " ".join(data.notes)


def test_the_protocols_names_are_those_of_the_19_tasks():
    natural = "caltech101 cifar100 dtd flowers pets sun397 svhn"
    others = "camelyon eurosat resisc45 retinopathy clevr_count clevr_distance dmlab"
    more = "dsprites_location dsprites_orientation kitti_distance"
    last = "smallnorb_azimuth smallnorb_elevation"
    names = [f"vtab_{task}" for task in f"{natural} {others} {more} {last}".split(" ")]
    groups = vtab.grouped([*names, "pets", "cifar100"])
    assert groups is not None
    assert groups["VTAB (19)"] == names
    assert vtab.grouped(names[1:]) is None


def test_a_plot_shows_means_with_bars_and_every_seed(tmp_path):
    for model, size, values in (("A", 100, (0.4, 0.6)), ("A", 1000, (0.7, 0.8)),
                                ("B", 100, (0.3, 0.3))):  # fmt: skip
        for seed, value in enumerate(values):
            figures = {SCORE: value, "train_examples": size}
            labels = {"model": model, "dataset": "x", "size": str(size)}
            put(tmp_path, f"{model}-{size}-{seed}", figures, labels=labels, seed=seed)
    runs, fields = read(tmp_path)
    request = PlotRequest("pretrain_examples", SCORE, log_x=True)
    data = plot_data(request, runs, fields)
    assert data.panels[""]["A"][1000].std == pytest.approx(0.1 / 2**0.5)
    axes = draw(data, Palette()).axes[0]
    assert axes.get_xscale() == "log"
    (line, _, (bars,)), (lone, _, _) = axes.containers
    assert line.get_xydata().tolist() == [[100, 50], [1000, 75]]
    assert lone.get_xydata().tolist() == [[100, 30]]
    top, bottom = bars.get_segments()[0][:, 1]
    assert abs(top - bottom) == pytest.approx(2 * 100 * statistics.stdev((0.4, 0.6)))
    seeds = [line.get_xydata().tolist() for line in axes.lines if line.get_alpha() is not None]
    assert [[100, 40], [100, 60]] in [[[x, pytest.approx(y)] for x, y in s] for s in seeds]
    assert line.get_color() != lone.get_color()
    assert line.get_marker() != lone.get_marker()


def test_lines_go_through_a_shared_point(tmp_path):
    """The base of a study is one run, and lies on the line of each dimension that is scaled."""
    for scaled, steps, score in (("base", 100, 0.5), ("depth", 200, 0.7), ("width", 400, 0.6)):
        figures = {SCORE: score, "train_exaflops": float(steps)}
        put(tmp_path, scaled, figures, labels={"scaled": scaled})
    runs, fields = read(tmp_path)
    asked = PlotRequest("train_exaflops", SCORE, "scaled", through="base", log_x=True)
    data = plot_data(asked, runs, fields)
    means = {
        name: {x: summary.mean for x, summary in points.items()}
        for name, points in data.panels[""].items()
    }
    base = {100.0: 0.5}
    assert means == {"base": base, "depth": base | {200.0: 0.7}, "width": base | {400.0: 0.6}}
    assert data.notes == [
        "One run a point, so no dispersion.", "The lines of all series go through base.",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"through=bse.*one of base, depth, width.*'base'"):
        plot_data(dataclasses.replace(asked, through="bse"), runs, fields)


def test_a_narrow_logarithmic_axis_has_more_ticks_than_powers_of_ten(tmp_path):
    for i, exaflops in enumerate((3e-7, 3.1e-7, 4e-6)):
        figures = {SCORE: 0.5 + 0.1 * i, "train_exaflops": exaflops}
        put(tmp_path, f"r{i}", figures, labels={"model": "A"})
    runs, fields = read(tmp_path)
    data = plot_data(PlotRequest("train_exaflops", SCORE, log_x=True), runs, fields)
    (panel,) = draw(data, Palette()).axes
    low, high = panel.get_xlim()
    ticks = [x for x in panel.get_xticks() if low <= x <= high]
    assert ticks == pytest.approx([5e-7, 1e-6, 2e-6])


def test_panels_come_with_the_mean_over_them_where_all_have_it(tmp_path):
    scores = four(tmp_path)
    put(tmp_path, "C-x-0", 0.9, labels={"model": "C", "dataset": "x"})
    runs, fields = read(tmp_path)
    data = plot_data(PlotRequest("model", SCORE, panel="dataset"), runs, fields)
    assert list(data.panels) == ["Mean of 2 datasets", "x", "y"]
    mean = data.panels["Mean of 2 datasets"]
    assert set(mean) == {"A", "B"}
    each = [(x + y) / 2 for x, y in zip(scores["A", "x"], scores["A", "y"], strict=True)]
    assert mean["A"]["A"].mean == pytest.approx(statistics.fmean(each))
    assert mean["A"]["A"].std == pytest.approx(statistics.stdev(each))
    figure = draw(data, Palette())
    assert [t.get_text() for t in figure.axes[1].get_yticklabels()] in (["A", "B", "C"], [""] * 3)


def test_runs_whose_place_is_not_known_are_named(tmp_path):
    put(tmp_path, "a", 0.5, labels={"model": "A", "dataset": "x"}, init_from="/gone")
    put(tmp_path, "b", 0.6, labels={"model": "B", "dataset": "x"})
    runs, fields = read(tmp_path)
    data = plot_data(PlotRequest("pretrain_examples", SCORE, log_x=True), runs, fields)
    assert data.points() == 1
    assert "not known (starts from /gone, which is gone" in data.notes[-1]
    assert data.notes[-1].endswith(": a.")


def test_what_suggests_itself_fits_the_runs(tmp_path):
    four(tmp_path)
    runs, fields = read(tmp_path)
    assert [(t.metric, t.rows, t.columns) for t in suggested_tables(runs, fields)] == [
        (SCORE, "model", "dataset")
    ]
    assert [(p.x, p.panel) for p in suggested_plots(runs, fields)] == [("model", "dataset")]


def test_runs_without_labels_are_told_apart_by_what_differs(tmp_path):
    for rate in (0.1, 0.2):
        for seed in (0, 1):
            write(tmp_path / f"{rate}-{seed}", config=config(rate=rate, seed=seed),
                  result=result(rate, 400))  # fmt: skip
    runs, fields = read(tmp_path)
    (request,) = suggested_tables(runs, fields)
    assert request.rows == "optimizer.learning_rate"
    table = build_table(request, runs, fields)
    assert (table.rows, table.columns) == (["0.1", "0.2"], ["cifar10"])
    assert table.text("0.2", "cifar10") == "20.00 ± 0.00"


def test_a_series_looks_the_same_in_every_picture():
    palette = Palette()
    first = palette.style("model", "A")
    palette.add("model+pretrain", [f"B{JOIN}10 %", f"A{JOIN}100 %", f"A{JOIN}10 %"])
    joined = palette.style("model+pretrain", f"A{JOIN}100 %")
    assert first["color"] == joined["color"] == COLOURS[0][0]
    assert palette.style("model", "B")["color"] == COLOURS[1][0]
    other = palette.style("model+pretrain", f"A{JOIN}10 %")
    assert (other["marker"], other["linestyle"]) != (joined["marker"], joined["linestyle"])
    styles = [tuple(map(str, palette.style("n", str(i)).values())) for i in range(20)]
    assert len(set(styles)) == 20


def test_an_inlined_picture_takes_its_colours_from_the_page(tmp_path):
    from matplotlib.figure import Figure

    with house_style():
        figure = Figure()
        figure.subplots().plot([1, 2], color=COLOURS[0][0])
    svg = inline_svg(save(figure, tmp_path / "a"), "p0", 'a "b" <c>')
    assert "var(--series-1)" in svg
    assert 'aria-label="a &quot;b&quot; &lt;c&gt;"' in svg
    assert "http" not in svg
    assert COLOURS[0][0] not in svg


def test_figures_have_the_decimals_of_their_kind():
    assert number_text(0.88551, "eval/test/accuracy_top1") == "88.55"
    assert number_text(0.98765, "eval/test/roc_auc") == "0.9877"
    assert number_text(0.3, "train/loss", like=12.5) == "0.30"
    assert number_text(1437.0, "train_examples") == "1437.0"
