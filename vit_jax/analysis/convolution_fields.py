"""Which pixels a stack of convolutions can see: its theoretical receptive field."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from vit_jax.models.resnet import ConvStyle, Stage, Trunk


@dataclasses.dataclass(frozen=True)
class Field:
    """What position i of a feature map sees along one axis of the image.

    These are the `side` pixels from `start + i * step` on; padding counts as pixels.
    """

    start: int = 0
    side: int = 1
    step: int = 1

    def then(self, size: int, stride: int = 1, before: int = 0) -> "Field":
        """Returns the field after one more convolution or pooling.

        Args:
            size: of its kernel.
            stride: of its steps.
            before: positions of padding before the first.

        >>> Field().then(3, before=1).then(3, before=1)
        Field(start=-2, side=5, step=1)
        """
        return Field(
            self.start - before * self.step,
            self.side + (size - 1) * self.step,
            self.step * stride,
        )

    def centre(self, position: int) -> float:
        """Returns the middle of what a position sees; the first pixel's middle is 0."""
        return self.start + position * self.step + (self.side - 1) / 2


def trunk_fields(trunk: Trunk, length: int) -> dict[str, tuple[Field, int]]:
    """Returns the fields of a ResNet's maps along one axis, and the layers passed until there.

    A layer is a bottleneck unit, of which one convolution sees more than one position; the root is
    none. Statistics of group normalisation, over all positions, are left out.

    Args:
        trunk: root and stages.
        length: of the image along this axis, in pixels: TensorFlow's padding depends on it.

    Returns:
        "root", "stage1", ... -> (field, number of units).
    """
    field, style = Field(), trunk.style
    field, length = _through(field, length, _size(trunk.conv_root), trunk.conv_root.stride, style)
    if trunk.pools:
        field, length = _through(field, length, 3, 2, style)
    found, units = {"root": (field, 0)}, 0
    for number in range(trunk.stages):
        stage: Stage = getattr(trunk, f"stage{number + 1}")
        for conv in _spatial(stage):
            field, length = _through(field, length, _size(conv), conv.stride, style)
            units += 1
        found[f"stage{number + 1}"] = field, units
    return found


def _spatial(stage: Stage) -> Iterator[Any]:
    """Yields the middle convolution of every unit; the others are 1x1."""
    first: Any = stage.first
    yield first.conv2
    for _ in range(stage.rest):
        blocks: Any = stage.blocks
        yield blocks.conv2


def _size(conv: Any) -> int:
    return conv.kernel[...].shape[-4]


def _through(
    field: Field, length: int, size: int, stride: int, style: ConvStyle
) -> tuple[Field, int]:
    """Returns the field after one convolution or pooling, and the map's new length."""
    if style.same_padding:
        after = -(-length // stride)
        before = max((after - 1) * stride + size - length, 0) // 2
    else:
        before = size // 2
        after = (length + 2 * before - size) // stride + 1
    return field.then(size, stride, before), after
