"""The recipes of `configs/`, found by name: `--config=quickstart` in any folder.

An installed package has a copy of them; in a clone they are the files beside the package.
"""

from pathlib import Path

from vit_jax.storage.paths import user_path

_PACKAGE = Path(__file__).resolve().parents[1]
_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "configs")


def recipes() -> dict[str, Path]:
    """Returns name -> file of every recipe, e.g. "quickstart"."""
    found = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    files = [] if found is None else sorted(found.glob("*.py"))
    return {path.stem: path for path in files if path.stem != "__init__"}


def recipe_path(spec: str) -> str:
    """Returns "FILE.py:ARG" for "NAME:ARG", if NAME is a recipe; any other `spec` as it is."""
    name, colon, arg = spec.partition(":")
    path = recipes().get(name)
    return spec if path is None or user_path(name).exists() else f"{path}{colon}{arg}"
