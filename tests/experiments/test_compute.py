"""experiments/compute: the rows of Table 6 and their exaFLOPs."""

import csv
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", autouse=True)
def root():
    """Jobs name their configs from there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="module")
def rows():
    return runpy.run_path("experiments/compute/plan.py")["planned"]()


# Family -> how far the farthest of its rows is from Table 6, but for one hybrid (see below). The
# table's own whole numbers leave 1 % of room at 50.
REACHED = {"ViT": 0.024, "hybrid": 0.018, "ResNet": 0.051}


def test_the_exaflops_of_table_6_are_reproduced(rows):
    assert len(rows) == 18
    for row in rows:
        if (row.model, row.epochs) != ("R50+ViT-L/16", 7):
            assert abs(row.difference) < REACHED[row.family], row
    vits = {row.model: row.difference for row in rows if row.family == "ViT"}
    assert {model for model, d in vits.items() if abs(d) > 0.002} == {"ViT-B/32"}
    # All ResNets are above the table, by about as much: no single model is counted wrongly.
    resnets = [row.difference for row in rows if row.family == "ResNet"]
    assert len(resnets) == 7
    assert 0.034 < min(resnets) < max(resnets) < 0.051


def test_one_row_of_table_6_does_not_agree_with_the_table_itself(rows):
    """859 exaFLOPs in 7 epochs, where 14 take 1668 = 2 x 834."""
    ours = {row.epochs: row.exaflops for row in rows if row.model == "R50+ViT-L/16"}
    assert ours[14] == pytest.approx(1668, rel=0.001)
    assert ours[7] == pytest.approx(1668 / 2, rel=0.001)
    assert ours[7] == pytest.approx(859, rel=0.03)
    assert ours[7] != pytest.approx(859, rel=0.025)


def test_the_committed_table_equals_the_plan(rows):
    with (ROOT / "experiments/compute/plan.csv").open(newline="") as file:
        kept = list(csv.DictReader(file))
    assert [(k["model"], int(k["epochs"])) for k in kept] == [(r.model, r.epochs) for r in rows]
    for row, line in zip(rows, kept, strict=True):
        assert row.exaflops == pytest.approx(float(line["exaflops"]), rel=1e-12)
        assert row.paper == int(line["paper"])
    page = (ROOT / "experiments/compute/plan.md").read_text()
    assert all(f"| {' | '.join(row.texts())} |" in page for row in rows)
