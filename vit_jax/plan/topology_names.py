"""The names of `--topology`: TPU slices, GPU nodes, and devices of this machine.

A topology of GPUs is KIND:GPUS or KIND:GPUSxNODES: h100:8x4 is four nodes with eight GPUs each.
So is h100:4x8, because a node with eight GPUs is more likely than one with four; h100:8 nodes x 4
has eight nodes. The names of TPU clouds are understood, too: v5litepod-256 is v5e:16x16.
"""

import dataclasses
import math
import re

from vit_jax.errors import ConfigError, nearest
from vit_jax.train.chips import GPUS, TPUS, Chip

_EXAMPLES = {"tpu": "v5e:16x16, 2*v6e:8x8, v4:4x4x4, v5p:4x4x4", "gpu": "h200:8, h100:8x4, l4"}
# GPUs of the nodes that vendors sell.
_NODE_SIZES = (8, 4, 2, 1)
_NODES = re.compile(r"([\w-]+):(\d+) *nodes? *(?:x|of|with) *(\d+)(?: *gpus?)?", re.IGNORECASE)
# How Google Cloud names TPUs: accelerator types, such as v5litepod-256, and labels of GKE's nodes,
# such as tpu-v5-lite-podslice. Source: cloud.google.com/tpu/docs, /kubernetes-engine/docs.
_CLOUD_NAMES = {
    "v5litepod": "v5e",
    "tpu-v4-podslice": "v4",
    "tpu-v5-lite-podslice": "v5e",
    "tpu-v5-lite-device": "v5e",
    "tpu-v5p-slice": "v5p",
    "tpu-v6e-slice": "v6e",
}
# The number in an accelerator type of these counts cores; a chip has two.
_COUNTED_IN_CORES = ("v4", "v5p")
# The slices of v5e and v6e. Source: cloud.google.com/tpu/docs/v5e and v6e.
_SLICES = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))


@dataclasses.dataclass(frozen=True)
class Topology:
    """The devices of `--topology`.

    Attributes:
        name: as this package writes it, e.g. "v5e:16x16".
        platform: "tpu", "cpu" or "gpu".
        generation: generation of a TPU, e.g. "v5e"; kind of GPU, e.g. "h100"; else the platform,
            which stands for devices of this machine.
        shape: shape of a TPU slice; else the number of devices (of a node), or empty for all of
            this machine.
        slices: number of TPU slices of this shape, or of GPU nodes, connected by the data center
            network.
        note: how the name was read, if that may surprise; else "".
    """

    name: str
    platform: str
    generation: str
    shape: tuple[int, ...]
    slices: int = 1
    note: str = ""

    @property
    def is_here(self) -> bool:
        """Whether it consists of devices of this machine."""
        return self.generation == self.platform


def parse_topology(name: str) -> Topology:
    """Parses the name of a topology.

    >>> parse_topology("v5e:4x4").shape
    (4, 4)
    >>> parse_topology("2*v5e:4x4").slices
    2
    >>> parse_topology("v5litepod-256").note
    '--topology=v5litepod-256 is v5e:16x16'
    >>> parse_topology("h100:4x8").note
    '--topology=h100:4x8 is 4 nodes with 8 GPUs each'
    """
    count, star, one = name.rpartition("*")
    if nodes := _NODES.fullmatch(one):
        one = f"{nodes[1]}:{nodes[3]}x{nodes[2]}"
    one = _without_cloud_name(one, name)
    match = re.fullmatch(r"([\w-]+)(?::(\d+(?:x\d+)*))?", one)
    kinds = (*TPUS, *GPUS, "cpu", "gpu")
    kind = match[1] if match else one.partition(":")[0]
    if match is None or kind not in kinds:
        raise ConfigError(
            f"--topology={name}",
            f"TPU slices ({_EXAMPLES['tpu']}), GPUs of one or several nodes ({_EXAMPLES['gpu']};"
            f" {', '.join(GPUS)}), or devices of this machine (cpu:8, gpu, gpu:4)",
            f"did you mean {nearest(kind.lower(), kinds)!r}?",
        )
    shape = tuple(int(side) for side in match[2].split("x")) if match[2] else ()
    if star and (not count.isdecimal() or int(count) == 0 or kind not in TPUS):
        raise ConfigError(
            f"--topology={name}",
            "a number of TPU slices in front of *, such as 2*v5e:16x16",
            f"use --topology={_without_star(count, one, kind)}",
        )
    if kind in TPUS:
        _check_slice(one, TPUS[kind], shape)
        written = f"{count}*{one}" if star else one
        note = "" if written == name else f"--topology={name} is {written}"
        return Topology(written, "tpu", kind, shape, int(count) if star else 1, note)
    if kind in GPUS:
        return _of_nodes(name, kind, shape, is_ordered=nodes is not None)
    if len(shape) > 1 or 0 in shape:
        raise ConfigError(
            f"--topology={name}", f"{kind} or {kind}:COUNT", "give the number of devices"
        )
    return Topology(name, kind, kind, shape)


def _without_star(count: str, one: str, kind: str) -> str:
    if kind in GPUS and count.isdecimal() and int(count) and re.fullmatch(r"[\w-]+(:\d+)?", one):
        return f"{one}x{count}" if ":" in one else f"{one}:{count}"
    here = kind in ("cpu", "gpu")
    return one + (", and --config.mesh.slices=N to cut it into slices" if here else "")


def _without_cloud_name(one: str, name: str) -> str:
    """Returns a cloud's name of a TPU slice as KIND:SIDES, and any other name as it is."""
    label, colon, sides = one.partition(":")
    if label in _CLOUD_NAMES:
        return f"{_CLOUD_NAMES[label]}{colon}{sides}"
    kind, _, count = label.rpartition("-")
    kind = _CLOUD_NAMES.get(kind, kind)
    if kind not in TPUS or colon or not count.isdecimal():
        return one
    dimensions, chips = TPUS[kind].dimensions, int(count)
    if kind in _COUNTED_IN_CORES:
        if chips % 2:
            raise ConfigError(
                f"--topology={name}",
                f"an even number, because {kind} counts cores, and a chip has two",
                f"use e.g. {kind}-{max(2 ** (chips.bit_length() - 1), 8)}",
            )
        chips //= 2
    power = chips.bit_length() - 1
    if chips != 2**power or (dimensions == 3 and chips < 4):
        raise ConfigError(
            f"--topology={name}",
            "the sides of the slice, because its number of chips does not determine them",
            f"use e.g. {kind}:{'4x4' if dimensions == 2 else '4x4x8'}",
        )
    if dimensions == 2:
        shape = [2 ** (power // 2), 2 ** ((power + 1) // 2)]
    else:
        shape = [2, 2, 1] if chips == 4 else [2 ** ((power + i) // 3) for i in range(3)]
    return f"{kind}:{'x'.join(map(str, shape))}"


def _of_nodes(name: str, kind: str, shape: tuple[int, ...], *, is_ordered: bool) -> Topology:
    """Returns a topology of GPUs; `is_ordered` if the name says which number is that of nodes."""
    if len(shape) > 2 or 0 in shape:
        raise ConfigError(
            f"--topology={name}",
            f"{kind}:GPUS or {kind}:GPUSxNODES",
            f"use e.g. {kind}:8x4 for 4 nodes with 8 GPUs each",
        )
    gpus, nodes = (*shape, *(1, 1)[len(shape) :])[:2]
    if len(shape) == 2 and not is_ordered:
        found = [size for size in _NODE_SIZES if size in shape]
        gpus, nodes = (found[0], gpus * nodes // found[0]) if found else (gpus, nodes)
    if gpus not in _NODE_SIZES:
        total = gpus * nodes
        fitting = 2 ** (total - 1).bit_length() if total < 8 else f"8x{math.ceil(total / 8)}"
        raise ConfigError(
            f"--topology={name} with {gpus} GPUs in a node",
            "1, 2, 4 or 8 GPUs in each node, as vendors sell them",
            f"use e.g. {kind}:{fitting}",
        )
    if nodes == 1:
        note = f"--topology={name} is one node with {gpus} GPUs"
        note = f"{note}; {gpus} nodes with one are '{kind}:{gpus} nodes x 1'"
        may_be_nodes = gpus > 1 and shape[1:] == (gpus,)
        written = f"{kind}:{gpus}" if len(shape) == 2 else name
        return Topology(written, "gpu", kind, (gpus,), note=note if may_be_nodes else "")
    note = f"--topology={name} is {nodes} nodes with {gpus} GPU{'s' * (gpus > 1)} each"
    # As 4x8 is read as 8x4, eight nodes with four GPUs have another name.
    is_clear = nodes not in _NODE_SIZES or nodes <= gpus
    written = f"{kind}:{gpus}x{nodes}" if is_clear else f"{kind}:{nodes} nodes x {gpus}"
    return Topology(written, "gpu", kind, (gpus,), nodes, note)


def _check_slice(name: str, chip: Chip, shape: tuple[int, ...]) -> None:
    example = "16x16" if chip.dimensions == 2 else "4x4x4"
    generation = name.partition(":")[0]
    if len(shape) != chip.dimensions or 0 in shape:
        raise ConfigError(
            f"--topology={name}",
            f"{chip.dimensions} sides, because {chip.name} is a {chip.dimensions}-D torus",
            f"use e.g. {generation}:{example}",
        )
    assert chip.pod_chips is not None
    if math.prod(shape) > chip.pod_chips:
        raise ConfigError(
            f"--topology={name} with {math.prod(shape):,} chips",
            f"at most {chip.pod_chips:,} chips, the size of a {chip.name} pod",
            f"plan for several slices, e.g. 2*{generation}:{example}, or for another TPU",
        )
    if chip.dimensions == 2 and tuple(sorted(shape)) not in _SLICES:
        raise ConfigError(
            f"--topology={name}",
            f"a slice of {chip.name}: {', '.join(f'{short}x{long}' for short, long in _SLICES)}",
            f"use e.g. {generation}:4x4",
        )
