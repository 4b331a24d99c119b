"""Tables of mean scores in LaTeX, for a paper that uses the package booktabs."""

from collections.abc import Iterable
from typing import Any

import pandas as pd

from vit_jax.report.labels import format_metric
from vit_jax.report.tables import Cell, Table

_SPECIAL = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#",
    "%": r"\%", "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "–": "--",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}",
}  # fmt: skip
# Notes that tell how Markdown marks a cell.
_OF_MARKDOWN = ("Bold: ", "After ±: ")
_ABOUT = (
    "After $\\pm$: half of the 95 % interval; above and below a mean: its ends, where they"
    " differ. Bold: a mean that is significantly better than all others of its column."
)


def tables_tex(tables: Iterable[Table]) -> str:
    """Returns the tables of scores, each with its title and notes as comments above it."""
    return "\n".join(_latex(table) for table in tables if table.means is not None)


def _latex(table: Table) -> str:
    assert table.means is not None
    means = table.means.to_dict("index")
    alone = table.means["best"].groupby(level=0).transform("sum") == 1
    compared = table.means["best"].groupby(level=0).transform("size") > 1
    known = table.means["comparable"]  # The same for a whole column.
    bold = {*table.means.index[table.means["best"] & alone & compared & known]}

    def text_of(row: str, column: str, cell: Cell) -> str:
        score = means.get((column, row))
        if score is None:
            return _escaped(cell.text)
        text = _score(score, table.metric)
        text = rf"$\mathbf{{{text}}}$" if (column, row) in bold else f"${text}$"
        number = "" if score.get("usual_n", True) else rf" ($n={score['n']}$)"
        return text + number + (" (incomplete)" if "pending" in cell.kind else "")

    notes = [note for note in table.notes if not note.startswith(_OF_MARKDOWN)]
    lines = [
        " & ".join(
            ["{}" + _escaped(row[0].text)]  # LaTeX reads a bracket after \\ as an option.
            + [
                text_of(row[0].text, name, cell)
                for name, cell in zip(table.header[1:], row[1:], strict=True)
            ]
        )
        + r" \\"
        for row in table.rows
    ]
    return "\n".join(
        [
            *(f"% {' '.join(line.split())}" for line in [table.title, *notes, _ABOUT]),
            rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"\toprule",
            " & ".join(map(_escaped, table.header)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def _score(score: dict[Any, Any], metric: str) -> str:
    """Returns a mean and its interval, for math mode."""
    mean = score["mean"]
    text = format_metric(mean, metric).replace(",", "{,}")
    if pd.isna(score["low"]):
        return text
    below, above, half = (
        format_metric(width, metric, like=mean).replace(",", "{,}")
        for width in (
            mean - score["low"],
            score["high"] - mean,
            (score["high"] - score["low"]) / 2,
        )
    )
    return rf"{text} \pm {half}" if below == above else rf"{text}^{{+{above}}}_{{-{below}}}"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
