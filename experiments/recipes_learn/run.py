"""Trains every recipe of configs/ at a small size, beside chance, pixels and plain training.

    python -m experiments.recipes_learn.run runs/recipes_learn
    python -m experiments.recipes_learn.run runs/recipes_learn --only='siglip*' --quick

A recipe keeps its loss, optimizer, kind of augmentation and task. Its model, data, length, warmup
and, where a small model needs another one, learning rate are changed. Finished runs are skipped, so
the same command resumes. Writes RUNS/table.csv and prints the table.
"""

import argparse
import csv
import fnmatch
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.baselines import pixels
from vit_jax.config.fewshot import FewshotConfig

SHOWN = Path("runs/recipes_learn")
"""Folder of the runs in the commands of table.csv."""
# All training digits, and the fifth that has labels after pretraining without labels.
_ALL, _FEW = "train", "train[:20%]"
_TOKEN = {"model.name": "ViT-Ti/2", "model.width": 64, "model.depth": 4, "model.mlp_dim": 128,
          "model.num_heads": 4}  # fmt: skip
_GAP = {**_TOKEN, "model.pooling": "gap", "model.position_embedding": "sincos_2d"}
_DATA = {"data.name": "digits", "data.image_size": 8, "data.global_batch_size": 128,
         "data.train_split": _ALL, "data.eval_crop": "resize", "data.augment.flip": False,
         "evaluation.splits": {"test": "test"}, "accumulation_steps": 1}  # fmt: skip
_EPOCHS = {"train_epochs": 40.0}
_WARMUP = {"optimizer.schedule.warmup_steps": 50}
# log(1 / classes), as -6.9 is for 1,000 classes and -10 for 21,843.
_HEAD_BIAS = {"model.head_bias_init": -2.3}
# Recipes for ImageNet: half an image is the smallest crop of 8 pixels that shows a digit. Strong
# augmentation needs more steps, so batches are small.
_LONG = {"train_epochs": 200.0, "data.global_batch_size": 32}
_IMAGENET = {**_DATA, **_LONG, "data.augment.crop.min_area": 0.5, "model.dtype": "float32",
             "optimizer.learning_rate": 2e-3}  # fmt: skip
_PRETRAIN = {**_DATA, "evaluation.splits": {}}
_FEWER = {"data.train_split": _FEW, "data.global_batch_size": 64}
_FINETUNE = {**_DATA, **_FEWER, "train_steps": 200, "optimizer.schedule.warmup_steps": 20,
             "evaluation.interval_steps": 50, "data.augment.crop.min_area": 0.5,
             "optimizer.learning_rate": 0.03}  # fmt: skip
_PLAIN = {**_DATA, "data.augment.mix": False, "loss.label_smoothing": 0.0,
          "data.augment.crop.name": "resize"}  # fmt: skip
_SLOW = {"optimizer.learning_rate": 2e-3, "optimizer.schedule.warmup_epochs": 5.0}
_PLAIN_FEW = {**_PLAIN, **_FEWER, "train_epochs": 44.6}
_CAPTIONS = {"data.captions.templates": ("a photo of the number {}.", "the digit {}."),
             "data.captions.feature": None, "data.source": "tfds"}  # fmt: skip
# At 10, RandAugment shifts an image by 45 % of its side.
_RANDAUGMENT = {"data.augment.randaugment.magnitude": 2.0}
_TOWERS = {f"model.{tower}.{key}": value for tower in ("image", "text")
           for key, value in (("width", 64), ("depth", 4 if tower == "image" else 2),
                              ("mlp_dim", 128), ("num_heads", 4))}  # fmt: skip
_ZEROSHOT = {"digits": {"name": "digits", "prompts": _CAPTIONS["data.captions.templates"]}}
_PAIRS = {**_DATA, **_CAPTIONS, **_TOWERS, "model.dtype": "float32", "evaluation.splits": {},
          "task.zeroshot": _ZEROSHOT, "model.text.context_length": 16}  # fmt: skip
_WORDS = ["[PAD]", "[UNK]", "[CLS]", ".", "a", "photo", "of", "the", "number", "digit"]
_WORDS += [str(digit) for digit in range(10)]
_BERT = {"data.captions.tokenizer": "vocabulary:vocab.txt",
         "model.text.vocabulary_size": len(_WORDS)}  # fmt: skip
_LETTERS = sorted(set("".join(_WORDS[3:])))
_CLIP = [*_LETTERS, *(f"{x}</w>" for x in _LETTERS), "<|startoftext|>", "<|endoftext|>"]

# Run -> recipe, and what differs from it. "run:NAME" is the folder of another run.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("quickstart.py", {**_PLAIN, **_TOKEN, **_EPOCHS, "model.pooling": "token"}),
    "plain_long": ("quickstart.py", {**_PLAIN, **_LONG, **_SLOW, "model.pooling": "token"}),
    "plain_gap": ("quickstart.py", {**_PLAIN, **_GAP, **_LONG, **_SLOW}),
    "plain_map": ("quickstart.py", {**_PLAIN, **_LONG, **_SLOW, "model.pooling": "map"}),
    "plain_flatten": ("quickstart.py", _PLAIN),
    "plain_tiny": ("quickstart.py", {
        **_PLAIN, "train_epochs": 160.0, "model.width": 32, "model.depth": 2, "model.mlp_dim": 64,
        "model.num_heads": 2, "model.pooling": "token"}),
    "plain_few": ("quickstart.py", {**_PLAIN_FEW, "model.pooling": "token"}),
    "plain_rest": ("quickstart.py", {
        **_PLAIN, **_LONG, **_SLOW, "data.train_split": "train[20%:]", "model.pooling": "token"}),
    "quickstart": ("quickstart.py", {}),
    "distillation": ("distillation.py:small", {
        "task.teacher": "run:quickstart", "train_epochs": 160.0}),
    "pretrain": ("pretrain.py:imagenet21k,B/16", {
        **_IMAGENET, **_TOKEN, **_WARMUP, **_HEAD_BIAS, "model.representation_size": 64}),
    "augreg": ("augreg.py:B/16,imagenet2012,light1", {
        **_IMAGENET, **_TOKEN, **_WARMUP, **_HEAD_BIAS}),
    "better_plain_vit": ("better_plain_vit.py:90", {
        **_IMAGENET, **_GAP, **_WARMUP, **_RANDAUGMENT}),
    "muon": ("muon.py:90", {
        **_IMAGENET, **_GAP, **_WARMUP, **_RANDAUGMENT, "train_epochs": 100.0}),
    "deit3": ("deit3.py:S/16", {
        **_IMAGENET, **_TOKEN, "train_epochs": 400.0, "optimizer.learning_rate": 6e-3}),
    "folder": ("folder.py:split", {
        **_GAP, **_LONG, "data.data_dir": "photos:", "data.image_size": 8,
        "data.augment.flip": False, "data.eval_crop": "resize"}),
    "flexivit": ("flexivit.py:cifar10", {
        **_DATA, **_TOKEN, "model.name": "ViT-Ti/4", "model.patch_kernel_size": 8,
        "model.position_grid": 4, "flexible.patch_sizes": (12, 6, 4), "data.image_size": 24,
        "data.augment.crop.pixels": 3, "data.global_batch_size": 32, "train_examples": 287_400}),
    "naflex": ("naflex.py:cifar10", {
        **_DATA, **_TOKEN, "model.position_grid": 4, "flexible.sequence_lengths": (4, 9, 16),
        "data.sequence_length": 16, "data.augment.crop.pixels": 1, "data.global_batch_size": 32,
        "train_examples": 287_400}),
    "clip": ("clip.py:B/32", {
        **_PAIRS, **_WARMUP, "train_epochs": 200.0, "data.global_batch_size": 64,
        "data.augment.crop.name": "pad", "data.augment.crop.pixels": 1,
        "model.name": "CLIP-ViT-Ti/2", "model.embedding_size": 64,
        "data.captions.tokenizer": "vocabulary:clip", "model.text.context_length": 40,
        "model.text.vocabulary_size": len(_CLIP), "optimizer.learning_rate": 2e-3}),
    "siglip": ("siglip.py:B/16", {
        **_PAIRS, **_BERT, **_WARMUP, "model.name": "SigLIP-ViT-Ti/2", "train_steps": 4490,
        "data.global_batch_size": 64, "optimizer.learning_rate": 4e-3}),
    "lit": ("lit.py:B/16", {
        **_PAIRS, **_BERT, **_WARMUP, "model.name": "LiT-ViT-Ti/2", "model.text.pooling": "first",
        "model.text.pad_token": 0, "init_from": "run:plain_long", "train_steps": 400}),
    "mae_pretrain": ("mae.py:small", {
        **_PRETRAIN, **_TOKEN, "train_epochs": 100.0, "data.augment.crop.pixels": 1,
        "optimizer.schedule.warmup_epochs": 5.0}),
    "mae": ("mae.py:small,finetune", {
        **_DATA, **_TOKEN, **_LONG, "init_from": "run:mae_pretrain",
        "data.augment.crop.pixels": 1, "optimizer.schedule.warmup_epochs": 5.0}),
    **{f"{name}_pretrain": (f"dino.py:small{',' * bool(term)}{term}", {
        **_PRETRAIN, **_TOKEN, "train_epochs": 20.0, "task.local_size": 4,
        "task.local_min_area": 0.2, "optimizer.freeze_epochs": 1.0,
        "optimizer.schedule.warmup_epochs": 5.0})
       for name, term in (("dino", ""), ("ibot", "ibot"))},
    "masked_patches_pretrain": ("masked_patches.py:small", {
        **_PRETRAIN, **_TOKEN, "train_epochs": 40.0, "data.augment.crop.pixels": 1,
        "optimizer.schedule.warmup_epochs": 5.0}),
    "transfer": ("transfer.py:tfds,paper,test", {**_FINETUNE, "init_from": "run:plain_rest"}),
    **{name: ("transfer.py:tfds,paper,test", {
        **_FINETUNE, "init_from": f"run:{name}_pretrain", "data.train_split": _ALL,
        "data.global_batch_size": 32, "train_steps": 8981, "evaluation.interval_steps": 2000})
       for name in ("dino", "ibot", "masked_patches")},
    "cifar10_small": ("cifar10_small.py", {
        **_DATA, **_TOKEN, "data.augment.crop.pixels": 1, "data.global_batch_size": 32,
        "train_examples": 287_400}),
    "cifar10": ("cifar10.py", {**_DATA, **_GAP, **_LONG, "data.augment.crop.pixels": 1}),
}  # fmt: skip

_ZERO = "zeroshot/digits/accuracy_top1"


class Row(NamedTuple):
    """A row of the table: the run that is scored, the plain one, and the probe of pixels."""

    run: str
    plain: str
    pixels: str = "pixels_digits"
    metric: str = "eval/test/accuracy_top1"

    @property
    def recipe(self) -> str:
        """The recipe that the row is about; fine-tuning after it may be another one."""
        return RUNS.get(f"{self.run}_pretrain", RUNS[self.run])[0]

    @property
    def scored(self) -> str:
        """What the score is, and from how many labelled images."""
        how = "zero-shot, " if self.metric == _ZERO else ""
        how = "fine-tuned, " if "init_from" in RUNS[self.run][1] and not how else how
        return how + ("287 labels" if self.pixels == "pixels_few" else "1,437 labels")


ROWS = [
    Row("quickstart", "plain_flatten"), Row("distillation", "plain_tiny"),
    Row("cifar10", "plain_gap"), Row("cifar10_small", "plain_long"),
    Row("folder", "plain_gap", metric="eval/val/accuracy_top1"),
    Row("pretrain", "plain_long"), Row("augreg", "plain_long"), Row("deit3", "plain_long"),
    Row("better_plain_vit", "plain_gap"), Row("muon", "plain_gap"),
    Row("flexivit", "plain_long"), Row("naflex", "plain_map"),
    Row("clip", "plain_long", metric=_ZERO), Row("siglip", "plain_long", metric=_ZERO),
    Row("lit", "plain_long", metric=_ZERO),
    Row("mae", "plain_gap"), Row("dino", "plain_long"), Row("ibot", "plain_long"),
    Row("masked_patches", "plain_long"), Row("transfer", "plain_few", "pixels_few"),
]  # fmt: skip
# Logistic regression on the pixels.
PIXELS = {"pixels_digits": _ALL, "pixels_few": _FEW}


def command(name: str, runs: Path, *, quick: bool = False) -> list[str]:
    """Returns the arguments of `python -m vit_jax` for a run."""
    recipe, changes = RUNS[name]
    settings = {**changes, "logging.tensorboard": False}
    if quick:
        settings |= {"train_steps": 3, "train_epochs": None, "train_examples": None}
    for key, value in settings.items():
        kind, _, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
        if kind in ("run", "vocabulary", "photos"):
            settings[key] = str(runs / ("" if kind == "run" else kind) / rest)
    options = [f"--config.{key}={value}" for key, value in settings.items()]
    return ["train", f"--config=configs/{recipe}", f"--workdir={runs / name}", *options]


def needs(name: str) -> Iterator[str]:
    """Yields the runs that a run starts from, and itself."""
    for value in RUNS.get(name, ("", {}))[1].values():
        if isinstance(value, str) and value.startswith("run:"):
            yield from needs(value.removeprefix("run:"))
    yield name


def run(name: str, runs: Path, quick: bool) -> None:
    """Runs a run or a probe unless it is finished. A run that fails leaves its log."""
    folder = runs / name
    if (folder / "result.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{time.strftime('%H:%M:%S')} {name}", flush=True)
    if name in PIXELS:
        found = pixels.score("digits", 8, PIXELS[name], FewshotConfig(methods=("linear_probe",)))
        (folder / "result.json").write_text(json.dumps(found))
        return
    arguments = [sys.executable, "-m", "vit_jax", *command(name, runs, quick=quick)]
    with (folder / "output.log").open("w") as log:
        done = subprocess.run(arguments, stdout=log, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        print(f"{name}: exit status {done.returncode}, see {folder / 'output.log'}", flush=True)


def prepare(runs: Path) -> None:
    """Writes the vocabularies, and the digits as a folder of images."""
    (runs / "vocabulary/clip").mkdir(parents=True, exist_ok=True)
    (runs / "vocabulary/vocab.txt").write_text("\n".join(_WORDS) + "\n")
    tokens = {token: number for number, token in enumerate(_CLIP)}
    (runs / "vocabulary/clip/vocab.json").write_text(json.dumps(tokens))
    (runs / "vocabulary/clip/merges.txt").write_text("#version: 0.2\n")
    if not (runs / "photos").exists():
        import numpy as np
        from PIL import Image
        from sklearn.datasets import load_digits

        digits: Any = load_digits()
        for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
            split = "train" if index % 5 else "val"  # As in the bundled dataset.
            path = runs / f"photos/{split}/{label}/{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.round(image * (255 / 16)).astype(np.uint8)).save(path)


def _result(name: str, runs: Path) -> dict[str, Any]:
    path = runs / name / "result.json"
    return json.loads(path.read_text()) if path.exists() else {}


def figures(row: Row, runs: Path) -> dict[str, Any]:
    """Returns a line of table.csv; scores that do not exist yet are empty."""
    chain = list(needs(row.run))
    plain = _result(row.plain, runs).get("eval/test/accuracy_top1", "") if row.plain else ""
    probe = _result(row.pixels, runs).get("linear_probe/digits/accuracy_top1", "")
    about = runs / row.run / "env.json"
    lines = [shlex.join(["python", "-m", "vit_jax", *command(n, SHOWN)]) for n in chain]
    return {
        "recipe": row.recipe,
        "scored": row.scored,
        "seed": 0,
        "score": _result(row.run, runs).get(row.metric, ""),
        "plain": plain,
        "pixels": probe,
        "chance": 0.1,
        "seconds": round(sum(_result(name, runs).get("wall_time_s", 0) for name in chain)),
        "revision": json.loads(about.read_text())["git_revision"] if about.exists() else "",
        "command": " && ".join(lines),
    }


def show(lines: list[dict[str, Any]]) -> str:
    """Returns the table in Markdown, in percent."""
    columns = ("score", "plain", "pixels", "chance")
    table = ["| recipe | scored by | score | plain | pixels | chance |"]
    table += ["| --- | --- | ---: | ---: | ---: | ---: |"]
    for line, row in zip(lines, ROWS, strict=True):
        cells = [f"{100 * float(line[key]):.1f}" if line[key] != "" else "–" for key in columns]
        table.append(f"| `{line['recipe']}` | {row.scored} | {' | '.join(cells)} |")
    return "\n".join(table)


def main() -> None:
    """Runs what is missing, writes the table and prints it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("--only", default="*", help="pattern of the rows")
    parser.add_argument("--quick", action="store_true", help="three steps a run, as a check")
    args = parser.parse_args()
    prepare(args.runs)
    for row in ROWS:
        if fnmatch.fnmatch(row.run, args.only):
            for name in (row.pixels, row.plain, *needs(row.run)):
                if name:
                    run(name, args.runs, args.quick)
    lines = [figures(row, args.runs) for row in ROWS]
    with (args.runs / "table.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    print(show(lines))


if __name__ == "__main__":
    main()
