"""What a format module finds out about a published file, and what they share in finding out."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.interop.normalization import Normalization
from vit_jax.interop.rows import Row
from vit_jax.models.registry import list_models, model_options, resolve
from vit_jax.models.vit import ViTShape

# width -> heads, where the published models of that width agree. Source: the papers' tables.
_HEADS = {192: 3, 384: 6, 512: 8, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1536: 24,
          1664: 16, 4096: 32}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class EvalView:
    """What of an image a model is shown in evaluation.

    Attributes:
        crop: "central" or "resize", see `data.eval_crop`.
        central_fraction: side of a central crop, of the short side.
        antialias: whether shrinking averages over all pixels.
    """

    crop: str = "central"
    central_fraction: float = 0.875
    antialias: bool = True


@dataclasses.dataclass(frozen=True)
class Published:
    """A published file, understood.

    Attributes:
        format: its name, for people.
        options: the model section that the file stands for.
        num_classes: classes of its head; 0: it has none.
        image_size: (height, width) that its position information is made for; None: cannot be told.
        rows: its name table.
        class_names: where the file has them.
        view: what of an image the weights are evaluated on.
        normalization: what the weights expect of images, where it is not ours.
        unused: tensors that such files have and that no model needs.
        of_pretraining: patterns over names of parameters that served its task alone.
    """

    format: str
    options: Mapping[str, Any]
    num_classes: int
    image_size: tuple[int, int] | None
    rows: tuple[Row, ...]
    class_names: tuple[str, ...] | None = None
    view: EvalView = EvalView()
    normalization: Normalization | None = None
    unused: tuple[str, ...] = ()
    of_pretraining: tuple[str, ...] = ()


def vit_options(
    *, width: int, depth: int, mlp_dim: int, num_heads: int, patch_size: int
) -> dict[str, Any]:
    """Returns the model options of these sizes: a registered name, else the nearest as overridden.

    >>> vit_options(width=768, depth=12, mlp_dim=3072, num_heads=12, patch_size=16)
    {'name': 'ViT-B/16'}
    """
    sizes = {"width": width, "depth": depth, "mlp_dim": mlp_dim, "num_heads": num_heads}
    wanted = ViTShape(width, depth, mlp_dim, num_heads, patch_size)
    names = [n for n in list_models() if n.startswith("ViT-") and n.endswith("/16")]

    def shape(name: str) -> Any:
        return resolve(model_options(name))

    for name in names:
        if dataclasses.replace(shape(name), patch_size=patch_size) == wanted:
            return {"name": f"{name.removesuffix('16')}{patch_size}"}
    closest = min(names, key=lambda name: abs(math.log(shape(name).width / width)))
    return {"name": f"{closest.removesuffix('16')}{patch_size}", **sizes}


def heads_of(width: int, given: Mapping[str, Any]) -> int:
    """Returns the attention heads of a model of this width, where the file does not tell.

    Raises:
        WeightsError: no published model has this width, and num_heads is not given.
    """
    heads = given.get("num_heads") or _HEADS.get(width)
    if heads is None:
        raise WeightsError(
            f"a model of width {width}, whose heads the file does not tell", "their number",
            "give num_heads=",
        )  # fmt: skip
    return heads


def grid_of(rows: int, has_prefix: int, given: Mapping[str, Any]) -> tuple[int, int]:
    """Returns the (rows, columns) of patches of a position table: as given, else square.

    Args:
        rows: vectors of the table.
        has_prefix: tokens before the patches, which may have a vector each or none.
        given: the caller's options; "grid" among them.

    Raises:
        WeightsError: it is not a square, and no grid is given, or one of another size.
    """
    grid = given.get("grid")
    sizes = (rows, rows - has_prefix)
    if grid is None:
        squares = [math.isqrt(n) for n in sizes if math.isqrt(n) ** 2 == n]
        grid = (squares[0], squares[0]) if squares else None
    if grid is None or grid[0] * grid[1] not in sizes:
        raise WeightsError(
            f"a position table of {rows} vectors and grid {grid}",
            "rows x columns of the pretraining images' patches", "give grid=(rows, columns)",
        )  # fmt: skip
    return grid[0], grid[1]


def depth_of(names: Mapping[str, Any], pattern: str, first: int = 0) -> int:
    """Returns how many consecutive layers there are; `pattern` holds `{layer}`."""
    depth = 0
    while pattern.format(layer=depth + first) in names:
        depth += 1
    return depth
