"""Make tables, plots and a page from run folders.

    python -m vit_jax report runs/quickstart
    python -m vit_jax report runs/sweep --output=runs/sweep/report
    python -m vit_jax report RUNS --table rows=model,columns=dataset,metric=eval/test/accuracy_top1
    python -m vit_jax report RUNS --plot x=pretrain_examples,y=eval/test/accuracy_top1,log_x
    python -m vit_jax report RUNS --curves panel=dataset,series=model

Searches the folders for runs and reads their config.json, env.json, metrics.jsonl, result.json and,
in sweeps, job.json. Runs without a result are listed, and are not part of any mean.
"""

import argparse
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.errors import ConfigError, RunFolderError
from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.files import write_atomically, write_through
from vit_jax.storage.paths import check_output_folder, local_path, user_path
from vit_jax.storage.private import hide_private

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as TerminalTable

    from vit_jax.report.requests import ReportRequest
    from vit_jax.report.tables import Table

_COLUMNS = """
columns: labels of the sweep; keys of config.json such as optimizer.learning_rate; final metrics;
  name, stage, seed, family, device, revision, train_examples, examples_seen, train_exaflops,
  pretrain_examples, pretrain_exaflops (of the run in init_from). a+b joins two columns.
metrics: {word} in a name matches any part and becomes a column:
  --plot 'x=shots,y=fewshot/{dataset}/{shots}_shot/accuracy_top1,panel=dataset,log_x'
"""
_START, _END = "<!-- report -->", "<!-- end of report -->"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.epilog = _COLUMNS
    parser.add_argument(
        "folders", nargs="+", type=user_path, help="run folders, or folders above them"
    )
    parser.add_argument(
        "--output",
        type=user_path,
        help="folder for the files; default: report/ in the first folder",
    )
    parser.add_argument("--title", help="title of the page")
    parser.add_argument(
        "--table",
        action="append",
        metavar="KEY=VALUE,...",
        help="metric=, rows=, columns=, against=ROW, margin=, pool=, where.COLUMN=, title=;"
        " replaces the default tables; may be repeated",
    )
    parser.add_argument(
        "--plot",
        action="append",
        metavar="KEY=VALUE,...",
        help="x=, y=, series=, panel=, through=, log_x, log_y, pool=, where.COLUMN=, title=;"
        " replaces the default plots; may be repeated",
    )
    parser.add_argument(
        "--curves",
        action="append",
        metavar="KEY=VALUE,...",
        help="series=, panel=, where.COLUMN=, title=; replaces the default learning curves; may"
        " be repeated",
    )
    parser.add_argument(
        "--into",
        type=partial(local_path, what="the page is"),
        metavar="PAGE.md",
        help=f"also write the Markdown into a page, between the lines {_START} and {_END};"
        " <!-- report: TITLE --> stands for one table or plot",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.report.requests import (
        CurvesRequest,
        PlotRequest,
        ReportRequest,
        TableRequest,
        parse_requests,
    )

    if overrides:
        raise ConfigError(
            f"--config.{overrides[0]}",
            "no --config arguments: a report reads the configs of its runs",
            "remove it",
        )
    request = ReportRequest(
        title=args.title,
        tables=parse_requests(args.table, TableRequest, "--table"),
        plots=parse_requests(args.plot, PlotRequest, "--plot"),
        curves=parse_requests(args.curves, CurvesRequest, "--curves"),
    )
    _report(args, request)
    return 0


def _read_page(path: Path) -> str | None:
    """Returns a page, whose bytes need not be UTF-8; None: there is none."""
    if not path.is_file():
        return None
    return path.read_text(encoding="utf-8", errors="surrogateescape")


def check_markers(path: Path, start: str = _START, end: str = _END) -> None:
    """Raises ConfigError unless a page exists and contains both markers in this order."""
    page = _read_page(path)
    if page is None or end not in page.partition(start)[2]:
        got = "is not a file" if page is None else "has no place for a report"
        raise ConfigError(
            f"--into={path} {got}",
            f"a page with the lines {start} and {end}",
            "add these two lines",
        )


def replace_between_markers(path: Path, text: str, start: str = _START, end: str = _END) -> None:
    """Puts text between the markers of a page."""
    before, _, rest = (_read_page(path) or "").partition(start)
    page = f"{before}{start}\n\n{text}\n{end}{rest.partition(end)[2]}"
    write_atomically(path.resolve(), page.encode(errors="surrogateescape"))


def _markers(path: Path) -> list[tuple[str, str | None]]:
    """Returns (start, title of one table or plot, or None: everything) of each place of a page."""
    found = re.findall(r"<!-- report: .+ -->", _read_page(path) or "")
    for start in found or [_START]:
        check_markers(path, start)
    titled = [(start, start[len("<!-- report: ") : -len(" -->")]) for start in found]
    return titled or [(_START, None)]


def _report(args: argparse.Namespace, request: "ReportRequest") -> None:
    from vit_jax.report.content import make_report
    from vit_jax.report.latex import tables_tex
    from vit_jax.report.page import html_page
    from vit_jax.report.runs import read_runs
    from vit_jax.report.tables import scores_csv

    markers = [] if args.into is None else _markers(args.into)
    folder = (args.output or args.folders[0] / "report").expanduser()
    if args.output is not None or args.folders[0].is_dir():
        check_output_folder(folder)
    found = read_runs(args.folders)
    try:
        with write_through(folder) as local:
            content = make_report(found, request, local)
            for name, frame in (("runs", content.csv), ("tables", scores_csv(content.scores))):
                _write(local / f"{name}.csv", frame.to_csv(index=False, lineterminator="\r\n"))
            _write(local / "tables.tex", tables_tex(content.scores))
            _write(local / "report.html", html_page(content, folder))
            parts = [f"# {content.title}", content.question, content.markdown(Path())]
            _write(local / "report.md", "\n\n".join(part for part in parts if part))
        if args.into is not None:
            in_bucket = isinstance(folder, BucketPath)
            start = folder if in_bucket else Path(os.path.relpath(folder, args.into.parent))
            for marker, title in markers:
                text = hide_private(content.markdown(start, title))
                replace_between_markers(args.into, text, marker)
    except OSError as error:
        raise RunFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}",
            "a writable folder with free space",
            "choose another --output",
        ) from None
    _print_tables(content.scores)
    print(content.summary)
    pictures = f"{len(content.pictures)} picture{'s' * (len(content.pictures) != 1)}"
    files = "report.md, runs.csv, tables.csv, tables.tex"
    print(f"{folder / 'report.html'}, {files} and {pictures} in the same folder")


def _write(path: Path, text: str) -> None:
    """Writes a file of the report, which may be published."""
    write_atomically(path, hide_private(text))


def _print_tables(tables: "list[Table]") -> None:
    from rich.console import Console

    console = Console()
    for table in tables:
        shown, left_out = _fit(table, console)
        if shown is not None:
            console.print(shown)
        if left_out:
            print(f"{table.title}: {left_out} more columns are in report.md\n")


def _fit(table: "Table", console: "Console") -> "tuple[TerminalTable | None, int]":
    """Returns as many columns of a table as fit the terminal, and the number of other columns.

    None: the table has no data.
    """
    from rich.console import Console
    from rich.text import Text

    from vit_jax.evaluation.metric_kinds import kind_of
    from vit_jax.tables import plain_table

    for end in range(len(table.header), 1, -1):
        shown = plain_table(table.header[0], right=tuple(table.header[1:end]))
        unit = ", %" * (bool(table.metric) and kind_of(table.metric).is_fraction)
        shown.title, shown.title_justify = table.title + unit, "left"
        for row in table.rows:
            shown.add_row(*(Text(c.text, "bold" if "best" in c.kind else "") for c in row[:end]))
        fits = Console(width=10_000).measure(shown).maximum <= console.width
        if end == 2 and not fits:  # The first column of data is always shown.
            shown.columns[0].no_wrap, shown.columns[0].overflow = False, "fold"
        if end == 2 or fits:
            return shown, len(table.header) - end
    return None, 0
