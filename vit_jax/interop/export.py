"""Exports a model as one StableHLO file. It runs wherever JAX runs, without this package."""

import dataclasses
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from vit_jax.errors import WeightsError
from vit_jax.interop.formats import EvalView
from vit_jax.interop.load import Loaded
from vit_jax.interop.save import check_new_path, new_path
from vit_jax.models.registry import build_model, family_of
from vit_jax.storage.files import read_file, read_json, write_atomically, write_json

PLATFORMS = ("cpu", "cuda", "tpu")
SUFFIX = ".stablehlo"


@dataclasses.dataclass(frozen=True)
class Classifier:
    """A model that can classify images, loaded from weights or from an exported file."""

    logits: Callable[[jax.Array], jax.Array]  # f32[B, H, W, 3] in [-1, 1] -> f32[B, C].
    num_classes: int  # C; 0: the model returns features.
    image_size: tuple[int, int]  # (height, width).
    class_names: tuple[str, ...] | None  # None: not known.
    view: EvalView  # How images are cropped and resized.


def as_classifier(loaded: Loaded) -> Classifier:
    """Returns the classifier of loaded weights."""
    return Classifier(
        loaded.model, loaded.num_classes, loaded.image_size, loaded.class_names, loaded.view
    )


def open_exported(path: Path) -> Classifier:
    """Opens a file of `export_stablehlo`, with the description next to it if there is one."""
    try:
        content = read_file(path, path.stat().st_size)
        exported = export.deserialize(bytearray(content))
        _, height, width, channels = exported.in_avals[0].shape
        _, outputs = exported.out_avals[0].shape
        if channels != 3 or len(exported.in_avals) != 1:
            raise ValueError(f"it takes {exported.in_avals}")
    except Exception as error:  # Flatbuffers raises many classes of errors.
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise WeightsError(
            f"{path} cannot be read: {reason}",
            "a file that python -m vit_jax export has written",
            "export the model again",
        ) from None
    about: dict[str, Any] = {}
    if _about_path(path).is_file():
        about = read_json(_about_path(path), error=WeightsError)
    names = tuple(about.get("class_names", ()))
    return Classifier(
        exported.call,
        int(outputs) if about.get("num_classes", 1) else 0,
        (int(height), int(width)),
        names if len(names) == outputs else None,
        EvalView(**about.get("view", {})),
    )


def _about_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def export_stablehlo(loaded: Loaded, path: Path) -> tuple[str, ...]:
    """Writes the function images -> logits with its parameters, for any batch size and platform.

    Load it with `jax.export.deserialize(path.read_bytes())`; its `.call` takes f32[B, H, W, 3]. The
    file NAME.sha256 next to it has its checksum, in the format of `sha256sum --check`. NAME.json
    has class names, image size and crop. Returns the shape of the output, e.g. ("batch", "1000").
    """
    if not family_of(loaded.options.name).has_classes:
        raise WeightsError(
            f"{loaded.options.name}, a pair of towers",
            "a model of images",
            "convert it with --format=transformers, vision_transformer or orbax",
        )
    check_new_path(_about_path(path))
    with new_path(path) as part:
        options = loaded.options
        if loaded.model.num_heads is not None:
            # The only kernel that runs on every platform.
            options = options.replace(attention_implementation="xla")
        sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
        key = jax.random.key(0)
        graphdef = nnx.graphdef(nnx.eval_shape(lambda: build_model(options, **sizes, key=key)))
        params = nnx.to_pure_dict(nnx.state(loaded.model))
        (batch,) = export.symbolic_shape("batch")
        images = jax.ShapeDtypeStruct((batch, *loaded.image_size, 3), jnp.float32)
        predict = jax.jit(lambda images: nnx.merge(graphdef, params)(images))
        exported = export.export(predict, platforms=PLATFORMS)(images)
        content = exported.serialize()
        part.write_bytes(content)
        checksum = hashlib.sha256(content).hexdigest()
        write_atomically(path.with_name(f"{path.name}.sha256"), f"{checksum}  {path.name}\n")
        about = {
            "model": options.name,
            "num_classes": loaded.num_classes,
            "image_size": list(loaded.image_size),
            "class_names": list(loaded.class_names or ()),
            "view": dataclasses.asdict(loaded.view),
        }
        write_json(_about_path(path), about)
    return tuple(str(n) for n in exported.out_avals[0].shape)
