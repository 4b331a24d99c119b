"""Names that a config can choose, and what each of them stands for.

The package's own things lie in one file each and are imported when they are asked for. Code from
outside the package adds to the same registries: `vit_jax.register_loss` and its like.
"""

import dataclasses
import functools
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic_core import CoreSchema, core_schema

from vit_jax.errors import ConfigError, PluginError, nearest, similarity
from vit_jax.plugins import load_installed

# A name this similar to a known one is a typing mistake.
_SIMILAR = 0.6

T = TypeVar("T")
C = TypeVar("C", bound=type)


REGISTRIES: dict[str, "Registry[Any]"] = {}
"""Kind -> its registry."""


class Registry(Mapping[str, T]):
    """Name -> what it stands for: what the package has, sorted, then what was added, in order.

    Each file of `package` has the name that it registers, and is imported when that is asked for.
    With `file`, each folder of the package has the name, and its file `file` registers it. `kind`
    is for messages.
    """

    def __init__(self, package: str | None = None, kind: str = "name", file: str | None = None):
        self.kind, self._package, self._file = kind, package, file
        REGISTRIES.setdefault(kind, self)
        self._found = dict[str, tuple[Any, str]]()  # name -> value, module that registered it

    def register(self, cls: C) -> C:
        """Adds a class of the package under the name of its file or folder; a decorator."""
        name = cls.__module__.removeprefix(f"{self._package}.").partition(".")[0]
        self.add(name, cls, cls.__module__)
        return cls

    def add(self, name: str, value: Any, owner: str) -> None:
        """Adds a name. The module that owns a name may add it again.

        Raises:
            PluginError: another module owns the name.
        """
        first = self.owner(name) or owner
        if first != owner:
            raise PluginError(
                f"{self.kind} '{name}' of {owner} has the name of one of {first}",
                f"one {self.kind} with this name",
                "rename one of them, or load only one of the two",
            )
        self._found[name] = value, owner

    def owner(self, name: str) -> str | None:
        """Returns the module of what has a name; None: there is none."""
        return self._found[name][1] if name in self._found else self._own_modules.get(name)

    def added_by(self, owner: str) -> list[T]:
        """Returns what a module has added, by name."""
        return [self._found[n][0] for n in sorted(self._found) if self._found[n][1] == owner]

    @functools.cached_property
    def _own_modules(self) -> dict[str, str]:
        """Returns name -> module of what the package has."""
        if self._package is None:
            return {}
        spec = importlib.util.find_spec(self._package)  # Does not import the package itself.
        path = spec.submodule_search_locations if spec is not None else None
        ending = "" if self._file is None else f".{self._file}"
        return {
            module.name: f"{self._package}.{module.name}{ending}"
            for module in pkgutil.iter_modules(path)
            if module.ispkg == (self._file is not None)
        }

    @property
    def names(self) -> list[str]:
        """All names, in the order of this mapping."""
        return [*dict.fromkeys([*sorted(self._own_modules), *self._found])]

    def __getitem__(self, name: str) -> T:
        if name not in self._found and (module := self._own_modules.get(name)):
            importlib.import_module(module)
        return self._found[name][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._found or name in self.names

    def class_of(self, base: Any, section: Mapping[str, Any]) -> Any:
        """Returns the class that the name in a section chooses; without one, the default of `base`.

        Raises:
            ConfigError: there is no such name.
        """
        name = section.get("name", base.model_fields["name"].default)
        if not self.knows(name):
            raise self.unknown(name, "name")
        return self[name]

    def knows(self, name: Any) -> bool:
        """Whether there is a name; for an unknown one, installed plugins are loaded first."""
        return isinstance(name, str) and (name in self or (load_installed() and name in self))

    def unknown(self, name: Any, key: str) -> ConfigError:
        """Returns the error for a name that there is not, in a config key."""
        near = nearest(str(name), self.names)
        fix = f"did you mean {near!r}?"
        if similarity(str(name), near) < _SIMILAR:
            fix = "correct it, or add --plugin=MODULE if a module of yours registers it"
        return ConfigError(f"is {name!r}", f"one of {', '.join(sorted(self.names))}", fix, key=key)


@dataclasses.dataclass(frozen=True, eq=False)
class NameIn:
    """Marks a string of a config that is a name in a registry: `Annotated[str, NameIn(LOSSES)]`."""

    registry: Registry[Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        def check(value: str) -> str:
            if not self.registry.knows(value):
                raise self.registry.unknown(value, "")
            return value

        return core_schema.no_info_after_validator_function(check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return {**handler(schema), "enum": self.registry.names}
