"""The runs of experiments/recipes_learn, and its committed table."""

import csv
from pathlib import Path

import pytest

from experiments.recipes_learn import run as script
from vit_jax.config.file import load_config

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments/recipes_learn"


def committed():
    with (FOLDER / "results/table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_recipe_has_a_row():
    recipes = {row.recipe.partition(":")[0] for row in script.ROWS}
    assert recipes == {path.name for path in (ROOT / "configs").glob("*.py")}


@pytest.mark.parametrize("name", script.RUNS)
def test_the_config_of_a_run_loads(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    _, recipe, _, *options = script.command(name, Path("runs"))
    overrides = [option.removeprefix("--config.") for option in options]
    load_config(recipe.removeprefix("--config="), overrides, lambda _: {"name": "ViT-Ti/2"})


def test_the_committed_commands_are_those_of_the_script():
    made = [script.figures(row, Path("no_runs")) for row in script.ROWS]
    assert [line["command"] for line in made] == [line["command"] for line in committed()]


def test_every_recipe_scores_more_than_its_pixels():
    lines = [line for line in committed() if line["score"]]  # Empty: not run yet.
    assert lines
    assert [x["recipe"] for x in lines if float(x["score"]) <= float(x["pixels"])] == []
