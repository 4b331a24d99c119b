"""Scaling laws of a report: made-up runs whose losses follow a known law."""

import csv
import json
import random
from types import SimpleNamespace

import pandas as pd
import pytest
from report.fake_runs import config, result, write

from vit_jax.__main__ import main
from vit_jax.plan.scaling_fit import ScalingFit, read_fits
from vit_jax.plan.scaling_law import ScalingLaw
from vit_jax.report import fits

pytestmark = pytest.mark.slow

LAWS = {
    "ViT": ScalingLaw(0.5, 40.0, 0.4, 90.0, 0.4),
    "BiT-R": ScalingLaw(0.5, 40.0, 0.4, 45.0, 0.4),
}
SIZES = (20_000, 60_000, 180_000, 540_000)
STEPS = (200, 600, 2_000, 6_000, 20_000)
BATCH, FLOPS = 64, 6.0


def write_runs(folder, noise=0.003, families=LAWS):
    state = random.Random(0)
    for family, law in families.items():
        for size in SIZES:
            for steps in STEPS:
                seen, flops = BATCH * steps, FLOPS * size * BATCH * steps
                loss = law.loss(size, seen) * (1 + state.gauss(0, noise))
                final = result(0.5, steps, examples=50_000, exaflops=flops / 1e18)
                final |= {"parameters": size, "examples_seen": seen, "eval/test/loss": loss}
                model = f"{family}-{size}"
                write(
                    folder / f"{model}-{steps}",
                    config=config(model, steps=steps),
                    metrics=[{"step": steps, "time": 1.7e9, "train/loss": loss}],
                    result=final,
                )
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = write_runs(tmp_path_factory.mktemp("runs"))
    assert main(["report", str(folder), "--fit=scaling", "--curves", "series=family"]) == 0
    return folder / "report"


def rows_of(report, title):
    lines = (report / "report.md").read_text().partition(f"## {title}\n\n")[2].splitlines()
    body = lines[2 : lines.index("")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in body]


def ends(cell):
    """Returns the three numbers of "value [low, high]"."""
    value, _, rest = cell.partition(" [")
    return float(value), *map(float, rest.partition("]")[0].split(", "))


def test_the_tables_show_the_laws_that_made_the_losses(report):
    found = {row[1]: row for row in rows_of(report, "Scaling law")}
    for family, law in (("ViT", LAWS["ViT"]), ("ResNet", LAWS["BiT-R"])):
        _, low, high = ends(found[family][6])
        assert low <= law.data_exponent <= high
        assert found[family][8] == "20"


def test_the_longest_runs_are_predicted_from_the_shorter_ones(report):
    rows = rows_of(report, "Prediction of the longest runs")
    assert len(rows) == 2 * len(SIZES)
    errors = [abs(float(row[6].rstrip(" %"))) for row in rows]
    assert max(errors) < 3
    assert [row[7] for row in rows].count("yes") >= 6


def test_compute_to_equal_loss_is_that_of_the_laws(report):
    """Half of B with b = 0.4 is 2**2.5 times fewer examples for an equal loss and size."""
    rows = rows_of(report, "Compute to equal loss")
    assert [row[1] for row in rows] == ["ViT"] * 3
    for row in rows[1:]:  # At the smallest compute the smallest size is best for both.
        ratio, low, high = ends(row[4])
        assert low < ratio < high
    assert ends(rows[0][4])[0] == pytest.approx(2**2.5, rel=0.1)
    # The largest ViT would need more than twice the compute that it was given.
    assert [row[4].endswith("] extrapolated") for row in rows] == [False, False, True]


@pytest.mark.parametrize(("loss", "warned"), [(0.69, True), (0.6, False)])
def test_a_law_of_losses_near_those_of_guessing_is_warned_of(loss, warned):
    law = LAWS["ViT"]
    fit = ScalingFit("same", "ViT", "eval/test/loss", law, (law,), {}, (1.0, 2.0), (1.0, 2.0))
    runs = pd.DataFrame({"loss": [0.7, loss]}, index=[SimpleNamespace(classes=["a", "b"])] * 2)
    assert fits._not_learned(fits.FittedRuns(fit, None, runs)).startswith("Not learned") == warned


def test_the_file_holds_the_laws_and_is_read_again(report):
    fits = {fit.series: fit for fit in read_fits(report / "scaling.json")}
    assert fits.keys() == {"ViT", "ResNet"}
    fit = fits["ViT"]
    assert (fit.metric, fit.panel) == ("eval/test/loss", "cifar10")
    assert fit.sizes == (min(SIZES), max(SIZES))
    assert fit.examples == (BATCH * STEPS[0], BATCH * STEPS[-1])
    assert fit.flops == {size: pytest.approx(FLOPS * size) for size in SIZES}
    loss, low, high = fit.loss(1e6, 1e7)
    assert low < LAWS["ViT"].loss(1e6, 1e7) < high
    assert low <= loss <= high


def test_the_best_size_has_the_smallest_loss(report):
    (fit,) = (one for one in read_fits(report / "scaling.json") if one.series == "ViT")
    compute = 1e12
    size, examples = fit.best_size(compute)
    assert size * examples * FLOPS == pytest.approx(compute)
    best = fit.best_loss(compute)[0]
    assert best == pytest.approx(fit.law.loss(size, examples))
    for other in SIZES:
        assert fit.law.loss(other, compute / FLOPS / other) >= best * (1 - 1e-9)
    assert fit.flops_for(best) == pytest.approx(compute, rel=1e-6)


def test_the_picture_is_drawn_and_named(report):
    names = {path.name for path in report.glob("fit-*")}
    assert names == {"fit-1.png", "fit-1.svg"}
    assert (
        "![Loss against compute, and the scaling law](fit-1.svg)"
        in (report / "report.md").read_text()
    )


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        ("scalign", "did you mean"),
        ("scaling,against=Mixer", "against=Mixer"),
        ("scaling,size=nothing", "no run has such a label, setting or metric"),
        ("scaling,where.model=ViT-20000", "5 runs, 1 sizes and 5 numbers of examples"),
        ("scaling,size=model.name", "finished runs with numbers in model.name"),
    ],
)
def test_wrong_requests_are_one_line(report, capsys, fit, words):
    assert main(["report", str(report.parent), f"--fit={fit}"]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x.startswith("error: ")]
    assert words in line


def test_a_damaged_file_is_one_line(tmp_path, report):
    good = json.loads((report / "scaling.json").read_text())
    good["fits"][0]["draws"] = []
    (tmp_path / "scaling.json").write_text(json.dumps(good))
    from vit_jax.errors import FileError

    for content in (good, {}, {"fits": []}, {"fits": [{}]}, {"fits": 3}):
        (tmp_path / "scaling.json").write_text(json.dumps(content))
        with pytest.raises(FileError, match="holds no scaling laws"):
            read_fits(tmp_path / "scaling.json")


def test_a_sweep_file_may_ask_for_a_fit(tmp_path):
    folder = write_runs(tmp_path / "sweep")
    asked = {"fits": [{"scaling": True, "series": "family"}], "curves": [], "plots": []}
    sweep = {"sweep": "mine.py", "jobs": [], "report": asked}
    (folder / "sweep.json").write_text(json.dumps(sweep))
    assert main(["report", str(folder)]) == 0
    assert len(read_fits(folder / "report" / "scaling.json")) == 2
    with (folder / "report" / "tables.csv").open() as file:
        assert {row["metric"] for row in csv.DictReader(file)} == {"eval/test/accuracy_top1"}
