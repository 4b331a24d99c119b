"""Which devices take part in a collective: the replica groups in the text of a program."""

import re

import numpy as np

_LISTS = re.compile(r"replica_groups=\{(\{.*?\})\}")
_IOTA = re.compile(r"(?:\[[\d,]+\]<=)?\[[\d,]+\](?:T\([\d,]+\))?")
_MESH = re.compile(
    r"replica_groups=@?mesh\w*\[([^\]]*)\](?:,\s*device_ids=\((\S*)\))?\s*\{([^}]*)\}"
)
_AXIS = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def replica_groups(text: str, devices: int) -> list[list[int]]:
    """Returns the groups of devices of a collective; without groups in the text, all are one group.

    XLA writes `replica_groups` as lists {{0,1},{2,3}}; as [groups,size]<=[4,2]T(1,0), which is a
    reshaped and transposed iota; or as axes of a mesh, mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0))
    {'a'}. 'a':(2)2 is a part of an axis.

    >>> replica_groups("replica_groups={{0,1},{2,3}}", 4)
    [[0, 1], [2, 3]]
    >>> replica_groups("replica_groups=[2,2]<=[2,2]T(1,0)", 4)
    [[0, 2], [1, 3]]
    >>> replica_groups("replica_groups=mesh['a'=2,'b'=2] {'a'}", 4)
    [[0, 2], [1, 3]]
    """
    match = _LISTS.search(text)
    if match:
        groups = re.findall(r"\{([\d,]*)\}", match[1])
        if any(groups):
            return [[int(d) for d in group.split(",")] for group in groups if group]
    match = re.search(rf"replica_groups=({_IOTA.pattern})", text)
    if match:
        return _iota(match[1]).tolist()
    match = _MESH.search(text)
    if match:
        return _mesh_groups(match[1], match[2], match[3])
    return [list(range(devices))]


def source_target_pairs(text: str) -> list[tuple[int, int]]:
    """Returns the (source, target) devices of a collective-permute.

    >>> source_target_pairs("source_target_pairs={{0,1},{1,0}}")
    [(0, 1), (1, 0)]
    """
    match = re.search(r"source_target_pairs=\{(\{.*?\})\}", text)
    found = re.findall(r"\{(\d+),(\d+)\}", match[1]) if match else []
    return [(int(source), int(target)) for source, target in found]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _iota(text: str) -> np.ndarray:
    """Returns the array of "[2,8]<=[4,4]T(1,0)": iota(16), as [4, 4], transposed, as [2, 8]."""
    shape, _, rest = text.rpartition("<=")
    dims, _, order = rest.partition("T")
    found = np.arange(np.prod(_numbers(dims[1:-1]))).reshape(_numbers(dims[1:-1]))
    if order:
        found = found.transpose(_numbers(order[1:-1]))
    return found.reshape(_numbers(shape[1:-1])) if shape else found


def _mesh_groups(mesh: str, device_ids: str | None, axes: str) -> list[list[int]]:
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    order = np.arange(np.prod(list(sizes.values())))
    if device_ids:
        iota = _IOTA.fullmatch(device_ids)
        order = _iota(iota[0]).ravel() if iota else np.array(_numbers(device_ids))
    # Each axis becomes one dimension, or three if a part of it is named: before, the part, after.
    shape, dimension = [], {}
    named = {name: (pre, part) for name, pre, part in _AXIS.findall(axes)}
    for name, size in sizes.items():
        pre, part = named.get(name, ("", ""))
        before, own = (int(pre), int(part)) if pre else (1, size)
        dimension[name] = len(shape) + 1
        shape += [before, own, size // (before * own)]
    grouped = [dimension[name] for name in named]
    others = [d for d in range(len(shape)) if d not in grouped]
    width = int(np.prod([shape[d] for d in grouped]))
    cut = order.astype(int).reshape(shape).transpose(*others, *grouped).reshape(-1, width)
    return cut.tolist()
