"""Tries batch sizes, meshes, presets and remat policies, and ranks what fits by its bound."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

from vit_jax.config.mesh import Preset
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.models.registry import resolve
from vit_jax.models.resnet import ResNetShape
from vit_jax.models.stacking import Remat, remat_on
from vit_jax.parallel.mesh import AXES
from vit_jax.parallel.sharding import PRESETS, Rules
from vit_jax.plan.estimate import Plan

# What is kept for the backward pass, from the fastest to the smallest.
REMATS: tuple[Remat, ...] = ("none", "dots", "full")
Sizes = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Try:
    """One setting, and what came of it.

    Attributes:
        batch_size: global.
        mesh: data, fsdp, tensor.
        preset: of shardings.
        remat: policy.
        plan: None where the setting itself is impossible.
        problem: why, else "".
    """

    batch_size: int
    mesh: Sizes
    preset: Preset
    remat: Remat
    plan: Plan | None
    problem: str = ""


def meshes(config: Config, devices: int) -> list[Sizes]:
    """Returns the (data, fsdp, tensor) to try on a number of devices, each once.

    All devices along data; all along fsdp; the square root of them along each; and fsdp with two
    or four along tensor where heads and MLP divide by them.
    """
    shape = resolve(config.model)
    found = [(devices, 1, 1), (1, devices, 1)]
    root = 2 ** (int(math.log2(devices)) // 2)
    if 1 < root < devices and devices % root == 0:
        found.append((devices // root, root, 1))
    heads = getattr(shape, "num_heads", None)
    if heads is not None:
        found += [
            (1, devices // n, n)
            for n in (2, 4)
            if devices > n and devices % n == 0 and heads % n == 0
        ]
    return list(dict.fromkeys(found))


def placements(config: Config, mesh_sizes: list[Sizes]) -> list[tuple[Sizes, Preset]]:
    """Returns each mesh with each preset that means something else on it, in the order of meshes.

    Of presets that come to the same program the config's own is named, else the first; so is the
    first of several meshes on which nothing is cut. What would let devices along `tensor` all do
    the same work is left out.
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
    """Returns the rules without axes of one device, up to the last that cuts something."""
    sizes: dict[str, int] = dict(zip(AXES, mesh, strict=True))
    left = [
        (pattern, tuple(axis if axis and sizes[axis] > 1 else None for axis in rule))
        for pattern, rule in rules
    ]
    while left and not any(left[-1][1]):
        left.pop()
    return tuple(left)


def policies(config: Config, platform: str) -> tuple[Remat, ...]:
    """Returns the remat policies to try; where two come to the same, the first."""
    first = remat_on(platform, "none", scan=config.model.scan)
    same = first if not isinstance(resolve(config.model), ResNetShape) else "none"
    return tuple(r for r in REMATS if r == "none" or r != same)


def with_setting(
    config: Config, batch_size: int, mesh: Sizes, preset: Preset, remat: Remat
) -> Config:
    """Returns the run with another batch size, mesh, preset and remat policy."""
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
    """Yields each setting as soon as it is planned.

    For each mesh and preset (see `placements`), larger batches go first, and of each batch the
    policies from the one that recomputes nothing. The first that fits ends that mesh and preset:
    policies that keep less are slower by their FLOPs, and smaller batches move the same parameters
    for fewer images.

    Args:
        config: the run.
        batch_sizes: global.
        mesh_sizes: (data, fsdp, tensor) of each mesh.
        remats: policies, from the one that recomputes least.
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
    """Returns the setting that fits with the most images a second by its bound.

    Where the chip's rates are unknown it is the one with the largest batch.
    """
    fitting = [t for t in tries if t.plan is not None and t.plan.fits]

    def rank(one: Try) -> Any:
        assert one.plan is not None
        return one.plan.images_per_second or 0.0, one.batch_size, -one.plan.memory.total

    return max(fitting, key=rank, default=None)


def default_batch_sizes(config: Config, devices: int) -> list[int]:
    """Returns the config's global batch size, its double and its half, as far as they divide."""
    size = config.data.global_batch_size
    unit = devices * config.accumulation_steps
    found = [n for n in (2 * size, size, size // 2) if n and n % unit == 0]
    if not found:
        raise ConfigError(
            f"data.global_batch_size is {size} on {devices} devices",
            f"a multiple of {unit}",
            "set it, or name sizes with --batch_sizes",
        )
    return found


def parse_meshes(text: str) -> list[Sizes]:
    """Reads meshes such as "16,1,1;1,16,1".

    Raises:
        ConfigError: not three positive numbers each.
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
