"""List, search and compare config keys and recipes.

    python -m vit_jax config                           all keys: type, default, meaning
    python -m vit_jax config optimizer.schedule        the keys of one section
    python -m vit_jax config warmup                    keys by a word; "lr" finds learning_rate, too
    python -m vit_jax config --config=configs/cifar10.py --config.model.dropout=0.1 --changed
    python -m vit_jax config --config=configs/cifar10.py --against=runs/mine   two recipes or runs
    python -m vit_jax config --json_schema             a JSON schema, e.g. for completion in editors

With --config, the values are those of that recipe or run and of the overrides. The keys of
`model`, `task`, `loss` and `data.augment.crop` depend on their names; without --config they are
those of a ViT, and of all tasks, losses and crops.
"""

import argparse
import dataclasses
import operator
import textwrap
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pydantic

from vit_jax.config.data import data_class
from vit_jax.config.file import load_config
from vit_jax.config.keys import ConfigKey, config_keys, find_keys, value_text
from vit_jax.config.run import Config
from vit_jax.config.task import TaskConfig
from vit_jax.data.augment import augment_class
from vit_jax.data.crops import Crop
from vit_jax.errors import ConfigError
from vit_jax.losses import LabelLoss
from vit_jax.models.family import Family
from vit_jax.models.image_families import is_registered_outside
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import families, options_class
from vit_jax.schema import Section
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import user_path

_WIDTH = 100
_NO_KEY = "(no such key)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "key", nargs="?", default="", help="a section, a key, or a word; default: all keys"
    )
    parser.add_argument(
        "--config", help="name of a recipe, FILE.py, FILE.py:ARG or a run folder; shows its values"
    )
    parser.add_argument("--against", help="another of these; shows the keys that differ")
    parser.add_argument(
        "--changed", action="store_true", help="only keys that differ from their defaults"
    )
    parser.add_argument("--values", action="store_true", help="only keys and values, no meaning")
    parser.add_argument("--json_schema", action="store_true", help="print a JSON schema instead")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    config = None if args.config is None else _load(args.config, overrides)
    if config is None and (overrides or args.against):
        given = f"--config.{overrides[0]}" if overrides else "--against"
        raise ConfigError(f"{given} without --config", "a recipe", "add --config=FILE")
    if args.against is not None:
        assert config is not None
        return _compare(args, config, _load(args.against, ()))
    model = options_class({"name": "ViT-B/16"}) if config is None else type(config.model)
    if args.json_schema:
        schema = _with_all_classes(model).model_json_schema()
        print(json_text(schema, what="the schema", indent=2))
        return 0
    keys = config_keys(model, config)
    if config is None:
        for family in filter(is_registered_outside, families()):
            keys = {**_of_family(family), **keys}
    found = find_keys(keys, args.key)
    if config is not None and config.optimizer.weight_decay:
        decay = f"Here a step at the peak rate decays by {config.optimizer.decay_per_step:.3g}."
        found = [_with_note(k, decay) if k.name == "optimizer.weight_decay" else k for k in found]
    for key in found:
        if key.differs or not args.changed:
            _show(key, has_values=config is not None, brief=args.values)
    return 0


def _of_family(family: Family) -> dict[str, ConfigKey]:
    """Returns the keys of a family's options, which say so."""
    keys = config_keys(family.options)
    own = {name: key for name, key in keys.items() if name.startswith("model.")}
    return {n: _with_note(key, f"An option of the family {family.name}.") for n, key in own.items()}


def _with_all_classes(model: type[ModelConfig]) -> type[Section]:
    """Returns a config class that has a section `model`, and all classes of other sections."""
    classes = (cls.named_classes().values() for cls in (TaskConfig, LabelLoss, Crop))
    task, loss, crop = (reduce(operator.or_, each) for each in classes)

    def changed(cls: type[Section], **fields: Any) -> type[Section]:
        return pydantic.create_model(cls.__name__, __base__=cls, **fields)

    augment = changed(augment_class({}), crop=(crop, {}))
    data = changed(data_class({}), augment=(augment, {}))
    return changed(
        Config, model=(model, ...), task=(task, {}), loss=(loss | None, None), data=(data, ...)
    )


def _with_note(key: ConfigKey, note: str) -> ConfigKey:
    return dataclasses.replace(key, meaning=f"{key.meaning} {note}")


def _load(spec: str, overrides: Sequence[str]) -> Config:
    """Returns the config of a recipe, or of a run folder."""
    path = user_path(spec)
    is_run = not spec.endswith((".py", ".json")) and (path / "config.json").is_file()
    spec = str(path / "config.json") if is_run else spec
    try:
        return load_config(spec, overrides)
    except ConfigError as error:
        if error.key != "model.name":
            raise
        # A model that is read from weights may be shown without them.
        shown = load_config(spec, [*overrides, "init_from=WEIGHTS"])
        return shown.model_copy(update={"init_from": None})


def _show(key: ConfigKey, *, has_values: bool, brief: bool) -> None:
    is_open = key.required and not has_values
    line = f"{key.name} {'(required)' if is_open else f'= {value_text(key.value)}'}"
    default = "Required" if key.required else f"Default: {value_text(key.default)}"
    if brief:
        print(line)
        return
    shown = f" {default}." if has_values and key.differs else ""
    notes = f"{key.kind}.{shown} {key.meaning}".strip()
    print(line)
    print(textwrap.fill(notes, _WIDTH, initial_indent="    ", subsequent_indent="    "))


def _compare(args: argparse.Namespace, one: Config, other: Config) -> int:
    """Prints the keys that differ between two configs, whose models may be of two families."""
    from rich.console import Console
    from rich.markup import escape

    from vit_jax.tables import plain_table

    one_keys, other_keys = (config_keys(type(c.model), c) for c in (one, other))
    rows = []
    for name in dict.fromkeys([*one_keys, *other_keys]):
        both = [keys.get(name) for keys in (one_keys, other_keys)]
        texts = [_NO_KEY if key is None else value_text(key.value) for key in both]
        # A default of an option that the other family does not have is no difference.
        only = [key for key in both if key is not None and None in both]
        if _is_in(name, args.key) and texts[0] != texts[1] and all(key.differs for key in only):
            rows.append((name, *texts))
    if not rows:
        print(f"{args.config} and {args.against} have the same values")
        return 0
    table = plain_table("key", right=())
    for spec in (args.config, args.against):
        table.add_column(escape(spec), overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console(highlight=False)
    (console if console.is_terminal else Console(highlight=False, width=160)).print(table)
    return 0


def _is_in(name: str, section: str) -> bool:
    return not section or f"{name}.".startswith(f"{section}.")
