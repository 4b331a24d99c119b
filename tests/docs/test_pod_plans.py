"""The page of pod plans shows plans.csv, and the recipes and slices in it exist."""

import csv
import math
import re
import runpy
from pathlib import Path

from vit_jax.config.file import load_config
from vit_jax.plan.topology import parse_topology

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "pod_plans"
PAGE = (FOLDER / "README.md").read_text()


def rows():
    return list(csv.DictReader((FOLDER / "plans.csv").read_text().splitlines()))


def test_the_table_on_the_page_equals_plans_csv():
    table = runpy.run_path(str(FOLDER / "table.py"))["table"]()
    shown = re.search(r"<!-- table.py -->\n\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == table


def test_recipe_and_topology_of_every_row_exist():
    assert len(rows()) >= 5
    for row in rows():
        config = load_config(str(ROOT / row["recipe"]))
        assert math.prod(parse_topology(row["topology"]).shape) == int(row["devices"])
        assert config.data.image_size == int(row["image_size"])


def test_the_large_models_are_planned():
    planned = {(row["model"], row["topology"]) for row in rows()}
    assert ("ViT-L/16", "v5e:16x16") in planned
    assert {model for model, topology in planned if topology.startswith("v5p")} >= {"ViT-H/14"}
    assert "ViT-g/14" in {model for model, _ in planned}


def test_the_page_has_the_command_for_each_row():
    for row in rows():
        pattern = f"--config={row['recipe']} --topology={row['topology']}"
        assert pattern in PAGE, pattern
