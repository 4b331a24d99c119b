"""Tables on pages: of recipes, and of the plans in experiments/pod_plans."""

import csv
import math
import re
import runpy

import pytest
from processes import ROOT

from vit_jax.config.file import load_config
from vit_jax.plan.topology_names import parse_topology

RECIPES = (ROOT / "docs/reference/recipes.md").read_text()
PLANS = ROOT / "experiments" / "pod_plans"
FILES = ("plans.csv", "gpu_plans.csv")


def recipe_rows():
    """Returns the file of each recipe -> the cells of its row, by the names of the columns."""
    lines = RECIPES.split("\n\n")[1].splitlines()
    header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = [dict(zip(header, cells, strict=True)) for cells in body]
    rows = {re.match(r"`(\w+\.py)", row["config"])[1]: row for row in found}
    assert len(rows) == len(found)
    return rows


def test_every_recipe_has_a_row_and_what_is_called_planned_has_a_plan():
    rows = recipe_rows()
    assert rows.keys() == {path.name for path in (ROOT / "configs").glob("*.py")}
    plans = "".join((PLANS / name).read_text() for name in FILES)
    for name, row in rows.items():
        assert "planned" not in row["here"] or f"configs/{name}" in plans, name


@pytest.mark.parametrize(("name", "mark"), [("plans.csv", ""), ("gpu_plans.csv", " gpu_plans.csv")])
def test_the_tables_of_plans_equal_the_files(name, mark):
    table = runpy.run_path(str(PLANS / "table.py"))["table"](name)
    page = (PLANS / "README.md").read_text()
    shown = re.search(rf"<!-- table.py{mark} -->\n\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert shown[1] == table


@pytest.mark.parametrize("name", FILES)
def test_recipe_and_topology_of_every_plan_exist(name):
    rows = list(csv.DictReader((PLANS / name).read_text().splitlines()))
    assert len(rows) >= 5
    for row in rows:
        config = load_config(str(ROOT / row["recipe"]))
        topology = parse_topology(row["topology"])
        assert math.prod(topology.shape) * topology.slices == int(row["devices"])
        assert config.data.image_size == int(row["image_size"])
