"""Make tables, plots and a page from run folders.

    python -m vit_jax report runs/quickstart
    python -m vit_jax report runs/sweep --output=runs/sweep/report
    python -m vit_jax report RUNS --table rows=model,columns=dataset,metric=eval/test/accuracy_top1
    python -m vit_jax report RUNS --plot x=pretrain_examples,y=eval/test/accuracy_top1,log_x
    python -m vit_jax report RUNS --curves panel=dataset,series=model

Folders are searched for runs. Nothing else is read: config.json, env.json, metrics.jsonl,
result.json and, in sweeps, job.json. Runs without a result are named, and count in no mean.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.errors import ConfigError, RunFolderError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from vit_jax.report.content import Content
    from vit_jax.report.requests import ReportRequest
    from vit_jax.report.tables import ReportTable

_FIELDS = """
fields: labels of the sweep; keys of config.json such as optimizer.learning_rate; final figures;
  name, stage, seed, family, device, revision, train_examples, examples_seen, train_exaflops,
  pretrain_examples, pretrain_exaflops (of the run that a run starts from). a+b joins two.
metrics: {word} in a name stands for any part and becomes a field:
  --plot 'x=shots,y=fewshot/{dataset}/{shots}_shot/accuracy_top1,panel=dataset,log_x'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.epilog = _FIELDS
    parser.add_argument("folders", nargs="+", type=Path, help="run folders, or folders of them")
    parser.add_argument(
        "--output", type=Path, help="folder for the files; default: report/ in the first folder"
    )
    parser.add_argument("--title", help="of the page")
    parser.add_argument(
        "--table", action="append", metavar="KEY=VALUE,...",
        help="metric=, rows=, columns=, where.FIELD=, title=; instead of those that suggest"
        " themselves; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--plot", action="append", metavar="KEY=VALUE,...",
        help="x=, y=, series=, panel=, through=, log_x, where.FIELD=, title=; likewise",
    )  # fmt: skip
    parser.add_argument(
        "--curves", action="append", metavar="KEY=VALUE,...",
        help="of learning: series=, panel=, where.FIELD=, title=; likewise",
    )  # fmt: skip
    parser.add_argument(
        "--into",
        type=Path,
        metavar="PAGE.md",
        help="also put the Markdown between the lines <!-- report --> and <!-- end of report -->",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    from vit_jax.report.requests import (
        CurvesRequest,
        PlotRequest,
        ReportRequest,
        TableRequest,
        parse_request,
    )

    if overrides:
        raise ConfigError(
            f"--config.{overrides[0]}", "no config: a report reads those of its runs",
            "leave it out",
        )  # fmt: skip
    tables, plots, curves = (
        tuple(parse_request(text, kind, option) for text in given or []) or None
        for given, kind, option in (
            (args.table, TableRequest, "--table"),
            (args.plot, PlotRequest, "--plot"),
            (args.curves, CurvesRequest, "--curves"),
        )
    )
    request = ReportRequest(args.title, None, tables, plots, curves)
    _make(args, request)
    return 0


def _make(args: argparse.Namespace, request: "ReportRequest") -> None:
    from vit_jax.report.content import gather
    from vit_jax.report.facts import run_rows
    from vit_jax.report.page import html_page
    from vit_jax.report.runs import find_runs
    from vit_jax.report.write import (
        check_marks,
        markdown,
        replace_between_marks,
        table_rows,
        write_csv,
    )

    if args.into is not None:
        check_marks(args.into)
    found = find_runs(args.folders)
    folder = (args.output or args.folders[0] / "report").expanduser()
    try:
        content = gather(found, request, folder)
        write_csv(run_rows(content.fields), folder / "runs.csv")
        write_csv(table_rows(content.tables), folder / "tables.csv")
        (folder / "report.html").write_text(html_page(content))
        parts = [f"# {content.title}", content.question, markdown(content, Path())]
        (folder / "report.md").write_text("\n\n".join(part for part in parts if part))
        if args.into is not None:
            there = Path(os.path.relpath(folder, args.into.parent))
            replace_between_marks(args.into, markdown(content, there))
    except OSError as error:
        raise RunFolderError(
            f"cannot write {error.filename or folder}: {error.strerror}",
            "a writable folder with free space", "choose another --output",
        ) from None  # fmt: skip
    _say(content, folder)


def _say(content: "Content", folder: Path) -> None:
    from rich.console import Console

    console = Console()
    for shown in content.tables:
        table, left_out = _fitting(shown, console)
        if table is not None:
            console.print(table)
        if left_out:
            print(f"{shown.title}: {left_out} more columns are in report.md\n")
    print(content.summary)
    print(f"{folder / 'report.html'}, report.md, runs.csv, tables.csv and "
          f"{len(content.plots) + len(content.curves)} pictures beside it")  # fmt: skip


def _fitting(shown: "ReportTable", console: "Console") -> tuple["Table | None", int]:
    """Returns as many columns of a table as the terminal has room for, and how many are left."""
    from rich.console import Console
    from rich.text import Text

    from vit_jax.tables import plain_table

    for count in range(len(shown.columns), 0, -1):
        columns = shown.columns[:count]
        table = plain_table(shown.corner, right=tuple(columns))
        table.title, table.title_justify = shown.title, "left"
        for row in shown.rows:
            cells = [(shown.text(row, c), shown.cells.get((row, c))) for c in columns]
            table.add_row(row, *(Text(t, "bold" if c and c.best else "") for t, c in cells))
        if Console(width=10_000).measure(table).maximum <= console.width:
            return table, len(shown.columns) - count
    return None, len(shown.columns)
