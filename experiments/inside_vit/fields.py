"""The layers of a model with a feature map, and how many pixels each could see if it were a CNN."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Bool

from vit_jax.analysis.batches import pixels_per_patch, submodules
from vit_jax.models.family import ImageModel, Layer
from vit_jax.models.resnet import Trunk


@dataclasses.dataclass(frozen=True)
class Field:
    """Theoretical receptive field of the positions of a feature map, along one axis of the image.

    Position i depends on `side` pixels, starting at `start + i * step`. Padding counts as pixels.
    """

    start: int = 0
    side: int = 1
    step: int = 1

    def then(self, size: int, stride: int = 1, before: int = 0) -> "Field":
        """Returns the field after one more convolution or pooling with `before` padding pixels.

        >>> Field().then(3, before=1).then(3, before=1)
        Field(start=-2, side=5, step=1)
        """
        return Field(
            self.start - before * self.step, self.side + (size - 1) * self.step, self.step * stride
        )

    def centre(self, position: int) -> float:
        """Returns the centre of a position's field; the first pixel's centre is 0."""
        return self.start + position * self.step + (self.side - 1) / 2

    def interior(self, count: int, length: int, shift: int) -> Bool[np.ndarray, " h"]:
        """Returns which cells of a shifted image see neither padding nor the other side's pixels.

        Args:
            count: number of cells.
            length: length of the image in pixels.
            shift: pixels by which the image was moved around its border.

        >>> Field().then(3, before=1).interior(count=6, length=6, shift=2).tolist()
        [False, False, False, True, True, False]
        """
        first = self.start + np.arange(count) * self.step
        return (first >= shift) & (first + self.side <= length)


# The fields of a map's positions, vertical and horizontal.
Fields = tuple[Field, Field]


@dataclasses.dataclass(frozen=True)
class MapLayer:
    """One layer with a feature map.

    Attributes:
        name: "root", "stage1", ..., "embedding", "block 1", ...
        layer: argument of `model.features`.
        depth: number of encoder blocks and bottleneck units up to the layer; 0 for the patch
            embedding and the root convolution.
        fields: theoretical fields in a CNN of the same depth. For the maps of a ResNet this is the
            ResNet itself. For blocks it is the patch embedding, then a 3x3 convolution over patches
            per block.
        convolutional: whether only convolutions compute the map.
    """

    name: str
    layer: Layer
    depth: int
    fields: Fields
    convolutional: bool

    def centre(self, image_size: tuple[int, int]) -> tuple[float, float]:
        """Returns row and column of the centre of the central position's field."""
        down, across = self.fields
        rows, columns = (
            -(-side // field.step) for side, field in zip(image_size, self.fields, strict=True)
        )
        return down.centre(rows // 2), across.centre(columns // 2)


def layers_of(model: ImageModel) -> list[MapLayer]:
    """Returns the layers of a model that have a feature map, first layer first."""
    layers: list[MapLayer] = []
    for trunk in submodules(model, Trunk):
        down, across = (trunk_fields(trunk, side) for side in model.image_size)
        for name, (field, units) in down.items():
            layers.append(MapLayer(name, name, units, (field, across[name][0]), True))
    if "block_output" not in model.intermediates:
        return layers
    depth, start = (layers[-1].depth, layers[-1].fields) if layers else (0, (Field(), Field()))
    # Patches are cut from the image, or from the last map of the ResNet.
    fields = [
        field.then(pixels // field.step, pixels // field.step)
        for field, pixels in zip(start, pixels_per_patch(model), strict=True)
    ]
    for block in range(model.num_layers + 1):
        name = f"block {block}" if block else "embedding"
        layers.append(MapLayer(name, block, depth + block, (fields[0], fields[1]), False))
        fields = [field.then(3, before=1) for field in fields]
    return layers


def trunk_fields(trunk: Trunk, length: int) -> dict[str, tuple[Field, int]]:
    """Returns the theoretical field along one axis, and the depth, of each map of a ResNet.

    The depth counts bottleneck units, the root does not count. The statistics of group
    normalisation, which depend on all positions, are ignored.

    Args:
        trunk: root and stages.
        length: length of the image along this axis in pixels; TensorFlow's padding depends on it.
    """
    field, units = Field(), 0

    def apply(size: int, stride: int) -> None:
        nonlocal field, length
        if trunk.style.same_padding:
            after = -(-length // stride)
            before = max((after - 1) * stride + size - length, 0) // 2
        else:
            before = size // 2
            after = (length + 2 * before - size) // stride + 1
        field, length = field.then(size, stride, before), after

    apply(_kernel_size(trunk.conv_root), trunk.conv_root.stride)
    if trunk.pools:
        apply(3, 2)
    found = {"root": (field, 0)}
    for name in trunk.names[1:]:
        stage: Any = getattr(trunk, name)
        # The middle convolution of each unit; the others are 1x1.
        convs = [stage.first.conv2, *(stage.blocks.conv2 for _ in range(stage.rest))]
        for conv in convs:
            apply(_kernel_size(conv), conv.stride)
        units += len(convs)
        found[name] = field, units
    return found


def _kernel_size(conv: Any) -> int:
    return conv.kernel[...].shape[-4]
