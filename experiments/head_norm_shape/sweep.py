"""Which head, norm placement and shape? Appendices D.2 and D.3 of the ViT paper, and more.

small   (default) ViT-Micro/4 on 20,000 images of CIFAR-10 at 32 pixels. Heads and norms: the
        learning rate of each is selected on a tenth of the training split, then two seeds on the
        test split. Shapes: around 4 layers, width 64, MLP 128, patch size 8, two seeds.
        TFDS_DATA_DIR holds cifar10
paper   arXiv:2010.11929 on JFT: D.3 and Figure 9 (ViT-B/16), D.2 and Figure 8 (around 8 layers,
        width 1024, MLP 2048, patch size 32), linear 5-shot on ImageNet every epoch. `jft` is your
        own dataset: see configs/pretrain.py

    TFDS_DATA_DIR=DATA python -m vit_jax sweep --sweep=experiments/head_norm_shape/sweep.py
        --workdir=runs/head_norm_shape --at_once=2
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from vit_jax.config.file import parse_arg
from vit_jax.sweep import Job, Selection, vary

# (head, norm) -> settings. The first two are from the paper, attention pooling (MAP) is from
# arXiv:2106.04560; flattening and post-LayerNorm are ours.
VARIANTS = {
    ("class token", "pre"): {"model.pooling": "token"},
    ("GAP", "pre"): {"model.pooling": "gap"},
    ("MAP", "pre"): {"model.pooling": "map"},
    ("flatten", "pre"): {"model.pooling": "flatten"},
    ("class token", "post"): {"model.pooling": "token", "model.norm_placement": "post"},
    # x + norm(f(x)), as in Swin V2. Not among the committed results.
}
SMALL_RATES = (1e-3, 2e-3, 4e-3)
SMALL_SEEDS = (0, 1)
SMALL_EXAMPLES = 20_000
# Figure 9: the class token uses 8e-4, average pooling needs 3e-4.
PAPER_RATES = (8e-4, 3e-4)


class Shape(NamedTuple):
    """Layers, width, hidden width of the MLP, patch size."""

    depth: int
    width: int
    mlp: int
    patch: int


SMALL_BASE = Shape(4, 64, 128, 8)
SMALL_SHAPES = {
    "depth": (Shape(2, 64, 128, 8), Shape(8, 64, 128, 8)),
    "width": (Shape(4, 32, 128, 8), Shape(4, 128, 128, 8)),
    "MLP": (Shape(4, 64, 256, 8), Shape(4, 64, 512, 8)),
    "patch size": (Shape(4, 64, 128, 16), Shape(4, 64, 128, 4)),
    "all": (Shape(2, 32, 64, 16), Shape(6, 96, 192, 4)),
}
# The paper names the base and depths up to 64; the other points on Figure 8's lines are ours. All
# patch sizes divide 224 pixels.
PAPER_BASE = Shape(8, 1024, 2048, 32)
PAPER_SHAPES = {
    "depth": tuple(PAPER_BASE._replace(depth=d) for d in (4, 16, 32, 64)),
    "width": tuple(PAPER_BASE._replace(width=d) for d in (512, 2048, 4096)),
    "MLP": tuple(PAPER_BASE._replace(mlp=m) for m in (1024, 4096, 8192, 16384)),
    "patch size": tuple(PAPER_BASE._replace(patch=p) for p in (56, 28, 16, 14)),
    "all": (Shape(4, 512, 1024, 56), Shape(12, 1536, 3072, 28), Shape(16, 2048, 4096, 16)),
}

_TEST = "eval/test/accuracy_top1"
_SHOTS = "fewshot/imagenet/5_shot/accuracy_top1"
# Least squares on frozen features, as in arXiv:2010.11929, section 4.1, with the settings of the
# authors' code: shots from the first 65,000 training images, L2 penalty 1,024.
_FEWSHOT = {
    "fewshot.datasets": {
        "imagenet": {
            "name": "imagenet2012",
            "train_split": "train[:65000]",
            "test_split": "validation",
        }
    },
    "fewshot.shots": [5],
    "fewshot.l2": 1024.0,
    "fewshot.interval_epochs": 1.0,
}


def get_sweep(arg: str = "") -> Iterator[Job | Selection]:
    """Returns the jobs; ARG is `small` (default) or `paper`."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    return _small() if scale == "small" else _paper()


def get_report(arg: str = "") -> dict[str, Any]:
    """Returns the tables and plots of the report."""
    scale = parse_arg(arg, scale=("small", "paper"))["scale"]
    metric = _TEST if scale == "small" else _SHOTS
    heads, shapes = {"study": "head and norm"}, {"study": "shape"}
    head = {"rows": "head+norm", "columns": "dataset"}
    series, reported = "head+norm", {"stage": "final"}
    if scale == "paper":
        head["columns"] = "learning_rate"
        series, reported = "head+norm+learning_rate", {}
    return {
        "title": "Head, normalisation, shape",
        "question": "Which design choices of a ViT matter, once each has its own learning rate?",
        "tables": [
            {"metric": metric, "title": "Head and norm", "where": heads, **head},
            {
                "metric": metric,
                "title": "Shape",
                "where": shapes,
                "rows": "scaled+shape",
                "columns": "dataset",
            },
        ],
        "plots": [
            {"x": "head+norm", "y": metric, "title": "Head and norm", "where": heads},
            {
                "x": "train_exaflops",
                "y": metric,
                "series": "scaled",
                "through": "base",
                "log_x": True,
                "title": "What is scaled",
                "where": shapes,
            },
        ],
        "curves": [
            {"series": series, "title": "Head and norm", "where": {**heads, **reported}},
            {"series": "scaled+shape", "title": "Shape", "where": {**shapes, **reported}},
        ],
    }


def _small() -> Iterator[Job | Selection]:
    recipe = "configs/cifar10_small.py:ViT-Micro/4"
    shared = {"train_examples": SMALL_EXAMPLES}
    held_out = {"data.train_split": "train[:90%]", "evaluation.splits": {"dev": "train[90%:]"}}
    for (head, norm), settings in VARIANTS.items():
        rates = vary("optimizer.learning_rate", SMALL_RATES)
        yield Selection(
            f"{head.replace(' ', '-')}/{norm}-norm",
            [(recipe, {**shared, **settings, **held_out, **rate}) for rate in rates],
            "eval/dev/accuracy_top1",
            seeds=SMALL_SEEDS,
            final_overrides={"data.train_split": "train", "evaluation.splits": {"test": "test"}},
            labels={"study": "head and norm", "head": head, "norm": norm, "dataset": "cifar10"},
        )
    for scaled, shape in _shapes(SMALL_BASE, SMALL_SHAPES):
        for seed in SMALL_SEEDS:
            yield Job(
                recipe,
                # Attention heads of 32 features.
                {**shared, **_settings(shape, 32), "seed": seed},
                name=f"shape/{_shape_name(scaled, shape)}/seed{seed}",
                labels=_shape_labels(scaled, shape) | {"dataset": "cifar10"},
                # The same as in the final runs of the heads.
                stage="final",
            )


def _paper() -> Iterator[Job]:
    for (head, norm), settings in VARIANTS.items():
        for rate in PAPER_RATES:
            yield Job(
                "configs/pretrain.py:jft,B/16",
                {**settings, "optimizer.learning_rate": rate, **_FEWSHOT},
                name=f"{head.replace(' ', '-')}/{norm}-norm/{rate:g}",
                labels={
                    "study": "head and norm",
                    "head": head,
                    "norm": norm,
                    "learning_rate": f"{rate:g}",
                },
            )
    for scaled, shape in _shapes(PAPER_BASE, PAPER_SHAPES):
        yield Job(
            # The model of Table 3 that is nearest in width and patch size.
            "configs/pretrain.py:jft,L/32",
            # Attention heads of 64 features; the layer before the head is as wide as the tokens.
            {**_settings(shape, 64), "model.representation_size": shape.width, **_FEWSHOT},
            name=f"shape/{_shape_name(scaled, shape)}",
            labels=_shape_labels(scaled, shape) | {"dataset": "imagenet"},
        )


def _shapes(base: Shape, scaled: dict[str, tuple[Shape, ...]]) -> Iterator[tuple[str, Shape]]:
    yield "base", base
    for name, shapes in scaled.items():
        yield from ((name, shape) for shape in shapes)


def _settings(shape: Shape, head_width: int) -> dict[str, Any]:
    """Returns the overrides for a shape."""
    size = "ViT-Ti" if head_width == 32 else "ViT-L"
    return {
        "model.name": f"{size}/{shape.patch}",
        "model.depth": shape.depth,
        "model.width": shape.width,
        "model.mlp_dim": shape.mlp,
        "model.num_heads": shape.width // head_width,
    }


def _shape_name(scaled: str, shape: Shape) -> str:
    return f"{scaled.replace(' ', '-')}/{'-'.join(map(str, shape))}"


def _shape_labels(scaled: str, shape: Shape) -> dict[str, str]:
    text = f"{shape.depth} layers, D {shape.width}, MLP {shape.mlp}, patch {shape.patch}"
    return {"study": "shape", "scaled": scaled, "shape": text}
