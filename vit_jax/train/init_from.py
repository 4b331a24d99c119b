"""Starts a run from other weights: reads their model options and loads them onto the devices.

Weights of an image model fill the image tower of a pair of towers, as in LiT (arXiv:2111.07991).
"""

import contextlib
import dataclasses
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.init import TRAINING_OPTIONS
from vit_jax.config.run import Config
from vit_jax.data.class_names import head_columns
from vit_jax.data.sources.base import Source
from vit_jax.errors import UserError, WeightsError
from vit_jax.interop.load import Weights, read_weights
from vit_jax.interop.normalization import NORMALIZATIONS, Normalization
from vit_jax.interop.opening import read_options
from vit_jax.interop.report import LoadReport, Status
from vit_jax.models.block_options import BlockOptions
from vit_jax.models.heads import HEAD_OPTIONS
from vit_jax.models.options import AUTO, ModelConfig
from vit_jax.models.registry import model_options, model_shape
from vit_jax.models.two_towers import TwoTowersConfig
from vit_jax.named_tree import leaf_names, named_leaves
from vit_jax.parallel.sharding import shard_arrays
from vit_jax.schema import differences
from vit_jax.storage.files import read_json
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState

log = logging.getLogger(__name__)

# How the parameters of a pair's image tower start.
_IMAGE_TOWER = "image/"
# Options that change what the layers compute with the same parameters. `layer_scale` is only an
# initial value.
_OF_FUNCTION = {
    "position_embedding", "position_placement", "activation", "is_causal",
    *BlockOptions.model_fields.keys() - TRAINING_OPTIONS - {"layer_scale"},
}  # fmt: skip
# Argument of `read_weights` -> config key that sets it.
_CONFIG_KEYS = {
    **{
        name: f"init.{name}"
        for name in ("allow_missing", "allow_unexpected", "grid", "keep_head", "normalization")
    },
    "image_size": "data.image_size",
    "num_heads": "model.num_heads",
}


def model_of_weights(config: Config, workdir: Path | None = None) -> dict[str, Any]:
    """Returns the model section of the weights that a run starts from, for `model.name=auto`.

    Options that are not part of the architecture, such as dropout, dtype and remat, are removed.
    Unless the head is kept, the options that describe it are removed, too. If a run was started in
    `workdir` from the same weights, its config.json is read instead of the weights.
    """
    assert config.init_from is not None
    options = _options_of_earlier_run(config, workdir)
    if options is None:
        usual = model_options(AUTO).to_mapping()
        given = {k: v for k, v in config.model.to_mapping().items() if v != usual[k]}
        with _config_keys():
            options = read_options(config.init_from, {**given, "grid": config.init.grid})
    excluded = TRAINING_OPTIONS if config.init.keep_head else TRAINING_OPTIONS | HEAD_OPTIONS
    return {key: value for key, value in options.items() if key not in excluded}


def start_from_weights(
    program: Program, source: Source | None = None
) -> tuple[TrainState, LoadReport]:
    """Returns the state at step 0 with the weights of `init_from`, and a report of loading them.

    Every host reads the file, and each device receives only its shards. Parameters that are missing
    in the file are initialised as in a new model. A moving average starts as a copy. The columns of
    a head that is kept follow the names of the classes of `source`.
    """
    config, abstract = program.config, program.abstract
    init, side = config.init, config.data.image_size
    assert config.init_from is not None
    with _config_keys():
        options = _options_of_weights(config)
        tower = _tower(config, options)
        check_family(config, options)
        _warn_of_changed_options(config, options)
        found = read_weights(
            config.init_from,
            image_size=side,
            num_classes=0 if tower else program.task.num_outputs,
            keep_head=init.keep_head,
            grid=init.grid,
            position_resize=init.position_resize,
            normalization=NORMALIZATIONS.get(init.normalization or ""),
            allow_missing=init.allow_missing,
            allow_unexpected=init.allow_unexpected,
            **_loaded_model(config, options).to_mapping(),
        )
        _check_normalization(init.normalization, found.stored_normalization)
    if source is not None and init.keep_head and program.task.num_outputs:
        _order_head(found, source, config.init_from)
    found = _as_part(found, tower)
    leaves, treedef = jax.tree.flatten(abstract.params)
    wanted = dict(zip(leaf_names(abstract.params), leaves, strict=True))
    # Weights of a model do not have the parameters that only this run's task needs.
    of_task = [n for n in wanted if n not in found.arrays and n not in found.missing]
    found.report.add(Status.REINITIALISED, *of_task)
    new = (*found.missing, *of_task)
    arrays = _new_parameters(program, {name: wanted[name] for name in new})
    for name in list(found.arrays):
        array = found.arrays.pop(name)
        if array.shape != wanted[name].shape:
            raise WeightsError(
                f"{config.init_from} has parameter '{name}' of shape {array.shape}",
                f"{wanted[name].shape}, as task {config.task.name} makes it",
                "change the options of the model section or of the task",
            )
        arrays[name] = shard_arrays(array, wanted[name].sharding)
    params = jax.tree.unflatten(treedef, [arrays[name] for name in wanted])

    def start(params: Any) -> TrainState:
        # Copied, because steps donate their state, and on a CPU arrays may share the file's memory.
        return program.init_state(jax.tree.map(jax.numpy.copy, params))

    shardings = jax.tree.map(lambda s: s.sharding, abstract)
    return jax.jit(start, out_shardings=shardings)(params), found.report


def _new_parameters(
    program: Program, wanted: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Returns some parameters by name, initialised as in a new model of this run."""
    if not wanted:
        return {}

    def init() -> dict[str, jax.Array]:
        params = program.init_params()
        named = named_leaves(params)
        return {name: named[name] for name in wanted}

    return jax.jit(init, out_shardings={name: leaf.sharding for name, leaf in wanted.items()})()


def _options_of_earlier_run(config: Config, workdir: Path | None) -> dict[str, Any] | None:
    """Returns the model section of an earlier run in this folder from the same weights, if any."""
    if workdir is None:
        return None
    try:
        saved = read_json(workdir / "config.json")
        return saved["model"] if saved["init_from"] == config.init_from else None
    except (UserError, ValueError, KeyError, TypeError):
        return None  # There is no run. One that is damaged is an error later.


def _options_of_weights(config: Config) -> dict[str, Any]:
    """Returns the model section of the weights, without reading their tensors."""
    assert config.init_from is not None
    given = {k: v for k, v in config.model.to_mapping().items() if v}
    return read_options(config.init_from, {**given, "grid": config.init.grid})


def _tower(config: Config, options: Mapping[str, Any]) -> str:
    """Returns "image/" if weights of an image model fill the image tower of a pair, else ""."""
    return (
        _IMAGE_TOWER if isinstance(config.model, TwoTowersConfig) and "text" not in options else ""
    )


def _loaded_model(config: Config, options: Mapping[str, Any]) -> ModelConfig:
    """Returns the model section that the weights fill: that of the run, or of its image tower."""
    model = config.model
    return model.image if isinstance(model, TwoTowersConfig) and _tower(config, options) else model


def _as_part(found: Weights, prefix: str) -> Weights:
    """Puts a prefix before the names of all parameters."""
    if not prefix:
        return found
    found.report.add_prefix(prefix)
    arrays = {f"{prefix}{name}": array for name, array in found.arrays.items()}
    missing = tuple(f"{prefix}{name}" for name in found.missing)
    return dataclasses.replace(found, arrays=arrays, missing=missing)


def _order_head(found: Weights, source: Source, path: str) -> None:
    """Gives the columns of the heads of loaded weights the order of the dataset's classes."""
    names = found.class_names or ()
    columns = head_columns(source.class_names, names, data=source.name, model=path)
    if columns is not None:
        for name in found.arrays:
            if re.fullmatch(r"(register_)?head/linear/(kernel|bias)", name):
                found.arrays[name] = found.arrays[name][..., columns]


def _check_normalization(name: str | None, stored: Normalization | None) -> None:
    """Raises WeightsError if the config names another normalisation than the weights' file."""
    if name is not None and stored not in (None, NORMALIZATIONS[name]):
        raise WeightsError(
            f"init.normalization {name!r} for weights whose config.json says {stored}",
            "the normalisation of the file",
            "leave the key out, or correct the config.json",
        )


def check_family(config: Config, options: Mapping[str, Any]) -> None:
    """Raises WeightsError if the weights are of a model of another family or size."""
    model = _loaded_model(config, options)
    theirs, ours = model_shape(model_options(**options)), model_shape(model)
    differing: dict[str, Any] = {}
    if type(theirs) is type(ours):
        # The patch size may differ, because patch embeddings are resampled.
        sizes = {f.name: getattr(theirs, f.name) for f in dataclasses.fields(theirs)}
        sizes.pop("patch_size", None)
        differing = {name: size for name, size in sizes.items() if size != getattr(ours, name)}
    if differing or type(theirs) is not type(ours):
        sizes = ", ".join(f"{n} {s}" for n, s in differing.items() if isinstance(s, int))
        of_pair = bool(_tower(config, options))
        raise WeightsError(
            f"{config.init_from} holds a {options['name']}{f' ({sizes})' if sizes else ''}",
            f"the {model.name} of the {'image tower' if of_pair else 'model section'}",
            f"set model.image.name={options['name']}, or give other weights"
            if of_pair
            else "set model.name=auto to take the model from the weights, or give other weights",
        )


def _warn_of_changed_options(config: Config, options: Mapping[str, Any]) -> None:
    """Warns of options with which the loaded parameters compute something else than before."""
    theirs, ours = model_options(**options), _loaded_model(config, options)
    section = f"model.{_tower(config, options)}".replace("/", ".").rstrip(".")
    for key, their_value, our_value in differences(theirs, ours):
        if key == "text.pooling" or key.rpartition(".")[2] in _OF_FUNCTION:
            words = "the weights of %s were trained with %s.%s=%s; this run has %s"
            log.warning(words, config.init_from, section, key, their_value, our_value)


@contextlib.contextmanager
def _config_keys() -> Iterator[None]:
    """Replaces argument names by config keys in errors of loading weights."""
    try:
        yield
    except WeightsError as error:
        raise error.renamed(_CONFIG_KEYS) from None
