"""Embeddings of texts by a pair of towers, on all devices."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from vit_jax.data.arrays import Preprocessing
from vit_jax.data.loader import BatchSpec
from vit_jax.data.sources import Source
from vit_jax.data.tokenizers import Tokenizer
from vit_jax.errors import WeightsError
from vit_jax.evaluation.loop import on_host
from vit_jax.models.activation_sharding import with_mesh
from vit_jax.models.two_towers import TwoTowers
from vit_jax.parallel.mesh import host_rows, to_devices


@dataclasses.dataclass(frozen=True)
class EvaluatedImages:
    """Images that a pair of towers is evaluated on; the preprocessed arrays have an `image`."""

    source: Source
    preprocessing: Preprocessing
    spec: BatchSpec
    mesh: Mesh


def compiled(model: TwoTowers, mesh: Mesh, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Returns a compiled function (parameters, *arrays) and the model's parameters.

    `make` returns the function for a graph definition. It must be a function of a module: compiled
    programs are kept by it, so that evaluations at intervals compile once.
    """
    graphdef, params = nnx.split(model)
    return _compiled(graphdef, mesh, make), params


@functools.lru_cache(maxsize=16)
def _compiled(graphdef: Any, mesh: Mesh, make: Callable[[Any], Any]) -> Any:
    replicated = NamedSharding(mesh, PartitionSpec())
    return jax.jit(with_mesh(make(graphdef), mesh), out_shardings=replicated)


def embed_texts(
    model: TwoTowers, tokenizer: Tokenizer, texts: Sequence[str], mesh: Mesh, batch_size: int
) -> Float[np.ndarray, "M E"]:
    """Returns the embeddings of texts, of length 1, on all hosts.

    The batch size is over all hosts.
    """
    step, params = compiled(model, mesh, _text_fn)
    rows = np.asarray(host_rows(mesh, batch_size))

    def embed(start: int) -> jax.Array:
        places: list[int] = np.minimum(start + rows, len(texts) - 1).tolist()
        tokens = tokenizer.encode([texts[place] for place in places])
        return step(params, to_devices({"tokens": tokens}, mesh))

    parts: list[Any] = [*on_host(embed(start) for start in range(0, len(texts), batch_size))]
    empty = np.empty((0, model.embedding_size), np.float32)
    found = np.concatenate([empty, *parts])[: len(texts)]
    if not np.isfinite(found).all():
        raise WeightsError(
            "embeddings of texts that are not finite numbers",
            "activations that do not overflow",
            "use model.dtype=float32, or other weights",
        )
    return found


def _text_fn(graphdef: Any) -> Any:
    def embed_fn(params: Any, batch: dict[str, jax.Array]) -> jax.Array:
        return nnx.merge(graphdef, params).encode_text(batch["tokens"])

    return embed_fn
