"""Plan a run for TPUs or GPUs that are not there: memory, time and collectives.

    python -m vit_jax plan --config=configs/pretrain.py:imagenet2012,L/16 --topology=v5e:4x4
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5p:4x4x8 --config.model.remat=full
    python -m vit_jax plan --config=FILE.py:ARG --topology='2*v5e:16x16'
    python -m vit_jax plan --config=FILE.py:ARG --topology=h100:8x4
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:16x16 --search
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:1x1 --movers=20
    python -m vit_jax plan --config=configs/quickstart.py --topology=cpu:8
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:4x4 --save=gs://BUCKET/compiled

Compiles the run's real training step. Plans for TPUs (v4, v5e, v5p, v6e) need no TPU, only their
compiler: pip install 'jax[tpu]'. 2*v5e:16x16 is two slices, connected by the data center
network (DCN).

Plans for GPUs need no GPU and no driver: pip install 'jax[cuda13]'. h200:8 is one node with 8
GPUs, h100:8x4 is 4 nodes with 8 GPUs each, l4 is one GPU. Kinds: a100 (80 GB), a100-40gb,
a100-pcie, h100 (SXM), h100-pcie, h200, b200, l4, l40, l40s, rtx3090, rtx4090. XLA cannot time
kernels without a GPU, so it takes cuBLAS's matmuls; on a real GPU it may choose others. XLA_FLAGS
can change that.

cpu:8 is eight forced CPU devices, gpu is all GPUs of this machine. Plans for well-known datasets
need no data.

    python -m vit_jax plan --run=RUN --preemptions=0.5 --spot_price=0.5 --on_demand_price=1.2
    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:16x16 --preemptions=TRACE.csv

    python -m vit_jax plan --config=FILE.py:ARG --topology=v5e:16x16 --fit=REPORT/scaling.json

With --fit, predicts the loss of the run by the scaling law that `report --fit=scaling` fitted to
smaller runs of its family.

With --preemptions, simulates the run on machines that are preempted: how long it takes, what it
costs, and how often it should save. --run takes the times of steps, saves and starts from a run
folder instead of a plan.
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

from vit_jax.commands.arguments import (
    output_file,
    positive_int,
    positive_number,
)
from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.storage.files import append_text, write_json
from vit_jax.storage.paths import check_output_folder, user_path

if TYPE_CHECKING:
    from rich.console import Console

    from vit_jax.plan.estimate import Plan
    from vit_jax.plan.preemption import RunCosts, Sessions
    from vit_jax.plan.scaling_fit import ScalingFit


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument(
        "--config", help="name of a recipe, FILE.py or FILE.py:ARG; needed without --run"
    )
    parser.add_argument(
        "--topology",
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
        "--batch_sizes",
        help="global, comma-separated; default: the config's, twice and half of it",
    )
    parser.add_argument(
        "--meshes", help="data,fsdp,tensor of each mesh, separated by ';'; default: usual ones"
    )
    parser.add_argument(
        "--mfu",
        type=_fraction,
        default=0.4,
        help="MFU assumed for the second estimate; default: 0.4",
    )
    parser.add_argument(
        "--movers",
        type=positive_int,
        default=0,
        metavar="N",
        help="also print the N operations that move the most bytes of device memory",
    )
    parser.add_argument(
        "--save",
        type=user_path,
        metavar="FOLDER",
        help="save the compiled step to a folder or bucket; train --config.precompiled=FOLDER takes"
        " it",
    )
    parser.add_argument(
        "--fit",
        type=user_path,
        metavar="FILE",
        help="scaling.json of `report --fit=scaling`: also print the loss that it predicts",
    )
    parser.add_argument(
        "--output", type=output_file, help="FILE.json, or FILE.csv to append a row to"
    )
    _add_preemption_arguments(parser.add_argument_group("machines that are preempted"))


def _add_preemption_arguments(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--preemptions",
        metavar="RATE|TRACE",
        help="how often the whole run is preempted: a number per hour, or a file with the times"
        " between preemptions. FILE.csv has a column up_s (how long the machines lasted, in"
        " seconds) and perhaps down_s (how long it took to get others); FILE.json is a list of"
        " seconds, or of objects with these keys. The simulated runs start anywhere in the trace"
        " and follow it round",
    )
    group.add_argument("--run", help="run folder whose measured times are used; needs no --config")
    group.add_argument("--steps", type=positive_int, help="default: those of the run")
    group.add_argument("--chips", type=positive_int, help="default: those of the run or topology")
    group.add_argument(
        "--spot_price", type=positive_number, metavar="PRICE", help="of a spot chip for an hour"
    )
    group.add_argument(
        "--on_demand_price",
        type=positive_number,
        metavar="PRICE",
        help="of a chip that is not preempted, for an hour",
    )
    group.add_argument(
        "--down_s",
        type=positive_number,
        default=300.0,
        metavar="S",
        help="time until there is another machine, where the trace has none (%(default)g)",
    )
    group.add_argument(
        "--notice_s",
        type=positive_number,
        default=0.0,
        metavar="S",
        help="time between the signal to stop and the end of the machine; if a save is complete in"
        " it, nothing is lost. Default: 0, as in a crash",
    )
    group.add_argument(
        "--start_s",
        type=positive_number,
        default=60.0,
        metavar="S",
        help="without --run: time from the start of the processes to the compilation (%(default)g)",
    )
    group.add_argument(
        "--storage_gb_per_s",
        type=positive_number,
        default=1.0,
        metavar="GB",
        help="without --run: rate at which all hosts together write and read a checkpoint"
        " (%(default)g)",
    )


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if args.output is not None and args.output.suffix not in (".json", ".csv"):
        raise ConfigError(f"--output={args.output}", "FILE.json or FILE.csv", "rename it")
    if args.save is not None:
        check_output_folder(args.save)
    if not args.search and (args.batch_sizes or args.meshes):
        raise ConfigError("--batch_sizes or --meshes without --search", "--search too", "add it")
    if args.run is not None:
        if args.fit is not None:
            raise ConfigError("--fit with --run", "--config and --topology", "see --help")
        return _plan_measured_run(args, overrides)
    missing = [f"--{name}" for name in ("config", "topology") if getattr(args, name) is None]
    if missing:
        raise ConfigError(
            f"{' and '.join(missing)} not given",
            "a config and a topology, or --run=FOLDER with --preemptions",
            "see --help",
        )
    if args.search and args.save:
        raise ConfigError("--save with --search", "a single plan", "save the step of the result")
    config = load_config(args.config, overrides, _auto_model)
    fit = None if args.fit is None else _choose_fit(args.fit, config)
    from rich.console import Console

    from vit_jax.plan.topology import chip_of, find_devices, parse_topology, prepare, with_nodes

    topology = parse_topology(args.topology)
    prepare(topology)
    from vit_jax.config.flexible import trained_variants
    from vit_jax.plan.estimate import find_sizes, make_plan
    from vit_jax.plan.show import (
        COLUMNS,
        mean_step_s,
        row,
        show_plan,
        show_prediction,
        show_variants,
    )
    from vit_jax.tasks.task import num_patches

    console = Console(highlight=False)
    if console.width < COLUMNS:
        console = Console(highlight=False, width=COLUMNS)
    sizes = find_sizes(config, args.num_classes, args.num_examples)
    config = with_nodes(config, topology)
    devices = find_devices(topology)
    chip = chip_of(topology, devices)

    def plan_for(config: Config) -> "Plan":
        return make_plan(config, devices, chip, sizes, args.save)

    variants, plans = trained_variants(config), {}
    with _quiet():
        if args.search:
            if variants:
                _, config = max(variants.values(), key=lambda variant: num_patches(variant[1]))
            plan = _search(config, args, devices, plan_for, console)
        else:
            with _waiting(f"compiling for {args.topology}"):
                plans = {name: (share, plan_for(one)) for name, (share, one) in variants.items()}
                if plans:
                    _, plan = max(plans.values(), key=lambda p: p[1].work.model_flops)
                else:
                    plan = plan_for(config)
    if plan is not None:
        show_plan(plan, console, args.mfu, args.movers)
        if plans:
            show_variants(plans, console)
        if plan.saved is not None:
            console.print(
                f"Saved the compiled step: {plan.saved}\nStart the run with"
                f" --config.precompiled={args.save}",
                soft_wrap=True,
            )
        figures = row(plan, args.config, args.topology, args.mfu)
        if plans:
            mean_s = mean_step_s(plans)
            figures["step_ms_overlapped_mean"] = mean_s and round(mean_s * 1e3, 2)
        if fit is not None:
            figures |= show_prediction(plan, fit, console)
        if args.preemptions is not None:
            from vit_jax.plan.run_costs import planned_costs

            costs = planned_costs(plan, args.mfu, args.start_s, args.storage_gb_per_s, args.steps)
            source = f"planned at MFU {args.mfu:.0%}"
            figures |= _simulate(args, config, costs, plan.devices, source, console)
        if args.output is not None:
            _write(args.output, figures)
    return 0


def _plan_measured_run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Simulates a run with the times that a run folder has measured."""
    if args.preemptions is None or args.config or args.topology or overrides:
        raise ConfigError(
            "--run with --config or --topology"
            if args.preemptions is not None
            else "--run without --preemptions",
            "--run=FOLDER --preemptions=RATE",
            "see --help",
        )
    from rich.console import Console

    from vit_jax.plan.run_costs import measured_costs
    from vit_jax.run.folder import read_config
    from vit_jax.storage.files import read_json

    folder = user_path(args.run)
    config = read_config(folder)
    costs = measured_costs(folder, config, args.steps)
    chips = read_json(folder / "env.json")["device_count"]
    source = f"measured in {args.run}"
    figures = _simulate(args, config, costs, chips, source, Console(highlight=False))
    if args.output is not None:
        _write(args.output, {"run": args.run, **figures})
    return 0


def _simulate(
    args: argparse.Namespace,
    config: Config,
    costs: "RunCosts",
    chips: int,
    source: str,
    console: "Console",
) -> dict[str, Any]:
    """Simulates preempted runs, prints what they take, and returns the figures by name."""
    import numpy as np

    from vit_jax.plan.preemption import along_trace, at_rate
    from vit_jax.plan.run_costs import read_trace
    from vit_jax.plan.show import COLUMNS
    from vit_jax.plan.spot import RUNS, Prices, make_spot_plan, show_spot_plan, spot_row

    try:
        rate = float(args.preemptions)
    except ValueError:
        up_s, down_s = read_trace(user_path(args.preemptions), args.down_s)
        between_s = float(up_s.mean())
        text = f"{len(up_s):,} preemptions of {args.preemptions}, one in {between_s / 3600:.3g} h"

        def sessions() -> "Sessions":
            begin_s = np.random.default_rng(0).uniform(0, up_s.sum(), RUNS)
            return along_trace(up_s, down_s, begin_s)
    else:
        if not 0 < rate < float("inf"):
            raise ConfigError(
                f"--preemptions={args.preemptions}",
                "a rate above 0 per hour, or a file",
                "correct it",
            )
        between_s = 3600 / rate
        text = f"{rate:g} preemptions an hour, another machine after {args.down_s:g} s"

        def sessions() -> "Sessions":
            return at_rate(rate, args.down_s, RUNS, np.random.default_rng(0))

    own = config.checkpoint.interval_steps
    plan = make_spot_plan(
        costs,
        chips=args.chips or chips,
        prices=Prices(args.spot_price, args.on_demand_price),
        between_s=between_s,
        sessions=sessions,
        intervals=() if own is None else (own,),
        notice_s=args.notice_s,
    )
    if console.width < COLUMNS:
        from rich.console import Console

        console = Console(highlight=False, width=COLUMNS)
    show_spot_plan(plan, source, text, console)
    return spot_row(plan)


def _choose_fit(path: Path, config: Config) -> "ScalingFit":
    """Returns the fit of a file for the family of a config's model, and for its dataset if any.

    Raises:
        FileError: the file holds no scaling laws.
        ConfigError: none is of this family, or several are and none is of this dataset.
    """
    from vit_jax.plan.scaling_fit import read_fits
    from vit_jax.report.labels import family

    names, fits = {family(config.model.name), config.model.name}, read_fits(path)
    of_family = [fit for fit in fits if fit.series in names]
    of_data = [fit for fit in of_family if fit.panel == config.data.name]
    found = of_data or of_family
    if len(found) != 1:
        known = ", ".join(" ".join(filter(None, (fit.panel, fit.series))) for fit in fits)
        raise ConfigError(
            f"--fit={path} has {len(found)} scaling laws for {config.model.name} on"
            f" {config.data.name}: its laws are of {known}",
            "one law for the family of the model",
            "fit it: python -m vit_jax report RUNS --fit=scaling,where.dataset=NAME",
        )
    return found[0]


def _auto_model(config: Config) -> dict[str, Any]:
    from vit_jax.train.init_from import model_of_weights

    return model_of_weights(config)


def _search(
    config: Config,
    args: argparse.Namespace,
    devices: list[Any],
    plan_for: "Callable[[Config], Plan]",
    console: "Console",
) -> "Plan | None":
    from vit_jax.parallel.slices import slice_of_devices
    from vit_jax.plan import search as space
    from vit_jax.plan.show import show_search

    count = len(devices)
    slices = len(set(slice_of_devices(devices, config.mesh.slices)))
    if args.batch_sizes:
        sizes = _numbers(args.batch_sizes)
    else:
        sizes = space.default_batch_sizes(config, count)
    tried = []
    found = space.search(
        config,
        batch_sizes=sizes,
        mesh_sizes=space.parse_meshes(args.meshes)
        if args.meshes
        else space.meshes(config, count, slices),
        plan=plan_for,
    )
    with _waiting("searching") as say:
        for one in found:
            tried.append(one)
            say(f"searching: {len(tried)} tried, last {one.batch_size:,} images, remat {one.remat}")
    show_search(tried, console)
    best = space.fastest(tried)
    if best is None:
        console.print(
            "Nothing fits: try smaller --batch_sizes, more --config.accumulation_steps or a larger"
            " --topology.",
            style="bold red",
        )
        return None
    return best.plan


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(p.strip().isdecimal() and int(p) for p in parts):
        raise ConfigError(
            f"--batch_sizes={text}", "positive whole numbers, comma-separated", "write 1024,2048"
        )
    return [int(p) for p in parts]


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a fraction between 0 and 1")
    return value


def _write(path: Path, figures: dict[str, Any]) -> None:
    if path.suffix == ".json":
        write_json(path, figures)
        return
    there = path.exists() and path.stat().st_size > 0
    if there:
        header = next(csv.reader(path.read_text().splitlines()))
        if header != list(figures):
            raise ConfigError(
                f"--output={path} has other columns",
                "a table of this command",
                "name a new file",
            )
    text = io.StringIO()
    writer = csv.DictWriter(text, list(figures), lineterminator="\n")
    if not there:
        writer.writeheader()
    writer.writerow(figures)
    append_text(path, text.getvalue())


@contextlib.contextmanager
def _waiting(text: str) -> "Iterator[Callable[[str], None]]":
    """Shows a spinner on a terminal; yields a function that changes its text."""
    from rich.console import Console

    if not sys.stderr.isatty():
        yield lambda text: None
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
