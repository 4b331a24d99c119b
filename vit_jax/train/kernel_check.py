"""Compares a TPU's attention kernel with the formula before the first step of a run.

On a TPU, `auto` takes the Pallas kernel of `models/pallas_attention.py`. On a chip or with a
compiler for which it computes something else, a run would learn something else, without an error.
So the calls of the kernel in the run's training steps are first run on the device itself, on a few
random images, which takes seconds. If an output or a gradient differs from the formula by more than
bfloat16's rounding, the run uses XLA's attention.

All hosts run the comparison, and one host with a difference decides for all. The run folder keeps
the outcome in attention.json. Later sessions use it. They compare again if it is the kernel and the
config, the kind of device or the compiler has changed. On other platforms than TPUs, the file is
neither read nor written.
"""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.config.run import Config
from vit_jax.errors import RunFolderError
from vit_jax.models import pallas_attention
from vit_jax.models.attention import attend
from vit_jax.models.pallas_attention import Call, noted_calls
from vit_jax.parallel.processes import gather, is_first_host, on_first_host
from vit_jax.run.digest import json_digest
from vit_jax.storage.files import read_json
from vit_jax.train.program import Program

log = logging.getLogger(__name__)

FILE = "attention.json"

# Largest relative differences of an array, and of a row of it, which is one token of one head.
# Interpreted on a CPU, the kernel in bfloat16 differs from the formula in float32 by at most 0.5 %
# and 1.2 %, for 11 shapes of 5 to 1,025 tokens and two seeds, and XLA's attention by 0.9 % and
# 1.2 %. The limits are four and five times those of the kernel, because a TPU computes exponentials
# and sums in another way. Yet one key too few of the 1,152 that the kernel takes changes the output
# by 3 %, and a wrong row by 100 %. Float32 has the same limits, because a TPU multiplies it in
# bfloat16 by default.
_ALL_ROWS, _ONE_ROW = 0.02, 0.06


def check_kernel(program: Program, workdir: Path) -> dict[str, Any] | None:
    """Returns the content of attention.json for a run; None: the run chooses no Pallas kernel.

    Its "kernel" is "pallas", or "xla" if the run must not use the Pallas kernel. All hosts get the
    same.
    """
    model = program.config.model
    if program.platform != "tpu" or model.with_xla_attention() == model:
        return None
    device = jax.local_devices()[0]
    about = {
        "device_kind": device.device_kind,
        "compiler": device.client.platform_version,
        "config": json_digest(program.config.to_mapping()),
    }
    stored = on_first_host("read the attention kernel", lambda: _stored(workdir, about))
    if stored is not None:
        return stored
    calls = sorted(_calls(program), key=str)
    if not calls:
        return None
    compared = [_row(call) for call in calls]
    problems = gather("compare the attention kernel", [row["problem"] for row in compared])
    problem = next((text for rows in problems for text in rows if text), None)
    if is_first_host():
        _log(problem, device.device_kind)
    kernel = "pallas" if problem is None else "xla"
    return {"kernel": kernel, "problem": problem, **about, "compared": compared}


def with_stored_kernel(config: Config, workdir: Path, platform: str) -> Config:
    """Returns the config of a run with XLA's attention, if the run must use it on this platform."""
    if platform != "tpu":
        return config
    stored = on_first_host("read the attention kernel", lambda: _read(workdir))
    if stored is None or stored["kernel"] != "xla":
        return config
    return config.replace(model=config.model.with_xla_attention())


def _stored(workdir: Path, about: dict[str, str]) -> dict[str, Any] | None:
    """Returns the content of attention.json if it is `about` this session, or has XLA's attention.

    A run that has left the kernel does not go back to it.
    """
    stored = _read(workdir)
    if stored is None or (stored["kernel"] == "pallas" and not about.items() <= stored.items()):
        return None
    return stored


def _read(workdir: Path) -> dict[str, Any] | None:
    """Returns the content of attention.json; None: there is none yet."""
    path = workdir.expanduser() / FILE
    if not path.is_file():
        return None
    fix = "remove it; the kernel is then compared again"
    stored = read_json(path, error=RunFolderError, fix=fix)
    if stored.get("kernel") not in ("pallas", "xla"):
        raise RunFolderError(f"{path} is damaged: kernel {stored.get('kernel')!r}", "a kernel", fix)
    return stored


def _calls(program: Program) -> set[Call]:
    """Returns the calls of the kernel in the training steps of all sizes of a run."""
    sizes = [program, *(size for size in program.variants.values() if size is not program)]
    with noted_calls() as calls:
        for size in sizes:
            # A new function, so that JAX traces the step even if it was traced before.
            jax.eval_shape(
                lambda *args, step_fn=size.step_fn: step_fn(*args),
                size.abstract,
                size.batch_shapes(),
                *size.abstract_frozen,
            )
    return calls


def _row(call: Call) -> dict[str, Any]:
    """Compares a call with the formula; returns its row of attention.json."""
    split = call.split
    row: dict[str, Any] = {
        "images": call.small_batch,
        "tokens": split.tokens,
        "valid_tokens": split.num_valid,
        "heads": split.heads,
        "head_dim": split.head_dim,
        "dtype": call.dtype,
        "qkv_bias": split.has_qkv_bias,
        "position_bias": split.has_bias,
        "differences": {},
        "problem": None,
    }
    try:
        differences = compare(call)
    except Exception as error:  # Whatever the error is, XLA's attention works.
        row["problem"] = f"failed: {(str(error).strip().splitlines() or [repr(error)])[0][:200]}"
        return row
    # JSON has no NaN.
    row["differences"] = {
        name: [value if np.isfinite(value) else None for value in pair]
        for name, pair in differences.items()
    }
    for name, (of_all, of_one) in differences.items():
        if not (of_all <= _ALL_ROWS and of_one <= _ONE_ROW):  # NaN too.
            row["problem"] = (
                f"differs from the formula by {of_all:.1%}, and by {of_one:.0%} in one row, in"
                f" {name} of {split.tokens} tokens and {split.heads} heads of {split.head_dim}"
                f" features; expected at most {_ALL_ROWS:.1%} and {_ONE_ROW:.0%}"
            )
            break
    return row


def compare(call: Call) -> dict[str, tuple[float, float]]:
    """Runs a call and its gradient on a few random images, and compares them with the formula.

    Returns:
        "output", "gradient of qkv", ... -> relative differences of the array, and of its worst row.
    """
    split, rng = call.split, np.random.default_rng(0)
    sizes = split.tokens, split.heads, split.head_dim
    shapes: dict[str, tuple[int, ...]] = {"qkv": (call.small_batch, split.tokens, 3, *sizes[1:])}
    if split.has_qkv_bias:
        shapes["qkv_bias"] = (3, *sizes[1:])
    if split.has_bias:
        shapes["bias"] = (call.small_batch, split.heads, split.tokens, split.tokens)
    # A large bias would hide differences of the values that are summed.
    scales = {"qkv_bias": 0.1}
    inputs = {
        name: jnp.asarray(
            scales.get(name, 1.0) * rng.standard_normal(shape),
            "float32" if name == "bias" else call.dtype,
        )
        for name, shape in shapes.items()
    }
    toward = jnp.asarray(rng.standard_normal((call.small_batch, *sizes)), jnp.float32)

    def kernel(arrays: dict[str, jax.Array]) -> jax.Array:
        return pallas_attention.attend_qkv(**arrays, num_valid=split.num_valid)

    def formula(arrays: dict[str, jax.Array]) -> jax.Array:
        qkv, bias = arrays["qkv"], arrays.get("qkv_bias")
        query, key, value = jnp.moveaxis(qkv if bias is None else qkv + bias[None, None], 2, 0)
        return attend(
            query,
            key,
            value,
            bias=arrays.get("bias"),
            implementation="einsum",
            num_valid=split.num_valid,
        )

    found = _with_gradients(kernel, inputs, toward)
    with jax.default_matmul_precision("highest"):
        single = {name: array.astype(jnp.float32) for name, array in inputs.items()}
        expected = _with_gradients(formula, single, toward)
    return {name: _difference(found[name], expected[name]) for name in expected}


def _with_gradients(
    function: Any, arrays: dict[str, jax.Array], toward: jax.Array
) -> dict[str, np.ndarray]:
    """Returns the output of a function, and the gradients of its inner product with `toward`."""

    @jax.jit
    def run(arrays: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        output, backward = jax.vjp(function, arrays)
        (gradients,) = backward(toward.astype(output.dtype))
        return output, gradients

    output, gradients = run(arrays)
    named = {f"gradient of {name}": gradient for name, gradient in gradients.items()}
    return {n: np.asarray(x, np.float32) for n, x in ({"output": output} | named).items()}


def _difference(found: np.ndarray, expected: np.ndarray) -> tuple[float, float]:
    """Returns the relative differences of an array, and of its worst row along the last axis.

    That of a row is relative to its own norm or to the usual norm of a row, whichever is larger.
    """
    norms = np.linalg.norm(expected, axis=-1)
    usual = np.sqrt(np.mean(np.square(norms)))
    rows = np.linalg.norm(found - expected, axis=-1)
    of_all = np.sqrt(np.mean(np.square(rows))) / usual
    return float(of_all), float(np.max(rows / np.maximum(norms, usual)))


def _log(problem: str | None, device_kind: str) -> None:
    if problem is None:
        log.info("attention: the Pallas kernel agrees with the formula on this %s", device_kind)
        return
    log.warning(
        "attention: on this %s, the Pallas kernel %s; this run uses XLA's attention instead."
        " Please report it",
        device_kind,
        problem,
    )
