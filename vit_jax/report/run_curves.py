"""Learning curves of one run, which `train` draws. It does not need pandas."""

from pathlib import Path

from vit_jax.report.chart import Drawing, Panel, Trace
from vit_jax.report.drawing import DPI, draw, plot_style
from vit_jax.report.style import Palette
from vit_jax.run.metrics import read_metrics, split_of
from vit_jax.storage.files import write_through


def draw_curves(workdir: Path, *, mixed: bool = False) -> Path:
    """Draws loss, accuracy and learning rate of a run into report/curves.png; returns its path.

    `mixed`: the legend says that training images were mixed, which makes their loss larger.
    """
    rows, palette = read_metrics(workdir / "metrics.jsonl"), Palette()
    names = sorted({name for row in rows for name in row if name.startswith("eval/")})
    panels = {
        "loss": ["train/loss", *(name for name in names if name.endswith("/loss"))],
        "top-1 accuracy": [name for name in names if name.endswith("/accuracy_top1")],
        "learning rate": ["train/learning_rate"],
    }
    train = "train (mixed images)" if mixed else "train"
    splits = {name: split_of(name) or train for lines in panels.values() for name in lines}
    palette.add("split", [train])
    palette.add("split", splits.values())
    shown = []
    for title, lines in panels.items():
        traces = []
        for name in lines:
            style = palette.style("split", splits[name])
            style |= {} if name.startswith("eval/") else {"marker": None}
            points = [(row["step"], row[name]) for row in rows if name in row]
            xs, ys = zip(*points, strict=True) if points else ((), ())
            traces.append(Trace(splits[name], style, "curve", xs, ys))
        if traces:
            shown.append(Panel(title, "step", "", traces, from_zero=title != "top-1 accuracy"))
    figure = draw(Drawing("", [], shown, columns=3, panel_size=(4, 3.3)))
    for axes in figure.axes:  # All panels alike, also that of a single evaluation.
        axes.set_xlim(0, 1.03 * max((row["step"] for row in rows), default=1))
    path = workdir / "report" / "curves.png"
    path.parent.mkdir(exist_ok=True)
    with plot_style(), write_through(path) as picture:
        figure.savefig(picture, dpi=DPI)
    return path
