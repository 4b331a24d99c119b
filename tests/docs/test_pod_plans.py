"""The page of plans shows plans.csv and gpu_plans.csv; their recipes and topologies exist."""

import csv
import math
import os
import re
import runpy
import shutil
import subprocess
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


# Stands for `python`: writes down its arguments, and a line to the file of --output.
STAND_IN = r"""#!/bin/sh
echo "$@" >> "$COMMANDS"
for argument; do
    case $argument in --output=*) echo row >> "${argument#--output=}" ;; esac
done
"""


@pytest.mark.parametrize(("name", "argument"), [("plans.csv", ""), ("gpu_plans.csv", "gpu")])
def test_the_script_has_a_command_for_each_row(name, argument, tmp_path):
    folder = tmp_path / "experiments" / "pod_plans"
    folder.mkdir(parents=True)
    shutil.copy(FOLDER / "make.sh", folder)
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "COMMANDS": str(tmp_path / "log")}
    subprocess.run(["bash", str(folder / "make.sh"), argument], env=environment, check=True)
    found = (tmp_path / "log").read_text().splitlines()
    assert len(found) == len(rows(name)) == len((folder / name).read_text().splitlines())
    for row in rows(name):
        wanted = f"--config={row['recipe']} --topology={row['topology']} "
        assert any(wanted in command for command in found), wanted
