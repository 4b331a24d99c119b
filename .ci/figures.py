"""Writes figures of this checkout that a change of its shape must not move; `.ci/compare` calls it.

    python .ci/figures.py exact OUT.json    digests of training images, the quickstart's weights,
                                            compiled steps of S/16 and B/16 on v5e and h100
    python .ci/figures.py timed OUT.json    one round of `bench step`, `bench feed`, start-up

Exact figures are equal for equal code, packages and machine. They change with a package's version,
so no test has them. Steps for h100 are left out where `jax[cuda13]` is not installed.
"""

import hashlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
# Each kind of preprocessing and augmentation.
RECIPES = (
    "quickstart", "cifar10", "cifar10_small", "cifar10_small:BiT-R-Nano", "folder", "pretrain",
    "masked_patches", "masked_patches:small", "mae:small", "mae:B/16", "mae:B/16,finetune",
    "dino:small", "dino:S/16", "dino:S/16,ibot", "flexivit:cifar10", "flexivit:supervised",
    "naflex:cifar10", "naflex", "deit3:S/16", "deit3:B/16,finetune", "better_plain_vit:90",
    "muon:small", "augreg:B/16,imagenet21k,medium1", "augreg:S/32,strong2,0.1", "lit:coco",
    "siglip:B/16", "clip:B/16", "transfer:cifar10,augreg,test", "transfer:cifar100,bit",
)  # fmt: skip
_OVERRIDES = {
    "transfer": ["init_from=WEIGHTS", "model.name=ViT-Mini/4", "data.image_size=32"],
}
_STEPS = ("v5e:S/16:224:128:auto", "v5e:B/16:224:128:auto")
_GPU_STEPS = ("h100:S/16:224:256:auto", "h100:B/16:224:256:auto")


def examples() -> list[Any]:
    """Returns ten JPEG images of several sizes."""
    from vit_jax.data.sources.base import Example

    made = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3)).astype(np.uint8))
        image = coarse.resize((90 + 50 * seed, 400 - 30 * seed), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=95)
        made.append(Example(file.getvalue(), seed % 5, str(seed)))
    return made


def digest(arrays: Any) -> str:
    """Returns a digest of arrays by name."""
    held = hashlib.sha256()
    for name, value in sorted(arrays.items()):
        array = np.asarray(value)
        held.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    return held.hexdigest()[:16]


def training_images(recipe: str) -> dict[str, str]:
    """Returns digests of ten rows of the host, and of the batch that the device makes of them."""
    import jax

    from vit_jax.config.file import load_config
    from vit_jax.data.transforms import make_train_transform
    from vit_jax.parallel.mesh import make_mesh
    from vit_jax.train.program import build_program

    name, _, arg = recipe.partition(":")
    file = f"{ROOT / 'configs' / name}.py{':' if arg else ''}{arg}"
    config = load_config(file, _OVERRIDES.get(name, []))
    sizes = {"num_classes": 10, "num_examples": 50_000}
    program = build_program(config, make_mesh(config.mesh), **sizes, planned=True)
    preprocessing, rows = program.task.train_preprocessing, []
    for position, example in enumerate(examples()):
        rng = np.random.default_rng(position)
        if "tokens" in preprocessing.arrays:  # Texts would need a tokenizer.
            image = make_train_transform(config.data.image_size, config.data)(example.image, rng)
            rows.append({"image": image, "tokens": np.zeros(4, np.int32)})
        else:
            rows.append(preprocessing.make_row(example, rng))
    batch = {key: np.stack([np.asarray(row[key]) for row in rows]) for key in rows[0]}
    for key, spec in preprocessing.arrays.items():
        batch[key] = batch[key].astype(spec.dtype)
    prepared = jax.jit(program.task.prepare)(batch, 3)
    named = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(prepared)}
    return {f"images {recipe} host": digest(batch), f"images {recipe} device": digest(named)}


def run(*arguments: str, **options: Any) -> str:
    """Runs a command of this checkout; returns what it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True, **options
    ).stdout


def quickstart() -> dict[str, str]:
    """Trains the quickstart; returns the digest of its weights."""
    with tempfile.TemporaryDirectory() as folder:
        workdir = Path(folder, "run")
        run(
            "vit_jax", "train", "--config=configs/quickstart.py", f"--workdir={workdir}",
            f"--config.data.data_dir={folder}/data",
        )  # fmt: skip
        result = json.loads((workdir / "result.json").read_text(encoding="utf-8"))
    return {"quickstart weights": result["weights_digest"]}


def compiled_steps() -> Iterator[dict[str, str]]:
    """Yields what the compilers make of training steps: bytes, kernels, what was chosen."""
    from experiments.speed.compiled import compile_row, select

    has_cuda = importlib.util.find_spec("jax_cuda13_plugin") is not None
    for name in (*_STEPS, *(_GPU_STEPS if has_cuda else ())):
        (key,) = select(name)
        row = compile_row(key, {}, folder=None, full=False, movers=0)
        figures = f"{row.mb_per_image} MB an image, {row.kernels} kernels, {row.compute_ms} ms"
        yield {f"step {name}": f"{figures}, {row.chose}, {row.memory_gib} GiB"}


def exact() -> Iterator[dict[str, Any]]:
    """Yields the exact figures one after the other."""
    for recipe in RECIPES:
        yield training_images(recipe)
    yield quickstart()
    yield from compiled_steps()


def timed() -> Iterator[dict[str, float]]:
    """Yields the seconds of one round: a step, 1,000 images of the feed, imports and help."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "step.json")
        run(
            "vit_jax", "bench", "step", "--model=ViT-Ti/16", "--batch_size=16", "--image_size=64",
            "--rounds=3", f"--output={output}",
        )  # fmt: skip
        row = json.loads(output.read_text(encoding="utf-8"))["rows"][0]
        yield {"bench step, ms": row["step_ms_min"]}
        output = Path(folder, "feed.json")
        run(
            "vit_jax", "bench", "feed", "--image_size=96", "--processes=0", "--seconds=2",
            f"--output={output}",
        )  # fmt: skip
        rows = json.loads(output.read_text(encoding="utf-8"))["feed"]
        yield {"bench feed, ms an image": 1e3 / max(row["images_per_second"] for row in rows)}
    for name, arguments in {
        "start-up: import vit_jax, s": ("timeit", "-n1", "-r1", "import vit_jax"),
        "start-up: --help, s": ("vit_jax", "--help"),
        "start-up: train --help, s": ("vit_jax", "train", "--help"),
        "start-up: config, s": ("vit_jax", "config", "--config=configs/quickstart.py"),
    }.items():
        begin = time.perf_counter()
        run(*arguments)
        yield {name: time.perf_counter() - begin}


def main(kind: str, output: Path) -> None:
    """Writes the figures of one kind, and those that there are so far if it is stopped."""
    logging.disable(logging.WARNING)  # Warmups are too long for so little data.
    found: dict[str, Any] = {}
    for figures in {"exact": exact, "timed": timed}[kind]():
        found |= figures
        output.write_text(json.dumps(found, indent=1), encoding="utf-8")
        print(*(f"{name}: {value}" for name, value in figures.items()), sep="\n", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
