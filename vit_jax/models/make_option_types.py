"""Writes `option_types.py`: the options of all model families as types for editors and pyright.

    python -m vit_jax.models.make_option_types

The sections of the families check options at run time. The generated types state the same options
for tools that read code without running it.
"""

import textwrap
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.models.registry import FAMILIES
from vit_jax.models.text import TextConfig
from vit_jax.schema import Section

_FILE = Path(__file__).with_name("option_types.py")
_HEADER = '''\
# Made by `python -m vit_jax.models.make_option_types`; do not edit.
# fmt: off
# ruff: noqa: E501
"""The options of models as types: for completion in editors, and for type checkers."""

from typing import Literal, TypedDict
'''


def option_types() -> str:
    """Returns the content of the file."""
    families = [family.options for family in FAMILIES]
    return "\n\n".join(
        [
            _HEADER,
            _typed_dict("TextOptions", "Options of the text tower of a pair.", [TextConfig]),
            _typed_dict(
                "ModelOptions",
                "Options of a model. Those that its family does not have are an error.",
                families,
                without=("name",),
            ),
            'class TowerOptions(ModelOptions, total=False):\n    """Options of the image tower of'
            ' a pair."""\n\n    name: str\n    """Another image model, e.g. `R50+ViT-B/16`."""\n',
        ]
    )


def _typed_dict(
    name: str, about: str, sections: Sequence[type[Section]], without: tuple[str, ...] = ()
) -> str:
    lines = [f"class {name}(TypedDict, total=False):", f'    """{about}"""', ""]
    keys = dict.fromkeys(key for cls in sections for key in cls.model_fields if key not in without)
    for key in keys:
        having = [cls for cls in sections if key in cls.model_fields]
        kinds = dict.fromkeys(k for cls in having for k in _types(cls.model_fields[key].annotation))
        lines.append(f"    {key}: {_union(list(kinds))}")
        lines += _docstring(key, having, of_all=len(having) == len(sections))
    return "\n".join(lines) + "\n"


def _docstring(key: str, having: Sequence[type[Section]], *, of_all: bool) -> list[str]:
    """Returns the lines of the docstring of an option: its meanings, its default, its models."""
    fields = [cls.model_fields[key] for cls in having]
    texts = dict.fromkeys(" ".join((field.description or "").split()) for field in fields)
    text = " ".join(filter(None, texts))
    plain = [field for field in fields if not _is_section(field)]
    defaults = {repr(field.get_default(call_default_factory=True)) for field in plain}
    if len(defaults) == 1 and not any(f.is_required() for f in fields):
        text += f" Default: {defaults.pop()}."
    if not of_all:
        text += f" For {', '.join(cls.kind for cls in having)}."
    wrapped = textwrap.wrap(f'"""{text}', 96)
    end = '"""'
    if len(wrapped) > 1 or len(wrapped[0]) > 93:
        return [*(f"    {line}" for line in wrapped), f"    {end}"]
    return [f"    {wrapped[0]}{end}"]


def _is_section(field: Any) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, Section)


def _types(annotation: Any) -> list[str]:
    """Returns the members of a type as source text; Literals become one text a value."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return [f"={value!r}" for value in inner]
    if inner:
        return [text for member in inner for text in _types(member)]
    if annotation is TextConfig:
        return ["TextOptions"]
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return ['"TowerOptions"']
    return ["None" if annotation is type(None) else annotation.__name__]


def _union(kinds: list[str]) -> str:
    words = [kind.removeprefix("=") for kind in kinds if kind.startswith("=")]
    others = [kind for kind in kinds if not kind.startswith("=")]
    listed = [f"Literal[{', '.join(words)}]"] if words else []
    plain = [kind for kind in others if kind != "None"]
    return " | ".join(listed + plain + (["None"] if "None" in others else []))


if __name__ == "__main__":
    _FILE.write_text(option_types())
