"""Runs the training step of another library for comparison, as a worker process of `bench.step`.

Its argument is a request as JSON. When it is ready it prints {"compile_s": ...}, or {"error": ...}
if it cannot run. Then, for each line of stdin with a number of steps, it runs them and prints
{"step_s": ..., "peak_memory_mb": ...}. It needs the `interop` extra.
"""

# pyright: reportMissingImports=false, reportCallIssue=false
import contextlib
import importlib.machinery
import json
import sys
import time
import types
from typing import Any


def main() -> None:
    """Answers requests until stdin closes."""
    request = json.loads(sys.argv[1])
    try:
        step = _TorchStep(request)
    except Exception as error:  # The caller reports any reason and continues.
        print(json.dumps({"error": f"{type(error).__name__}: {error}".splitlines()[0]}), flush=True)
        return
    print(json.dumps({"compile_s": step.time(2)}), flush=True)
    for line in sys.stdin:
        seconds = step.time(int(line)) / int(line)
        print(json.dumps({"step_s": seconds, "peak_memory_mb": step.peak_memory_mb()}), flush=True)


class _TorchStep:
    """Forward pass, backward pass, clipping by global norm and AdamW."""

    def __init__(self, request: dict[str, Any]):
        import torch

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        # TF32 on GPUs, the default of XLA.
        torch.set_float32_matmul_precision("high" if self.device == "cuda" else "highest")
        makers = {"transformers": _transformers_vit, "timm": _timm_vit}
        model = makers[request["library"]](request).to(self.device).train()
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=1e-3, weight_decay=0.1, fused=self.device == "cuda" or None
        )
        self.parameters = list(model.parameters())
        self.model = torch.compile(model) if request["compiled"] else model
        size = request["image_size"]
        self.images = torch.rand(request["batch_size"], 3, size, size, device=self.device) * 2 - 1
        self.labels = torch.randint(
            request["num_classes"], (request["batch_size"],), device=self.device
        )
        self.bfloat16 = request["dtype"] == "bfloat16"

    def train_step(self) -> None:
        """Runs one step."""
        torch = self.torch
        self.optimizer.zero_grad(set_to_none=True)
        precision = (
            torch.autocast(self.device, torch.bfloat16)
            if self.bfloat16
            else contextlib.nullcontext()
        )
        with precision:
            out = self.model(self.images)
            logits = out if torch.is_tensor(out) else out.logits
            loss = torch.nn.functional.cross_entropy(logits.float(), self.labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()

    def time(self, steps: int) -> float:
        """Runs `steps` steps and returns their total time in seconds."""
        begin = time.perf_counter()
        for _ in range(steps):
            self.train_step()
        if self.device == "cuda":
            self.torch.cuda.synchronize()
        return time.perf_counter() - begin

    def peak_memory_mb(self) -> float | None:
        """Returns the peak device memory in MiB; None: unknown."""
        if self.device != "cuda":
            return None
        return self.torch.cuda.max_memory_allocated() / 2**20


_SIZES = {
    "Ti": ("tiny", 192, 12, 768, 3),
    "S": ("small", 384, 12, 1536, 6),
    "B": ("base", 768, 12, 3072, 12),
    "L": ("large", 1024, 24, 4096, 16),
    "H": ("huge", 1280, 32, 5120, 16),
}


def _parse_model(request: dict[str, Any]) -> tuple[tuple[str, int, int, int, int], int]:
    size, patch = request["model"].removeprefix("ViT-").split("/")
    return _SIZES[size], int(patch)


def _transformers_vit(request: dict[str, Any]) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    (_, width, depth, mlp_dim, num_heads), patch = _parse_model(request)
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        intermediate_size=mlp_dim,
        num_attention_heads=num_heads,
        image_size=request["image_size"],
        patch_size=patch,
        num_labels=request["num_classes"],
        attn_implementation="sdpa",
    )
    return ViTForImageClassification(config)


def _timm_vit(request: dict[str, Any]) -> Any:
    import_timm()
    from timm.models.vision_transformer import VisionTransformer

    (_, width, depth, mlp_dim, num_heads), patch = _parse_model(request)
    return VisionTransformer(
        img_size=request["image_size"],
        patch_size=patch,
        embed_dim=width,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_dim / width,
        num_classes=request["num_classes"],
    )


def import_timm() -> types.ModuleType:
    """Imports timm, even without a torchvision that is compatible with the installed torch.

    timm imports torchvision but does not use it for ViTs, so empty modules can replace it.
    """
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # RuntimeError: built for another torch.
        _fake_torchvision()
    import timm

    return timm


def _fake_torchvision() -> None:
    """Registers empty modules under torchvision's names."""

    class Anything(type):
        def __getattr__(cls, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return name

    class Module(types.ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return Anything(name, (), {})

    names = ("", ".ops", ".ops.misc", ".models", ".models.feature_extraction", ".transforms",
             ".transforms.functional", ".datasets", ".utils")  # fmt: skip
    for name in names:
        module = Module(f"torchvision{name}")
        module.__path__ = []
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None, is_package=True)
        sys.modules[module.__name__] = module
        parent, _, child = module.__name__.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)


if __name__ == "__main__":
    main()
