"""The table of recipes: every recipe has a row, and what is called planned has a plan."""

import re

from processes import ROOT

PAGE = (ROOT / "docs/reference/recipes.md").read_text()


def rows():
    """Returns the file of each recipe -> the cells of its row, by the names of the columns."""
    lines = PAGE.split("\n\n")[1].splitlines()
    header, _, *body = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    found = [dict(zip(header, cells, strict=True)) for cells in body]
    return {re.match(r"`(\w+\.py)", row["config"])[1]: row for row in found}


def test_every_recipe_has_one_row():
    assert PAGE.split("\n\n")[1].count("\n") == len(rows()) + 1
    assert rows().keys() == {path.name for path in (ROOT / "configs").glob("*.py")}


def test_what_is_called_planned_has_a_plan():
    plans = "".join(p.read_text() for p in (ROOT / "experiments/pod_plans").glob("*.csv"))
    for name, row in rows().items():
        assert "planned" not in row["here"] or f"configs/{name}" in plans, name
