"""Builds models from published weights. Format and architecture are read from the file."""

import dataclasses
import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

import jax
import numpy as np
from flax import nnx

from vit_jax.config.fewshot import UNTRAINED
from vit_jax.errors import ARGUMENT, WeightsError, first_few
from vit_jax.interop.choose_model import AbstractModel, choose_model, keeps_head, original_model
from vit_jax.interop.formats import WeightsInfo
from vit_jax.interop.locate import weights_path
from vit_jax.interop.name_table import Row, matches, read_row
from vit_jax.interop.normalization import (
    OURS,
    Normalization,
    checked_normalization,
    fold_normalization,
)
from vit_jax.interop.opening import open_published
from vit_jax.interop.report import LoadReport, Status
from vit_jax.interop.resize import Grid, Method, Target, fit_parameter, is_table
from vit_jax.interop.tensors import TensorFile, to_jax
from vit_jax.interop.vit_formats import TABLE
from vit_jax.models.embedding import Sincos2d
from vit_jax.models.family import EvalView, ImageModel
from vit_jax.models.heads import is_head
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import build_model, default_image_size, model_options
from vit_jax.named_tree import leaf_names, named_leaves
from vit_jax.shown_log import shown_log

log = logging.getLogger(__name__)
M = TypeVar("M", bound=nnx.Module)
_Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """Description of a model that was read from a file.

    Attributes:
        num_classes: C; 0: the model returns features instead of logits.
        image_size: (height, width).
        class_names: None if the file has none, or its head was not kept.
        view: how images were cropped and resized when the weights were evaluated.
        stored_normalization: None if it is not stored in the file.
    """

    options: ModelConfig
    num_classes: int
    image_size: tuple[int, int]
    class_names: tuple[str, ...] | None
    view: EvalView
    report: LoadReport
    stored_normalization: Normalization | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded(ModelInfo):
    """A model with the weights of a file."""

    model: ImageModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights(ModelInfo):
    """The parameters of a file in host memory, resized for the model."""

    model: ImageModel  # Without values.
    arrays: dict[str, np.ndarray]  # float32.
    missing: tuple[str, ...]  # Parameters of the model that the file does not contain.


def load_pretrained(
    path: str | Path,
    *,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | None = None,
    num_classes: int | None = None,
    keep_head: bool | None = None,
    grid: Grid | None = None,
    position_resize: Method = "zoom",
    normalization: Normalization | None = None,
    allow_missing: str | Sequence[str] = (),
    allow_unexpected: str | Sequence[str] = (),
    seed: int = 0,
    verbose: bool = False,
    **options: Any,
) -> ImageModel:
    """Builds a model from published weights, or from a run.

    It prints nothing, and logs one line at level INFO to the logger "vit_jax".

    Args:
        path: npz, safetensors, a folder of transformers or timm, or a run folder of this package;
            local, `hf://`, `gs://` or `s3://`. A name on the Hugging Face Hub, such as
            "google/vit-base-patch16-224", if there is no such file.
        image_size: side, or (height, width), in pixels. If it differs from the file's, the position
            table is resampled.
        patch_size: in pixels. If it differs from the file's, the patch embedding is resampled
            (FlexiViT).
        num_classes: classes of the head; None: as in the file; 0: no head, the model returns
            features.
        keep_head: None: the file's head is kept if it has `num_classes`; False: the head is new and
            starts at zero, without a tanh layer before it; True: an error if it cannot be kept.
        grid: (rows, columns) of the file's position table; None: as stored, or square.
        position_resize: how to resample the position table: "zoom" as in the ViT paper's code,
            "bilinear" or "bicubic".
        normalization: per-channel mean and standard deviation with which the weights expect images
            in [0, 1] to be normalised; None: as in the file's config.json, else 0.5 and 0.5. Other
            values are folded into the patch embedding, so that the model takes images in [-1, 1]
            like all models.
        allow_missing: regular expressions that match whole parameter names. These parameters may be
            missing from the file and are then initialised as in a new model.
        allow_unexpected: regular expressions that match whole names of tensors that may stay
            unused.
        seed: seed for initialising the parameters that the file does not contain.
        verbose: log a table of what was taken from the file, resized or left out instead, and print
            it to stderr if no handler of `logging` shows it.
        **options: keys of the model section that the file does not determine, or that you want to
            change.

    Returns:
        A module with `model(images)`: f32[B, H, W, 3] in [-1, 1] -> f32[B, num_classes]. It has
        `model.config`, `model.class_names` (None: the file has none) and `model.image_size`.

    Raises:
        WeightsError: the file cannot be read, has an unknown format, or does not fit the model.
        ModelError, ConfigError: options that contradict each other.

    >>> load_pretrained("B_16.npz", image_size=384)  # doctest: +SKIP
    """
    with shown_log(verbose, "stderr"):
        loaded = load(
            path,
            image_size=image_size,
            patch_size=patch_size,
            num_classes=num_classes,
            keep_head=keep_head,
            grid=grid,
            position_resize=position_resize,
            normalization=normalization,
            allow_missing=allow_missing,
            allow_unexpected=allow_unexpected,
            seed=seed,
            **options,
        )
        log.info("%s", loaded.report.text() if verbose else loaded.report.line())
    return loaded.model


def load(path: str | Path, *, seed: int = 0, **arguments: Any) -> Loaded:
    """Builds a model from published weights; takes the arguments of `read_weights`.

    The path "untrained:NAME" gives a new model of that name, for comparison, which takes
    `image_size`, `num_classes` and options of its family. The seed is for parameters that the file
    does not contain.
    """
    if str(path).startswith(UNTRAINED):
        return _new_model(str(path), seed, **arguments)
    start = time.monotonic()
    found = read_weights(path, **arguments)
    # One at a time, so that at most one array is in memory twice.
    arrays = {name: to_jax(found.arrays.pop(name)) for name in list(found.arrays)}
    arrays.update(_initial_parameters(found, seed))
    found.report.seconds = time.monotonic() - start
    about = {f.name: getattr(found, f.name) for f in dataclasses.fields(ModelInfo)}
    model = fill_parameters(found.model, arrays.__getitem__)
    model.view, model.class_names = found.view, found.class_names
    return Loaded(model=model, **about)


def _new_model(
    address: str,
    seed: int,
    *,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    allow_missing: str | Sequence[str] = (),
    allow_unexpected: str | Sequence[str] = (),
    position_resize: str = "zoom",
    **options: Any,
) -> Loaded:
    """Returns a new model. Patterns and `position_resize`, which have defaults, change nothing."""
    given = {key: value for key, value in options.items() if value is not None}
    of_files = [key for key in ("patch_size", "keep_head", "grid", "normalization") if key in given]
    if of_files:
        raise WeightsError(
            f"{ARGUMENT} for {address}",
            "image_size, num_classes and model options, as nothing is read",
            "leave it out",
            argument=of_files[0],
        )
    config = model_options(address.removeprefix(UNTRAINED), **given)
    side = image_size or default_image_size(config.name)
    size = (side, side) if isinstance(side, int) else side
    classes = num_classes or 0
    key = jax.random.key(seed)
    model = build_model(config, num_classes=classes, image_size=size, key=key)
    report = LoadReport(address, "initial values", config.name, 0)
    report.add(Status.REINITIALISED, *leaf_names(nnx.to_pure_dict(nnx.state(model))))
    return Loaded(
        options=config,
        num_classes=classes,
        image_size=size,
        class_names=None,
        view=EvalView(),
        report=report,
        model=model,
    )


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
    allow_missing: str | Sequence[str] = (),
    allow_unexpected: str | Sequence[str] = (),
    **options: Any,
) -> Weights:
    """Reads published weights for a model. Does not use a device.

    The arguments are those of `load_pretrained`.

    Raises:
        WeightsError: the file cannot be read, has an unknown format, or does not fit the model.
        ModelError, ConfigError: options that contradict each other.
    """
    start = time.monotonic()
    allow_missing, allow_unexpected = map(_check_patterns, (allow_missing, allow_unexpected))
    _check_method(position_resize)
    sizes = {"grid": grid, "image_size": image_size}
    given = {key: value for key, value in {**sizes, **options}.items() if value}
    file, published = open_published(weights_path(path), given)
    has_head = keeps_head(published, num_classes, keep_head)
    chosen = choose_model(
        published,
        options,
        image_size=image_size,
        patch_size=patch_size,
        num_classes=num_classes,
        keeps_head=has_head,
    )
    file_names = {name: row.label for row in reversed(published.rows) for name in row.ours}
    report = LoadReport(
        str(path), published.format, chosen.options.name, file.size_bytes, file_names
    )
    said = {"normalization": normalization, **given}
    report.assumed = tuple(text for key, text in published.assumed.items() if not said.get(key))
    original = original_model(published)
    arrays = _read_parameters(file, published, original, chosen, has_head, position_resize, report)
    _report_missing(report, original, chosen, arrays, allow_missing, has_head)
    try:
        report.check(allow_unexpected)
    except WeightsError:
        log.info("%s", report.text())
        raise
    if normalization:
        normalization = checked_normalization(normalization)
    arrays = _fold(arrays, chosen.shapes, normalization or published.normalization, report)
    report.seconds = time.monotonic() - start
    return Weights(
        options=chosen.options,
        num_classes=chosen.num_classes,
        image_size=chosen.image_size,
        class_names=published.class_names if has_head else None,
        view=published.view,
        stored_normalization=published.normalization,
        report=report,
        model=chosen.model,
        arrays=arrays,
        missing=tuple(name for name in chosen.shapes if name not in arrays),
    )


def fill_parameters(model: M, read: Callable[[str], jax.Array]) -> M:
    """Returns an abstract model with its parameters filled in. `read` takes a parameter's name."""
    graphdef, state = nnx.split(model)
    pure = nnx.to_pure_dict(state)
    leaves = [read(name) for name in leaf_names(pure)]
    return nnx.merge(graphdef, jax.tree.unflatten(jax.tree.structure(pure), leaves))


def _check_method(method: str) -> None:
    known = get_args(Method)
    if method not in known:
        raise WeightsError(
            f"position_resize {method!r}", f"one of {', '.join(known)}", "correct it"
        )


def _check_patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(given)
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise WeightsError(
                f"pattern {pattern!r} ({error})", "a regular expression", "e.g. head/.*"
            ) from None
    return patterns


def _read_parameters(
    file: TensorFile,
    published: WeightsInfo,
    original: AbstractModel,
    chosen: AbstractModel,
    keeps_head: bool,
    position_resize: Method,
    report: LoadReport,
) -> dict[str, np.ndarray]:
    """Reads every row whose tensors the file has. Returns the parameters and fills the report.

    The parameters of `original`, the file's model, are resized to the shapes of `chosen`.
    """
    target = Target(
        chosen.shapes,
        old_grid=original.model.table_grid,
        new_grid=chosen.model.table_grid,
        image_size=chosen.image_size,
        method=position_resize,
    )
    arrays: dict[str, np.ndarray] = {}
    used: set[str] = set()
    for row in published.rows:
        task_only = matches(row.ours[0], published.task_only)
        names = _tensors_of(row, original.shapes, all_layers=not task_only)
        if not names or not names <= file.shapes.keys():
            absent = sorted(names - file.shapes.keys())
            if len(absent) < len(names):  # Some layers have it.
                report.file_names |= dict.fromkeys(row.ours, first_few(absent, 2))
            continue
        used |= names
        # A model can do without a register head, because its other head gives such logits.
        is_dropped = row.ours[0].startswith("register_head/") and row.ours[0] not in target.shapes
        if task_only or is_dropped or _starts_new(row.ours[0], original, chosen, keeps_head):
            report.add(Status.LEFT_OUT, *row.ours)
            continue
        # The file's position table may have no vector for the class token. All other tensors have
        # the shapes of our parameters.
        shapes = [
            file.shapes[row.theirs[0]] if is_table(name) else original.shapes[name]
            for name in row.ours
        ]
        for name, array in zip(row.ours, read_row(row, file, shapes), strict=True):
            if name not in target.shapes:
                report.add(Status.UNEXPECTED, name)
                continue
            fitted = fit_parameter(name, array, target, f"parameter {report.label(name)}")
            status = Status.TAKEN if fitted is array else Status.RESIZED
            report.add(status, name, detail=f"{array.shape} -> {fitted.shape}")
            arrays[name] = fitted
    fixed = getattr(original.model, "position_embedding", None)
    if TABLE in target.shapes and isinstance(fixed, Sincos2d):
        arrays[TABLE] = fit_parameter(TABLE, fixed.values(), target)
        report.add(Status.RESIZED, TABLE, detail=f"{fixed.spec.kind} -> learned")
    left = [n for n in file.shapes if n not in used and not matches(n, published.unused)]
    report.add(Status.UNEXPECTED, *sorted(left))
    return arrays


def _starts_new(
    name: str, original: AbstractModel, chosen: AbstractModel, keeps_head: bool
) -> bool:
    """Whether a parameter starts as in a new model, whatever the file has.

    A head does if it is not kept. So does the final norm if only one of the two models pools before
    it: it then gets other inputs.
    """
    before, after = (getattr(m.options, "norm_after_pooling", False) for m in (original, chosen))
    return (is_head(name) and not keeps_head) or (name.startswith("norm/") and before != after)


def _tensors_of(row: Row, shapes: _Shapes, *, all_layers: bool) -> set[str]:
    """Returns the tensor names of a row. Empty if the file's model has no such parameters."""
    if not all_layers:
        return set(row.theirs)
    if not set(row.ours) <= shapes.keys():
        return set()
    layers = shapes[row.ours[0]][0] if row.layered else 1
    return {name for layer in range(layers) for name in row.names(layer)}


def _report_missing(
    report: LoadReport,
    original: AbstractModel,
    chosen: AbstractModel,
    arrays: Mapping[str, Any],
    allow_missing: Sequence[str],
    keeps_head: bool,
) -> None:
    for name in chosen.shapes:
        if name not in arrays:
            starts_new = _starts_new(name, original, chosen, keeps_head)
            allowed = starts_new or matches(name, allow_missing)
            report.add(Status.REINITIALISED if allowed else Status.MISSING, name)


def _fold(
    arrays: dict[str, np.ndarray],
    shapes: _Shapes,
    normalization: Normalization | None,
    report: LoadReport,
) -> dict[str, np.ndarray]:
    """Folds an image normalisation into the patch embedding, unless it is that of our models."""
    if normalization in (None, OURS):
        return arrays
    report.normalization = normalization
    return fold_normalization(arrays, shapes, normalization)


def _initial_parameters(found: Weights, seed: int) -> dict[str, jax.Array]:
    """Initialises the parameters that are missing from the file."""
    if not found.missing:
        return {}

    @jax.jit
    def init(key: jax.Array) -> dict[str, jax.Array]:
        model = build_model(
            found.options, num_classes=found.num_classes, image_size=found.image_size, key=key
        )
        leaves = named_leaves(nnx.to_pure_dict(nnx.state(model)))
        return {name: leaves[name] for name in found.missing}

    return init(jax.random.key(seed))
