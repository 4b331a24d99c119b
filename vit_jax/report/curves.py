"""Learning curves of one run."""

from pathlib import Path
from typing import Any

from vit_jax.metrics import read_metrics


def draw_curves(workdir: Path) -> Path:
    """Draws loss, accuracy and learning rate against steps into report/curves.png.

    Args:
        workdir: run folder with a metrics.jsonl.

    Returns:
        The picture's path.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = read_metrics(workdir / "metrics.jsonl")
    figure, (loss, accuracy, rate) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")

    _plot(loss, rows, {"train/loss": "train"} | _eval_names(rows, "loss"))
    loss.set(title="loss", ylim=(0, None))
    _plot(accuracy, rows, _eval_names(rows, "accuracy_top1"))
    accuracy.set(title="top-1 accuracy", ylim=(None, 1))
    _plot(rate, rows, {"train/learning_rate": "learning rate"})
    rate.set(title="learning rate")
    figure.suptitle(workdir.name)

    path = workdir / "report" / "curves.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _eval_names(rows: list[dict[str, Any]], metric: str) -> dict[str, str]:
    """Returns metric name -> split, of the evaluations in a run."""
    names = sorted({name for row in rows for name in row if name.startswith("eval/")})
    return {n: n.split("/")[1] for n in names if n.endswith(f"/{metric}")}


def _plot(axes: Any, rows: list[dict[str, Any]], lines: dict[str, str]) -> None:
    for name, label in lines.items():
        points = [(row["step"], row[name]) for row in rows if name in row]
        marker = "o" if name.startswith("eval/") else None
        axes.plot(
            *zip(*points, strict=True), label=label, marker=marker, markersize=3, linewidth=1.4
        )
    axes.set_xlabel("step")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    if lines:
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "not evaluated", ha="center", transform=axes.transAxes)
