"""Learning curves of one run, which `train` draws. It does not need pandas."""

from pathlib import Path

from vit_jax.report.labels import short_number
from vit_jax.report.style import DPI, Palette, add_legend, new_figure, plot_style, start_at_zero
from vit_jax.run.metrics import read_metrics, split_of
from vit_jax.storage.files import write_through


def draw_curves(workdir: Path) -> Path:
    """Draws loss, accuracy and learning rate of a run into report/curves.png; returns its path."""
    rows, palette = read_metrics(workdir / "metrics.jsonl"), Palette()
    names = sorted({name for row in rows for name in row if name.startswith("eval/")})
    panels = {
        "loss": ["train/loss", *(name for name in names if name.endswith("/loss"))],
        "top-1 accuracy": [name for name in names if name.endswith("/accuracy_top1")],
        "learning rate": ["train/learning_rate"],
    }
    splits = {name: split_of(name) or "train" for lines in panels.values() for name in lines}
    palette.add("split", ["train"])
    palette.add("split", splits.values())
    with plot_style():
        figure, axes = new_figure(1, 3, width=4, height=3.3)
        for panel, (title, lines) in zip(axes[0], panels.items(), strict=True):
            for name in lines:
                style = palette.style("split", splits[name]) | {"markersize": 4}
                style |= {} if name.startswith("eval/") else {"marker": None}
                points = [(row["step"], row[name]) for row in rows if name in row]
                panel.plot(
                    [x for x, _ in points], [y for _, y in points], markeredgewidth=0, **style
                )
            if not lines:
                panel.text(0.5, 0.5, "not evaluated", ha="center", transform=panel.transAxes)
            panel.set(title=title, xlabel="step")
            panel.xaxis.set_major_formatter(short_number)
            if title == "top-1 accuracy":
                panel.set_ylim(None, 1)
            else:
                start_at_zero(panel)
        add_legend(figure, {line.get_label(): line for line in axes[0][0].lines}, side="right")
        figure.suptitle(workdir.name, fontweight="bold", x=0.01, ha="left")
        path = workdir / "report" / "curves.png"
        path.parent.mkdir(exist_ok=True)
        with write_through(path) as picture:
            figure.savefig(picture, dpi=DPI)
    return path
