"""Exports a model as one StableHLO file. It runs wherever JAX runs, without this package."""

import hashlib
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from vit_jax.errors import WeightsError
from vit_jax.interop.load import Loaded
from vit_jax.interop.save import new_path
from vit_jax.models.registry import build_model, family_of
from vit_jax.storage.files import write_atomically

PLATFORMS = ("cpu", "cuda", "tpu")


def export_stablehlo(loaded: Loaded, path: Path) -> tuple[str, ...]:
    """Writes the function images -> logits with its parameters, for any batch size and platform.

    Load it with `jax.export.deserialize(path.read_bytes())`; its `.call` takes f32[B, H, W, 3]. The
    file NAME.sha256 next to it has its checksum, in the format of `sha256sum --check`.

    Args:
        loaded: the model.
        path: file to write; must not exist.

    Returns:
        The shape of the output, e.g. ("batch", "1000").

    Raises:
        WeightsError: the path exists, or cannot be written; or the model is a pair of towers.
    """
    if not family_of(loaded.options.name).has_classes:
        raise WeightsError(
            f"{loaded.options.name}, a pair of towers",
            "a model of images",
            "convert it with --format=transformers, vision_transformer or orbax",
        )
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
    return tuple(str(n) for n in exported.out_avals[0].shape)
