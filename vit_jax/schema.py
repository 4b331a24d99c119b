"""Frozen, self-checking config sections: the engine under `vit_jax.config`.

A section is a frozen dataclass that derives from `Section`. Each field's annotation is its type
and `option(...)` may add a range; both are checked whenever a section is made, from a file, from
the command line or by hand. Supported annotations: bool, int, float, str, Literal, a section,
`X | None`, `tuple[X, ...]`, `tuple[X, Y]` and `dict[str, X]`, where X may be a section.
"""

import ast
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, TypeVar

from vit_jax.errors import ConfigError, nearest

# Not `Self`, which beartype cannot check in a class that it does not decorate as a whole.
S = TypeVar("S", bound="Section")


def option(
    default: Any = dataclasses.MISSING,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    changes_result: bool = True,
) -> Any:
    """Declares a field with a default and a range.

    Args:
        default: value when the field is not given; without it the field is required.
        at_least: inclusive lower bound, checked when the value is a number.
        above: exclusive lower bound.
        at_most: inclusive upper bound.
        below: exclusive upper bound.
        changes_result: False for a field that may differ when a run folder is resumed, because
            it cannot change what is learned (where the data lies, how often to log).
    """
    bounds = {"at_least": at_least, "above": above, "at_most": at_most, "below": below}
    metadata = {"bounds": bounds, "changes_result": changes_result}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def section(factory: Any = dataclasses.MISSING, *, changes_result: bool = True) -> Any:
    """Declares a field that holds a section: required, or made by `factory` unless given."""
    return dataclasses.field(default_factory=factory, metadata={"changes_result": changes_result})


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    """Returns the annotations of a section; a sweep makes thousands of them."""
    return typing.get_type_hints(cls)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """A group of config fields that checks its own types and ranges.

    Raises:
        ConfigError: a field has the wrong type or lies outside its range.
    """

    def __post_init__(self):
        hints = _hints(type(self))
        for field in dataclasses.fields(self):
            value = _coerce(getattr(self, field.name), hints[field.name], field.name)
            _check_bounds(value, field.metadata.get("bounds", {}), field.name)
            object.__setattr__(self, field.name, value)
        self.check()

    def check(self) -> None:
        """Checks what no single field can know; sections override it."""

    def replace(self: S, **changes: Any) -> S:
        """Returns a checked copy with some fields changed."""
        return dataclasses.replace(self, **changes)

    @classmethod
    def from_mapping(cls: type[S], mapping: Mapping[str, Any], path: str = "") -> S:
        """Builds the section from nested mappings (a ConfigDict, parsed JSON).

        Args:
            mapping: field name -> value; absent fields take their defaults.
            path: dotted path of this section, for messages.

        Raises:
            ConfigError: unknown key (the nearest valid one is named), missing key, wrong type,
                value out of range.
        """
        hints = _hints(cls)
        names = {f.name for f in dataclasses.fields(cls)}
        values = {}
        for key, value in mapping.items():
            if key not in names:
                raise unknown_key(f"{path}{key}", {f"{path}{n}" for n in names})
            sub = _section_type(hints[key])
            if sub is not None and isinstance(value, Mapping):
                value = sub.from_mapping(value, f"{path}{key}.")
            values[key] = value
        for field in dataclasses.fields(cls):
            if field.name not in values and _required(field):
                raise ConfigError(
                    f"no '{path}{field.name}' in the config",
                    f"a value of type {_describe(hints[field.name])}",
                    f"set it in the config file or with --config.{path}{field.name}=VALUE",
                )
        try:
            return cls(**values)
        except ConfigError as error:
            if not path or path in error.got:
                raise
            fix = error.fix.replace("--config.", f"--config.{path}", 1)
            fix = fix.replace("did you mean '", f"did you mean '{path}", 1)
            raise ConfigError(error.got.replace("'", f"'{path}", 1), error.expected, fix) from None

    def to_mapping(self) -> dict[str, Any]:
        """Returns nested plain dicts and lists, ready for JSON."""
        return _plain(dataclasses.asdict(self))


def unknown_key(key: str, names: set[str]) -> ConfigError:
    """Returns the error for a key that no section has, naming the nearest valid one."""
    shown = ", ".join(sorted(n.rsplit(".", 1)[-1] for n in names))
    return ConfigError(
        f"unknown config key '{key}'", f"one of {shown}", f"did you mean '{nearest(key, names)}'?"
    )


def parse_override(cls: type[Section], key: str, text: str) -> Any:
    """Parses the text of `--config.KEY=TEXT` by the type of the field that KEY names.

    Args:
        cls: the root section.
        key: dotted path, e.g. "optimizer.learning_rate".
        text: the value as typed.

    Returns:
        The value, checked against the field's type.

    Raises:
        ConfigError: unknown key, or text that is no value of the field's type.
    """
    head, _, rest = key.partition(".")
    hints = _hints(cls)
    names = {f.name for f in dataclasses.fields(cls)}
    if head not in names:
        raise unknown_key(head, names)
    annotation = hints[head]
    sub = _section_type(annotation)
    if rest and sub is not None:
        return _override_below(sub, head, rest, text)
    if rest and typing.get_origin(annotation) is dict:
        annotation = typing.get_args(annotation)[1]
        member, _, below = rest.partition(".")
        sub = _section_type(annotation)
        if below and sub is not None:
            return _override_below(sub, f"{head}.{member}", below, text)
    elif rest:
        raise ConfigError(
            f"unknown config key '{key}'", f"nothing below '{head}'", f"did you mean '{head}'?"
        )
    return _coerce(_literal(text, annotation), annotation, key)


def _override_below(sub: type[Section], path: str, rest: str, text: str) -> Any:
    """Parses an override of a key of a section at `path`; errors name the whole key."""
    try:
        return parse_override(sub, rest, text)
    except ConfigError as error:
        first = rest.split(".")[0]
        got = error.got.replace(f"'{first}", f"'{path}.{first}", 1)
        fix = error.fix.replace("did you mean '", f"did you mean '{path}.", 1)
        raise ConfigError(got, error.expected, fix) from None


def differences(
    one: Section, other: Section, path: str = "", all_fields: bool = False
) -> list[tuple[str, Any, Any]]:
    """Returns (dotted key, value in one, value in other) for every field that differs.

    Fields declared with `changes_result=False` are passed over unless `all_fields`.
    """
    rows = []
    for field in dataclasses.fields(one):
        if not all_fields and not field.metadata.get("changes_result", True):
            continue
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Section) and isinstance(b, Section) and type(a) is type(b):
            rows += differences(a, b, f"{path}{field.name}.", all_fields)
        elif isinstance(a, dict) and isinstance(b, dict) and _same_sections(a, b):
            for key in a:
                rows += differences(a[key], b[key], f"{path}{field.name}.{key}.", all_fields)
        elif a != b:
            rows.append((f"{path}{field.name}", a, b))
    return rows


def _same_sections(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether both hold sections, under the same keys."""
    sections = all(isinstance(value, Section) for value in [*a.values(), *b.values()])
    return sections and a.keys() == b.keys()


def check_patterns(patterns: Iterable[str], where: str) -> None:
    """Raises ConfigError unless all are regular expressions; `where` names their keys."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"{pattern!r} in {where} is not a regular expression",
                "one, matched against whole parameter names",
                f"fix it ({error})",
            ) from None


def _required(field: dataclasses.Field) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _section_type(annotation: Any) -> type[Section] | None:
    for member in _members(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _literal(text: str, annotation: Any) -> Any:
    """Turns command-line text into a Python value; plain words stay strings."""
    members = _members(annotation)
    free = Any in members
    if (free or type(None) in members) and text.lower() in ("none", "null"):
        return None
    if (free or bool in members) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    words = any(m is str or typing.get_origin(m) is typing.Literal for m in members)
    if words and not (int in members and text.lstrip("-").isdecimal()):
        return text
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _coerce(value: Any, annotation: Any, key: str) -> Any:
    """Returns `value` as the annotated type, or raises ConfigError. Only int -> float converts."""
    for member in _members(annotation):
        ok, result = _fit(value, member, key)
        if ok:
            return result
    raise ConfigError(
        f"'{key}' is {value!r} ({type(value).__name__})",
        _describe(annotation),
        "correct it",
    )


def _fit(value: Any, kind: Any, key: str) -> tuple[bool, Any]:
    origin = typing.get_origin(kind)
    if kind is Any:
        return True, _plain(value)
    if kind is type(None):
        return value is None, None
    if origin is typing.Literal:
        return value in typing.get_args(kind), value
    if origin is tuple:
        return _fit_tuple(value, typing.get_args(kind), key)
    if origin is dict:
        if not isinstance(value, Mapping):
            return False, None
        inner = typing.get_args(kind)[1]
        return True, {str(k): _coerce(v, inner, f"{key}.{k}") for k, v in value.items()}
    if isinstance(kind, type) and issubclass(kind, Section) and isinstance(value, Mapping):
        return True, kind.from_mapping(value, f"{key}.")
    if kind is float:
        return _fit_float(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    return isinstance(value, kind), value


def _fit_float(value: Any) -> tuple[bool, Any]:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False, None
    try:
        value = float(value)
    except OverflowError:
        return False, None
    return isfinite(value), value


def _fit_tuple(value: Any, inner: tuple[Any, ...], key: str) -> tuple[bool, Any]:
    if not isinstance(value, tuple | list):
        return False, None
    if len(inner) == 2 and inner[1] is Ellipsis:
        inner = (inner[0],) * len(value)
    if len(inner) != len(value):
        return False, None
    return True, tuple(_coerce(v, t, key) for v, t in zip(value, inner, strict=True))


_TYPE_WORDS = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def _describe(annotation: Any) -> str:
    names = []
    for member in _members(annotation):
        if typing.get_origin(member) is typing.Literal:
            names.append("one of " + ", ".join(map(str, typing.get_args(member))))
        elif member is type(None):
            names.append("none")
        elif isinstance(member, type):
            names.append(_TYPE_WORDS.get(member, member.__name__))
        else:
            names.append(str(member).replace("typing.", ""))
    return " or ".join(names)


def _check_bounds(value: Any, bounds: Mapping[str, float | None], key: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    tests = {
        "at_least": lambda v, b: v >= b,
        "above": lambda v, b: v > b,
        "at_most": lambda v, b: v <= b,
        "below": lambda v, b: v < b,
    }
    limits = {name: b for name, b in bounds.items() if b is not None}
    if all(tests[name](value, bound) for name, bound in limits.items()):
        return
    words = " and ".join(f"{name.replace('_', ' ')} {bound:g}" for name, bound in limits.items())
    raise ConfigError(f"'{key}' is {value!r}", f"a value {words}", "correct it")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value
