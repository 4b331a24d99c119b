"""Argument types that several commands use."""

import argparse
import os
from pathlib import Path

from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import user_path


def non_negative_int(text: str) -> int:
    """Parses a whole number of at least 0."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def positive_int(text: str) -> int:
    """Parses a whole number of at least 1."""
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def positive_number(text: str) -> float:
    """Parses a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def fraction(text: str) -> float:
    """Parses a number between 0 and 1."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1")
    return value


def output_file(text: str) -> Path:
    """Parses a path whose folder exists and is writable; a bucket has no folders."""
    path = user_path(text)
    if not isinstance(path, BucketPath) and not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not in an existing folder")
    if text.endswith("/") or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder, not a file")
    if not isinstance(path, BucketPath) and not os.access(path.parent, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{text!r} is in a folder that is not writable")
    return path
