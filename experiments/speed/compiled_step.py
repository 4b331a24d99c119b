"""Compiles one training step for a chip that is not there; `compiled.py` runs it, once per row.

A process of its own, because the compilers read their settings when they start, and because the
package of google-research/vision_transformer has the same name as this project's. Writes into a
folder: facts.json before it compiles, then program.txt (the optimized program) and full.json.
"""

import argparse
import importlib
import json
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit_jax.plan.topology import find_devices, prepare
from vit_jax.plan.topology_names import parse_topology

ROOT = Path(__file__).resolve().parents[2]
_NUM_CLASSES, _NUM_EXAMPLES = 1000, 1_281_167
# Variant -> settings of the model section. Each attention kernel is in an unrolled step.
SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {},
    "scanned": {"scan": True, "remat": "dots"},
    "unrolled": {"scan": False, "remat": "none"},
    **{
        kernel: {"scan": False, "remat": "none", "attention_implementation": kernel}
        for kernel in ("pallas", "xla", "einsum", "cudnn")
    },
}
PEERS = ("big_vision", "vision_transformer")
# Steps must not depend on `auto` for the number of microbatches, except in the row "auto".
_ONE_PART = {"accumulation_steps": 1}

Step = tuple[str, Callable[[], float], Callable[[], Any]]
"""What is executed, in words; FLOPs of the traced step; the lowered step."""


def ours(args: argparse.Namespace, devices: list[Any]) -> Step:
    """The step of this project: `configs/pretrain.py` without dropout, for one device."""
    import jax

    from vit_jax.config.file import load_config
    from vit_jax.models.attention_choice import choose_attention
    from vit_jax.models.flops import traced_macs
    from vit_jax.models.registry import model_shape
    from vit_jax.parallel.mesh import make_mesh
    from vit_jax.train.program import build_program

    model = {
        "name": f"ViT-{args.model}",
        "dropout": 0.0,
        "representation_size": None,
        **SETTINGS[args.variant],
    }
    settings = {
        **{f"model.{key}": value for key, value in model.items()},
        **({} if args.variant == "auto" else _ONE_PART),
        "data.global_batch_size": args.images,
        "data.image_size": args.image_size,
        # The peers' optimizer keeps its first moments in bfloat16.
        "optimizer.state_dtype": "bfloat16",
    }
    config = load_config(
        f"{ROOT / 'configs' / 'pretrain.py'}:imagenet2012,B/16",
        [f"{key}={'null' if value is None else value}" for key, value in settings.items()],
    )
    mesh = make_mesh(config.mesh, devices)
    sizes = {"num_classes": _NUM_CLASSES, "num_examples": _NUM_EXAMPLES}
    program = build_program(config, mesh, **sizes, planned=True)
    shape: Any = model_shape(config.model)
    attention = choose_attention(
        config.model.attention_implementation,  # pyright: ignore[reportAttributeAccessIssue]
        tokens=(args.image_size // shape.patch_size) ** 2 + 1,
        head_dim=shape.width // shape.num_heads,
        num_heads=shape.num_heads,
        dtype=jax.numpy.bfloat16,
        has_bias=False,
        platform=devices[0].platform,
    )
    chosen = str(program.choice).partition(" (")[0] + f", {attention.implementation}"

    def flops() -> float:
        inputs = (program.abstract, program.batch_shapes(), *program.abstract_frozen)
        return 2.0 * traced_macs(program.step_fn, *inputs)

    return chosen, flops, program.lower


def _big_vision(model: str) -> tuple[Any, str]:
    # The model imports a module that needs TensorFlow, and uses nothing of it.
    sys.modules["big_vision.utils"] = types.ModuleType("big_vision.utils")
    vit = importlib.import_module("big_vision.models.vit")
    options = {"pool_type": "tok", "posemb": "learn", "rep_size": False, "dtype_mm": "bfloat16"}
    made = vit.Model(_NUM_CLASSES, variant=model, scan=False, **options)
    return lambda *inputs, **rngs: made.apply(*inputs, **rngs)[0], made


def _vision_transformer(model: str) -> tuple[Any, Any]:
    from vit_jax.models.registry import model_options, model_shape

    shape: Any = model_shape(model_options(f"ViT-{model}"))
    for name in [n for n in sys.modules if n.partition(".")[0] == "vit_jax"]:
        del sys.modules[name]  # The package in the folder has the same name.
    module = importlib.import_module("vit_jax.models_vit")
    made = module.VisionTransformer(
        num_classes=_NUM_CLASSES,
        patches=types.SimpleNamespace(size=(shape.patch_size, shape.patch_size)),
        hidden_size=shape.width,
        transformer={
            "mlp_dim": shape.mlp_dim,
            "num_heads": shape.num_heads,
            "num_layers": shape.depth,
            "dropout_rate": 0.0,
            "attention_dropout_rate": 0.0,
        },
    )
    return made.apply, made


def peer(args: argparse.Namespace, devices: list[Any]) -> Step:
    """A step of the same work with the model of another project, unrolled as it is by default."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from vit_jax.models.flops import traced_macs

    sys.path.insert(0, str(args.folder))
    build = _big_vision if args.variant == "big_vision" else _vision_transformer
    apply, model = build(args.model)
    sharding = NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec())

    def shaped(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    side = args.image_size
    images = shaped((args.images, side, side, 3), jnp.bfloat16)
    labels = shaped((args.images, _NUM_CLASSES), jnp.float32)
    example = jnp.zeros((1, side, side, 3))
    variables = jax.eval_shape(lambda key: model.init(key, example, train=False), jax.random.key(0))
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(mu_dtype=jnp.bfloat16),
        optax.add_decayed_weights(1e-4),
        optax.scale(-1e-3),
    )
    params = variables["params"]
    arrays = (params, jax.eval_shape(optimizer.init, params))
    params, state = jax.tree.map(lambda x: shaped(x.shape, x.dtype), arrays)

    def step(params: Any, state: Any, images: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = apply({"params": params}, images, train=True)
            return optax.softmax_cross_entropy(logits.astype(jnp.float32), labels).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    inputs = (params, state, images, labels)
    lower = jax.jit(step, donate_argnums=(0, 1)).lower
    return "unrolled, remat none", lambda: 2.0 * traced_macs(step, *inputs), lambda: lower(*inputs)


def memory_of(compiled: Any, platform: str) -> int:
    """Returns the bytes of device memory that a step needs, as `vit_jax.plan` counts them."""
    stats = compiled.memory_analysis()
    extra = stats.generated_code_size_in_bytes
    extra += max(stats.output_size_in_bytes - stats.alias_size_in_bytes, 0)
    peak = getattr(stats, "peak_memory_in_bytes", None) or 0
    arguments = stats.argument_size_in_bytes
    if platform == "tpu" and peak:
        return max(peak, arguments) + extra
    return max(peak, arguments + stats.temp_size_in_bytes + extra)


def main() -> None:
    """Compiles one step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topology", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--image_size", type=int, required=True)
    parser.add_argument("--images", type=int, required=True)
    parser.add_argument("--variant", choices=(*SETTINGS, *PEERS), required=True)
    parser.add_argument("--folder", type=Path, help="checkout of the peer")
    parser.add_argument("--output", type=Path, required=True)
    args = parser.parse_args()
    topology = parse_topology(args.topology)
    prepare(topology)
    import jax

    jax.config.update("jax_enable_compilation_cache", False)
    devices = find_devices(topology)[:1]
    chosen, flops, lower = (peer if args.variant in PEERS else ours)(args, devices)
    (args.output / "facts.json").write_text(json.dumps({"chose": chosen, "flops": flops()}))
    begin = time.perf_counter()
    compiled = lower().compile()
    seconds = time.perf_counter() - begin
    full = {"memory_bytes": memory_of(compiled, topology.platform), "compile_s": seconds}
    (args.output / "full.json").write_text(json.dumps(full))
    (args.output / "program.txt").write_text(compiled.as_text() or "")


if __name__ == "__main__":
    main()
