"""Prints plans.csv or another table of plans as in README.md.

python experiments/pod_plans/table.py [gpu_plans.csv]
"""

import csv
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
_COLUMNS = (
    "model", "recipe", "slice", "images a step", "mesh d, f, t", "remat", "GiB of", "step, ms",
    "MFU at most", "days at {0}", "chip-hours: at least, at {0}",
)  # fmt: skip


def table(name: str = "plans.csv") -> str:
    """Returns a table of plans in Markdown."""
    with (FOLDER / name).open(newline="") as file:
        rows = list(csv.DictReader(file))
    (mfu,) = {f"MFU {100 * float(row['assumed_mfu']):.0f} %" for row in rows}
    header = "| " + " | ".join(_COLUMNS).format(mfu) + " |"
    lines = [header, "| --- " * len(_COLUMNS) + "|"]
    return "\n".join([*lines, *map(_line, rows)]) + "\n"


def _line(row: dict[str, str]) -> str:
    fits = "" if row["fits"] == "True" else ", does not fit"
    hours = float(row["chip_hours_at_assumed_mfu"])
    reachable = bool(row["mfu_at_most"]) and float(row["mfu_at_most"]) >= float(row["assumed_mfu"])
    parts = int(row["accumulation_steps"])
    least = f"{float(row['chip_hours_at_least']):,.0f}" if row["chip_hours_at_least"] else "-"
    cells = (
        row["model"],
        f"`{row['recipe'].removeprefix('configs/')}`",
        row["topology"],
        f"{int(row['global_batch_size']):,}",
        f"{row['mesh_data']}, {row['mesh_fsdp']}, {row['mesh_tensor']}",
        row["remat"] + (f", {parts} microbatches" if parts > 1 else ""),
        f"{float(row['memory_gib']):.2f} of {float(row['memory_of_chip_gib']):.2f}{fits}",
        f"{row['step_ms_overlapped'] or '-'} ({row['limited_by'] or '-'})",
        f"{float(row['mfu_at_most']):.0%}" if row["mfu_at_most"] else "-",
        f"{hours / int(row['devices']) / 24:,.1f}" if reachable else "-",
        f"{least}, {hours:,.0f}" if reachable else f"{least}, -",
    )
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(table(*sys.argv[1:]), end="")
