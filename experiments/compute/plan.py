"""Compares the pretraining exaFLOPs of every row of Table 6: computed here, and in the paper.

    python -m experiments.compute.plan             # prints the table
    python -m experiments.compute.plan --write     # also writes plan.csv and plan.md beside it

Run it in the root of the repository. Figures are computed from the configs of
experiments/compute/sweep.py:paper: FLOPs per image (head included) x images of JFT-303M x epochs.
"""

import argparse
import csv
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from vit_jax.config.file import load_config
from vit_jax.data.dataset_sizes import known_size
from vit_jax.models.flops import forward_macs, training_flops
from vit_jax.report.labels import family, markdown_table
from vit_jax.sweep import Job
from vit_jax.sweep.plan import override_texts
from vit_jax.sweep.sweep_file import read_sweep
from vit_jax.tables import plain_table

HERE = Path(__file__).parent
# (model, epochs) -> exaFLOPs of pretraining. Source: arXiv:2010.11929, Table 6.
TABLE_6 = {
    ("ViT-B/32", 7): 55,
    ("ViT-B/16", 7): 224,
    ("ViT-L/32", 7): 196,
    ("ViT-L/16", 7): 783,
    ("ViT-L/16", 14): 1567,
    ("ViT-H/14", 14): 4262,
    ("BiT-R50x1", 7): 50,
    ("BiT-R50x2", 7): 199,
    ("BiT-R101x1", 7): 96,
    ("BiT-R152x1", 7): 141,
    ("BiT-R152x2", 7): 563,
    ("BiT-R152x2", 14): 1126,
    ("BiT-R200x3", 14): 3306,
    ("R50+ViT-B/32", 7): 106,
    ("R50+ViT-B/16", 7): 274,
    ("R50+ViT-L/32", 7): 246,
    ("R50+ViT-L/16", 7): 859,
    ("R50+ViT-L/16", 14): 1668,
}


class Row(NamedTuple):
    """A planned pretraining; GMACs are per image, exaFLOPs for the whole run."""

    model: str
    family: str
    epochs: int
    gmacs: float
    exaflops: float
    paper: int

    @property
    def difference(self) -> float:
        """The plan's exaFLOPs relative to the paper's, minus one."""
        return self.exaflops / self.paper - 1

    def texts(self) -> list[str]:
        """Returns the cells of its row."""
        return [
            self.model,
            str(self.epochs),
            f"{self.gmacs:.2f}",
            f"{self.exaflops:,.1f}",
            f"{self.paper:,}",
            f"{self.difference:+.1%}",
        ]


NAMES = ("model", "epochs", "GMACs", "exaFLOPs", "Table 6", "difference")


def planned() -> list[Row]:
    """Returns the rows, in the order of the sweep."""
    rows = []
    for job in read_sweep(str(HERE / "sweep.py") + ":paper").entries:
        if not isinstance(job, Job):
            continue
        config = load_config(str(job.config), override_texts(job.overrides))
        classes, examples = known_size(config.data)
        epochs, side = config.train_epochs, config.data.image_size
        assert None not in (classes, examples, epochs), "the data are jft's, the lengths epochs"
        macs = forward_macs(config.model, num_classes=classes, image_size=(side, side))
        name, count = config.model.name, round(epochs)
        exaflops = training_flops(macs) * examples * epochs / 1e18
        rows.append(Row(name, str(family(name)), count, macs / 1e9, exaflops, TABLE_6[name, count]))
    return rows


def main() -> None:
    """Prints the table and, with --write, saves it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="write plan.csv and plan.md")
    write, rows = parser.parse_args().write, planned()
    table = plain_table(NAMES[0], right=NAMES[1:])
    for row in rows:
        table.add_row(*row.texts())
    Console().print(table)
    if write:
        with (HERE / "plan.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerows([Row._fields, *rows])
        texts = [row.texts() for row in rows]
        (HERE / "plan.md").write_text(markdown_table(NAMES, texts, right=True) + "\n")


if __name__ == "__main__":
    main()
