"""Imports timm, even without a torchvision that is compatible with the installed torch."""

import importlib.machinery
import sys
import types
from typing import Any


def import_timm() -> types.ModuleType:
    """Returns timm. It imports torchvision but does not use it for ViTs: empty modules will do."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # RuntimeError: built for another torch.
        _fake_torchvision()
    import timm

    return timm


def _fake_torchvision() -> None:
    """Registers empty modules under torchvision's names."""

    class Anything(type):
        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return name

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything(name, (), {})

    names = ("", ".ops", ".ops.misc", ".models", ".models.feature_extraction", ".transforms",
             ".transforms.functional", ".datasets", ".utils")  # fmt: skip
    for name in names:
        module = Module(f"torchvision{name}")
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
