"""The base class of config sections: a frozen pydantic model whose errors are one line each.

A section is a class that derives from `Section`. Each field has a type and, declared by `option`,
a default and a range. A field without a default is required. The string below a field documents it
and becomes its description in the JSON schema. Types are strict: the only conversions are from int
to float and from list to tuple.
"""

import ast
import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, TypeVar

import pydantic
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from vit_jax.errors import KEY, PARENT, ConfigError, UserError, nearest, similarity
from vit_jax.registry import NameIn
from vit_jax.synonyms import advice, key_of_word

# A key this similar to one of its section is a typing mistake, not a word of another project.
_SIMILAR = 0.8
# A quoted text, or a number with an exponent.
_NUMBER_OR_STRING = re.compile(r"""'[^']*'|"[^"]*"|(?<![\w.])\d+\.?\d*[eE]\+?\d+\b""")

# Not `Self`: beartype cannot check it in a class that it does not decorate as a whole.
S = TypeVar("S", bound="Section")


def option(
    default: Any = ...,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    changes_result: bool = True,
    auto_is_any: bool = False,
    meaning: str | None = None,
) -> Any:
    """Declares a field with a default and a range.

    Args:
        default: value when the field is not given; without it the field is required.
        at_least: inclusive lower bound.
        above: exclusive lower bound.
        at_most: inclusive upper bound.
        below: exclusive upper bound.
        changes_result: False for a field that does not change what a run learns, such as the
            data folder or the logging interval. It may change when a run is resumed.
        auto_is_any: a run with the value "auto" may be resumed with another value and vice versa.
        meaning: its description, for a field that is not followed by a string.
    """
    return pydantic.Field(
        default,
        description=meaning,
        ge=at_least,
        gt=above,
        le=at_most,
        lt=below,
        json_schema_extra={"changes_result": changes_result, "auto_is_any": auto_is_any},
    )


def section(factory: Callable[[], Any] | None = None, *, changes_result: bool = True) -> Any:
    """Declares a field that holds a section. Without a factory for its default, it is required."""
    extra: Any = {"changes_result": changes_result}
    if factory is None:
        return pydantic.Field(json_schema_extra=extra)
    return pydantic.Field(default_factory=factory, json_schema_extra=extra)


@dataclasses.dataclass(frozen=True)
class ChosenBy:
    """Marks a field whose section class depends on its value.

    `choose` returns the class that validates the section, given as a mapping. `by_name`: the key
    `name` of the section decides it.
    Example: `model: Annotated[ModelConfig, ChosenBy(section_of_model)] = section()`.
    """

    choose: "Callable[[Mapping[str, Any]], type[Section]]"
    by_name: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Converts a mapping to the chosen class before pydantic validates the field."""

        def make(value: Any) -> Any:
            if isinstance(value, str):
                raise _name_for_section(value)
            return self.choose(value)(**value) if isinstance(value, Mapping) else value

        return core_schema.no_info_before_validator_function(make, handler(source))


class Section(pydantic.BaseModel):
    """A group of config fields that checks its own types and ranges, and raises ConfigError."""

    model_config = pydantic.ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    kind: ClassVar[str] = ""
    """What the section configures, e.g. "a ResNet". The error for an unknown key names it."""
    former_keys: ClassVar[Mapping[str, str]] = {}
    """Former key -> the full key to set instead."""
    read_by: ClassVar[Mapping[str, tuple[str, tuple[Any, ...]]]] = {}
    """Key that only some values of another key read -> the other key, and these values."""

    @classmethod
    def named_classes(cls) -> "Mapping[str, type[Section]]":
        """Returns the classes that another name in the section would choose, by name."""
        return {}

    def __init__(self, **values: Any):
        fields = type(self).model_fields
        for key in values.keys() & fields.keys():
            annotation = fields[key].annotation
            values[key] = _convert_sequences(switch(values[key], annotation), annotation)
        try:
            super().__init__(**values)
        except pydantic.ValidationError as error:
            raise _config_error(type(self), error) from None

    def __hash__(self) -> int:
        return hash(tuple(_fields_of(self).values()))

    @pydantic.model_validator(mode="after")
    def _check_all(self) -> "Section":
        self.check()
        self._check_read()
        return self

    def _check_read(self) -> None:
        """Raises ConfigError for a key that was changed and that nothing reads."""
        for key, (other, values) in self.read_by.items():
            value, chosen = getattr(self, key), getattr(self, other)
            default = type(self).model_fields[key].default
            if chosen not in values and value != default:
                raise ConfigError(
                    f"is {value!r}, but {other}={chosen} does not read it",
                    f"{other}={' or '.join(map(str, values))}",
                    f"leave it at {default}, or change '{other}'",
                    key=key,
                )

    def check(self) -> None:
        """Checks combinations of fields. Sections override it and raise ConfigError."""

    def replace(self: S, **changes: Any) -> S:
        """Returns a checked copy with some fields changed."""
        return type(self)(**{**_fields_of(self), **changes})

    @classmethod
    def from_mapping(cls: type[S], mapping: Mapping[str, Any]) -> S:
        """Builds the section from nested mappings: a ConfigDict or parsed JSON."""
        return cls(**mapping)

    def to_mapping(self) -> dict[str, Any]:
        """Returns nested plain dicts and lists, ready for JSON, without sections that are off."""
        return _plain(self)


def parse_override(
    cls: type[Section], key: str, text: str, mapping: Mapping[str, Any] | None = None
) -> Any:
    """Parses the value of `--config.KEY=TEXT`, and checks it against the field's type.

    The key is a dotted path from the root section `cls`. The config so far decides the class of
    sections marked with `ChosenBy`. The keys of a section come as a dict, which is not checked:
    other overrides may add to it.
    """
    annotation = _annotation_of(cls, key, mapping or {})
    value = _read_literal(text, annotation)
    if isinstance(value, dict) and _holds_sections(annotation):
        return value
    if isinstance(value, str) and is_chosen(cls, key, mapping or {}):
        raise _name_for_section(value).under(key)
    if can_be_off(annotation) and text.lower() in ("true", "false"):
        return switch(text.lower() == "true", annotation)
    adapter = pydantic.TypeAdapter(
        annotation, config=None if section_in(annotation) else Section.model_config
    )
    try:
        return adapter.validate_python(_convert_sequences(value, annotation))
    except pydantic.ValidationError as error:
        raise _error_of_value(annotation, error).under(key) from None


def is_chosen(cls: type[Section], key: str, mapping: Mapping[str, Any]) -> bool:
    """Returns whether the class of the section with a dotted key depends on its name."""
    above, _, leaf = key.rpartition(".")
    parent = section_of(cls, above, mapping) if above else cls
    field = None if parent is None else parent.model_fields.get(leaf)
    marks = () if field is None else field.metadata
    return any(isinstance(mark, ChosenBy) and mark.by_name for mark in marks)


def section_in(annotation: Any) -> type[Section] | None:
    """Returns the class of the section in a type; None: it has none."""
    for member in members_of(annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def can_be_off(annotation: Any) -> bool:
    """Returns whether a type is that of a section that may be absent."""
    return type(None) in members_of(annotation) and section_in(annotation) is not None


def switch(value: Any, annotation: Any) -> Any:
    """Converts True and False, for a section that may be absent, to {} and None."""
    return ({} if value else None) if isinstance(value, bool) and can_be_off(annotation) else value


def switched(cls: type[Section], key: str, value: Any, mapping: Mapping[str, Any]) -> Any:
    """Converts True and False as `switch` does, for the dotted key of a section."""
    try:
        return switch(value, _annotation_of(cls, key, mapping))
    except UserError:
        return value


def usual_class(field: FieldInfo) -> type[Section] | None:
    """Returns the class of a field's section with default values; None: it is no section."""
    for mark in field.metadata:
        if isinstance(mark, ChosenBy):
            return mark.choose({})
    return section_in(field.annotation)


def section_of(cls: type[Section], key: str, mapping: Mapping[str, Any]) -> type[Section] | None:
    """Returns the class of the section with a dotted key; None if no section has that key."""
    try:
        return section_in(_annotation_of(cls, key, mapping))
    except UserError:
        return None


def _name_for_section(name: str) -> ConfigError:
    """Returns the error for the name of a section's class in place of the section."""
    return ConfigError(f"is {name!r}", "a section with a name", f"set {KEY}.name={name}", key="")


def unknown_key(key: str, cls: type[Section]) -> ConfigError:
    """Returns the error for a key that a section does not have; it names the nearest valid one."""
    names = sorted(cls.model_fields)
    kind = f" for {cls.kind}" if cls.kind else ""
    chosen = [name for name, other in cls.named_classes().items() if key in other.model_fields]
    if key in cls.former_keys:
        fix = f"set {cls.former_keys[key]}"
    elif chosen:
        fix = f"set {PARENT}name={chosen[0]}, which has it"
    else:
        fix = advice(key, _meant_key(key, cls))
    expected = f"one of {', '.join(names)}"
    if not names and cls.kind:  # A registered function without keywords.
        expected, fix = "no key, because it has no keyword parameters", "leave it out, or add one"
    elif not names:
        expected, fix = "no key", "leave it out, or load its module with --plugin=MODULE"
    return ConfigError(f"unknown config key '{KEY}'{kind}", expected, fix, key=key)


def _meant_key(key: str, cls: type[Section]) -> str:
    """Returns the key that an unknown key of a section means; it may be in another section."""
    names = sorted(cls.model_fields)
    near, full = nearest(key, names), key_of_word(key)
    if full is None or similarity(key, near) > _SIMILAR:
        return f"{PARENT}{near}"
    parts = full.split(".")
    for i, part in enumerate(parts):
        if part in names:
            return f"{PARENT}{'.'.join(parts[i:])}"
    # Not every model family has every option of a model.
    return f"{PARENT}{near}" if cls.kind and parts[0] == "model" else full


def differences(one: Section, other: Section, path: str = "") -> list[tuple[str, Any, Any]]:
    """Returns (dotted key, value in one, value in other) for every field that differs.

    Skips fields declared with `changes_result=False`. Of two sections of different classes, only
    the fields that both have are compared.
    """
    rows = []
    for name, field in type(one).model_fields.items():
        if name not in type(other).model_fields:
            continue
        extra: Any = field.json_schema_extra
        if extra is not None and not extra["changes_result"]:
            continue
        a, b = getattr(one, name), getattr(other, name)
        if extra is not None and extra.get("auto_is_any") and "auto" in (a, b):
            continue
        if isinstance(a, Section) and isinstance(b, Section):
            rows += differences(a, b, f"{path}{name}.")
        elif isinstance(a, dict) and isinstance(b, dict) and _same_sections(a, b):
            for key in a:
                rows += differences(a[key], b[key], f"{path}{name}.{key}.")
        elif a != b:
            rows.append((f"{path}{name}", a, b))
    return rows


def default_values(cls: type[Section], path: str = "") -> dict[str, Any]:
    """Returns dotted key -> default of a section and of the sections inside it, ready for JSON.

    Required fields are left out. The path is put in front of the keys, e.g. "model.".
    """
    found = {}
    for name, field in cls.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, Section):
            found |= default_values(annotation, f"{path}{name}.")
        elif not field.is_required():
            found[f"{path}{name}"] = _plain(field.get_default(call_default_factory=True))
    return found


def check_at_most_one(holder: Section, *keys: str) -> list[str]:
    """Returns which of the keys is given; raises ConfigError if several are."""
    given = [key for key in keys if getattr(holder, key) not in (None, ())]
    if len(given) > 1:
        also = " and ".join(map(repr, given[1:]))
        one = f"at most one of {', '.join(keys)}"
        raise ConfigError(f"is given and so is {also}", one, "keep one", key=given[0])
    return given


def check_patterns(patterns: Iterable[str], key: str) -> None:
    """Raises ConfigError unless all patterns are valid regular expressions."""
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(
                f"has {pattern!r}, which is not a regular expression ({error})",
                "a regular expression that matches whole parameter names",
                "correct it",
                key=key,
            ) from None


def _fields_of(made: Section) -> dict[str, Any]:
    return {name: getattr(made, name) for name in type(made).model_fields}


def _is_off(made: Section, name: str) -> bool:
    """Returns whether a field is a section that is absent."""
    return getattr(made, name) is None and can_be_off(type(made).model_fields[name].annotation)


def _same_sections(a: dict[str, Any], b: dict[str, Any]) -> bool:
    sections = all(isinstance(value, Section) for value in [*a.values(), *b.values()])
    return sections and a.keys() == b.keys()


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        value = {k: v for k, v in _fields_of(value).items() if not _is_off(value, k)}
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(member) for member in value]
    return value


def _convert_sequences(value: Any, annotation: Any) -> Any:
    """Converts the sequences in a value to those of its annotation: tuples or plain lists."""
    for member in members_of(annotation):
        inner, origin = typing.get_args(member), typing.get_origin(member)
        if origin is tuple and isinstance(value, list | tuple):
            kinds = inner[:1] * len(value) if inner[-1] is ... else inner
            if len(kinds) == len(value):
                return tuple(
                    _convert_sequences(v, kind) for v, kind in zip(value, kinds, strict=True)
                )
        if origin is dict and inner[1] is Any and isinstance(value, Mapping):
            return _plain(value)
    return value


def members_of(annotation: Any) -> tuple[Any, ...]:
    """Returns the types of a union; a tuple of one for any other annotation."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _holds_sections(annotation: Any) -> bool:
    """Returns whether values of a type are sections or dicts of sections."""
    inside = [typing.get_args(m)[1] for m in members_of(annotation) if typing.get_origin(m) is dict]
    return any(map(section_in, [annotation, *inside]))


def _annotation_of(cls: type[Section], key: str, mapping: Mapping[str, Any]) -> Any:
    """Returns the type of the field with a dotted key; an error suggests the most similar key."""
    head, dot, rest = key.partition(".")
    if head not in cls.model_fields:
        raise unknown_key(head, cls)
    field, inside = cls.model_fields[head], mapping.get(head)
    inside = inside if isinstance(inside, Mapping) else {}
    annotation = field.annotation
    for chosen in field.metadata:
        if isinstance(chosen, ChosenBy):
            try:
                annotation = chosen.choose(_with_key(inside, rest))
            except UserError as error:
                raise error.under(head) from None
    if not dot:
        return annotation
    for member in members_of(annotation):
        if typing.get_origin(member) is dict:
            annotation, (name, dot, rest) = typing.get_args(member)[1], rest.partition(".")
            if not dot:
                return annotation
            head = f"{head}.{name}"
    below = section_in(annotation)
    if below is None:
        raise ConfigError(
            f"unknown config key '{KEY}'", "no key below this field", f"remove '.{rest}'", key=key
        )
    try:
        return _annotation_of(below, rest, inside)
    except ConfigError as error:
        raise error.under(head) from None


def _with_key(section: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Returns a section in which the first part of a dotted key is, for the choice of its class."""
    name = key.partition(".")[0]
    return section if name in ("", "name") else {name: None, **section}


def _read_literal(text: str, annotation: Any) -> Any:
    """Parses command-line text to a Python value; plain words stay strings.

    Whole numbers may be written with an exponent: 1e3 is 1000.
    """
    members = members_of(annotation)
    free = Any in members
    if (free or type(None) in members) and text.lower() in ("none", "null"):
        return None
    if (free or bool in members) and text.lower() in ("true", "false"):
        return text.lower() == "true"
    strings = any(m is str or typing.get_origin(m) is typing.Literal for m in members)
    if strings and not (int in members and text.lstrip("-").isdecimal()):
        return text
    if text[:1] in ("{", "[", "("):
        text = _NUMBER_OR_STRING.sub(_without_exponent, text)
    for read in (ast.literal_eval, json.loads) if text[:1] in "{[" else (ast.literal_eval,):
        try:
            value = read(text)
        except (ValueError, SyntaxError):
            continue
        is_whole = isinstance(value, float) and value.is_integer() and "e" in text.lower()
        return int(value) if is_whole and int in members and float not in members else value
    return text


def _without_exponent(number: re.Match[str]) -> str:
    """Returns a whole number that has an exponent without it, and anything else as it is."""
    is_whole = number[0][0].isdigit() and float(number[0]).is_integer()
    return str(int(float(number[0]))) if is_whole else number[0]


def _config_error(cls: type[Section], error: pydantic.ValidationError) -> UserError:
    """Returns one error of a section: an unknown key first, then a missing key or a wrong value."""
    rows = error.errors(include_url=False)
    names = {row["type"]: str(row["loc"][0]) for row in reversed(rows) if row["loc"]}
    if "extra_forbidden" in names:
        return unknown_key(names["extra_forbidden"], cls)
    if "missing" in names:
        name = names["missing"]
        return ConfigError(
            f"no '{KEY}' in the config",
            describe(cls.model_fields[name].annotation),
            f"set it in the config file or with --config.{KEY}=VALUE",
            key=name,
        )
    if not rows[0]["loc"]:
        return _error_of_value(cls, error)
    name = str(rows[0]["loc"][0])
    field = cls.model_fields[name]
    return _error_of_value(field.annotation, error, field.metadata, skip=1).under(name)


def _error_of_value(
    annotation: Any, error: pydantic.ValidationError, metadata: Iterable[Any] = (), skip: int = 0
) -> UserError:
    """Returns the first error of a value; its key is the path inside the value.

    The metadata of the field hold its range. `skip` is the number of leading parts of pydantic's
    location that lead to the value.
    """
    row = error.errors(include_url=False)[0]
    raised = row.get("ctx", {}).get("error")
    path: list[str] = []
    for part in row["loc"][skip:]:
        for member in members_of(annotation):
            inner = typing.get_args(member)
            if typing.get_origin(member) is dict:
                path, annotation = [*path, str(part)], inner[1]
                break
            if typing.get_origin(member) is tuple and isinstance(part, int):
                annotation = inner[0] if inner[-1] is ... else inner[part]
                break
    key, value = ".".join(path), row["input"]
    if isinstance(raised, UserError):
        return raised.under(key)
    if row["type"].startswith(("greater_than", "less_than")):
        return ConfigError(f"is {value!r}", f"a value {_range(metadata)}", "correct it", key=key)
    got, cls = f"is {value!r} ({type(value).__name__})", section_in(annotation)
    fix = "correct it"
    if cls and can_be_off(annotation):
        fix = f"set {KEY}.{min(cls.model_fields)}" if cls.model_fields else "use true or false"
    return ConfigError(got, describe(annotation), fix, key=key)


def _range(metadata: Iterable[Any]) -> str:
    phrases = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    bounds = [
        f"{phrase} {_number(getattr(bound, name))}"
        for bound in metadata
        for name, phrase in phrases.items()
        if hasattr(bound, name)
    ]
    return " and ".join(bounds)


def _number(value: float) -> str:
    """Returns a whole number with all its digits, and another one with six significant digits."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def describe_field(field: FieldInfo) -> str:
    """Returns the type and range of a field, in words."""
    if names := names_of(field):
        return f"one of {', '.join(names)}"
    bounds = _range(field.metadata)
    return f"{describe(field.annotation)}, {bounds}" if bounds else describe(field.annotation)


def names_of(field: FieldInfo) -> list[str]:
    """Returns the names of the registry from which a field is chosen; []: it has no registry."""
    return _names_in(field.metadata)


def _names_in(metadata: Iterable[Any]) -> list[str]:
    return next((mark.registry.names for mark in metadata if isinstance(mark, NameIn)), [])


_NAMES = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}


def describe(annotation: Any) -> str:
    """Describes the values of a type in plain words, for error messages.

    >>> describe(int | None), describe(tuple[float, ...])
    ('a whole number or none', 'a list, each item a number')
    """
    phrases = []
    for member in members_of(annotation):
        origin, inner = typing.get_origin(member), typing.get_args(member)
        if origin is typing.Literal:
            phrases.append("one of " + ", ".join(map(str, inner)))
        elif origin is tuple and inner[-1] is ...:
            phrases.append(f"a list, each item {describe(inner[0])}")
        elif origin is tuple:
            phrases.append(f"a list of {len(inner)}: {', '.join(map(describe, inner))}")
        elif origin is dict:
            phrases.append("keys and values")
        elif origin is typing.Annotated and (names := _names_in(member.__metadata__)):
            phrases.append(f"one of {', '.join(names)}")
        elif member is type(None):
            phrases.append("none")
        elif section_in(member):
            keys = ", ".join(sorted(member.model_fields))
            phrases.append(f"a section with the keys {keys}" if keys else "true")
        else:
            phrases.append(_NAMES.get(member, "any value"))
    return " or ".join(phrases)
