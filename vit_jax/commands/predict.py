"""Classify images.

python -m vit_jax predict cat.jpg dog.jpg --model=B_16.npz
python -m vit_jax predict digit.png --model=runs/quickstart --top=3
"""

import argparse
import dataclasses
from pathlib import Path

from vit_jax.commands.arguments import positive_int
from vit_jax.commands.load_options import add_load_arguments, load_arguments
from vit_jax.errors import DataError, NonFiniteError, WeightsError
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import user_path

OVERRIDES = "--model."
_IMAGENET = Path(__file__).resolve().parents[1] / "interop" / "imagenet2012_classes.txt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("images", nargs="+", type=user_path, metavar="IMAGE")
    parser.add_argument(
        "--model", required=True, help="file, folder, run folder; hf://, gs://, s3://"
    )
    parser.add_argument("--top", type=positive_int, default=5, help="number of classes to show")
    parser.add_argument("--classes", type=user_path, help="text file with one class name per line")
    parser.add_argument(
        "--crop",
        choices=("central", "resize"),
        help="crop the central square, or squash the image; default: as in the weights' evaluation",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per image")
    add_load_arguments(parser)


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import jax
    import numpy as np

    from vit_jax.data.preprocess import preprocess_of
    from vit_jax.interop.load import load
    from vit_jax.run.compile_cache import use_compile_cache

    use_compile_cache()
    loaded = load(args.model, **load_arguments(args, overrides))
    loaded.report.print()
    if not loaded.num_classes:
        raise WeightsError(
            f"{args.model} has no head", "a model with classes", "use a fine-tuned one"
        )
    names = _class_names(args.classes, loaded.class_names, loaded.num_classes)
    preprocess = preprocess_of(loaded.model)
    preprocess = dataclasses.replace(preprocess, crop=args.crop or preprocess.crop)

    @jax.jit
    def predict(images: jax.Array) -> jax.Array:
        logits = loaded.model(images)
        assert isinstance(logits, jax.Array)
        return jax.nn.softmax(logits)

    for path in args.images:
        scores = np.asarray(predict(preprocess(path)))[0]
        if not np.isfinite(scores).all():
            raise NonFiniteError(
                f"{path}: the model's output is NaN or infinite",
                "finite numbers",
                "check the weights, e.g. that they are not damaged",
            )
        best = np.argsort(-scores)[: args.top]
        _print(path, [(names[i], float(scores[i])) for i in best], as_json=args.json)
    return 0


def _class_names(
    file: Path | None, known: tuple[str, ...] | None, num_classes: int
) -> tuple[str, ...]:
    """Returns class names: from the given file, from the weights, of ImageNet, or numbers."""
    if file is not None:
        from vit_jax.data.preprocess import read_user_file

        expected = "a text file with one class name per line"
        names = tuple(read_user_file(file, expected).decode(errors="replace").splitlines())
        if len(names) != num_classes:
            raise DataError(
                f"{file} has {len(names)} lines",
                f"a name for each of {num_classes} classes",
                "give another file",
            )
        return names
    if known is not None:
        return known
    if num_classes == 1000:
        return tuple(_IMAGENET.read_text().splitlines())
    return tuple(f"class {i}" for i in range(num_classes))


def _print(path: Path, found: list[tuple[str, float]], *, as_json: bool) -> None:
    if as_json:
        content = {"image": str(path), "classes": [[n, round(s, 6)] for n, s in found]}
        print(json_text(content, what="the output"))
        return
    print(path)
    for name, score in found:
        print(f"  {score:6.1%}  {name}")
