"""Writes a report's CSV and Markdown."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.errors import ConfigError
from vit_jax.report.content import Content, Picture
from vit_jax.report.facts import words_of
from vit_jax.report.tables import ReportTable
from vit_jax.report.words import show


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- {name} -->", f"<!-- end of {name} -->"


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Writes rows that all have the same keys."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        writer.writerows(rows)


def table_rows(tables: Sequence[ReportTable]) -> list[dict[str, Any]]:
    """Returns every cell of some tables that has a mean, at full precision."""
    return [
        {
            "table": table.title, "metric": table.metric, "row": row, "column": column,
            "mean": summary.mean, "std": summary.std, "n": summary.n,
        }
        for table in tables for row in table.rows for column in table.columns
        if (cell := table.cells.get((row, column))) and (summary := cell.summary)
    ]  # fmt: skip


def markdown(content: Content, folder: Path, *, level: int = 2) -> str:
    """Returns a report as Markdown, without its title.

    Args:
        content: the report.
        folder: path from the page to the pictures.
        level: of the headings.
    """
    head = "#" * level
    parts = [content.summary]
    for table in content.tables:
        parts += [f"{head} {table.title}", markdown_table(table), " ".join(table.notes)]
    for picture in content.plots:
        parts += [f"{head} {picture.title}", _image(picture, folder), " ".join(picture.notes)]
    for picture in content.curves:
        title = f"Learning curves: {picture.title}"
        parts += [f"{head} {title}", _image(picture, folder), " ".join(picture.notes)]
    if content.choices:
        parts += [f"{head} What chose the settings", _choices(content)]
    if content.missing:
        rows = [[m.name, m.state, m.progress, m.why] for m in content.missing]
        parts += [f"{head} Without a result", grid(["run", "state", "step", "why"], rows)]
    rows = [
        [h.device, str(h.runs), f"{h.hours:.2f}", ", ".join(h.revisions), ", ".join(h.jax)]
        for h in content.hardware
    ]
    names = ["device", "runs", "hours", "git revision", "JAX"]
    parts += [f"{head} Hardware", grid(names, rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown_table(table: ReportTable) -> str:
    """Returns a table of scores as Markdown, the best of each column in bold."""
    rows = []
    for row in table.rows:
        cells = [row]
        for column in table.columns:
            cell, text = table.cells.get((row, column)), table.text(row, column)
            cells.append(f"**{text}**" if cell is not None and cell.best else text)
        rows.append(cells)
    return grid([table.corner, *table.columns], rows, right=True)


def grid(names: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """Returns a Markdown table; signs that would break it are escaped."""
    rule = ["---", *(("---:" if right else "---") for _ in names[1:])]
    lines = [names, rule, *rows]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def check_marks(path: Path, name: str = "report") -> None:
    """Raises ConfigError unless there is a page with the two marks of a name, in their order."""
    start, end = _marks(name)
    page = path.read_text() if path.is_file() else None
    if page is None or end not in page.partition(start)[2]:
        got = "is no file" if page is None else "has no place for a report"
        raise ConfigError(
            f"--into={path} {got}",
            f"a page with the lines {start} and {end}", "add these two lines",
        )  # fmt: skip


def replace_between_marks(path: Path, text: str, name: str = "report") -> None:
    """Puts text between the marks of a page."""
    start, end = _marks(name)
    before, _, rest = path.read_text().partition(start)
    after = rest.partition(end)[2]
    path.write_text(f"{before}{start}\n\n{text}\n{end}{after}")


def _image(picture: Picture, folder: Path) -> str:
    return f"![{picture.title}]({(folder / picture.file).as_posix()}.svg)"


def _choices(content: Content) -> str:
    rows = []
    for choice in content.choices:
        candidates = ", ".join(f"{name} {show(score)}" for name, score in choice.candidates)
        warning = " (also reported!)" if choice.unfair else ""
        rows.append(
            [words_of(choice.labels), f"{choice.split}{warning}", choice.metric, choice.chosen,
             show(choice.score), candidates, ", ".join(map(show, choice.seeds))]
        )  # fmt: skip
    names = ["final runs", "split that chose", "by", "chosen", "score", "candidates", "seeds"]
    return grid(names, rows)
