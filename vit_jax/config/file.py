"""Reads config files and command-line overrides into a frozen `Config`.

A config file is a Python file with `get_config()` or `get_config(arg)`. The function returns an
`ml_collections.ConfigDict` or a plain dict with the keys that differ from the defaults.

The config.json of a run may come from other people, so nothing that it names is executed.
"""

import difflib
import inspect
import json
import logging
import runpy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from vit_jax.config.durations import is_same_duration
from vit_jax.config.recipes import recipe_path, recipes
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, UserError, first_few
from vit_jax.models.options import AUTO, SIZES
from vit_jax.plugins import add_current_folder, naming_plugins, place_of
from vit_jax.schema import Section, is_chosen, parse_override, section_of, switched
from vit_jax.storage.files import read_file, read_json
from vit_jax.storage.paths import local_path, user_path

log = logging.getLogger(__name__)

# Keys that name compiled programs, or options with which XLA is told to run some.
_PROGRAMS = ("compile_cache", "compiler_options")
_LARGEST_BYTES = 1 << 24  # of a Python file
_NOTHING = ("none", "null")


def load_config(
    spec: str,
    overrides: Sequence[str] = (),
    auto_model: Callable[[Config], Mapping[str, Any]] | None = None,
) -> Config:
    """Reads a config file and applies command-line overrides; returns the checked config.

    Args:
        spec: "FILE.py", "FILE.py:ARG" (ARG is passed to `get_config`), the name of a recipe in
            place of its file, such as "quickstart", or the "config.json" of a run folder.
        overrides: "KEY=VALUE" strings with dotted keys, without the leading "--config.".
        auto_model: function that returns the model section of the weights, for a config whose
            `model.name` is "auto". Options in the file and overrides have priority. None: the
            name stays "auto".
    """
    if spec.endswith(".json"):
        with naming_plugins(user_path(spec).parent):
            return _load(spec, overrides, auto_model)
    return _load(spec, overrides, auto_model)


def _load(
    spec: str,
    overrides: Sequence[str],
    auto_model: Callable[[Config], Mapping[str, Any]] | None,
) -> Config:
    mapping = read_mapping(spec)
    if spec.endswith(".json"):
        given = {override.partition("=")[0].partition(".")[0] for override in overrides}
        _leave_out_programs(mapping, spec, given)
    apply_override_texts(mapping, overrides)
    return build_config(mapping, auto_model)


def build_config(
    mapping: dict[str, Any], auto_model: Callable[[Config], Mapping[str, Any]] | None = None
) -> Config:
    """Returns the checked config of a file's content; `auto_model` is that of `load_config`."""
    config = Config.from_mapping(mapping)
    if auto_model is None or config.model.name != AUTO:
        return config
    found = auto_model(config)
    mapping["model"] = {**found, **mapping["model"], "name": found["name"]}
    return Config.from_mapping(mapping)


def apply_override_texts(mapping: dict[str, Any], overrides: Sequence[str]) -> None:
    """Applies "KEY=VALUE" strings to a config file's content, as `apply_overrides` does."""
    pairs = []
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(
                f"override '--config.{override}'", "--config.KEY=VALUE", "add '=VALUE'"
            )
        pairs.append((key, text))
    apply_overrides(mapping, pairs, lambda key, text: parse_override(Config, key, text, mapping))


def apply_overrides(
    mapping: dict[str, Any],
    overrides: Iterable[tuple[str, Any]],
    parse: Callable[[str, Any], Any] = lambda key, value: value,
) -> None:
    """Applies (dotted key, value) to a config file's content, in their order.

    Names that choose a section's class come first, because they decide which other keys it has,
    and of these the task's, because it decides which sections there are. `parse` converts a value
    just before it is applied. What the file sets for another value of a key is removed first, if
    the new value does not read it.
    """
    rest, names = [], []
    overrides = [*overrides]
    _check_durations([key for key, value in overrides if str(value).lower() not in _NOTHING])
    for key, value in overrides:
        if key.endswith(".name") and is_chosen(Config, key.removesuffix(".name"), mapping):
            names.append((key, value))
            continue
        rest.append((key, value))
        if section_of(Config, key, mapping) is None:
            _forget_unread(mapping, key, value)
        else:
            _forget_unread(mapping, key, parsed := parse(key, value))
            names += _names_in(key, parsed, mapping)
    names.sort(key=lambda pair: (pair[0] != "task.name", pair[0].count(".")))
    ordered = [*names, *rest]
    for i, (key, value) in enumerate(ordered):
        lost = [name for name, _ in ordered[:i] if name.startswith(f"{key}.")]
        if lost and section_of(Config, key, mapping) is None:
            log.warning("%s replaces all that is set before it: %s", key, first_few(lost, 3))
        override_key(mapping, key, parse(key, value))


def _check_durations(keys: Sequence[str]) -> None:
    """Raises ConfigError if a duration is given in two units."""
    for place, key in enumerate(keys):
        for first in keys[:place]:
            if is_same_duration(first, key):
                raise ConfigError(
                    f"is given and so is {key!r}", "one of the two", "leave one out", key=first
                )


def _forget_unread(mapping: dict[str, Any], key: str, value: Any) -> None:
    """Removes the keys of the file that a new value of a key does not read."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        _forget_unread(mapping, f"{key}.{name}", inner)
    above, _, leaf = key.rpartition(".")
    cls = section_of(Config, above, mapping) if above else None
    for name, (other, values) in cls.read_by.items() if cls else ():
        if other == leaf and value not in values:
            reduce(_subsection, above.split("."), mapping).pop(name, None)


def _names_in(key: str, value: Any, mapping: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (dotted key, name) of the names in a value that choose a section's class."""
    for name, inner in value.items() if isinstance(value, Mapping) else ():
        if name == "name" and is_chosen(Config, key, mapping):
            yield f"{key}.name", inner
        yield from _names_in(f"{key}.{name}", inner, mapping)


def override_key(
    mapping: dict[str, Any],
    key: str,
    value: Any,
    root: type[Section] = Config,
    together: Container[str] = (),
) -> None:
    """Sets a dotted key of a config file's content.

    A mapping for a section is merged into it: the section's other keys stay. A new name of a
    section's class removes the options that the new class does not have, and a new `model.name`
    also the sizes of the file, so override it before other keys of the section. `together` has the
    names of the keys of the same section that are set by the same override.
    """
    if isinstance(value, Section):
        value = value.to_mapping()
    value = switched(root, key, value, mapping)
    if isinstance(value, Mapping) and section_of(root, key, mapping) is not None:
        reduce(_subsection, key.split("."), mapping)
        for name in sorted(value, key=lambda name: name != "name"):
            override_key(mapping, f"{key}.{name}", value[name], root, value)
        return
    section = key.removesuffix(".name")
    if section != key and is_chosen(root, section, mapping):
        _forget_other_class(mapping, section, value, root)
    set_key(mapping, key, value, together)


def _forget_other_class(
    mapping: dict[str, Any], section: str, name: Any, root: type[Section]
) -> None:
    """Removes what a section has for the class of its present name only."""
    *parents, leaf = section.split(".")
    parent = reduce(_subsection, parents, mapping)
    before = _subsection(parent, leaf)
    if before.get("name") == name:
        return
    parent[leaf] = {"name": name}
    cls = section_of(root, section, mapping)
    keys = set() if cls is None else {*cls.model_fields}
    if section.startswith("model"):
        sizes = [key for key in SIZES if before.get(key) is not None]
        if sizes:
            shown = ", ".join(f"{key} {before[key]}" for key in sizes)
            log.info("%s.name=%s has its own sizes, not the config file's %s", section, name, shown)
        keys -= {*sizes}
    parent[leaf] = {key: value for key, value in before.items() if key in keys}
    if section == "task" and not getattr(cls, "reads_loss", True):
        mapping.pop("loss", None)


def read_mapping(spec: str) -> dict[str, Any]:
    """Returns the content of a config file, unchecked; `spec` is that of `load_config`."""
    return _read_json(spec) if spec.endswith(".json") else _call_get_config(spec)


def _leave_out_programs(mapping: dict[str, Any], path: str, given: Container[str]) -> None:
    """Removes what would be executed from the content of a config.json, except `given` keys."""
    for key in _PROGRAMS:
        value = mapping.get(key)
        if isinstance(value, dict):  # XLA options; text can be the folder of a compiler.
            is_program = any(isinstance(option, str) for option in value.values())
        else:
            is_program = value not in (None, Config.model_fields[key].default)
        if is_program and key not in given:
            del mapping[key]
            log.warning(
                "%s of %s is left out, because loading it executes code; if you trust it, add"
                " --config.%s=%s",
                *(key, path, key, json.dumps(value) if isinstance(value, dict) else value),
            )


def set_key(mapping: dict[str, Any], key: str, value: Any, together: Container[str] = ()) -> None:
    """Sets a dotted key in nested dicts.

    Setting a duration removes its other units, except those that are set `together` with it.
    """
    *parents, leaf = key.split(".")
    for parent in parents:
        mapping = _subsection(mapping, parent)
    if value is not None:
        for other in [key for key in mapping if is_same_duration(leaf, key)]:
            if other not in together:
                del mapping[other]
    mapping[leaf] = value


def _subsection(mapping: dict[str, Any], name: str) -> dict[str, Any]:
    """Returns the dict below a key; makes it where there is none."""
    if not isinstance(mapping.get(name), dict):
        mapping[name] = {}
    return mapping[name]


def run_python(spec: str, function: str, option: str) -> tuple[Any, dict[str, Any]]:
    """Calls a function of a Python file given on the command line.

    `spec` is "FILE.py" or "FILE.py:ARG"; ARG is passed to the function. `option`, "config" or
    "sweep", is for messages. Returns the function's result (a list if it is a generator), and all
    global names of the file.
    """
    if "://" in spec:  # It is Python, which is run.
        local_path(spec, f"a {option} file")
    path, colon, arg = spec.partition(":")
    if not local_path(path, f"a {option} file").is_file():
        raise ConfigError(
            f"no {option} file at {path}",
            f"a Python file with {function}()",
            _other_recipe(path, colon + arg) if option == "config" else f"check --{option}",
        )

    def run() -> dict[str, Any]:
        read_file(Path(path), _LARGEST_BYTES)  # It names a Git LFS pointer.
        add_current_folder()
        return runpy.run_path(path)

    names = _run(path, option, run)
    call = names.get(function)
    if call is None:
        raise ConfigError(f"{path} has no {function}", f"def {function}(arg)", "add that function")
    try:
        inspect.signature(call).bind(*([arg] if colon else []))
    except TypeError:
        raise ConfigError(
            f"{function} of {path} {'takes no' if colon else 'needs an'} argument",
            f"--{option}={path}" + ("" if colon else ":ARG"),
            "leave ':ARG' out" if colon else "add ':ARG'",
        ) from None

    def made() -> Any:
        value = call(arg) if colon else call()
        return list(value) if inspect.isgenerator(value) else value

    return _run(path, option, made), names


def _other_recipe(path: str, arg: str) -> str:
    """Returns what to do about a config file that is not there."""
    name = path.rsplit("/", 1)[-1].removesuffix(".py")
    if close := difflib.get_close_matches(name, recipes(), 1, 0.8):
        return f"did you mean --config={close[0]}{arg}?"
    return f"check --config, or name a recipe: {', '.join(recipes())}"


def _call_get_config(spec: str) -> dict[str, Any]:
    spec = recipe_path(spec)
    path = spec.partition(":")[0]
    made, _ = run_python(spec, "get_config", "config")
    mapping = made.to_dict() if hasattr(made, "to_dict") else made
    if not isinstance(mapping, Mapping):
        raise ConfigError(
            f"get_config of {path} returned {type(mapping).__name__}",
            "an ml_collections.ConfigDict or a dict",
            "return one",
        )
    try:
        return json.loads(json.dumps(mapping))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"get_config of {path} returned a value that is not JSON ({error})",
            "numbers, strings, booleans, None, lists and dicts",
            "convert the value to one of these",
        ) from None


def _run(path: str, option: str, function: Callable[[], Any]) -> Any:
    """Runs code of a file; converts exceptions to a ConfigError with file and line number."""
    try:
        return function()
    except UserError:
        raise
    except SystemExit as error:
        raise ConfigError(
            f"{path} ends the program: SystemExit({error.code!r})",
            f"a {option} file that returns",
            "remove exit() or sys.exit(), or raise another error",
        ) from error
    except Exception as error:
        place = place_of(error) or path
        raise ConfigError(
            f"{place}: {type(error).__name__}: {error}",
            f"a {option} file without errors",
            "fix that line" + f", or the part after ':' in --{option}" * place.startswith(path),
        ) from error


def _read_json(path: str) -> dict[str, Any]:
    try:
        return read_json(user_path(path), error=ConfigError, fix="check the path")
    except ConfigError as error:
        raise ConfigError(error.got, "the config.json of a run folder", error.fix) from None


def parse_arg(arg: str, **choices: Sequence[Any]) -> dict[str, Any]:
    """Parses the ARG of "FILE.py:ARG": comma-separated values in any order; "" for all defaults.

    `choices` maps an option to its allowed values; the first is the default. Each word of `arg`
    sets the option that has it as a value.

    >>> parse_arg("L/16", model=("B/16", "L/16"), augment=("none", "light1"))
    {'model': 'L/16', 'augment': 'none'}
    """
    chosen = {name: values[0] for name, values in choices.items()}
    for word in filter(None, arg.split(",")):
        for name, values in choices.items():
            match = [v for v in values if str(v) == word]
            if match:
                chosen[name] = match[0]
                break
        else:
            named = {name: [str(value) for value in values] for name, values in choices.items()}
            allowed = "; ".join(f"{name}: {first_few(few, 20)}" for name, few in named.items())
            every = [value for values in named.values() for value in values]
            meant = difflib.get_close_matches(word, every, n=1)
            fix = f"did you mean {meant[0]!r}?" if meant else "pick one"
            raise ConfigError(f"config argument {word!r}", f"words from {allowed}", fix)
    return chosen
