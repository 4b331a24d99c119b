"""Imports inside the package go one way: a package imports only those in the rows above its own."""

import ast
import re
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1] / "vit_jax"

# Modules of one row may import each other, unless the row is a package of its own.
_LAYERS = (
    ("errors", "closed_pipes", "synonyms"),
    (
        "storage",
        "rng",
        "jax_internals",
        "tables",
        "named_tree",
        "schema",
        "memory",
        "shown_log",
        "warning_signals",
        "registry",
        "own_functions",
        "plugins",
    ),
    ("models",),
    ("config", "losses"),
    ("parallel",),
    ("run",),
    ("data",),
    ("interop",),
    ("evaluation",),
    ("tasks",),
    ("train",),
    ("bench",),
    ("plan",),
    ("analysis",),
    ("report",),
    ("sweep",),
    ("commands", "runs", "classify"),
    ("__main__", "__init__"),
)
_ROW = {name: row for row, names in enumerate(_LAYERS) for name in names}


def _imports() -> list[tuple[str, str]]:
    """Returns (module, imported module) pairs, both without the leading `vit_jax.`."""
    pairs = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit_jax."):
                pairs.append((module, node.module.removeprefix("vit_jax.")))
            elif isinstance(node, ast.ImportFrom) and node.module == "vit_jax":
                pairs += [(module, alias.name) for alias in node.names if alias.name in _ROW]
            elif isinstance(node, ast.Import):
                names = [a.name for a in node.names if a.name.startswith("vit_jax.")]
                pairs += [(module, name.removeprefix("vit_jax.")) for name in names]
    return pairs


def _row(module: str) -> int:
    """Returns the row of a module. Registries and sections that a config reads are in its row."""
    if re.fullmatch(r"tasks(\.\w+\.config)?|data\.(augment(\.__init__)?|boxes|crops.*)", module):
        return _ROW["config"]
    return _ROW[module.split(".")[0]]


def test_no_package_imports_from_a_later_row():
    pairs = _imports()
    assert len(pairs) > 300
    upward = [
        f"{module} imports {imported}"
        for module, imported in pairs
        if _row(imported) > _row(module)
    ]
    assert upward == []
