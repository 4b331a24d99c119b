"""Starting from other weights: which model they are, and its parameters on this run's devices."""

import contextlib
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from vit_jax.config.init import AUTO, OF_THE_RUN
from vit_jax.config.run import Config
from vit_jax.errors import WeightsError
from vit_jax.interop.load import read_weights
from vit_jax.interop.normalization import NORMALIZATIONS
from vit_jax.interop.opening import read_options
from vit_jax.interop.report import LoadReport, Status
from vit_jax.models.registry import model_options, resolve
from vit_jax.models.vit import ViTShape
from vit_jax.named_tree import leaf_names, named_leaves
from vit_jax.train.program import Program
from vit_jax.train.state import TrainState

log = logging.getLogger(__name__)


def model_of_weights(config: Config, workdir: Path | None = None) -> dict[str, Any]:
    """Returns the model section of the weights that a run starts from, for `model.name=auto`.

    Of it only what the model is: dropout, type, remat and the like are the run's own, and without
    the head its hidden layer goes, too.

    Args:
        config: with `init_from`.
        workdir: run folder; what a run there has found already is taken from its config.json, so
            that the weights need not be there any more.

    Raises:
        WeightsError: no weights there, or of an unknown kind.
    """
    assert config.init_from is not None
    options = _found_before(config, workdir)
    if options is None:
        usual = model_options(AUTO).to_mapping()
        given = {k: v for k, v in config.model.to_mapping().items() if v != usual[k]}
        with _keys_of_the_config():
            options = read_options(config.init_from, {**given, "grid": config.init.grid})
    left = OF_THE_RUN if config.init.keep_head else {*OF_THE_RUN, "representation_size"}
    return {key: value for key, value in options.items() if key not in left}


def start_from_weights(program: Program) -> tuple[TrainState, LoadReport]:
    """Returns the state at step 0 with the parameters that `init_from` names, and what they are.

    Every host reads the file; each device gets its own part, from the host's memory. What the file
    does not give is as in a new model; a moving average starts as a copy.

    Raises:
        WeightsError: weights that cannot be read, or not be made to fit.
    """
    config, abstract = program.config, program.abstract
    init, side = config.init, config.data.image_size
    assert config.init_from is not None
    with _keys_of_the_config():
        _check_family(config)
        found = read_weights(
            config.init_from,
            image_size=side,
            num_classes=program.task.num_outputs,
            keep_head=init.keep_head,
            grid=init.grid,
            position_resize=init.position_resize,
            normalization=None
            if init.normalization is None
            else NORMALIZATIONS[init.normalization],
            allow_missing=init.allow_missing,
            allow_unexpected=init.allow_unexpected,
            **config.model.to_mapping(),
        )
    leaves, treedef = jax.tree.flatten(abstract.params)
    wanted = dict(zip(leaf_names(abstract.params), leaves, strict=True))
    # What serves the run's own task alone is not in the weights of a model.
    of_task = [n for n in wanted if n not in found.arrays and n not in found.lacking]
    found.report.add(Status.REINITIALISED, *of_task)
    new = (*found.lacking, *of_task)
    arrays = _new_parameters(program, {name: wanted[name] for name in new})
    for name in list(found.arrays):
        array = found.arrays.pop(name)
        arrays[name] = jax.make_array_from_callback(
            array.shape, wanted[name].sharding, lambda part, array=array: array[part]
        )
    params = jax.tree.unflatten(treedef, [arrays[name] for name in wanted])

    def start(params: Any) -> TrainState:
        # Copies, since on a CPU these arrays may be the file's memory, and steps give theirs away.
        return program.start_from(jax.tree.map(jax.numpy.copy, params))

    shardings = jax.tree.map(lambda s: s.sharding, abstract)
    return jax.jit(start, out_shardings=shardings)(params), found.report


def _new_parameters(
    program: Program, wanted: dict[str, jax.ShapeDtypeStruct]
) -> dict[str, jax.Array]:
    """Returns some parameters by name as a new model of this run has them."""
    if not wanted:
        return {}

    def init() -> dict[str, jax.Array]:
        params = program.init_params()
        named = named_leaves(params)
        return {name: named[name] for name in wanted}

    return jax.jit(init, out_shardings={name: leaf.sharding for name, leaf in wanted.items()})()


def _found_before(config: Config, workdir: Path | None) -> dict[str, Any] | None:
    """Returns the model section of a run from the same weights in a folder, if there is one."""
    if workdir is None:
        return None
    try:
        saved = json.loads((Path(workdir).expanduser() / "config.json").read_text())
        return dict(saved["model"]) if saved["init_from"] == config.init_from else None
    except (OSError, ValueError, KeyError, TypeError):  # No run, or one that is told of later.
        return None


def _check_family(config: Config) -> None:
    """Raises WeightsError where the weights are of a model of another kind or size."""
    assert config.init_from is not None
    given = {k: v for k, v in config.model.to_mapping().items() if v}
    options = read_options(config.init_from, {**given, "grid": config.init.grid})
    theirs, ours = resolve(model_options(**options)), resolve(config.model)
    if isinstance(theirs, ViTShape) and isinstance(ours, ViTShape):
        sizes = ("width", "depth", "mlp_dim", "num_heads", "stem")
        differing = [s for s in sizes if getattr(theirs, s) != getattr(ours, s)]
    else:
        differing = [] if theirs == ours else ["kind"]
    if differing:
        said = ", ".join(
            f"{s} {getattr(theirs, s)}" for s in differing if s not in ("kind", "stem")
        )  # fmt: skip
        raise WeightsError(
            f"{config.init_from} holds a {options['name']}{f' ({said})' if said else ''}",
            f"the {config.model.name} of the model section",
            "set model.name=auto to take the model from the weights, or give other weights",
        )


@contextlib.contextmanager
def _keys_of_the_config() -> Iterator[None]:
    """Makes errors of loading name the config's keys."""
    try:
        yield
    except WeightsError as error:
        names = r"\b(allow_missing|allow_unexpected|grid|normalization|keep_head)\b"
        fix = re.sub(names, r"init.\1", error.fix)
        fix = re.sub(r"\bnum_heads\b", "model.num_heads", fix)
        fix = fix.replace("num_classes", "data.num_classes")
        raise WeightsError(error.got, error.expected, fix) from None
