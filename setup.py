"""Lists the packages. All else is in pyproject.toml."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["vit_jax*"]), "vit_jax.recipes"],
    package_dir={"vit_jax.recipes": "configs"},
)
