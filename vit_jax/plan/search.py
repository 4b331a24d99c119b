"""Searches batch sizes, meshes, presets and remat policies for the fastest plan that fits."""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, get_args

from vit_jax.config.mesh import Preset
from vit_jax.config.run import Config
from vit_jax.errors import ConfigError
from vit_jax.models.options import AUTO
from vit_jax.models.registry import model_shape
from vit_jax.models.stacking import Remat
from vit_jax.parallel.mesh import AXES
from vit_jax.parallel.sharding import Rules, preset_rules
from vit_jax.plan.estimate import CompilerError, Plan

# Remat policies, sorted from the fastest to the one with the least memory.
REMATS: tuple[Remat, ...] = ("none", "dots", "full")
MeshShape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One setting of a search and its plan."""

    batch_size: int
    mesh: MeshShape  # devices along data, fsdp, tensor
    preset: Preset
    remat: Remat
    plan: Plan | None  # None if the setting is impossible
    problem: str = ""  # why it is impossible


def meshes(config: Config, devices: int, slices: int = 1) -> list[MeshShape]:
    """Returns the (data, fsdp, tensor) meshes to try on a number of devices.

    These are: all devices along data; all along fsdp; the slices or nodes along data and the
    devices of each along fsdp; about the square root of their number along each; and fsdp with two
    or four devices along tensor, if that divides the number of attention heads.
    """
    heads = _num_heads(config)
    found = [(devices, 1, 1), (1, devices, 1), (slices, devices // slices, 1)]
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


def placements(config: Config, mesh_sizes: list[MeshShape]) -> list[tuple[MeshShape, Preset]]:
    """Returns the combinations of mesh and preset that give different programs, sorted by mesh.

    If several presets give the same program, returns only the config's own preset, or else the
    first. All meshes on which nothing is sharded give the same program. Presets that would make all
    devices along `tensor` do the same work are omitted.
    """
    own = config.mesh.preset
    names: list[Preset] = [own, *(name for name in get_args(Preset) if name != own)]
    found: dict[Any, tuple[MeshShape, Preset]] = {}
    for mesh in mesh_sizes:
        for name in names:
            rules = _effective_rules(config.mesh.rules + preset_rules(name), mesh)
            cut = {axis for _, rule in rules for axis in rule} - {None}
            if mesh[2] > 1 and "tensor" not in cut:
                continue
            same = (mesh, rules) if cut else (mesh[0] * mesh[1], mesh[2])
            found.setdefault(same, (mesh, name))
    return list(found.values())


def _effective_rules(rules: Rules, mesh: MeshShape) -> Rules:
    """Returns the rules without axes of one device, up to the last rule that shards something."""
    sizes: dict[str, int] = dict(zip(AXES, mesh, strict=True))
    left = [
        (pattern, tuple(axis if axis and sizes[axis] > 1 else None for axis in rule))
        for pattern, rule in rules
    ]
    while left and not any(left[-1][1]):
        left.pop()
    return tuple(left)


def with_setting(
    config: Config, batch_size: int, mesh: MeshShape, preset: Preset, remat: Remat
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
    mesh_sizes: list[MeshShape],
    plan: Callable[[Config], Plan],
) -> Iterator[Candidate]:
    """Plans settings one by one and yields each result.

    For each mesh and preset (see `placements`), tries the largest batch first, and for each batch
    the policy that recomputes least, as `REMATS` orders them. The first setting that fits
    ends the search of that mesh and preset: recomputing more costs FLOPs, and smaller batches move
    the same parameters for fewer images.
    """
    for mesh, preset in placements(config, mesh_sizes):
        for batch_size, remat in itertools.product(sorted(set(batch_sizes), reverse=True), REMATS):
            try:
                found = plan(with_setting(config, batch_size, mesh, preset, remat))
            except (ConfigError, CompilerError) as error:
                yield Candidate(batch_size, mesh, preset, remat, None, error.got)
                continue
            yield Candidate(batch_size, mesh, preset, remat, found)
            if found.fits:
                break


def fastest(candidates: list[Candidate]) -> Candidate | None:
    """Returns the setting that fits and has the highest upper bound on images per second.

    If the chip's rates are unknown, returns the setting with the largest batch.
    """
    fitting = [t for t in candidates if t.plan is not None and t.plan.fits]

    def rank(one: Candidate) -> Any:
        assert one.plan is not None
        return one.plan.images_per_second or 0.0, one.batch_size, -one.plan.memory.total

    return max(fitting, key=rank, default=None)


def default_batch_sizes(config: Config, devices: int) -> list[int]:
    """Returns 2, 1 and 1/2 times the config's global batch size, if the devices divide it."""
    size = config.data.global_batch_size
    unit = devices * (1 if config.accumulation_steps == AUTO else config.accumulation_steps)
    found = [n for n in (2 * size, size, size // 2) if n and n % unit == 0]
    if not found:
        raise ConfigError(
            f"is {size} on {devices} devices",
            f"a multiple of {unit}",
            "change it, or pass sizes with --batch_sizes",
            key="data.global_batch_size",
        )
    return found


def parse_meshes(text: str) -> list[MeshShape]:
    """Parses meshes such as "16,1,1;1,16,1"."""
    found = []
    for part in text.split(";"):
        sides = part.split(",")
        if len(sides) != 3 or not all(s.strip().isdecimal() and int(s) for s in sides):
            raise ConfigError(
                f"--meshes={text}",
                "data,fsdp,tensor for each mesh, separated by ';'",
                "write e.g. --meshes='16,1,1;1,16,1'",
            )
        found.append((int(sides[0]), int(sides[1]), int(sides[2])))
    return found
