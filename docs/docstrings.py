"""An extension of griffe, which reads the docstrings of the API page.

In the source, doctests stand at the end of a docstring, without a heading. Markdown would show them
as quotations on one line, so they get the heading "Examples:" here and become code.
"""

import textwrap
from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts the doctests of every docstring into a section of examples."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Changes the docstring of an object that was just read."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)


def with_examples(docstring: str) -> str:
    r"""Returns a docstring whose doctests are a section of examples.

    >>> with_examples("Adds.\n\n>>> 1 + 1\n2")
    'Adds.\n\nExamples:\n    >>> 1 + 1\n    2'
    """
    text, start, doctests = f"\n{docstring}".partition("\n>>> ")
    if not start:
        return docstring
    return f"{text[1:]}\nExamples:\n{textwrap.indent('>>> ' + doctests, '    ')}"
