"""The page of plans shows plans.csv and gpu_plans.csv; their recipes and topologies exist."""

import csv
import math
import re
import runpy
from pathlib import Path

import pytest

from vit_jax.config.file import load_config
from vit_jax.plan.topology import parse_topology

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "experiments" / "pod_plans"
PAGE = (FOLDER / "README.md").read_text()


def rows(name):
    return list(csv.DictReader((FOLDER / name).read_text().splitlines()))


@pytest.mark.parametrize(("name", "mark"), [("plans.csv", ""), ("gpu_plans.csv", " gpu_plans.csv")])
def test_the_tables_on_the_page_equal_the_files(name, mark):
    table = runpy.run_path(str(FOLDER / "table.py"))["table"](name)
    shown = re.search(rf"<!-- table.py{mark} -->\n\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert shown is not None
    assert shown[1] == table


@pytest.mark.parametrize("name", ["plans.csv", "gpu_plans.csv"])
def test_recipe_and_topology_of_every_row_exist(name):
    assert len(rows(name)) >= 5
    for row in rows(name):
        config = load_config(str(ROOT / row["recipe"]))
        topology = parse_topology(row["topology"])
        assert math.prod(topology.shape) * topology.slices == int(row["devices"])
        assert config.data.image_size == int(row["image_size"])
