"""Shows a plan as tables, or as one row for JSON and CSV."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from vit_jax.plan.estimate import Plan
from vit_jax.plan.search import Candidate, fastest
from vit_jax.plan.traffic import Collectives
from vit_jax.tables import plain_table, print_table
from vit_jax.train.chips import GIB

# Kinds of collectives that have a row of their own.
_ROWS = 6

_NOTES: tuple[str, ...] = (
    "Memory is the compiler's plan. Times are the program's work divided by the chip's published"
    " rates. Nothing was run. The best case is the longest of these times: real steps are usually"
    " slower. Without overlap, the times add up. Data loading, evaluation and checkpoints are left"
    " out.",
    "FLOPs are counted in the traced program with loops and recomputation. MFU counts only model"
    " FLOPs. Memory traffic counts each operand and result of a compiled instruction once. It is"
    " too high if an instruction reads only part of an operand, and it ignores caches.",
    "Network counts the bytes that each device receives over its links by any route. It ignores"
    " latency.",
)
_DCN_NOTE = (
    "DCN is the network between slices or nodes. It counts the fewest bytes that must enter one,"
    " divided evenly over its devices, as if each slice added up its own gradients before it sends"
    " them. Network counts the other received bytes."
)
_UNKNOWN = "unknown"


def expected_mfu(plan: Plan, given: float | None) -> tuple[float, str]:
    """Returns the MFU of the last estimate of a run, and where it comes from.

    That of GPUs was measured with ViT-B/16 on one H200: experiments/speed/README.md.
    """
    if given is not None:
        return given, "assumed, --mfu"
    is_gpu = plan.chip.pod_chips is None and plan.chip.kind != "cpu"
    if is_gpu and plan.chip.peak_flops is not None:
        return 0.43, "as ViT-B/16 on one H200"
    return 0.4, "assumed, --mfu"


def show_plan(
    plan: Plan, console: Console, expected: tuple[float, str], price: float | None = None
) -> None:
    """Prints a plan, with the `expected` MFU, and dollars for a price of one chip and hour."""
    _print(console, _title(plan), "bold")
    _print(console, _subtitle(plan))
    _print(console, f"step: {plan.choice}")
    print_table(_memory_table(plan), console)
    print_table(_step_table(plan), console)
    if plan.collectives:
        print_table(_collective_table(plan), console)
    print_table(_run_table(plan, expected, price), console)
    _print(console, _fit_message(plan), "bold green" if plan.fits else "bold red")
    for note in _notes(plan):
        _print(console, note, "dim")


def _title(plan: Plan) -> str:
    config = plan.config
    return (
        f"{config.model.label}, {config.data.image_size} px, {config.model.dtype}, remat"
        f" {plan.choice.loop.remat}: {config.data.global_batch_size:,} images a step on"
        f" {plan.devices:,} x {plan.chip.name}"
    )


def _subtitle(plan: Plan) -> str:
    mesh = ", ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    if plan.slices > 1:
        mesh += f" on {plan.slices} slices or nodes"
    outcome = "compiled" if plan.compiled else "compiler out of memory"
    return (
        f"mesh {mesh}, {plan.config.mesh.preset}; {plan.parameters / 1e6:,.1f} M parameters;"
        f" {plan.sizes.num_classes:,} classes, {plan.sizes.num_examples:,} examples"
        f" ({plan.sizes.source}); {outcome} after {plan.compile_s:.1f} s"
    )


def _memory_table(plan: Plan) -> Table:
    memory = plan.memory
    table = plain_table("memory per device", right=("size",), left="")
    for name, size in memory.state.items():
        table.add_row(name, _format_bytes(size), "" if name != "padding" else "tiled layouts")
    note = "activations, gradients, copies" if plan.compiled else "requested, but not available"
    table.add_row("temporaries", _format_bytes(memory.temporaries), note)
    if memory.program:
        table.add_row("program", _format_bytes(memory.program), "")
    table.add_section()
    has = "" if plan.chip.memory_bytes is None else f"of {_format_bytes(plan.chip.memory_bytes)}"
    table.add_row("[bold]total", f"[bold]{_format_bytes(memory.total)}", has)
    return table


def _step_table(plan: Plan) -> Table:
    work, bound, chip = plan.work, plan.roofline, plan.chip
    extra = work.executed_flops / work.model_flops - 1
    table = plain_table("step per device", right=("work", "published rate", "ms"), left="")
    note = f"model {_format_si(work.model_flops)}FLOP, {extra:+.0%}"
    rows = [
        ("compute", work.executed_flops, "FLOP", chip.peak_flops, bound.compute_s, note),
        ("memory", work.memory_bytes, "B", chip.memory_bandwidth, bound.memory_s, "read, written"),
        ("network", work.network_bytes, "B", chip.link_bandwidth, bound.network_s, "received"),
    ]
    if plan.slices > 1:
        note = "received between slices or nodes"
        rows.append(("dcn", work.dcn_bytes, "B", chip.dcn_bandwidth, bound.dcn_s, note))
    for name, amount, unit, rate, seconds, note in rows:
        table.add_row(
            name,
            _UNKNOWN if amount is None else f"{_format_si(amount)}{unit}",
            _UNKNOWN if rate is None else f"{_format_si(rate)}{unit}/s",
            _format_ms(seconds),
            note,
        )
    table.add_section()
    for name, seconds in (("best case", bound.overlapped_s), ("no overlap", bound.in_turn_s)):
        mfu = bound.mfu(seconds)
        note = "" if mfu is None else f"MFU {mfu:.1%}"
        if name == "best case" and bound.limited_by and seconds is not None:
            note = f"{note}, {bound.limited_by}-bound"
        table.add_row(f"[bold]{name}", "", "", f"[bold]{_format_ms(seconds)}", note)
    return table


def _collective_table(plan: Plan) -> Table:
    # Besides what is received, there is room for one size only.
    several = plan.slices > 1
    table = plain_table(
        "collectives per step",
        right=("devices", "times", *(("received", "dcn") if several else ("values", "received"))),
        left="part",
    )

    def add(kind: str, group: str, found: Sequence[Collectives], part: str) -> None:
        received = sum(c.received for c in found)
        other = sum(c.between if several else c.bytes for c in found)
        sizes = (received, other) if several else (other, received)
        count = sum(c.count for c in found)
        table.add_row(kind, group, f"{count:,}", *(f"{_format_si(n)}B" for n in sizes), part)

    for one in plan.collectives[:_ROWS]:
        add(one.kind, f"{one.group}", [one], one.part)
    rest = plan.collectives[_ROWS:]
    if rest:
        add("others", "", rest, "")
    return table


def _run_table(plan: Plan, expected: tuple[float, str], price: float | None) -> Table:
    table = plain_table(
        f"whole run, {plan.total_steps:,} steps",
        right=("images/s", "time", "chip-hours", *(("dollars",) if price else ())),
        left=f"{_epochs(plan):,.4g} epochs",
    )
    bound = plan.roofline
    rows = [
        ("best case", bound.overlapped_s, "everything overlaps"),
        ("no overlap", bound.in_turn_s, ""),
    ]
    mfu, origin = expected
    at_mfu = bound.seconds_at_mfu(mfu)
    if at_mfu is not None:
        if at_mfu < (bound.overlapped_s or 0):
            origin += "; it cannot: the best case is slower"
        rows.append((f"if it reaches MFU {mfu:.0%}", at_mfu, origin))
    for name, seconds, note in rows:
        if seconds:
            hours = plan.total_steps * seconds / 3600
            rate = plan.config.data.global_batch_size / seconds
            table.add_row(
                name,
                f"{rate:,.0f}",
                _format_hours(hours),
                _format_count(hours * plan.devices),
                *((_format_count(hours * plan.devices * price),) if price else ()),
                note,
            )
        elif name:
            table.add_row(name, *(_UNKNOWN,) * (4 if price else 3), "")
    return table


def _epochs(plan: Plan) -> float:
    return plan.total_steps * plan.config.data.global_batch_size / plan.sizes.num_examples


def _fit_message(plan: Plan) -> str:
    if plan.chip.memory_bytes is None:
        needed = _format_bytes(plan.memory.total)
        return f"Needs {needed} per device; {plan.chip.name}'s memory is unknown"
    free = 1 - plan.memory.total / plan.chip.memory_bytes
    if plan.fits:
        return f"Fits: {free:.0%} of {_format_bytes(plan.chip.memory_bytes)} is free."
    return (
        f"Does not fit: needs {_format_bytes(plan.memory.total)} on a device with"
        f" {_format_bytes(plan.chip.memory_bytes)}. To save memory, use --config.model.remat=dots"
        " or full, a smaller --config.data.global_batch_size, --config.mesh.fsdp=-1 with"
        " --config.mesh.data=1, or --search."
    )


def _notes(plan: Plan) -> list[str]:
    notes = list(_NOTES)
    if plan.slices > 1:
        notes.append(_DCN_NOTE)
    if plan.unknown_loops:
        notes.append(f"{plan.unknown_loops} loops with an unknown number of iterations count once.")
    return [*notes, f"Source of the rates: {plan.chip.source}."]


def show_search(candidates: list[Candidate], console: Console) -> None:
    """Prints the settings of a search and marks the fastest one that fits."""
    best = fastest(candidates)
    table = plain_table(
        "batch", right=("mesh", "preset", "remat", "memory", "ms", "MFU", "images/s"), left=""
    )
    for one in candidates:
        note = "[bold green]<- chosen" if one is best else ""
        if one.plan is None:
            figures = ("", "", "", "")
            note = one.problem
        else:
            plan, rate = one.plan, one.plan.images_per_second
            mfu = plan.roofline.mfu(plan.roofline.overlapped_s)
            figures = (
                _format_bytes(plan.memory.total),
                _format_ms(plan.roofline.overlapped_s) if plan.compiled else "-",
                "-" if mfu is None or not plan.compiled else f"{mfu:.1%}",
                "-" if rate is None or not plan.compiled else f"{rate:,.0f}",
            )
            note = note or ("" if plan.fits else "too large")
        table.add_row(
            f"{one.batch_size:,}",
            ",".join(map(str, one.mesh)),
            one.preset,
            one.remat,
            *figures,
            note,
        )
    print_table(table, console)
    took = sum(one.plan.compile_s for one in candidates if one.plan is not None)
    legend = (
        f"Compiled in {took:.0f} s. mesh: data, fsdp, tensor; ms, MFU, images/s: in the best case,"
        " if everything overlaps. Chosen: the fastest that fits."
    )
    _print(console, legend, "dim")


def mean_step_s(plans: Mapping[str, tuple[float, Plan]]) -> float | None:
    """Returns the shortest mean time of a step: name of a size -> (probability, plan).

    None: the rates of the chip are unknown, or a step did not compile.
    """
    total = 0.0
    for share, plan in plans.values():
        seconds = plan.roofline.overlapped_s if plan.compiled else None
        if seconds is None:
            return None
        total += share * seconds
    return total


def show_variants(plans: Mapping[str, tuple[float, Plan]], console: Console) -> None:
    """Prints the cost of a step at each size of a flexible model, and their mean.

    `plans` maps the name of a size to the probability of a step of this size, and its plan.
    """
    table = plain_table("size", right=("of steps", "GFLOPs an image", "memory", "ms", "images/s"))
    for name, (share, plan) in plans.items():
        rate = plan.images_per_second
        table.add_row(
            f"{plan.config.model.name} ({name})",
            f"{share:.1%}",
            f"{_flops_per_image(plan) / 1e9:,.3g}",
            _format_bytes(plan.memory.total),
            _format_ms(plan.roofline.overlapped_s) if plan.compiled else "-",
            "-" if rate is None or not plan.compiled else f"{rate:,.0f}",
        )
    mean_s = mean_step_s(plans)
    batch_size = next(iter(plans.values()))[1].config.data.global_batch_size
    table.add_row(
        "mean",
        "",
        f"{sum(share * _flops_per_image(plan) for share, plan in plans.values()) / 1e9:,.3g}",
        "",
        _format_ms(mean_s) if mean_s else "-",
        f"{batch_size / mean_s:,.0f}" if mean_s else "-",
    )
    print_table(table, console)
    _print(console, "The tables above are of the size with the most FLOPs.", "dim")


def _flops_per_image(plan: Plan) -> float:
    return plan.work.model_flops * plan.devices / plan.config.data.global_batch_size


def row(
    plan: Plan, recipe: str, topology: str, mfu: float, price: float | None = None
) -> dict[str, Any]:
    """Returns the figures of a plan by name, for JSON and CSV, with an expected MFU."""
    config, memory, bound = plan.config, plan.memory, plan.roofline
    compiled = plan.compiled

    def gib(size: float | None) -> float | None:
        return None if size is None else round(size / GIB, 3)

    def hours(seconds: float | None) -> float | None:
        return None if not seconds else round(plan.total_steps * seconds / 3600 * plan.devices, 1)

    overlapped = bound.overlapped_s if compiled else None
    in_turn = bound.in_turn_s if compiled else None
    at_most = bound.mfu(overlapped)
    figures = {
        "recipe": recipe,
        "topology": topology,
        "model": config.model.name,
        "image_size": config.data.image_size,
        "devices": plan.devices,
        "global_batch_size": config.data.global_batch_size,
        "remat": plan.choice.loop.remat,
        "accumulation_steps": plan.choice.microbatches,
        **{f"mesh_{axis}": size for axis, size in plan.mesh.items()},
        "mesh_preset": config.mesh.preset,
        "parameters": plan.parameters,
        "fits": plan.fits,
        "memory_gib": gib(memory.total),
        "memory_state_gib": gib(sum(memory.state.values())),
        "memory_temporaries_gib": gib(memory.temporaries),
        "memory_of_chip_gib": gib(plan.chip.memory_bytes),
        "model_tflop_a_device": float(f"{plan.work.model_flops / 1e12:.6g}"),
        "executed_tflop_a_device": float(f"{plan.work.executed_flops / 1e12:.6g}"),
        "memory_traffic_gb": _in_giga(plan.work.memory_bytes),
        "received_gb": _in_giga(plan.work.received_bytes),
        "limited_by": bound.limited_by if compiled else None,
        "step_ms_overlapped": None if overlapped is None else round(overlapped * 1e3, 2),
        "step_ms_in_turn": None if in_turn is None else round(in_turn * 1e3, 2),
        "mfu_at_most": None if at_most is None else round(at_most, 4),
        "total_steps": plan.total_steps,
        "chip_hours_at_least": hours(overlapped),
        "assumed_mfu": mfu,
        "chip_hours_at_assumed_mfu": hours(bound.seconds_at_mfu(mfu)),
        "compile_s": round(plan.compile_s, 1),
        "slices": plan.slices,
        "dcn_gb": _in_giga(plan.work.dcn_bytes),
    }
    if price:
        figures["price_of_chip_hour"] = price
        for name in ("at_least", "at_assumed_mfu"):
            found = figures[f"chip_hours_{name}"]
            figures[f"dollars_{name}"] = found and round(found * price, 2)
    return figures


def _in_giga(amount: float | None) -> float | None:
    return None if amount is None else float(f"{amount / 1e9:.6g}")


def _print(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False)


def _format_bytes(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:,.{1 if size >= 100 * unit else 2}f} {name}"
    return f"{size:,.0f} B"


def _format_ms(seconds: float | None) -> str:
    if seconds is None:
        return _UNKNOWN
    ms = seconds * 1e3
    return f"{ms:,.1f}" if ms >= 1 else f"{ms:.2g}"


def _format_hours(hours: float) -> str:
    if hours < 1 / 60:
        return f"{hours * 3600:.1f} s"
    if hours < 1:
        return f"{hours * 60:.0f} min"
    return f"{hours:,.1f} h" if hours < 48 else f"{hours / 24:,.1f} days"


def _format_count(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:,.2f}"


def _format_si(amount: float) -> str:
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if amount >= 10**power:
            return f"{amount / 10**power:,.{2 if amount < 10 ** (power + 2) else 0}f} {prefix}"
    return f"{amount:,.0f} "
