"""Captions of examples: read or made from class names, drawn, and turned into tokens."""

import logging
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int32
from numpy.typing import ArrayLike

from vit_jax.config.captions import PLACEHOLDER, CaptionsConfig
from vit_jax.data.arrays import ArraySpec, Preprocessing
from vit_jax.data.sources.base import Example, Source
from vit_jax.data.sources.captioned import read_texts
from vit_jax.data.tokenizers import Tokenizer, load_tokenizer
from vit_jax.data.transforms import Transform
from vit_jax.errors import DataError
from vit_jax.models.text import TextConfig, check_vocabulary
from vit_jax.storage.paths import user_path

log = logging.getLogger(__name__)

# Examples whose captions are read before the first step.
_SAMPLES = 256


class Captions:
    """The captions of examples, as text and as tokens. Templates need the class names."""

    def __init__(self, config: CaptionsConfig, tokenizer: Tokenizer, class_names: Sequence[str]):
        self.tokenizer = tokenizer
        self._feature, self._templates = config.feature_name, config.templates
        self._names = [readable(name) for name in class_names]
        if self._templates and not self._names:
            raise DataError(
                "data.captions.templates, but the dataset has no classes",
                "a dataset with labels",
                "set data.captions.feature to its captions, or choose another dataset",
            )

    def texts(self, example: Example) -> list[str]:
        """Returns all captions of an example. Raises DataError if there is none, or a bad one."""
        if self._feature is None:
            if not 0 <= example.label < len(self._names):
                raise DataError(
                    f"label {example.label}", f"0 to {len(self._names) - 1}", "repair the dataset"
                )
            return [fill(template, self._names[example.label]) for template in self._templates]
        top, *inner = self._feature.split("/")
        return read_texts(example.features[top], inner)

    def tokens(
        self, example: Example, rng: np.random.Generator | None = None
    ) -> Int32[np.ndarray, " N"]:
        """Returns the tokens of one caption: a drawn one or, without a generator, the first."""
        texts = self.texts(example)
        chosen = 0 if rng is None or len(texts) == 1 else int(rng.integers(len(texts)))
        return self.tokenizer.encode([texts[chosen]])[0]


def build_captions(
    config: CaptionsConfig, options: TextConfig, class_names: Sequence[str] = ()
) -> Captions:
    """Reads the tokenizer of a config and checks it against the text tower."""
    assert config.tokenizer is not None
    pad = options.pad_token if config.pad_token is None else config.pad_token
    tokenizer = load_tokenizer(
        user_path(config.tokenizer),
        context_length=options.context_length,
        pad_token=pad,
        canonicalize=config.canonicalize,
        too_long=config.too_long,
    )
    check_vocabulary(options, tokenizer.vocabulary_size, config.tokenizer)
    return Captions(config, tokenizer, class_names)


def captioned_image_arrays(
    image_size: int, context_length: int, *, pad_token: int = 0
) -> dict[str, ArraySpec]:
    """Returns the arrays of an image of height and width `image_size`, and of its caption."""
    return {
        "image": ArraySpec((image_size, image_size, 3), np.uint8),
        # A text of padding alone could have no place to pool from.
        "tokens": ArraySpec((context_length,), np.int32, padding=pad_token),
    }


def captioned_image(
    transform: Transform, image_size: int, captions: Captions, *, draws: bool = True
) -> Preprocessing:
    """Returns the preprocessing of an image with a caption: `image` u8[H, W, 3], `tokens` i32[N].

    `draws` takes a random one of several captions, for training; otherwise the first is taken.
    """

    def make_row(example: Example, rng: np.random.Generator) -> dict[str, ArrayLike]:
        image = transform(example.image, rng)
        return {"image": image, "tokens": captions.tokens(example, rng if draws else None)}

    tokenizer = captions.tokenizer
    arrays = captioned_image_arrays(
        image_size, tokenizer.context_length, pad_token=tokenizer.pad_token
    )
    return Preprocessing(arrays, make_row)


def check_captions(source: Source, captions: Captions, *, skips: bool = False) -> float:
    """Reads some evenly spaced captions before the first step, and logs how many are cut.

    Returns the share of the captions that are longer than the text tower. A bad caption is an error
    unless `skips`.
    """
    places = np.linspace(0, len(source) - 1, min(_SAMPLES, len(source))).astype(int).tolist()
    length, cut, total = captions.tokenizer.context_length, 0, 0
    for example in source.read(places):
        try:
            texts = captions.texts(example)
            captions.tokenizer.encode(texts)
        except DataError as error:
            if skips:
                continue
            where = f"example {example.id} of {source.name}: {error.got}"
            raise DataError(where, error.expected, error.fix) from None
        cut += sum(captions.tokenizer.count(text) > length for text in texts)
        total += len(texts)
    share = cut / max(total, 1)
    if cut:
        log.warning(
            "%d of %s captions (%.1f %%) have more than %d tokens and are cut",
            cut,
            f"{total:,}",
            100 * share,
            length,
        )
    return share


def fill(template: str, name: str) -> str:
    """Returns a template with the name of a class in the place of {}."""
    return template.replace(PLACEHOLDER, name)


def readable(name: str) -> str:
    """Returns the name of a class as it would be in a text: spaces instead of underscores."""
    return name.replace("_", " ")
