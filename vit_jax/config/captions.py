"""Config section of captions: where they come from, and how they become tokens."""

from collections.abc import Sequence
from typing import Literal

from vit_jax.errors import ConfigError
from vit_jax.schema import Section, check_at_most_one, option

CaseAndPunctuation = Literal["none", "lower", "punctuation"]
PLACEHOLDER = "{}"
"""Stands for the name of the class in a template."""


class CaptionsConfig(Section):
    """Captions of images. They are read if `tokenizer` is set."""

    tokenizer: str | None = option(None, changes_result=False)
    """Vocabulary: a sentencepiece `.model`, a `tokenizer.json`, a BERT `vocab.txt`, or a folder
    with one of these or with CLIP's `vocab.json` and `merges.txt`. None: no captions.
    """
    feature: str | None = option(None)
    """Feature or column with a caption, or with several, one of which is drawn each time. None:
    `caption`. `captions/text` is the feature `text` in a sequence `captions`. In tar files it is a
    suffix (`txt`) or a key of KEY.json.
    """
    templates: tuple[str, ...] = option(())
    """Makes captions from class names instead. A template is a text with {} for the name, such as
    `a photo of a {}.`; one of several is drawn each time.
    """
    canonicalize: CaseAndPunctuation | None = option(None)
    """lower: lower case. punctuation: also removes punctuation, and turns underscores into spaces,
    as SigLIP does. none: leaves the text as it is. None: what a `tokenizer_config.json` next to the
    vocabulary says, otherwise none.
    """
    pad_token: int | None = option(None, at_least=0)
    """Token that fills short captions. None: `model.text.pad_token`, or that of the vocabulary."""
    too_long: Literal["truncate", "error"] = option("truncate")
    """What to do with a caption of more tokens than the text tower has positions."""

    @property
    def feature_name(self) -> str | None:
        """Feature or column of the captions; None: they are made from class names."""
        return None if self.templates else self.feature or "caption"

    def check(self) -> None:
        if self.tokenizer is None and (self.feature is not None or self.templates):
            raise ConfigError(
                "is not set, but captions are",
                "the vocabulary of the text tower",
                "set it to a file or folder, or remove the captions",
                key="tokenizer",
            )
        check_at_most_one(self, "feature", "templates")
        check_templates(self.templates, key="templates")


def check_templates(templates: Sequence[str], key: str | None = None) -> None:
    """Raises ConfigError unless each template has {} once."""
    for template in templates:
        if template.count(PLACEHOLDER) != 1:
            raise ConfigError(
                f"has the template {template!r}" if key else f"template {template!r}",
                "{} once, where the name of the class goes",
                "write, for example, 'a photo of a {}.'",
                key=key,
            )
