"""Inspect, check and pack datasets.

    python -m vit_jax data info cifar10 --data_dir=DATA
    python -m vit_jax data check PHOTOS
    python -m vit_jax data prepare PHOTOS --name=photos --data_dir=DATA --short_side=256

`info` and `check` take a TFDS name, a folder of images, or a CSV file of path,label.
`check` decodes every image, lists unreadable ones, and verifies checksums if the dataset has them.
It exits with code 2 if it finds a problem. It warns of splits with one class or one example,
classes without training examples, images of one colour, and images that are in two splits.

`prepare` packs a folder of images, or one tar file per class, into TFDS-format ArrayRecord shards.
Run the same command again to resume after an interruption. With --short_side=S it shrinks larger
images (bicubic; JPEG quality 95) and rotates them by their EXIF orientation.

FOLDER, CSV file, DATA and DIR may be in a bucket: gs://BUCKET/... or s3://BUCKET/....
"""

import argparse
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import fraction, positive_int
from vit_jax.errors import EXIT_STOPPED, ConfigError, DataError, first_few
from vit_jax.storage.files import json_text
from vit_jax.storage.paths import check_output_folder, user_path

if TYPE_CHECKING:
    from rich.table import Table

    from vit_jax.data.check import SplitReport
    from vit_jax.data.sources import Source

log = logging.getLogger(__name__)

# More classes than this are summarized; --json lists all.
_MAX_CLASSES = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    commands = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    info = commands.add_parser("info", help="show features, splits, classes, format, fingerprint")
    check = commands.add_parser("check", help="decode every image")
    prepare = commands.add_parser("prepare", help="pack images into ArrayRecord shards")
    for sub in (info, check):
        sub.add_argument("name", metavar="NAME", help="dataset, or its path")
    for sub in (info, check, prepare):
        sub.add_argument("--data_dir", help="TFDS folder; default as for data.data_dir")
    for sub in (info, check):
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.add_argument(
            "--source",
            choices=("tfds", "folder", "csv", "captioned"),
            help="default: folder or csv if the path NAME exists, else tfds",
        )
        sub.add_argument("--image_key")
        sub.add_argument("--label_key")
        sub.add_argument(
            "--caption", metavar="KEY", default="caption", help="column or key, for captioned"
        )
    check.add_argument("--threads", type=positive_int, help="default: one per core")
    prepare.add_argument(
        "images", metavar="FOLDER", help="folder of images or tar files, or CSV file"
    )
    prepare.add_argument("--name", help="name of the dataset; default: the folder's name")
    prepare.add_argument("--short_side", type=positive_int, help="shrink larger images, in pixels")
    prepare.add_argument(
        "--val_fraction", type=fraction, default=0.0, help="fraction of train for validation"
    )
    prepare.add_argument("--shard_mb", type=positive_int, default=256, help="MB per shard (256)")
    prepare.add_argument("--on_bad_example", choices=("error", "skip"), default="error")
    prepare.add_argument("--threads", type=positive_int, help="default: one per core")


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if overrides:
        raise ConfigError(
            f"argument '--config.{overrides[0]}'",
            "the arguments of python -m vit_jax data",
            "see python -m vit_jax data --help",
        )
    commands = {"info": _info, "check": _check, "prepare": _prepare}
    try:
        commands[args.what](args)
    except KeyboardInterrupt:
        log.info("stopped")
        return EXIT_STOPPED
    return 0


def _info(args: argparse.Namespace) -> None:
    facts, sources = _open(args)
    first = next(iter(sources.values()), None)
    if first is not None:
        facts |= {"classes": len(first.class_names), "class_names": first.class_names}
    facts["splits"] = facts.get("splits", {}) | {
        split: {"examples": len(source), "fingerprint": source.fingerprint}
        for split, source in sources.items()
    }
    empty = [split for split, held in facts["splits"].items() if not held["examples"]]
    if empty:
        log.warning("%s has no examples in: %s", args.name, first_few(empty, 5))
    if args.json:
        _print_json(facts)
        return
    table = _table("", "")
    for key, value in facts.items():
        if key == "splits":
            for split, held in value.items():
                described = [f"{held['examples']:,} examples"]
                described += [f"fingerprint {held['fingerprint']}"] if "fingerprint" in held else []
                table.add_row(f"split {split}", ", ".join(described))
        else:
            table.add_row(key.replace("_", " "), _shown(value))
    _print(args.name, table)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} ({kind})" for key, kind in value.items())
    if isinstance(value, tuple):
        return ", ".join(value[:8]) + (", ..." if len(value) > 8 else "")
    return f"{value:,}" if isinstance(value, int) else str(value)


def _check(args: argparse.Namespace) -> None:
    from vit_jax.data.check import check_split, dataset_warnings, wrong_checksums
    from vit_jax.data.sources.tfds import convert_command

    facts, sources = _open(args)
    if not sources:
        raise DataError(
            f"{args.name} is stored as {facts['format']}",
            "array_record",
            f"run: {convert_command(facts['path'])}",
        )
    wrong = wrong_checksums(user_path(facts["path"])) if "path" in facts else []
    reports = [check_split(source, split, args.threads) for split, source in sources.items()]
    warnings = dataset_warnings(reports, sources)
    class_names = next(iter(sources.values())).class_names
    if args.json:
        _print_json(_check_facts(reports, wrong, class_names) | {"warnings": warnings})
    else:
        _show_check(args.name, reports, wrong, class_names)
        for warning in warnings:
            print(f"warning: {warning}")
    bad = sum(len(report.bad) for report in reports)
    if bad or wrong:
        total = sum(len(source) for source in sources.values())
        files = f" and {len(wrong)} damaged files" if wrong else ""
        raise DataError(
            f"{bad} of {total} examples are bad{files} in {args.name}",
            "images that can be decoded, with labels in range",
            "remove or repair the examples listed, or train with --config.data.on_bad_example=skip",
        )


def _prepare(args: argparse.Namespace) -> None:
    from vit_jax.data.prepare.pack import VERSION, PackOptions, pack
    from vit_jax.data.sources import default_data_dir
    from vit_jax.data.sources.listing import list_images

    images = user_path(args.images)
    data_dir = user_path(args.data_dir) if args.data_dir else default_data_dir()
    check_output_folder(data_dir)
    listing = list_images(images)
    stem = images.absolute().name.removesuffix(".csv")
    cleaned = "".join(c if c.isascii() and c.isalnum() else "_" for c in stem.lower())
    options = PackOptions(
        name=args.name or cleaned,
        short_side=args.short_side,
        val_fraction=args.val_fraction,
        shard_mb=args.shard_mb,
        on_bad_example=args.on_bad_example,
        threads=args.threads,
    )
    packed = pack(listing, data_dir, options)
    splits = ", ".join(f"{split} {count:,}" for split, count in packed.splits.items())
    state = "was complete already" if packed.was_complete else "is written"
    print(f"{packed.path} {state}: {splits} examples of {len(listing.class_names):,} classes")
    if packed.skipped:
        print(f"unreadable images skipped: {len(packed.skipped)}")
    name = (
        options.name if _opens(options.name, data_dir, packed.path) else f"{options.name}:{VERSION}"
    )
    print(
        f"to train on it: --config.data.source=tfds --config.data.name={name}"
        f" --config.data.data_dir={data_dir}"
    )


def _opens(name: str, data_dir: Path, path: Path) -> bool:
    """Whether the name alone opens the dataset. TFDS may know another dataset by that name."""
    from vit_jax.data.sources.tfds import open_builder

    try:
        return user_path(str(open_builder(name, str(data_dir)).data_path)) == path
    except DataError:
        return False


def _open(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, "Source"]]:
    """Returns facts about a dataset, and its splits if they have random access."""
    path = user_path(args.name)
    kind = args.source or ("folder" if path.is_dir() else "csv" if path.is_file() else "tfds")
    keys: dict[str, Any] = {"image_key": args.image_key, "label_key": args.label_key}
    if kind == "tfds":
        return _open_tfds(args.name, args.data_dir, keys)
    if given := next((key for key, value in keys.items() if value), None):
        raise ConfigError(
            f"--{given}={keys[given]} for {args.name}, which is read as {kind}",
            "a TFDS dataset, which names what an example has",
            "leave it out; the columns of a list are path and label",
        )
    from vit_jax.data.sources.captioned import CaptionedSource, list_captioned
    from vit_jax.data.sources.folder import FolderSource
    from vit_jax.data.sources.listing import list_images

    captioned = list_captioned(path, (args.caption,)) if kind == "captioned" else None
    listing = list_images(path) if captioned is None else captioned.images
    facts = {
        "source": kind,
        "path": str(path),
        "bytes": int(listing.sizes.sum()),
        "files_skipped": listing.num_skipped,
    }
    if captioned is not None:
        found = {s: CaptionedSource(captioned, s, path.name, "keep") for s in listing.splits}
        return facts | {"captions": args.caption}, dict(found)
    sources = {s: FolderSource(listing, s, path.name, "keep") for s in listing.splits}
    return facts, dict(sources)


def _open_tfds(
    name: str, data_dir: str | None, keys: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, "Source"]]:
    from vit_jax.data.sources import TfdsSource
    from vit_jax.data.sources.tfds import RANDOM_ACCESS, open_builder

    builder = open_builder(name, data_dir)
    info = builder.info
    formats = [info.file_format.value, *(f.value for f in info.alternative_file_formats)]
    facts: dict[str, Any] = {
        "source": "tfds",
        "path": str(builder.data_path),
        "name": info.full_name,
        "format": ", ".join(formats),
        "features": {key: type(value).__name__ for key, value in (info.features or {}).items()},
        "splits": {key: {"examples": s.num_examples} for key, s in info.splits.items()},
    }
    if not set(formats) & set(RANDOM_ACCESS):
        return facts, {}
    splits = [key for key, split in info.splits.items() if split.num_examples]
    return facts, {split: TfdsSource(name, split, data_dir, **keys) for split in splits}


def _check_facts(
    reports: list["SplitReport"], wrong: list[tuple[str, str]], class_names: tuple[str, ...]
) -> dict[str, Any]:
    return {
        "class_names": class_names,
        "splits": {
            report.name: {
                "examples": len(report.num_bytes),
                "per_class": report.per_class.tolist(),
                "formats": dict(report.formats),
                "bad": dict(report.bad),
            }
            for report in reports
        },
        "damaged_files": dict(wrong),
    }


def _show_check(
    name: str,
    reports: list["SplitReport"],
    wrong: list[tuple[str, str]],
    class_names: tuple[str, ...],
) -> None:
    import numpy as np

    table = _table(
        "split", ">readable", ">bad", ">MB", ">smallest", ">median", ">largest", "format"
    )
    for report in reports:
        order = np.argsort(report.sizes.prod(axis=1), kind="stable")
        picked = [order[0], order[len(order) // 2], order[-1]] if len(order) else []
        table.add_row(
            report.name,
            f"{len(report.num_bytes):,}",
            f"{len(report.bad):,}",
            f"{report.num_bytes.sum() / 1e6:,.1f}",
            *([f"{w} x {h}" for w, h in report.sizes[picked]] or ["", "", ""]),
            ", ".join(f"{kind} {count:,}" for kind, count in report.formats.most_common()),
        )
    held = f"{len(class_names):,} classes" if class_names else "images with captions"
    _print(f"{name}: {held}", table)
    if class_names:
        _show_classes(reports, class_names)
    for example, reason in [*wrong, *(pair for report in reports for pair in report.bad)]:
        print(f"{example}: {reason}")


def _show_classes(reports: list["SplitReport"], class_names: tuple[str, ...]) -> None:
    import numpy as np

    table = _table("class", *(f">{report.name}" for report in reports))
    counts = np.stack([report.per_class for report in reports], axis=1)
    if len(class_names) <= _MAX_CLASSES:
        for label, row in zip(class_names, counts, strict=True):
            table.add_row(label, *(f"{count:,}" for count in row))
    else:
        for word, function in (("fewest", np.min), ("median", np.median), ("most", np.max)):
            table.add_row(word, *(f"{count:,.0f}" for count in function(counts, axis=0)))
    _print("examples of each class", table)


def _table(*columns: str) -> "Table":
    """Returns an empty table; ">" before a column name aligns the column to the right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_header=any(columns))
    for number, column in enumerate(columns):
        justify = "right" if column.startswith(">") else "left"
        table.add_column(
            column.removeprefix(">"), justify=justify, no_wrap=not number, overflow="fold"
        )
    return table


def _print(title: str, table: "Table") -> None:
    from vit_jax.tables import wide_console

    console = wide_console()
    console.print(title, style="bold", markup=False)
    console.print(table, markup=False)


def _print_json(content: dict[str, Any]) -> None:
    print(json_text(content, what="the output", indent=2))
