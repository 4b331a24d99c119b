"""Accuracy of position embeddings on images of other sizes and at other places.

    python -m experiments.position_embeddings.elsewhere runs/positions --data_dir=DATA
        [--output=experiments/position_embeddings/results]
        [--into=experiments/position_embeddings/README.md]

Reads the finished runs of sweep.py:small and evaluates each on the same test images, without
training: resized to 48 and 64 pixels, moved by 8 pixels within the image, with the same pixels cut
but not moved, and at a random place of a grey canvas of 48 pixels. The difference between moved and
cut images is the effect of the place alone. Position embeddings are resized as for fine-tuning.
Differences are those from 1-D embeddings at the stem, paired by seed and image, with 95 % intervals
over seeds and images. --output keeps the accuracies, which can be given in place of the folder.

Cost: 40 s of a core for each of 96 runs.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from flax import nnx
from PIL import Image
from scipy import stats

from vit_jax.analysis.images import Images, read_source
from vit_jax.commands.report import check_markers, replace_between_markers
from vit_jax.config.data import DataConfig
from vit_jax.data.preprocess import Preprocess
from vit_jax.data.sources.open import open_source
from vit_jax.errors import ConfigError, UserError
from vit_jax.interop.load import load_pretrained
from vit_jax.report.labels import markdown_table
from vit_jax.report.runs import read_runs

_IMAGES, _SIDE, _MOVED, _BATCH = 4_000, 32, 8, 100
_GREY = 127
_REFERENCE = ("1-D", "stem")
_MARKERS = ("<!-- elsewhere -->", "<!-- end of elsewhere -->")

# u8[M, 32, 32, 3] -> u8[M, S, S, 3].
View = Callable[[np.ndarray], np.ndarray]


def resized(side: int) -> View:
    """Returns a view: images resized to `side` pixels with a bilinear filter."""

    def view(pixels: np.ndarray) -> np.ndarray:
        size, bilinear = (side, side), Image.Resampling.BILINEAR
        return np.stack([np.asarray(Image.fromarray(x).resize(size, bilinear)) for x in pixels])

    return view


def moved(pixels: np.ndarray) -> np.ndarray:
    """Returns images moved down and to the right by 8 pixels; what was not seen is grey."""
    out = np.full_like(pixels, _GREY)
    out[:, _MOVED:, _MOVED:] = pixels[:, :-_MOVED, :-_MOVED]
    return out


def cut(pixels: np.ndarray) -> np.ndarray:
    """Returns images that keep their place, and have only those pixels that `moved` keeps."""
    out = np.full_like(pixels, _GREY)
    out[:, :-_MOVED, :-_MOVED] = pixels[:, :-_MOVED, :-_MOVED]
    return out


def on_canvas(pixels: np.ndarray, side: int = 48) -> np.ndarray:
    """Returns each image at a random place of a grey canvas; the same places in each call."""
    random = np.random.default_rng(0)
    out = np.full((len(pixels), side, side, 3), _GREY, np.uint8)
    places = random.integers(0, side - pixels.shape[1] + 1, (len(pixels), 2))
    for canvas, image, (top, left) in zip(out, pixels, places, strict=True):
        canvas[top : top + len(image), left : left + len(image)] = image
    return out


VIEWS: dict[str, View] = {
    "32 px": lambda pixels: pixels,
    "48 px": resized(48),
    "64 px": resized(64),
    "cut 8 px": cut,
    "moved 8 px": moved,
    "canvas 48 px": on_canvas,
}


@nnx.jit
def _predict(model: nnx.Module, images: jax.Array) -> jax.Array:
    return jnp.argmax(model(images), axis=-1)


def correct(model: nnx.Module, pixels: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Returns bool[M], whether a model predicts the class of u8 images of its size."""
    found = []
    for start in range(0, len(pixels), _BATCH):
        images = pixels[start : start + _BATCH].astype(np.float32) / np.float32(127.5) - 1
        found.append(np.asarray(_predict(model, jnp.asarray(images))))
    return np.concatenate(found) == labels


def read_test_images(data_dir: Path | None) -> Images:
    """Returns the test images of CIFAR-10 that all runs are evaluated on.

    Args:
        data_dir: folder of TFDS; None: TFDS_DATA_DIR or its default.
    """
    data = DataConfig(name="cifar10", data_dir=str(data_dir) if data_dir else None)
    source = open_source(data, "test")
    return read_source(source, "test", _IMAGES, Preprocess((_SIDE, _SIDE), "resize").pixels)


def evaluate_runs(folder: Path, images: Images) -> pd.DataFrame:
    """Evaluates all finished runs of the sweep in each view.

    Returns:
        Columns position, placement, seed, view, accuracy, image_error: see `with_image_errors`.

    Raises:
        ConfigError: there are no such runs.
    """
    runs = [run for run in read_runs([folder]).runs if run.state == "finished"]
    runs = [run for run in runs if "position" in run.labels]
    if not runs:
        raise ConfigError(
            f"{folder} has no finished runs with a position embedding",
            "the --workdir of the sweep position_embeddings/sweep.py",
            "check the path, or let more jobs finish",
        )
    assert images.labels is not None
    views = {name: view(images.pixels) for name, view in VIEWS.items()}
    rows = []
    for run in runs:
        sides = {pixels.shape[1] for pixels in views.values()}
        models = {side: load_pretrained(run.path, image_size=side) for side in sides}
        for name, pixels in views.items():
            right = correct(models[pixels.shape[1]], pixels, images.labels)
            labels = {key: run.labels[key] for key in ("position", "placement")}
            rows.append({**labels, "seed": run.seed, "view": name, "correct": right})
    return with_image_errors(pd.DataFrame(rows))


def with_image_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Replaces the column correct, bool[M] of each run, by two columns.

    accuracy is its mean. image_error is the same for all seeds of a kind and view: the standard
    error over images of the difference from the reference, which is the mean over seeds that both
    have. It is 0 for the reference.
    """
    right = rows.set_index(["position", "placement", "view", "seed"])["correct"].to_dict()
    errors = []
    for *kind, view in rows[["position", "placement", "view"]].to_numpy():
        pairs = [
            right[*kind, view, seed].astype(float) - right[*_REFERENCE, view, seed]
            for seed in rows["seed"].unique()
            if (*kind, view, seed) in right and (*_REFERENCE, view, seed) in right
        ]
        if pairs:
            difference = np.mean(pairs, axis=0)
            errors.append(difference.std(ddof=1) / np.sqrt(len(difference)))
        else:
            errors.append(np.nan)
    accuracy = rows["correct"].map(np.mean)
    return rows.drop(columns="correct").assign(accuracy=accuracy, image_error=errors)


def accuracy_table(rows: pd.DataFrame) -> str:
    """Returns mean accuracies, and differences from the reference with 95 %, as Markdown."""
    kinds = rows.groupby(["position", "placement"], sort=False)
    reference = dict(iter(kinds))[_REFERENCE].set_index(["view", "seed"])["accuracy"]
    lines = []
    for (position, placement), group in kinds:
        cells = []
        for view in VIEWS:
            of_view = group[group["view"] == view]
            scores = of_view.set_index(["view", "seed"])["accuracy"]
            mean = f"{100 * scores.mean():.1f}"
            is_reference = (position, placement) == _REFERENCE
            shown = _shown(scores - reference, float(of_view["image_error"].iloc[0]))
            cells.append(mean if is_reference else f"{mean} ({shown})")
        lines.append([str(position), str(placement), *cells])
    return markdown_table(["position", "placement", *VIEWS], lines)


def _shown(differences: pd.Series, image_error: float) -> str:
    """Returns the mean difference in points and its interval: t over seeds, normal over images."""
    points = 100 * differences.dropna().to_numpy()
    if len(points) < 2:
        return "one seed"
    seeds = stats.t.ppf(0.975, len(points) - 1) * points.std(ddof=1) / np.sqrt(len(points))
    half = np.hypot(seeds, stats.norm.ppf(0.975) * 100 * image_error)
    return f"{points.mean():+.1f} [{points.mean() - half:+.1f}, {points.mean() + half:+.1f}]"


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table and, with --into, writes it into a page."""
    parser = argparse.ArgumentParser(description="Position embeddings on other images")
    parser.add_argument("folder", type=Path, help="folder of the sweep, or elsewhere.csv")
    parser.add_argument("--data_dir", type=Path, help="folder of cifar10")
    parser.add_argument("--output", type=Path, help="folder for elsewhere.csv")
    parser.add_argument("--into", type=Path, help="page with the two markers for the table")
    args = parser.parse_args(arguments)
    try:
        if args.into is not None:
            check_markers(args.into, *_MARKERS)
        if args.folder.suffix == ".csv":
            rows = pd.read_csv(args.folder)
        else:
            rows = evaluate_runs(args.folder, read_test_images(args.data_dir))
    except UserError as error:
        parser.exit(2, f"error: {error}\n")
    text = accuracy_table(rows)
    print(text)
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        rows.to_csv(args.output / "elsewhere.csv", index=False)
    if args.into is not None:
        replace_between_markers(args.into, text + "\n", *_MARKERS)


if __name__ == "__main__":
    main()
