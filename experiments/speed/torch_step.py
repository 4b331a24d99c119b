"""Times the training step of timm or transformers in turn with ours, on synthetic images.

    python -m experiments.speed.torch_step --library=timm --model=ViT-Ti/16 --batch_size=32
    python -m experiments.speed.torch_step --compiled --config model.scan=false accumulation_steps=8

Both steps are a forward pass, a backward pass, clipping by global norm and AdamW. PyTorch uses SDPA
and has a process of its own, idle while our step is timed. Needs `pip install vit_jax[interop]`.
"""

import argparse
import dataclasses
import json
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from experiments.speed.import_timm import import_timm

CLASSES = 1000


def main(arguments: Sequence[str] | None = None) -> None:
    """Times both steps and prints their speed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.speed.torch_step")
    parser.add_argument("--library", choices=("timm", "transformers"), default="timm")
    parser.add_argument("--compiled", action="store_true", help="use torch.compile")
    parser.add_argument("--model", default="ViT-Ti/16")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--image_size", type=int, default=224)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5, help="the figures are medians over them")
    parser.add_argument("--steps", type=int, default=2, help="steps per round")
    parser.add_argument("--config", nargs="*", default=[], metavar="KEY=VALUE", help="of our step")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    args = parser.parse_args(arguments)

    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # Leaves memory for PyTorch.
    from vit_jax.bench.step import JaxStep, measure_interleaved, synthetic_config
    from vit_jax.models.registry import model_shape

    sizes = {name: getattr(args, name) for name in ("batch_size", "image_size", "dtype")}
    config = synthetic_config(args.model, **sizes, overrides=args.config)
    shape = dataclasses.asdict(model_shape(config.model))
    ours = JaxStep(config)
    both: list[Any] = [ours, TorchStep(vars(args) | shape, ours.measurement)]
    measured = measure_interleaved(both, rounds=args.rounds, steps_per_round=args.steps)
    rows = [one.row() for one in measured]
    for row in rows:
        print(f"{row['name']:30}{row['images_per_second']:10,.1f} images/s")
    print(f"vit_jax is {rows[1]['step_ms'] / rows[0]['step_ms']:.2f}x as fast")
    if args.output is not None:
        args.output.write_text(json.dumps({"rows": rows}, indent=2) + "\n")


class TorchStep:
    """The step in PyTorch: `request` has the script's arguments and the sizes of the model."""

    def __init__(self, request: dict[str, Any], ours: Any):
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        name = f"{request['library']}{', torch.compile' * request['compiled']}, SDPA"
        compile_s = self._pool.submit(_build, request).result()
        self.measurement = dataclasses.replace(
            ours, name=name, compile_s=compile_s, peak_memory_mb=None, step_s=[], attention=None
        )

    def time(self, steps: int) -> float:
        """Runs steps and returns the seconds per step."""
        seconds, self.measurement.peak_memory_mb = self._pool.submit(_run, steps).result()
        return seconds / steps

    def close(self) -> None:
        """Ends the process."""
        self._pool.shutdown()


# What follows runs in the process of PyTorch.
_train_step: Any = None


def _build(request: dict[str, Any]) -> float:
    """Builds the step and returns the seconds of its first two runs."""
    global _train_step
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    # TF32 on GPUs, the default of XLA.
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")
    model = _make_model(request).to(device).train()
    parameters, fused = list(model.parameters()), device == "cuda" or None
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=fused)
    model = torch.compile(model) if request["compiled"] else model
    count, side = request["batch_size"], request["image_size"]
    images = torch.rand(count, 3, side, side, device=device) * 2 - 1
    labels = torch.randint(CLASSES, (count,), device=device)

    def train_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=request["dtype"] == "bfloat16"):
            out = model(images)
            logits = out if torch.is_tensor(out) else out.logits
            loss = torch.nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    _train_step = train_step
    return _run(2)[0]


def _run(steps: int) -> tuple[float, float | None]:
    """Returns the seconds of some steps, and the peak device memory in MiB (None: unknown)."""
    import torch

    begin = time.perf_counter()
    for _ in range(steps):
        _train_step()
    if not torch.cuda.is_available():
        return time.perf_counter() - begin, None
    torch.cuda.synchronize()
    return time.perf_counter() - begin, torch.cuda.max_memory_allocated() / 2**20


def _make_model(request: dict[str, Any]) -> Any:
    """Returns a ViT of the library with the sizes of ours."""
    names = ("image_size", "patch_size", "width", "depth", "mlp_dim", "num_heads")
    image_size, patch_size, width, depth, mlp_dim, num_heads = (request[name] for name in names)
    if request["library"] == "timm":
        import_timm()
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            img_size=image_size, patch_size=patch_size, embed_dim=width, depth=depth,
            num_heads=num_heads, mlp_ratio=mlp_dim / width, num_classes=CLASSES,
        )  # fmt: skip
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=image_size, patch_size=patch_size, hidden_size=width, num_hidden_layers=depth,
        num_attention_heads=num_heads, intermediate_size=mlp_dim, num_labels=CLASSES,
        attn_implementation="sdpa",
    )  # fmt: skip
    return ViTForImageClassification(config)


if __name__ == "__main__":
    main()
