"""Classes that a config chooses by name, each in a file of its own."""

import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")
C = TypeVar("C", bound=type)


class Registry(Generic[T]):
    """Name -> class, for the classes of the files of one package.

    A file of the package is named as what it registers, and imported when that is asked for.
    """

    def __init__(self, package: str):
        self._package, self._found = package, dict[str, Any]()

    def register(self, cls: C) -> C:
        """Adds a class under the name of its file; use it as a decorator."""
        self._found[cls.__module__.rpartition(".")[2]] = cls
        return cls

    @property
    def names(self) -> list[str]:
        """All names, sorted."""
        path = importlib.import_module(self._package).__path__
        return sorted({module.name for module in pkgutil.iter_modules(path)} | self._found.keys())

    def __getitem__(self, name: str) -> type[T]:
        """Returns the class with a name.

        Raises:
            KeyError: there is none.
        """
        if name not in self._found and name in self.names:
            importlib.import_module(f"{self._package}.{name}")
        return self._found[name]

    @property
    def classes(self) -> dict[str, type[T]]:
        """Name -> class, of all of them."""
        return {name: self[name] for name in self.names}

    def class_of(self, base: Any, section: Mapping[str, Any]) -> Any:
        """Returns the class that the name in a section chooses.

        That is `base` for an unknown name: it raises the error. Without a name it is the default
        of `base`.
        """
        name = section.get("name", base.model_fields["name"].default)
        return self[name] if name in self.names else base
