"""Runs from Python: train one with the trainer of the command line, and read one."""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.config.file import apply_overrides, build_config, load_config, read_mapping
from vit_jax.config.run import Config
from vit_jax.data.sources.sequence import passing
from vit_jax.errors import DataError, RunFolderError
from vit_jax.interop.load import load_pretrained
from vit_jax.models.family import ImageModel
from vit_jax.run.about import saved_steps
from vit_jax.run.metrics import read_metrics
from vit_jax.run.result import read_result
from vit_jax.shown_log import shown_log
from vit_jax.storage.paths import user_path
from vit_jax.train.signals import Stopped, StopSignals

if TYPE_CHECKING:
    import pandas as pd

_LOGGER = logging.getLogger("vit_jax")


@dataclasses.dataclass(frozen=True)
class LoadedRun:
    """A run folder.

    Attributes:
        path: the folder.
        config: the resolved config.
    """

    path: Path
    config: Config = dataclasses.field(repr=False)

    @property
    def result(self) -> dict[str, Any] | None:
        """The content of result.json; None: the run is not finished."""
        return read_result(self.path)

    @property
    def checkpoints(self) -> list[int]:
        """The steps of the checkpoints, rising."""
        return saved_steps(self.path / "checkpoints")

    @functools.cached_property
    def metrics(self) -> "pd.DataFrame":
        """The logged metrics: a row for each step, a column for each metric, NaN where not logged.

        The index is the step.
        """
        import pandas as pd

        rows = read_metrics(self.path / "metrics.jsonl")
        return pd.DataFrame(rows).groupby("step").last() if rows else pd.DataFrame()

    def load_model(self, **arguments: Any) -> ImageModel:
        """Returns the trained model; arguments as in `load_pretrained`."""
        return load_pretrained(self.path, **arguments)


def load_run(path: str | Path) -> LoadedRun:
    """Reads a run folder.

    Args:
        path: the folder, local or in a bucket.

    Raises:
        RunFolderError: it has no config.json.

    >>> load_run("runs/quickstart").metrics["train/loss"]  # doctest: +SKIP
    """
    folder = user_path(str(path))
    if not (folder / "config.json").is_file():
        raise RunFolderError(
            f"{path} has no config.json", "the folder of a run", "check the path of --workdir"
        )
    return LoadedRun(folder, load_config(str(folder / "config.json")))


def fit(
    recipe: str | Mapping[str, Any],
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    *,
    model: str | None = None,
    data: str | Path | Mapping[str, Any] | None = None,
    verbose: bool = True,
    new_code: bool = False,
) -> LoadedRun:
    """Trains a model with the trainer of `python -m vit_jax train`, on this process's devices.

    Called again with the same arguments, it resumes an unfinished run and returns a finished one.
    An interrupt (Ctrl-C, or the stop button of a notebook) saves and returns the unfinished run; a
    second one ends the process. Signals are handled in the main thread only: in another one, the
    process ends as its own handlers say. Compiled programs are kept for later calls, see
    the config key `compile_cache`.

    Args:
        recipe: name or file of a recipe, such as "quickstart" or "my_recipe.py:ARG"; or the config
            as nested dicts.
        workdir: run folder.
        overrides: dotted key -> value, such as {"optimizer.learning_rate": 1e-3}, applied in their
            order. A dict for a section, such as {"data.augment": {"flip": True}}, changes only
            the keys that it has.
        model: name of a model that replaces the recipe's, with that model's default options.
        data: a folder of images, one subfolder per class, or the name of a TFDS dataset; it
            replaces the recipe's. Or {"train": (images, labels), "test": ...} with images
            u8[N, H, W, 3] and labels i[N]; the run evaluates the splits other than "train".
            Instead of a pair, a split may be a sequence as in `register_source`. A run resumes only
            with the same training examples: all bytes of arrays are compared, of other sequences
            the length and 32 examples. A finished run is returned without looking at them.
        verbose: whether to print the progress.
        new_code: whether to resume a run that was last run with other code or packages. The result
            is then not bit for bit that of a run that never stopped.

    Returns:
        The run.

    Raises:
        UserError: a problem with config, data, model, folder or checkpoint.

    >>> fit("quickstart", "runs/quickstart", {"train_steps": 20})  # doctest: +SKIP
    >>> fit("folder", "runs/mine", model="ViT-Ti/16", data="PHOTOS")  # doctest: +SKIP
    >>> fit("quickstart", "runs/own", data={"train": (images, labels)})  # doctest: +SKIP
    """
    import jax

    from vit_jax.run.compile_cache import use_compile_cache
    from vit_jax.train.init_from import model_of_weights
    from vit_jax.train.loop import train

    folder = user_path(str(workdir))
    mapping = read_mapping(recipe) if isinstance(recipe, str) else _copied(recipe)
    if model is not None:
        mapping["model"] = {"name": model}
    passed = data if isinstance(data, Mapping) else {}
    if data is not None:
        apply_overrides(mapping, [("data", _data_keys(data))])
    if passed:
        others = {name: name for name in passed if name != "train"}
        parts = {"splits": others, "final_splits": {}}
        mapping["evaluation"] = {**mapping.get("evaluation", {}), **parts}
    apply_overrides(mapping, (overrides or {}).items())
    config = build_config(mapping, lambda config: model_of_weights(config, folder))
    use_compile_cache(config.compile_cache)
    with (
        # Training promotes types, moves arrays and compiles, which the user's process may forbid.
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        jax.transfer_guard("allow"),
        jax.disable_jit(False),
        shown_log(verbose, "stdout"),
        StopSignals() as stop,
        passing(passed),
    ):
        try:
            train(config, folder, stop, verbose=verbose, new_code=new_code)
        except Stopped as stopped:
            _LOGGER.info("stopped and saved at step %d; call fit again to resume", stopped.step)
    return load_run(folder)


def _data_keys(data: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, str | Path | Mapping) or data in ("", {}):
        raise DataError(
            f"data is {data!r}"[:60],
            'a folder, the name of a dataset, or {"train": (images, labels), "test": ...}',
            "pass one of these",
        )
    if isinstance(data, Mapping):
        return {"source": "passed", "name": "passed data", "train_split": "train"}
    path = user_path(str(data))
    if not path.is_dir():
        return {"source": "tfds", "name": str(data)}
    return {"source": "folder", "name": path.absolute().name, "data_dir": str(data)}


def _copied(mapping: Mapping[str, Any]) -> dict[str, Any]:
    return {k: _copied(v) if isinstance(v, Mapping) else v for k, v in mapping.items()}
