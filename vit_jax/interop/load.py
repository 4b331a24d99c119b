"""Models from published weights: the format and the architecture are read off the file."""

import dataclasses
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import WeightsError
from vit_jax.interop.fit import Target, fit
from vit_jax.interop.locate import local_path
from vit_jax.interop.normalization import OURS, Normalization, checked, fold
from vit_jax.interop.opening import open_published
from vit_jax.interop.published import EvalView, Published
from vit_jax.interop.report import LoadReport, Status
from vit_jax.interop.resample import Grid, Method
from vit_jax.interop.rows import read_row
from vit_jax.interop.tensors import TensorFile, to_jax
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, model_options, resolve
from vit_jax.models.resnet import ResNet
from vit_jax.models.vit import ViT, ViTShape
from vit_jax.named_tree import leaf_names, named_leaves

M = TypeVar("M", bound=nnx.Module)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with the weights of a file.

    Attributes:
        model: ready to be called.
        options: its model section.
        num_classes: C; 0: features instead of logits.
        image_size: (height, width).
        class_names: of the classes, where the file has them and its head was kept.
        view: what of an image the file's makers evaluated on.
        report: what became of every tensor.
    """

    model: ViT | ResNet
    options: ModelConfig
    num_classes: int
    image_size: tuple[int, int]
    class_names: tuple[str, ...] | None
    view: EvalView
    report: LoadReport


def load_pretrained(path: str | Path, **arguments: Any) -> ViT | ResNet:
    """Makes a model from published weights and prints the report; arguments as of `read_weights`.

    >>> load_pretrained("B_16.npz", image_size=384)  # doctest: +SKIP
    """
    loaded = load(path, **arguments)
    loaded.report.print()
    return loaded.model


def load(path: str | Path, *, seed: int = 0, **arguments: Any) -> Loaded:
    """Makes a model from published weights.

    Args:
        path: see `read_weights`.
        seed: of parameters that the file does not give.
        **arguments: of `read_weights`.

    Raises:
        WeightsError: a file that cannot be read, understood or made to fit.
        ModelError, ConfigError: options that do not go together.
    """
    start = time.monotonic()
    found = read_weights(path, **arguments)
    config, num_classes, size = found.options, found.num_classes, found.image_size
    # One at a time, so that an array that has to be copied is not there twice.
    arrays = {name: to_jax(found.arrays.pop(name)) for name in list(found.arrays)}
    arrays.update(_fresh(config, num_classes, size, seed, found.lacking))
    model = filled(found.model, arrays.__getitem__)
    found.report.seconds = time.monotonic() - start
    return Loaded(
        model, config, num_classes, size, found.class_names, found.view, found.report
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Weights:
    """The parameters of a file as a model wants them, in the host's memory.

    Attributes:
        arrays: parameter name -> f32 array.
        lacking: names of the model's parameters that the file does not give.
        model: the model without values.
        options, num_classes, image_size, class_names, view, report: as in `Loaded`.
    """

    arrays: dict[str, np.ndarray]
    lacking: tuple[str, ...]
    model: ViT | ResNet
    options: ModelConfig
    num_classes: int
    image_size: tuple[int, int]
    class_names: tuple[str, ...] | None
    view: EvalView
    report: LoadReport


def read_weights(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    num_classes: int | None = None,
    keep_head: bool | None = None,
    grid: Grid | None = None,
    position_resize: Method = "zoom",
    normalization: Normalization | None = None,
    allow_missing: Sequence[str] = (),
    allow_unexpected: Sequence[str] = (),
    **options: Any,
) -> Weights:
    """Reads published weights for a model; no device is used.

    Args:
        path: npz, safetensors, a folder of transformers or timm, a run folder of ours; local,
            `hf://` or `gs://`.
        image_size: side, or (height, width), in pixels; another than the file's resamples the
            position table.
        patch_size: another than the file's resamples the patch embedding (FlexiViT).
        num_classes: of the head; None: as in the file; 0: none, features come out.
        keep_head: None: the file's head is kept if it has `num_classes`; False: a new one that
            starts at zero, without the tanh layer before it; True: an error if it cannot be kept.
        grid: (rows, columns) of the file's position table; None: as stored, or square.
        position_resize: how to resample the table, see `resample.resample_table`.
        normalization: mean and standard deviation, a value a channel, that the weights expect of
            images in [0, 1]; None: as the file's config.json says, else 0.5 and 0.5. Others are
            folded into the patch embedding: the model takes images in [-1, 1] like all models here.
        allow_missing: regular expressions over whole parameter names that the file may lack; they
            start as in a new model.
        allow_unexpected: regular expressions over whole names of tensors that may go unused.
        **options: keys of the model section that the file does not tell or that you want otherwise.

    Raises:
        WeightsError: a file that cannot be read, understood or made to fit.
        ModelError, ConfigError: options that do not go together.
    """
    start = time.monotonic()
    allow_missing, allow_unexpected = _patterns(allow_missing), _patterns(allow_unexpected)
    _check_method(position_resize)
    given = {"grid": grid, **options}
    file, published = open_published(local_path(path), {k: v for k, v in given.items() if v})
    keeps_head = _keeps_head(published, num_classes, keep_head)
    if num_classes is None:
        num_classes = published.num_classes
    config = _wanted(published, options, keeps_head, patch_size)
    size = _size(image_size, published)
    model, shapes = _abstract(config, num_classes, size)
    source, own = _abstract_source(published, size)
    target = Target(
        shapes,
        old_grid=getattr(source, "grid", None),
        new_grid=getattr(model, "grid", None),
        method=position_resize,
    )
    report = LoadReport(str(path), published.format, config.name, file.size_bytes)
    arrays = _take(file, published, own, target, keeps_head, report)
    _check_missing(report, shapes, arrays, allow_missing, keeps_head)
    try:
        report.check(allow_unexpected)
    except WeightsError:
        report.print()
        raise
    normalization = checked(normalization) if normalization else published.normalization
    if normalization not in (None, OURS):
        arrays = fold(arrays, normalization)
        report.normalization = normalization
    report.seconds = time.monotonic() - start
    lacking = tuple(name for name in shapes if name not in arrays)
    names = published.class_names if keeps_head else None
    return Weights(
        arrays, lacking, model, config, num_classes, size, names, published.view, report
    )  # fmt: skip


def _keeps_head(published: Published, num_classes: int | None, keep_head: bool | None) -> bool:
    fits = published.num_classes > 0 and num_classes in (None, published.num_classes)
    # Features of a model without classes, its tanh layer included.
    fits = fits or (published.num_classes == 0 and not num_classes)
    if keep_head and not fits:
        raise WeightsError(
            f"keep_head with num_classes {num_classes} and a head of {published.num_classes}",
            "the same number", "leave num_classes or keep_head out",
        )  # fmt: skip
    return fits if keep_head is None else keep_head


def _wanted(
    published: Published, options: Mapping[str, Any], keeps_head: bool, patch_size: int | None
) -> ModelConfig:
    """Returns the model section of the file as the caller wants it."""
    wanted = {**published.options, **options}
    if not keeps_head and "representation_size" not in options:
        wanted.pop("representation_size", None)
    if patch_size is not None:
        wanted["name"] = _with_patch(wanted["name"], patch_size)
    return model_options(**wanted)


def _check_method(method: str) -> None:
    known = get_args(Method)
    if method not in known:
        raise WeightsError(
            f"position_resize {method!r}", f"one of {', '.join(known)}", "correct it"
        )  # fmt: skip


def filled(model: M, read: Callable[[str], jax.Array]) -> M:
    """Returns a model without values with parameters.

    Args:
        model: its shapes.
        read: name of a parameter -> its value.
    """
    graphdef, state = nnx.split(model)
    pure = nnx.to_pure_dict(state)
    leaves = [read(name) for name in leaf_names(pure)]
    return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(pure), leaves))


def _with_patch(name: str, patch_size: int) -> str:
    if not re.fullmatch(r"ViT-[^+]+/\d+", name):
        raise WeightsError(
            f"patch_size {patch_size} for {name}", "a ViT, whose patches are cut from the image",
            "leave it out",
        )  # fmt: skip
    return f"{name.rsplit('/', 1)[0]}/{patch_size}"


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise WeightsError(
                f"pattern {pattern!r} ({error})", "a regular expression", "e.g. head/.*"
            ) from None
    return patterns


def _size(image_size: int | tuple[int, int] | None, published: Published) -> tuple[int, int]:
    size = published.image_size if image_size is None else image_size
    if size is None:
        raise WeightsError(
            f"a {published.format} file without a position table, which would tell the image size",
            "the image size in pixels", "give image_size=",
        )  # fmt: skip
    sides = tuple(size) if isinstance(size, Sequence) else (size, size)
    whole = all(isinstance(side, int | np.integer) and side > 0 for side in sides)
    if len(sides) != 2 or not whole:
        raise WeightsError(
            f"image_size {image_size!r}", "a side, or (height, width), in pixels", "correct it"
        )
    return int(sides[0]), int(sides[1])


def _abstract_source(
    published: Published, size: tuple[int, int]
) -> tuple[ViT | ResNet, dict[str, tuple[int, ...]]]:
    """Returns the model of the file, without values, and the shapes of its parameters by name."""
    config = model_options(**published.options)
    shape = resolve(config)
    if published.image_size is not None:
        size = published.image_size
    elif isinstance(shape, ViTShape):  # No parameter depends on it.
        size = (shape.stride, shape.stride)
    return _abstract(config, published.num_classes, size)


def _abstract(
    config: ModelConfig, num_classes: int, size: tuple[int, int]
) -> tuple[ViT | ResNet, dict[str, tuple[int, ...]]]:
    """Returns a model without values, and the shapes of its parameters by name."""
    key = jax.random.key(0)
    model = nnx.eval_shape(
        lambda: build_model(config, num_classes=num_classes, image_size=size, key=key)
    )
    state = nnx.to_pure_dict(nnx.state(model))
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves(state)]
    return model, dict(zip(leaf_names(state), shapes, strict=True))


def _take(
    file: TensorFile,
    published: Published,
    own: Mapping[str, tuple[int, ...]],
    target: Target,
    keeps_head: bool,
    report: LoadReport,
) -> dict[str, np.ndarray]:
    """Reads every row that the file can fill; returns our parameters and fills the report."""
    arrays: dict[str, np.ndarray] = {}
    used: set[str] = set()
    own_task = "|".join(published.of_pretraining)
    for row in published.rows:
        if own_task and re.fullmatch(own_task, row.ours[0]):
            used |= set(row.theirs)
            report.add(Status.LEFT_OUT, *row.ours)
            continue
        if not set(row.ours) <= own.keys():
            continue
        layers = own[row.ours[0]][0] if row.layered else 1
        names = {name for layer in range(layers) for name in row.names(layer)}
        if not names <= file.shapes.keys():
            continue
        used |= names
        if row.ours[0].startswith("head/") and not keeps_head:
            report.add(Status.LEFT_OUT, *row.ours)
            continue
        table = row.ours[0].endswith("position_embedding/table")
        shapes = [file.shapes[row.theirs[0]] if table else own[name] for name in row.ours]
        for name, array in zip(row.ours, read_row(row, file, shapes), strict=True):
            if name not in target.shapes:
                report.add(Status.UNEXPECTED, name)
                continue
            fitted = fit(name, array, target)
            status = Status.TAKEN if fitted is array else Status.RESIZED
            report.add(status, name, detail=f"{array.shape} -> {fitted.shape}")
            arrays[name] = fitted
    unused = "|".join(published.unused)
    left = [n for n in file.shapes if n not in used and not (unused and re.fullmatch(unused, n))]
    report.add(Status.UNEXPECTED, *sorted(left))
    return arrays


def _check_missing(
    report: LoadReport,
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Any],
    allow_missing: Sequence[str],
    keeps_head: bool,
) -> None:
    for name in shapes:
        if name in arrays:
            continue
        new_head = name.startswith("head/") and not keeps_head
        allowed = any(re.fullmatch(pattern, name) for pattern in allow_missing)
        report.add(Status.REINITIALISED if new_head or allowed else Status.MISSING, name)


def _fresh(
    config: ModelConfig, num_classes: int, size: tuple[int, int], seed: int, names: Sequence[str]
) -> dict[str, jax.Array]:
    """Returns parameters by name as a new model has them."""
    if not names:
        return {}

    @jax.jit
    def init(key):
        model = build_model(config, num_classes=num_classes, image_size=size, key=key)
        state = nnx.to_pure_dict(nnx.state(model))
        leaves = named_leaves(state)
        return {name: leaves[name] for name in names}

    return init(jax.random.key(seed))
