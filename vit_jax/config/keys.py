"""All config keys with their types, defaults and meaning, for help, search and completion."""

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.fields import FieldInfo

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, nearest
from vit_jax.models.options import ModelConfig
from vit_jax.schema import (
    Section,
    can_be_off,
    describe_field,
    is_chosen,
    members_of,
    names_of,
    usual_class,
)
from vit_jax.synonyms import key_of_word, words_of_key


@dataclasses.dataclass(frozen=True)
class ConfigKey:
    """A key of the config."""

    name: str  # dotted, e.g. "optimizer.learning_rate"
    kind: str  # its type and range, in words
    meaning: str
    required: bool  # whether it has no default
    default: Any
    value: Any  # in a config; the default if there is no config
    choices: tuple[str, ...]  # its valid values, if they are a list of words

    @property
    def differs(self) -> bool:
        return self.required or self.value != self.default


def config_keys(model: type[ModelConfig], config: Config | None = None) -> dict[str, ConfigKey]:
    """Returns name -> key, in the order of the sections.

    Values are those of `config`. Without a config they are defaults, and the keys of all tasks,
    losses and crops are included. Keys of several choices with the same name are one entry: that of
    the usual choice, followed by the meanings of the others.
    """
    found: dict[str, ConfigKey] = {}
    for key in section_keys(Config, config, model):
        first = found.setdefault(key.name, key)
        own = key.meaning.partition(". ")[2]  # Without "With SECTION.name=CHOICE".
        has_own_default = key.default != first.default and not key.name.endswith(".name")
        if has_own_default or own not in first.meaning:
            meaning = f"{first.meaning} {key.meaning}"
            if has_own_default:
                meaning += f" Its default is then {value_text(key.default)}."
            found[key.name] = dataclasses.replace(first, meaning=meaning)
    return found


def find_keys(keys: Mapping[str, ConfigKey], word: str) -> list[ConfigKey]:
    """Returns the keys that a word finds.

    The word is a key, a section, another word for a key ("lr"), or part of a key or of its meaning;
    "": all keys.
    """
    found = [key for name, key in keys.items() if not word or f"{name}.".startswith(f"{word}.")]
    meant = key_of_word(word)
    if not found:
        found = [keys[meant]] if meant is not None and meant in keys else []
        parts = word.lower().split()
        found += [key for key in keys.values() if key not in found and _has(key, parts)]
    if not found:
        sections = {".".join(n.split(".")[:i]) for n in keys for i in range(1, n.count(".") + 1)}
        raise ConfigError(
            f"no config key or section {word!r}",
            "a key, a section, or a word of their description",
            f"did you mean '{nearest(word, [*keys, *sections])}'?",
        )
    return found


def _has(key: ConfigKey, words: list[str]) -> bool:
    text = f"{key.name} {key.kind} {key.meaning} {words_of_key(key.name)}".lower().replace("_", " ")
    # A long word also finds those that start with it; "lr" finds only itself.
    ends = ["" if len(word) > 3 else r"\b" for word in words]
    plain = [re.escape(word.replace("_", " ")) for word in words]
    return all(re.search(rf"\b{w}{end}", text) for w, end in zip(plain, ends, strict=True))


def section_keys(
    cls: type[Section], made: Section | None, model: type[Section], path: str = ""
) -> Iterator[ConfigKey]:
    """Yields the keys of a section and of those inside it.

    Args:
        cls: class of the section.
        made: the section with its values; None: defaults.
        model: class of the section `model`.
        path: put in front of the keys, e.g. "task.".
    """
    for name, field in cls.model_fields.items():
        key = f"{path}{name}"
        value = None if made is None else getattr(made, name)
        if key == "model":
            inner = model
        else:
            inner = type(value) if isinstance(value, Section) else usual_class(field)
        if inner is None:
            yield _key(key, field, value, has_value=made is not None)
            continue
        if can_be_off(field.annotation) and not is_chosen(cls, name, {}):
            yield _switch(key, inner, value)
        if made is None or value is not None:
            yield from section_keys(inner, value, model, f"{key}.")
            if made is None:
                for choice, other in inner.named_classes().items():
                    for found in section_keys(other, None, model, f"{key}."):
                        meaning = f"With {key}.name={choice}. {found.meaning}"
                        yield dataclasses.replace(found, meaning=meaning)


def _switch(name: str, cls: type[Section], value: Section | None) -> ConfigKey:
    """Returns the key that switches a section on or off."""
    return ConfigKey(
        name=name,
        kind="true or false",
        meaning=" ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split()),
        required=False,
        default=False,
        value=value is not None,
        choices=("true", "false"),
    )


def _key(name: str, field: FieldInfo, value: Any, *, has_value: bool) -> ConfigKey:
    required = field.is_required()
    default = None if required else field.get_default(call_default_factory=True)
    return ConfigKey(
        name=name,
        kind=describe_field(field),
        meaning=" ".join((field.description or "").split()),
        required=required,
        default=default,
        value=value if has_value else default,
        choices=tuple(names_of(field)) or _choices(field.annotation),
    )


def _choices(annotation: Any) -> tuple[str, ...]:
    """Returns the words that a type allows."""
    found: list[str] = []
    for member in members_of(annotation):
        if typing.get_origin(member) is typing.Literal:
            found += map(str, typing.get_args(member))
        elif member is bool:
            found += ["true", "false"]
        elif member is type(None):
            found.append("none")
    return tuple(found) if set(found) - {"none"} else ()


def value_text(value: Any) -> str:
    """Formats a value as `--config.KEY=VALUE` takes it."""
    return "none" if value is None else json.dumps(value) if isinstance(value, str) else str(value)
