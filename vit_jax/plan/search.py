"""Searches batch sizes, meshes, presets and remat policies for the fastest plan that fits."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from vit_jax.config.mesh import Preset
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.models.registry import model_shape
from vit_jax.models.stacking import Remat, remat_for_platform
from vit_jax.parallel.mesh import AXES
from vit_jax.parallel.sharding import PRESETS, Rules
from vit_jax.plan.estimate import Plan

# Remat policies from the fastest to the one that needs the least memory.
REMATS: tuple[Remat, ...] = ("none", "dots", "full")
Sizes = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Try:
    """One setting and its plan.

    Attributes:
        batch_size: global batch size.
        mesh: devices along data, fsdp, tensor.
        preset: sharding preset.
        remat: remat policy.
        plan: None if the setting is impossible.
        problem: why it is impossible, else "".
    """

    batch_size: int
    mesh: Sizes
    preset: Preset
    remat: Remat
    plan: Plan | None
    problem: str = ""


def meshes(config: Config, devices: int) -> list[Sizes]:
    """Returns the (data, fsdp, tensor) meshes to try on a number of devices.

    These are: all devices along data; all along fsdp; about the square root along each; and fsdp
    with two or four along tensor, if the number of attention heads is divisible by them.
    """
    heads = _num_heads(config)
    found = [(devices, 1, 1), (1, devices, 1)]
    root = 2 ** (int(math.log2(devices)) // 2)
    if 1 < root < devices and devices % root == 0:
        found.append((devices // root, root, 1))
    found += [
        (1, devices // n, n)
        for n in (2, 4)
        if heads and heads % n == 0 and devices > n and devices % n == 0
    ]
    return list(dict.fromkeys(found))


def _num_heads(config: Config) -> int | None:
    """Returns the number of attention heads; None: the model has no attention."""
    return getattr(model_shape(config.model), "num_heads", None)


def placements(config: Config, mesh_sizes: list[Sizes]) -> list[tuple[Sizes, Preset]]:
    """Returns each mesh with each preset that gives a different program, in the order of meshes.

    If several presets give the same program, the config's own is returned, else the first. Meshes
    on which nothing is sharded are the same program. Presets that would make all devices along
    `tensor` do the same work are left out.
    """
    own = config.mesh.preset
    names: list[Preset] = [own, *(name for name in PRESETS if name != own)]
    found: dict[Any, tuple[Sizes, Preset]] = {}
    for mesh in mesh_sizes:
        for name in names:
            rules = _in_effect(config.mesh.rules + PRESETS[name], mesh)
            cut = {axis for _, rule in rules for axis in rule} - {None}
            if mesh[2] > 1 and "tensor" not in cut:
                continue
            same = (mesh, rules) if cut else (mesh[0] * mesh[1], mesh[2])
            found.setdefault(same, (mesh, name))
    return list(found.values())


def _in_effect(rules: Rules, mesh: Sizes) -> Rules:
    """Returns the rules without axes of one device, up to the last rule that shards something."""
    sizes: dict[str, int] = dict(zip(AXES, mesh, strict=True))
    left = [
        (pattern, tuple(axis if axis and sizes[axis] > 1 else None for axis in rule))
        for pattern, rule in rules
    ]
    while left and not any(left[-1][1]):
        left.pop()
    return tuple(left)


def policies(config: Config, platform: str) -> tuple[Remat, ...]:
    """Returns the remat policies that give different programs."""
    scan = config.model.scan and _num_heads(config) is not None
    same = remat_for_platform(platform, "none", scan=scan)
    return tuple(r for r in REMATS if r == "none" or r != same)


def with_setting(
    config: Config, batch_size: int, mesh: Sizes, preset: Preset, remat: Remat
) -> Config:
    """Returns a config with another batch size, mesh, preset and remat policy."""
    data, fsdp, tensor = mesh
    return config.replace(
        model=config.model.replace(remat=remat),
        data=config.data.replace(global_batch_size=batch_size),
        mesh=config.mesh.replace(data=data, fsdp=fsdp, tensor=tensor, preset=preset),
    )


def search(
    config: Config,
    *,
    batch_sizes: list[int],
    mesh_sizes: list[Sizes],
    remats: tuple[Remat, ...] = REMATS,
    plan: Callable[[Config], Plan],
) -> Iterator[Try]:
    """Plans settings and yields each when it is ready.

    For each mesh and preset (see `placements`) it tries the largest batch first, and for each batch
    the policy that recomputes least. The first setting that fits ends the search of that mesh and
    preset: recomputing more costs FLOPs, and smaller batches move the same parameters for fewer
    images.

    Args:
        config: the run.
        batch_sizes: global batch sizes.
        mesh_sizes: (data, fsdp, tensor) of each mesh.
        remats: remat policies, the one that recomputes least first.
        plan: config -> Plan.
    """
    for mesh, preset in placements(config, mesh_sizes):
        for batch_size, remat in itertools.product(sorted(set(batch_sizes), reverse=True), remats):
            try:
                found = plan(with_setting(config, batch_size, mesh, preset, remat))
            except ConfigError as error:
                yield Try(batch_size, mesh, preset, remat, None, error.got)
                continue
            yield Try(batch_size, mesh, preset, remat, found)
            if found.fits:
                break


def fastest(tries: list[Try]) -> Try | None:
    """Returns the setting that fits and has the highest bound on images per second.

    If the chip's rates are unknown, it is the one with the largest batch.
    """
    fitting = [t for t in tries if t.plan is not None and t.plan.fits]

    def rank(one: Try) -> Any:
        assert one.plan is not None
        return one.plan.images_per_second or 0.0, one.batch_size, -one.plan.memory.total

    return max(fitting, key=rank, default=None)


def default_batch_sizes(config: Config, devices: int) -> list[int]:
    """Returns twice the config's global batch size, that size and half of it, if they divide."""
    size = config.data.global_batch_size
    unit = devices * config.accumulation_steps
    found = [n for n in (2 * size, size, size // 2) if n and n % unit == 0]
    if not found:
        raise ConfigError(
            f"is {size} on {devices} devices",
            f"a multiple of {unit}",
            "change it, or give sizes with --batch_sizes",
            key="data.global_batch_size",
        )
    return found


def parse_meshes(text: str) -> list[Sizes]:
    """Parses meshes such as "16,1,1;1,16,1".

    Raises:
        ConfigError: a mesh without three positive numbers.
    """
    found = []
    for part in text.split(";"):
        sides = part.split(",")
        if len(sides) != 3 or not all(s.strip().isdecimal() and int(s) for s in sides):
            raise ConfigError(
                f"--meshes={text}", "data,fsdp,tensor of each mesh, ';' between them",
                "write e.g. --meshes='16,1,1;1,16,1'",
            )  # fmt: skip
        found.append((int(sides[0]), int(sides[1]), int(sides[2])))
    return found
