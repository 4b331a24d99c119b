"""The sweeps of experiments/, expanded once per test process."""

import functools
import os
from pathlib import Path

import pytest

from vit_jax.sweep.plan import Plan
from vit_jax.sweep.sweep_file import read_sweep

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def plan_of():
    """Returns a function (experiment, argument, file) -> plan; its folder is /sweep."""

    @functools.cache
    def make(experiment, arg="", file="sweep.py"):
        before = Path.cwd()
        os.chdir(ROOT)  # Jobs name their configs relative to the repository.
        try:
            return Plan(read_sweep(f"experiments/{experiment}/{file}:{arg}"), Path("/sweep"))
        finally:
            os.chdir(before)

    return make
