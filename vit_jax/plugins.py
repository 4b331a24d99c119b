"""Code from outside the package: which modules are imported, and which a run has used.

A recipe, a script or a notebook is Python: what it defines or imports is registered. Besides, only
what the user names is imported (`--plugin`, the variable VIT_JAX_PLUGINS) and the entry points of
installed packages; never what a run folder, a checkpoint or a dataset names.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import logging
import os
import re
import runpy
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import PluginError, UserError
from vit_jax.storage.log_file import read_log
from vit_jax.storage.private import hide_private

log = logging.getLogger(__name__)

GROUP = "vit_jax"
"""The group of entry points: `[project.entry-points.vit_jax]` of a pyproject.toml."""
ENVIRONMENTS = "environments.jsonl"

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_passed: list[str] = []  # What the user has named, in its order.
_installed_is_loaded = False
_changes = set[tuple[Path, str]]()  # (run, package) that `_warn_of_changes` has named.


def passed_plugins() -> tuple[str, ...]:
    """Returns the modules and files that the user has named, for commands of other processes."""
    return tuple(_passed)


def load_plugins(names: Sequence[str]) -> None:
    """Imports modules, or runs Python files, that the user names.

    Raises:
        PluginError: one is not found, or raises an error.
    """
    if names:
        add_current_folder()
    for name in names:
        try:
            if name.endswith(".py"):
                runpy.run_path(str(Path(name).expanduser()))
            else:
                module = importlib.import_module(name)
                # Python takes a folder for a package without a file.
                if hasattr(module, "__path__") and getattr(module, "__file__", None) is None:
                    raise PluginError(
                        f"{name} is a folder without __init__.py",
                        "a module",
                        "go to the folder that the package lies in, or correct --plugin",
                    )
        except UserError:
            raise
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise _import_error(name, error) from error
            raise PluginError(
                f"no module {name!r}",
                "a module of the current folder or of an installed package",
                "correct --plugin, install its package, or go to the folder that it lies in",
            ) from None
        except (Exception, SystemExit) as error:
            raise _import_error(name, error) from error
        if name not in _passed:
            _passed.append(name)


def _import_error(name: str, error: BaseException) -> PluginError:
    """Returns the error of a plugin that raises one, with the line of its own files."""
    return PluginError(
        f"plugin {name}{_in_brackets(place_of(error))}: {described(error)}",
        "a module that can be imported",
        "fix that line; --debug shows the whole traceback",
    )


@contextlib.contextmanager
def bugs_in_one_line(what: str) -> Iterator[None]:
    """Raises PluginError for an error of code from outside the package, with its file and line."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if type(error).__name__ == "JaxRuntimeError":  # Such as a device without memory.
            raise
        raise PluginError(
            f"{what}{_in_brackets(place_of(error))}: {described(error)}",
            "code without errors",
            "fix that line; --debug shows the whole traceback",
        ) from error


def place_of(error: BaseException) -> str | None:
    """Returns file and line where the innermost code of the user raised an error.

    That is code outside this package, Python and the installed packages. Without such code, that of
    an installed package counts; None: there is neither.
    """
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).is_file():
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not _is_ours(f.filename)]
    own = [frame for frame in frames if "-packages" not in frame.filename] or frames
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else None


def _is_ours(file: str) -> bool:
    """Whether a file is of this package, except its recipes, or of Python."""
    of_package = file.startswith(_PACKAGE) and not file.startswith(f"{_PACKAGE}recipes")
    of_python = file.startswith(sysconfig.get_path("stdlib")) and "-packages" not in file
    return of_package or of_python or file.startswith("<frozen")


def _in_brackets(place: str | None) -> str:
    return f" ({place})" if place else ""


def described(error: BaseException) -> str:
    """Returns the type of an error and the first line of its text."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def add_current_folder() -> None:
    """Puts the current folder on the path of modules, where `python -m` has it."""
    here = str(Path.cwd())
    if not getattr(sys.flags, "safe_path", False) and not {"", here} & {*sys.path}:
        sys.path.insert(0, here)


def load_installed() -> bool:
    """Imports the entry points of installed packages; returns whether there were new ones.

    One that fails costs a line of the log. Folders named in the current folder's metadata do not
    count: it may be a run folder of somebody else.
    """
    global _installed_is_loaded
    if _installed_is_loaded:
        return False
    _installed_is_loaded = True
    before, here = [*sys.path], os.path.realpath(Path.cwd())
    sys.path[:] = [place for place in before if place and os.path.realpath(place) != here]
    found = False
    try:
        for point in importlib.metadata.entry_points(group=GROUP):
            try:
                point.load()
                found = True
            except Exception as error:
                log.warning("%s", _import_error(f"{point.value} of an installed package", error))
    finally:
        sys.path[:] = before
    return found


def describe_plugins(owners: Sequence[str]) -> dict[str, Any]:
    """Returns package or file -> its version, a hash of its sources, and which modules are used.

    `owners` are modules, or the files of recipes. Home folders are hidden.
    """
    found: dict[str, Any] = {}
    for owner in sorted(set(owners)):
        top = owner if owner.endswith(".py") else owner.partition(".")[0]
        row = found.setdefault(
            hide_private(top), {"version": _version(top), "sources": _hash(top), "modules": []}
        )
        row["modules"].append(hide_private(owner))
    return found


def _version(top: str) -> str | None:
    names = [] if top.endswith(".py") else importlib.metadata.packages_distributions().get(top, [])
    return importlib.metadata.version(names[0]) if names else None


def _hash(top: str) -> str | None:
    """Returns a hash of the Python files of a package, a module or a recipe; None: it has none."""
    file = top if top.endswith(".py") else getattr(sys.modules.get(top), "__file__", None)
    if file is None or not Path(file).is_file():  # A notebook.
        return _hash_of_registered(top)
    folder = Path(file).parent
    files = sorted(folder.rglob("*.py")) if Path(file).name == "__init__.py" else [Path(file)]
    found = hashlib.sha256()
    for path in filter(Path.is_file, files):  # An editor's lock is a link to nothing.
        content = path.read_bytes()
        found.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode() + content)
    return found.hexdigest()[:12]


def _hash_of_registered(module: str) -> str | None:
    """Returns a hash of the functions that a module without a file has registered; None: none."""
    from vit_jax.registry import REGISTRIES

    found, seen = hashlib.sha256(), set[int]()

    def add(value: Any, names: Mapping[str, Any]) -> None:
        """Adds plain values, and functions and classes of the module; others may change freely."""
        value = getattr(value, "__func__", value)  # Of a static or class method.
        value = value.fget if isinstance(value, property) else value
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            found.update(f"{value!r}\0".encode())
        elif isinstance(value, frozenset):  # Its order differs between processes.
            found.update(repr(sorted(map(repr, value))).encode())
        elif isinstance(value, tuple):
            for part in value:
                add(part, names)
        elif isinstance(value, types.CodeType):
            found.update(value.co_code)
            for name in value.co_names:
                found.update(name.encode())
                add(names.get(name), names)
            add(value.co_consts, names)
        elif getattr(value, "__module__", None) == module and id(value) not in seen:
            seen.add(id(value))
            if isinstance(value, types.FunctionType):
                defaults = tuple((value.__kwdefaults__ or {}).items())
                add((value.__code__, value.__defaults__, defaults), value.__globals__)
            elif isinstance(value, type):
                # Not its place in the file, or its docstring.
                own = [v for n, v in vars(value).items() if callable(v) or not n.startswith("__")]
                add(tuple(own), names)

    for registry in REGISTRIES.values():
        for value in registry.added_by(module):
            own = getattr(value, "own", None)
            is_record = dataclasses.is_dataclass(value) and not isinstance(value, type)
            parts = tuple(vars(value).values()) if is_record else (getattr(own, "function", value),)
            add(parts, {})
    return found.hexdigest()[:12] if seen else None


@contextlib.contextmanager
def naming_plugins(run: Path) -> Iterator[None]:
    """Adds to errors about a run which modules its last session used and this process has not.

    Those that have changed since then cost a line of the log.

    Raises:
        PluginError: an error of the block, with these modules.
    """
    try:
        yield
        _warn_of_changes(run)
    except UserError as error:
        missing = missing_modules(run)
        if not missing:
            raise
        options = " ".join(f"--plugin={module}" for module in missing)
        raise PluginError(
            f"{run} uses code that is not loaded: {error.got}",
            f"the code of {', '.join(missing)}",
            f"add {options} if you trust it, or in Python import it first",
        ) from None


def modules_of(owners: Sequence[str]) -> list[str]:
    """Returns what to pass with `--plugin` for these modules: a package in place of several."""
    tops = [name if name.endswith(".py") else name.partition(".")[0] for name in owners]
    shown = [top if tops.count(top) > 1 else n for n, top in zip(owners, tops, strict=True)]
    return [*dict.fromkeys(shown)]


def missing_modules(run: Path) -> list[str]:
    """Returns the modules of a run's last session that this process has not imported."""
    named = [row.get("modules") for row in _read_plugins(run).values()]
    modules = [name for few in named if isinstance(few, list) for name in few]
    missing = [
        name
        for name in modules
        if isinstance(name, str) and re.fullmatch(r"[\w.~/-]+", name) and name not in sys.modules
    ]
    # Loading a package again would not load more of its modules.
    known = [name for name in missing if name.partition(".")[0] in sys.modules]
    return known + modules_of([name for name in missing if name not in known])


def _read_plugins(run: Path) -> dict[str, dict[str, Any]]:
    """Returns what `describe_plugins` returned in the last session of a run."""
    rows = read_log(run / ENVIRONMENTS)
    plugins = rows[-1].get("plugins") if rows else None
    plugins = plugins if isinstance(plugins, dict) else {}
    return {name: row for name, row in plugins.items() if isinstance(row, dict)}


def _warn_of_changes(run: Path) -> None:
    for name, row in _read_plugins(run).items():
        before, now = row.get("sources"), _hash(name) if name in sys.modules else None
        if None not in (before, now) and before != now and (run, name) not in _changes:
            _changes.add((run, name))
            log.warning("%s: the code of %s has changed since the run's last session", run, name)
