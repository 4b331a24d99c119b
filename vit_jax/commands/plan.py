"""Plan a run for TPUs or GPUs that are not there: memory, time and collectives.

    python -m vit_jax plan --config=configs/pretrain.py:imagenet2012,L/16 --topology=v5e:4x4
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5p:4x4x8 --config.model.remat=full
    python -m vit_jax plan --config=FILE.py:ARG --topology='2*v5e:16x16'
    python -m vit_jax plan --config=FILE.py:ARG --topology=h100:8x4
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:16x16 --search
    python -m vit_jax plan --config=configs/quickstart.py --topology=cpu:8

Compiles the run's real training step. Plans for TPUs (v4, v5e, v5p, v6e) need no TPU, only their
compiler: pip install 'jax[tpu]'. 2*v5e:16x16 is two slices, connected by the data center
network (DCN). v5litepod-256 and v5e-256, as Google Cloud writes it, are v5e:16x16.

Plans for GPUs need no GPU and no driver: pip install 'jax[cuda13]'. h200:8 is one node with 8
GPUs, h100:8x4 is 4 nodes with 8 GPUs each, l4 is one GPU. h100:4x8 is the same, because most
nodes have 8 GPUs; 'h100:8 nodes x 4' is 8 nodes with 4. Kinds: a100 (80 GB), a100-40gb,
a100-pcie, h100 (SXM), h100-pcie, h200, b200, l4, l40, l40s, rtx3090, rtx4090. XLA cannot time
kernels without a GPU, so it takes cuBLAS's matmuls; on a real GPU it may choose others. XLA_FLAGS
can change that.

cpu:8 is eight forced CPU devices, gpu is all GPUs of this machine. Plans for well-known datasets
need no data.
"""

import argparse
import contextlib
import csv
import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit_jax.commands.arguments import fraction, output_file, positive_int, positive_number
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.storage.files import append_text, write_json

if TYPE_CHECKING:
    from vit_jax.plan.estimate import Plan
    from vit_jax.plan.search import Candidate
    from vit_jax.plan.topology_names import Topology


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("--config", required=True, help="name of a recipe, FILE.py or FILE.py:ARG")
    parser.add_argument(
        "--topology",
        required=True,
        help="TPU: v5e:16x16, v6e:8x8, v4:4x4x4, v5p:4x4x4, 2*v5e:16x16 (two slices). GPU: h200:8"
        " (8 GPUs), h100:8x4 (4 nodes with 8 GPUs each), a100:8, b200:8, l4. This machine: cpu:8,"
        " gpu",
    )
    parser.add_argument("--num_classes", type=positive_int, help="default: those of the dataset")
    parser.add_argument(
        "--num_examples",
        type=positive_int,
        help="examples per epoch; default: those of the dataset",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="try batch sizes, meshes, presets and remat policies; show the fastest that fits",
    )
    parser.add_argument(
        "--batch_sizes", help="global, comma-separated; default: the config's, twice and half of it"
    )
    parser.add_argument(
        "--meshes", help="data,fsdp,tensor of each mesh, separated by ';'; default: usual ones"
    )
    parser.add_argument(
        "--mfu",
        type=fraction,
        help="MFU of the last estimate; default: on GPUs 0.43, as measured with ViT-B/16 on one"
        " H200, else 0.4",
    )
    parser.add_argument(
        "--price", type=positive_number, metavar="DOLLARS", help="of an hour of one chip or GPU"
    )
    parser.add_argument(
        "--output", type=output_file, help="FILE.json, or FILE.csv to append a row to"
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if args.output is not None and args.output.suffix not in (".json", ".csv"):
        raise ConfigError(f"--output={args.output}", "FILE.json or FILE.csv", "rename it")
    if not args.search and (args.batch_sizes or args.meshes):
        raise ConfigError("--batch_sizes or --meshes without --search", "--search too", "add it")
    from vit_jax.plan.topology_names import parse_topology

    topology = parse_topology(args.topology)
    doing = f"compiling for {topology.name} (small models: seconds, ViT-L: one to three minutes)"
    doing = f"{doing}, once for each setting" if args.search else doing
    tried: list[Candidate] = []
    plans: dict[str, tuple[float, Plan]] = {}  # Of the sizes of a flexible model.
    with _waiting(doing) as say:  # From here: the imports take seconds.
        config = load_config(args.config, overrides, _auto_model)
        from vit_jax.config.flexible import trained_variants
        from vit_jax.plan.topology import chip_of, find_devices, prepare, with_nodes

        prepare(topology)
        from vit_jax.plan.estimate import find_sizes, make_plan
        from vit_jax.plan.search import fastest
        from vit_jax.tasks.task import num_patches

        sizes = find_sizes(config, args.num_classes, args.num_examples)
        config = with_nodes(config, topology)
        devices = find_devices(topology)
        chip = chip_of(topology, devices)

        def plan_for(config: Config) -> "Plan":
            return make_plan(config, devices, chip, sizes)

        variants = trained_variants(config)
        say(doing)
        with _quiet():
            if args.search:
                if variants:
                    _, config = max(variants.values(), key=lambda one: num_patches(one[1]))
                for one in _candidates(config, args, devices, plan_for):
                    tried.append(one)
                    images = f"{one.batch_size:,} images"
                    say(f"{doing}; {len(tried)} tried, last {images}, remat {one.remat}")
                best = fastest(tried)
                plan = None if best is None else best.plan
            elif variants:
                for name, (share, one) in variants.items():
                    say(f"{doing}; size {name}, {len(plans) + 1} of {len(variants)}")
                    plans[name] = share, plan_for(one)
                plan = max((one for _, one in plans.values()), key=lambda p: p.work.model_flops)
            else:
                plan = plan_for(config)
    _show(args, topology, plan, plans, tried)
    return 0


def _show(
    args: argparse.Namespace,
    topology: "Topology",
    plan: "Plan | None",
    plans: "dict[str, tuple[float, Plan]]",
    tried: "list[Candidate]",
) -> None:
    """Prints a plan, or that nothing fits, and writes it to --output."""
    from rich.console import Console

    from vit_jax.plan import show
    from vit_jax.tables import wide_console

    console = Console(highlight=False)
    if not console.is_terminal:
        console = wide_console()
    if topology.note:
        console.print(topology.note)
    if args.search:
        show.show_search(tried, console)
    if plan is None:
        console.print(
            "Nothing fits: try smaller --batch_sizes, more --config.accumulation_steps or a larger"
            " --topology.",
            style="bold red",
        )
        return
    expected = show.expected_mfu(plan, args.mfu)
    show.show_plan(plan, console, expected, args.price)
    figures = show.row(plan, args.config, topology.name, expected[0], args.price)
    if plans:
        show.show_variants(plans, console)
        mean_s = show.mean_step_s(plans)
        figures["step_ms_overlapped_mean"] = mean_s and round(mean_s * 1e3, 2)
    if args.output is not None:
        _write(args.output, figures)


def _auto_model(config: Config) -> dict[str, Any]:
    from vit_jax.train.init_from import model_of_weights

    return model_of_weights(config)


def _candidates(
    config: Config,
    args: argparse.Namespace,
    devices: list[Any],
    plan_for: "Callable[[Config], Plan]",
) -> "Iterator[Candidate]":
    from vit_jax.parallel.slices import slice_of_devices
    from vit_jax.plan import search as space

    count = len(devices)
    slices = len(set(slice_of_devices(devices, config.mesh.slices)))
    if args.batch_sizes:
        sizes = _numbers(args.batch_sizes)
    else:
        sizes = space.default_batch_sizes(config, count)
    meshes = space.meshes(config, count, slices)
    if args.meshes:
        meshes = space.parse_meshes(args.meshes)
    return space.search(config, batch_sizes=sizes, mesh_sizes=meshes, plan=plan_for)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(p.strip().isdecimal() and int(p) for p in parts):
        raise ConfigError(
            f"--batch_sizes={text}", "positive whole numbers, comma-separated", "write 1024,2048"
        )
    return [int(p) for p in parts]


def _write(path: Path, figures: dict[str, Any]) -> None:
    if path.suffix == ".json":
        write_json(path, figures)
        return
    there = path.exists() and path.stat().st_size > 0
    if there:
        header = next(csv.reader(path.read_text(encoding="utf-8").splitlines()))
        if header != list(figures):
            raise ConfigError(
                f"--output={path} has other columns", "a table of this command", "name a new file"
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(figures), lineterminator="\n")
    if not there:
        writer.writeheader()
    writer.writerow(figures)
    append_text(path, text.getvalue())


@contextlib.contextmanager
def _waiting(text: str) -> "Iterator[Callable[[str], None]]":
    """Shows a spinner on a terminal; yields a function that changes its text, or else prints it."""
    from rich.console import Console

    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr)
        return
    with Console(stderr=True).status(text) as status:
        yield lambda text: status.update(text)


@contextlib.contextmanager
def _quiet() -> "Iterator[None]":
    """Disables model log messages, and the compilation cache, which would hide the compile time."""
    from vit_jax.run.compile_cache import without_compile_cache

    logger = logging.getLogger("vit_jax")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with without_compile_cache():
            yield
    finally:
        logger.setLevel(level)
