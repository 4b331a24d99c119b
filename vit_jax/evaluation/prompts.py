"""Templates of captions and class names for zero-shot classification.

`prompt_templates.txt` holds the published templates with their sources, and
`clip_imagenet_classes.txt` CLIP's names of ImageNet's classes, in label order (from the notebook
Prompt_Engineering_for_ImageNet of github.com/openai/CLIP).
"""

import functools
from collections.abc import Sequence
from pathlib import Path

from vit_jax.config.captions import PLACEHOLDER, check_templates
from vit_jax.data.benchmarks import imagenet_classes
from vit_jax.data.captions import readable
from vit_jax.errors import ConfigError, DataError, FileError, nearest
from vit_jax.storage.files import read_file
from vit_jax.storage.paths import user_path

_FOLDER = Path(__file__).parent
_LARGEST_BYTES = 64 << 20


@functools.cache
def published_templates() -> dict[str, tuple[str, ...]]:
    """Returns name -> the templates of `prompt_templates.txt`."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in (_FOLDER / "prompt_templates.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("[") and line.endswith("]"):
            name = line[1:-1]
            found[name] = []
        elif line and not line.startswith("#"):
            found[name].append(line)
    return {name: tuple(templates) for name, templates in found.items()}


def read_templates(text: str) -> tuple[str, ...]:
    """Returns the templates that a user means.

    The text is a name in `published_templates`, the path of a file with one template a line, or one
    template with {} in the place of the name of the class.
    """
    published = published_templates()
    if text in published:
        return published[text]
    is_file = PLACEHOLDER not in text and user_path(text).is_file()
    if not is_file and ("{" in text or " " in text):
        check_templates([text])
        return (text,)
    if not is_file:
        raise ConfigError(
            f"no prompts {text!r}",
            f"one of {', '.join(published)}, a file, or a text with {{}}",
            f"did you mean {nearest(text, published)!r}?",
        )
    templates = tuple(_read_lines(text))
    check_templates(templates)
    return templates


def read_class_names(text: str | None, given: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the classes as they stand in captions.

    `text` is the path of a file with a name a line, in label order. Without it, they are the names
    `given` by the dataset, with spaces instead of underscores, or CLIP's names if those are
    ImageNet's numbers.
    """
    if text is None:
        if not given:
            raise DataError("a dataset without classes", "class names", "use a dataset with labels")
        if list(given) == list(imagenet_classes()["wnid"]):
            names = (_FOLDER / "clip_imagenet_classes.txt").read_text(encoding="utf-8").splitlines()
            return tuple(names)
        return tuple(readable(name) for name in given)
    names = _read_lines(text)
    if len(names) != len(given):
        raise DataError(
            f"{text} with {len(names):,} names for {len(given):,} classes",
            "a name for each class, in label order",
            "correct the file",
        )
    return tuple(names)


def _read_lines(text: str) -> list[str]:
    """Returns the lines of a file that are not empty."""
    path = user_path(text)
    try:
        lines = read_file(path, _LARGEST_BYTES).decode("utf-8-sig").splitlines()
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror}", "a text file", "check the path"
        ) from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path}: {error}", "a text file in UTF-8", "convert it") from None
    lines = [line.strip() for line in lines if line.strip()]
    if not lines:
        raise FileError(f"{path} is empty", "one or more lines", "give another file")
    return lines
