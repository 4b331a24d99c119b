"""Tables in LaTeX: numbers, what is bold, and characters that mean something to LaTeX."""

import numpy as np
import pandas as pd
import pytest

from vit_jax.report.latex import tables_tex
from vit_jax.report.tables import Cell, Table

NAN = np.nan


def table_of(scores, header=("model", "pets_37")):
    """A table from (row, mean, low, high, best) of one column."""
    rows = [[Cell(row), Cell("text")] for row, *_ in scores]
    index = pd.MultiIndex.from_tuples([(header[1], row) for row, *_ in scores])
    columns = ["mean", "low", "high", "best"]
    means = pd.DataFrame([score for _, *score in scores], index=index, columns=columns)
    means["comparable"] = means["low"].notna().all()
    return Table("Top-1 accuracy, test", [*header], rows, ["Percent."], "eval/test/accuracy", means)


def lines_of(table):
    return tables_tex([table]).splitlines()


def test_a_table_by_hand():
    lines = lines_of(table_of([("A & B", 0.8, 0.78, 0.82, True), ("C", 0.7, 0.66, 0.72, False)]))
    assert lines[:2] == ["% Top-1 accuracy, test", "% Percent."]
    assert lines[3:] == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"model & pets\_37 \\",
        r"\midrule",
        r"{}A \& B & $\mathbf{80.00 \pm 2.00}$ \\",
        r"{}C & $70.00^{+2.00}_{-4.00}$ \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.parametrize(
    "scores",
    [
        [("a", 0.8, 0.7, 0.9, True), ("b", 0.79, 0.7, 0.9, True)],  # Not significantly different.
        [("a", 0.8, NAN, NAN, True), ("b", 0.7, NAN, NAN, False)],  # No interval is known.
        [("a", 0.8, 0.7, 0.9, True)],  # Nothing to compare with.
    ],
)
def test_only_what_differs_significantly_is_bold(scores):
    assert not any("mathbf" in line for line in lines_of(table_of(scores)))


def test_tables_without_means_and_cells_without_a_score():
    assert tables_tex([Table("Models", ["model"], [[Cell("a")]])]) == ""
    table = table_of([("a", 0.5, NAN, NAN, True)])
    table.rows.append([Cell("chance"), Cell("10.00")])
    assert r"{}a & $50.00$ \\" in lines_of(table)
    assert r"{}chance & 10.00 \\" in lines_of(table)
