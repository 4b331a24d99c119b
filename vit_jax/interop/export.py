"""A model as one StableHLO file, which runs wherever JAX does, without this package."""

import contextlib
from pathlib import Path

import jax
import jax.numpy as jnp
from flax import nnx
from jax import export

from vit_jax.errors import WeightsError
from vit_jax.interop.load import Loaded
from vit_jax.interop.save import cannot_write
from vit_jax.models.registry import build_model
from vit_jax.models.vit import ViT

PLATFORMS = ("cpu", "cuda", "tpu")


def export_stablehlo(loaded: Loaded, path: Path) -> tuple[str, ...]:
    """Writes images -> logits, parameters included, for any batch size and platform.

    Read it with `jax.export.deserialize(path.read_bytes())`; its `.call` takes f32[B, H, W, 3].

    Args:
        loaded: the model.
        path: file to write; must not exist.

    Returns:
        The shape of what comes out, e.g. ("batch", "1000").

    Raises:
        WeightsError: the path exists, or cannot be written.
    """
    if path.exists():
        raise WeightsError(f"{path} exists", "a new path", "choose another, or remove it")
    options = loaded.options
    if isinstance(loaded.model, ViT):  # The kernel that every platform has.
        options = options.replace(attention_implementation="xla")
    sizes = {"num_classes": loaded.num_classes, "image_size": loaded.image_size}
    key = jax.random.key(0)
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: build_model(options, **sizes, key=key)))
    params = nnx.to_pure_dict(nnx.state(loaded.model))
    (batch,) = export.symbolic_shape("batch")
    images = jax.ShapeDtypeStruct((batch, *loaded.image_size, 3), jnp.float32)
    predict = jax.jit(lambda images: nnx.merge(graphdef, params)(images))
    exported = export.export(predict, platforms=PLATFORMS)(images)
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(exported.serialize())
        part.rename(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    return tuple(str(n) for n in exported.out_avals[0].shape)
