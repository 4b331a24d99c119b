"""Removes secrets and the home folder from what is stored or shown for information."""

import os
import re
from pathlib import Path
from typing import Any

_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY")
# Shorter values may be part of other words.
_MIN_CHARACTERS = 8
# User and password of an address, as in https://user:password@host.
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def hide_secrets(text: str) -> str:
    """Replaces secrets: passwords in addresses, and values of variables that are named like one.

    For example, the value of HF_TOKEN becomes "$HF_TOKEN".
    """
    text = _USER_INFO.sub("", text)
    named = [
        (value, name) for name, value in os.environ.items() if _SECRET_NAMES.search(name.upper())
    ]
    for value, name in sorted(named, key=lambda one: -len(one[0])):
        if len(value) >= _MIN_CHARACTERS:
            text = text.replace(value, f"${name}")
    return text


def hide_private(text: str) -> str:
    """Replaces secrets, and the home folder by "~".

    Do not use it for paths that a resumed run needs.
    """
    text, home = hide_secrets(text), os.path.expanduser("~")  # noqa: PTH111  Path.home may raise.
    if len(Path(home).parts) > 1:
        text = re.sub(rf"(?<![\w/.+~-]){re.escape(home)}(?![\w.+-])", "~", text)
    return text


def without_private(value: Any) -> Any:
    """Returns JSON with `hide_private` applied to all texts."""
    if isinstance(value, str):
        return hide_private(value)
    if isinstance(value, dict):
        return {key: without_private(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_private(inner) for inner in value]
    return value
