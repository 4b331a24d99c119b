"""Functions that code from outside the package registers, and the config sections made of them."""

import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pydantic

from vit_jax.errors import PluginError, UserError
from vit_jax.plugins import bugs_in_one_line
from vit_jax.schema import Section, option, section

S = TypeVar("S", bound=Section)

_PLAIN = (bool, int, float, str, type(None))


def owner_of(registered: Any) -> str:
    """Returns the module of a function or class, or the file, if it is run as a script."""
    module = getattr(registered, "__module__", None) or "vit_jax"  # None: a method of a builtin.
    if module != "<run_path>":
        return module
    code = getattr(registered, "__code__", None)  # A class has none, but its methods do.
    codes = [getattr(value, "__code__", None) for value in vars(registered).values()]
    file = next((c.co_filename for c in [code, *codes] if c is not None), None)
    return module if file is None else str(Path(file).absolute())


def own_function(
    kind: str, function: Callable[..., Any], arguments: Sequence[str]
) -> "OwnFunction":
    """Returns a function to register, after checking its positional arguments."""
    if not inspect.isfunction(inspect.unwrap(function)):
        raise PluginError(
            f"a {kind} that is {function!r}", "a function made by def", "register that"
        )
    own = OwnFunction(kind, function.__name__, function)
    if own.name == "name" or not own.name.isidentifier() or own.name.startswith("_"):
        raise own.error("cannot be a key", "a function with another name", "rename it")
    own.check_arguments(*arguments)
    return own


@dataclasses.dataclass(frozen=True)
class OwnFunction:
    """A registered function: its positional arguments are the data, its keywords config keys."""

    kind: str  # e.g. "loss"
    name: str
    function: Callable[..., Any]

    def error(self, got: str, expected: str, fix: str) -> PluginError:
        """Returns an error about the function, which it names with its file and line."""
        code = inspect.unwrap(self.function).__code__
        place = f"{code.co_filename}, line {code.co_firstlineno}"
        return PluginError(f"{self.kind} '{self.name}' ({place}) {got}", expected, fix)

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Calls it. What it raises becomes one line with the place in the user's code."""
        with bugs_in_one_line(f"{self.kind} '{self.name}'"):
            return self.function(*arguments, **options)

    def checked(self, result: Any, shape: tuple[int, ...], dtype: str) -> Any:
        """Returns an array that it has returned, after checking its shape and type."""
        is_array = hasattr(result, "shape") and hasattr(result, "dtype")
        if not is_array or result.shape != shape or result.dtype != dtype:
            got = f"{result.dtype}{list(result.shape)}" if is_array else repr(result)[:40]
            raise self.error(f"returned {got}", f"{dtype}{list(shape)}", "return such an array")
        return result

    @property
    def keywords(self) -> list[inspect.Parameter]:
        """Its keyword-only parameters."""
        parameters = inspect.signature(self.function).parameters.values()
        return [p for p in parameters if p.kind is p.KEYWORD_ONLY]

    def check_arguments(self, *names: str) -> None:
        """Raises PluginError unless its other parameters are as many as these names."""
        parameters = inspect.signature(self.function).parameters.values()
        positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        given = [p for p in parameters if p.kind is not p.KEYWORD_ONLY]
        if len(given) != len(names) or any(p.kind not in positional for p in given):
            raise self.error(
                f"takes ({', '.join(map(str, given))})",
                f"({', '.join(names)}), then '*' and the config keys",
                f"define it as def {self.name}({', '.join(names)}, *, KEY: TYPE = DEFAULT)",
            )


class FromFunction:
    """Base of sections that are made of a registered function."""

    own: ClassVar[OwnFunction]

    def options(self) -> dict[str, Any]:
        """Returns the keywords of the function with their values."""
        return {parameter.name: getattr(self, parameter.name) for parameter in self.own.keywords}

    def call(self, *arguments: Any) -> Any:
        """Returns what the function returns with these options."""
        return self.own(*arguments, **self.options())

    def __reduce__(self) -> Any:  # The class cannot be imported, but the function can.
        values = {name: getattr(self, name) for name in type(self).model_fields}  # pyright: ignore[reportAttributeAccessIssue]
        return _unpickled, (self.own, type(self).__base__, values)


def _unpickled(own: OwnFunction, base: Any, values: dict[str, Any]) -> Any:
    return section_of_function(own, base)(**values)


def section_of_function(own: OwnFunction, base: type[S], **fields: Any) -> type[S]:
    """Returns a section, derived from `base`, with a key for each keyword of a function.

    Args:
        own: the function. Its keywords have types and defaults; the section "Args" of its docstring
            has their meaning.
        base: derives from `FromFunction` and says how the function is called.
        **fields: name -> (type, field) of other keys.

    Raises:
        PluginError: a keyword that cannot be a key.
    """
    doc = inspect.getdoc(own.function) or ""
    meanings = _meanings(doc)
    for parameter in own.keywords:
        name = parameter.name
        if hasattr(base, name) or name in base.model_fields or name.startswith("_"):
            raise own.error(
                f"has the keyword '{name}'",
                "a name that the section does not need itself",
                "rename it",
            )
        annotation = _annotation(own, parameter)
        if parameter.default is parameter.empty or not _is_plain(annotation):
            raise own.error(
                f"has the keyword '{parameter}'",
                "a default and a type: bool, int, float, str, None, Literal, or a tuple of them",
                f"define it as in {name}: float = 1.0",
            )
        fields[name] = (annotation, option(parameter.default, meaning=meanings.get(name)))
    made = pydantic.create_model(
        own.name,
        __base__=base,
        __doc__=doc or f"The {own.kind} '{own.name}'.",
        __module__=own.function.__module__,
        **fields,
    )
    made.own, made.kind = own, f"{own.kind} '{own.name}'"  # pyright: ignore[reportAttributeAccessIssue]
    try:
        made(**{p.name: p.default for p in own.keywords})
    except UserError as error:
        raise own.error(f"has a wrong default: {error.got}", error.expected, error.fix) from None
    return made


def check_no_part_of(own: OwnFunction, base: type[Section], what: str) -> None:
    """Raises PluginError if the section that gets a key of the function's name has that name."""
    if hasattr(base, own.name) or own.name in base.model_fields:
        raise own.error(f"has the name of a part of {what}", "another name", "rename it")


@functools.cache
def with_keys(base: type[S], entries: tuple[tuple[str, type[Section]], ...]) -> type[S]:
    """Returns a section with a key for each (name, section), None while it is off."""
    fields: Any = {name: (cls | None, section(lambda: None)) for name, cls in entries}
    return pydantic.create_model(base.__name__.lstrip("_"), __base__=base, **fields)


def _annotation(own: OwnFunction, parameter: inspect.Parameter) -> Any:
    """Returns the type of a parameter, which may be written as text."""
    if not isinstance(parameter.annotation, str):
        return parameter.annotation
    try:
        return eval(parameter.annotation, inspect.unwrap(own.function).__globals__)
    except Exception as error:
        raise own.error(
            f"has the keyword '{parameter}' ({error})", "a type that is defined", "correct it"
        ) from None


def _is_plain(annotation: Any) -> bool:
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return all(map(_is_plain, inner))
    if origin is tuple:
        return all(_is_plain(kind) for kind in inner if kind is not ...)
    return origin is typing.Literal or annotation in _PLAIN or annotation is None


def _meanings(doc: str) -> dict[str, str]:
    """Returns parameter -> meaning of the section "Args" of a docstring."""
    found: dict[str, str] = {}
    name = indent = None
    for line in doc.partition("\nArgs:\n")[2].splitlines():
        if line.strip() and not line[0].isspace():
            break
        match = re.match(r"(\s+)(\w+)\s*(?:\([^)]*\))?:\s*(.*)", line)
        if match and indent in (None, match[1]):
            indent, name, found[match[2]] = match[1], match[2], match[3]
        elif name is not None:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found
