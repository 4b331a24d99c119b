"""List the config keys, with their values, types and meaning.

    python -m vit_jax config                           all keys with their defaults
    python -m vit_jax config optimizer.schedule        the keys of one section
    python -m vit_jax config model --config=configs/cifar10.py --config.model.dropout=0.1
    python -m vit_jax config --json_schema             a JSON schema, e.g. for completion in editors

With --config, the values are those of that recipe and of the overrides. The keys of `model` depend
on the model's family; without --config they are those of a ViT.
"""

import argparse
import json
import textwrap
from collections.abc import Iterator
from typing import Any

import pydantic

from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, nearest
from vit_jax.models.registry import options_class
from vit_jax.schema import Section, describe_field
from vit_jax.storage.files import json_text

_WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("key", nargs="?", default="", help="a section or a key; default: all keys")
    parser.add_argument("--config", help="FILE.py or FILE.py:ARG; shows its values")
    parser.add_argument("--json_schema", action="store_true", help="print a JSON schema instead")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    config = None if args.config is None else load_config(args.config, overrides)
    if config is None and overrides:
        raise ConfigError(
            f"--config.{overrides[0]} without --config", "a recipe to override", "add --config=FILE"
        )
    model = options_class({"name": "ViT-B/16"}) if config is None else type(config.model)
    if args.json_schema:
        schema = pydantic.create_model("Config", __base__=Config, model=(model, ...))
        print(json_text(schema.model_json_schema(), what="the schema", indent=2))
        return 0
    rows = dict(_rows(Config, config, model))
    chosen = [key for key in rows if not args.key or f"{key}.".startswith(f"{args.key}.")]
    if not chosen:
        raise ConfigError(
            f"no config key or section {args.key!r}",
            "a key or section of the config",
            f"did you mean '{nearest(args.key, [*rows, *_sections(rows)])}'?",
        )
    for key in chosen:
        print(rows[key])
    return 0


def _rows(
    cls: type[Section], made: Section | None, model: type[Section], path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yields (dotted key, text) for every key of a section and of the sections in it.

    Args:
        cls: class of the section.
        made: its values; None: the defaults.
        model: class of the model section.
        path: dotted key of the section, with a dot at its end.
    """
    for name, field in cls.model_fields.items():
        key = f"{path}{name}"
        inner = model if key == "model" else field.annotation
        value = None if made is None else getattr(made, name)
        if isinstance(inner, type) and issubclass(inner, Section):
            yield from _rows(inner, value, model, f"{key}.")
            continue
        required = made is None and field.is_required()
        shown = value if made is not None else field.get_default(call_default_factory=True)
        text = f"{key} {'(required)' if required else f'= {_plain(shown)}'}"
        about = [describe_field(field), field.description or ""]
        notes = " ".join(" ".join(filter(None, [f"{about[0]}.", about[1]])).split())
        yield (
            key,
            text
            + "\n"
            + textwrap.fill(notes, _WIDTH, initial_indent="    ", subsequent_indent="    "),
        )


def _plain(value: Any) -> str:
    return "none" if value is None else json.dumps(value) if isinstance(value, str) else str(value)


def _sections(keys: Any) -> set[str]:
    """Returns the names of all sections that hold the keys."""
    return {".".join(key.split(".")[:n]) for key in keys for n in range(1, key.count(".") + 1)}
