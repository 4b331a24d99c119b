"""The committed results of every experiment are what `report` makes of its runs today."""

import re
import runpy

import numpy as np
import pytest
from PIL import Image
from report.committed_runs import EXPERIMENTS, NAMES, rebuild
from report.page_runs import without_pictures

from vit_jax.__main__ import main
from vit_jax.report import content, drawing

# The others take seconds each.
QUICK = ("position_embeddings", "masked_patches")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Makes the run folders of an experiment, once."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = rebuild(name, tmp_path_factory.mktemp("runs") / name)
        return made[name]

    return get


def make_report(runs, folder, name):
    folder.mkdir()
    page = folder / "README.md"
    page.write_text((EXPERIMENTS / name / "README.md").read_text())
    arguments = ["report", str(runs), f"--output={folder / 'results'}", f"--into={page}"]
    assert main(arguments) == 0
    return page


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in NAMES]
)
def test_tables_equal_the_committed_ones_byte_for_byte(folders, name, tmp_path, monkeypatch):
    without_pictures(monkeypatch)
    page = make_report(folders(name), tmp_path / name, name)
    committed = EXPERIMENTS / name
    assert page.read_text() == (committed / "README.md").read_text()
    for file in ("runs.csv", "tables.csv"):
        made = (page.parent / "results" / file).read_bytes()
        assert made == (committed / "results" / file).read_bytes(), file


def test_the_mean_leads_of_data_size_equal_the_committed_ones(folders):
    gap = runpy.run_path(str(EXPERIMENTS / "data_size" / "gap.py"))
    cells = gap["draw_cells"](gap["read_finals"](folders("data_size")))
    page = (EXPERIMENTS / "data_size" / "README.md").read_text()
    # The intervals pair test images, whose predictions are not committed.
    made, committed = (re.sub(r" \[.*?\]", "", text) for text in (gap["gap_tables"](cells), page))
    assert made in committed


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.slow)
        for n in NAMES
        if any((EXPERIMENTS / n / "results").glob("plot-*.png"))
    ],
)
def test_plots_look_like_the_committed_ones(folders, name, tmp_path, monkeypatch):
    monkeypatch.setattr(
        content, "draw_learning_curves", lambda *_: []
    )  # Rebuilt runs have other curves.
    monkeypatch.setattr(drawing, "DPI", 160)
    results = make_report(folders(name), tmp_path / name, name).parent / "results"
    committed = sorted((EXPERIMENTS / name / "results").glob("plot-*.png"))
    for picture in committed:
        made = np.asarray(Image.open(results / picture.name).convert("L"), np.float32)
        wanted = np.asarray(Image.open(picture).convert("L"), np.float32)
        assert made.shape == wanted.shape
        # Fonts may be rendered a little differently by another version of matplotlib.
        assert np.abs(made - wanted).mean() < 2.0
