"""Analytic operation counts, since XLA's own counts a scanned block once."""

from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import resolve
from vit_jax.models.resnet import ResNetShape
from vit_jax.models.vit import ViTShape, has_class_token, mlp_hidden


def forward_macs(
    options: ModelConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    head_per_patch: bool = False,
) -> int:
    """Returns the multiply-accumulates of one image's forward pass: matmuls and convolutions only.

    Convolutions, patch embedding, projections, attention logits and their weighted sum, MLPs,
    pooling and head count; normalisations, softmax, GELU and additions do not.

    Args:
        options: the model section of a config.
        num_classes: C; 0 for a model without a head.
        image_size: (height, width) in pixels.
        head_per_patch: whether a ViT's head is applied to each patch.

    >>> config = model_options("ViT-B/16")
    >>> round(forward_macs(config, num_classes=1000, image_size=(224, 224)) / 1e9, 2)
    17.56
    """
    shape = resolve(options)
    if isinstance(shape, ResNetShape):
        total, features = resnet_macs(shape, image_size), shape.channels
    else:
        total, features = _vit_macs(shape, options, image_size)
    if options.representation_size is not None:
        total += features * options.representation_size
        features = options.representation_size
    if head_per_patch:
        assert isinstance(shape, ViTShape)
        num_classes *= (image_size[0] // shape.stride) * (image_size[1] // shape.stride)
    return total + features * num_classes


def resnet_macs(shape: ResNetShape, image_size: tuple[int, int]) -> int:
    """Returns the multiply-accumulates of a ResNet's root and stages."""
    height, width = image_size
    channels = shape.width
    if shape.small:
        total = height * width * 9 * 3 * channels
    else:
        height, width = _halved(height, width)
        total = height * width * 49 * 3 * channels
        height, width = _halved(height, width)
    for i, count in enumerate(shape.units):
        middle = shape.width * 2**i
        before = height * width
        height, width = (height, width) if i == 0 else _halved(height, width)
        after = height * width
        equal = after * (4 * middle + 9 * middle + 4 * middle) * middle
        first = before * channels * middle + after * (9 + 4) * middle * middle
        if i or channels != 4 * middle:
            first += after * channels * 4 * middle
        total += first + (count - 1) * equal
        channels = 4 * middle
    return total


def _vit_macs(
    shape: ViTShape, options: ModelConfig, image_size: tuple[int, int]
) -> tuple[int, int]:
    """Returns the multiply-accumulates up to the head, and the features that enter it."""
    width, patch = shape.width, shape.patch_size
    patches = (image_size[0] // shape.stride) * (image_size[1] // shape.stride)
    tokens = patches + has_class_token(options) + options.num_registers
    channels = 3 if shape.stem is None else shape.stem.channels

    projections = 4 * tokens * width * width
    scores_and_sum = 2 * tokens * tokens * width
    if options.position_embedding == "relative":
        scores_and_sum += tokens * (2 * tokens - 1) * width
    matrices = 3 if options.mlp == "swiglu" else 2
    mlp = matrices * tokens * width * mlp_hidden(shape, options)
    total = patches * patch * patch * channels * width
    total += shape.depth * (projections + scores_and_sum + mlp)
    if shape.stem is not None:
        total += resnet_macs(shape.stem, image_size)

    if options.pooling == "map":
        # Query and output of one probe, keys and values of all patches, and the probe's MLP.
        total += 2 * width * width + 2 * patches * width * width
        total += 2 * patches * width + 2 * width * shape.mlp_dim
    return total, width * (patches if options.pooling == "flatten" else 1)


def _halved(height: int, width: int) -> tuple[int, int]:
    return (height + 1) // 2, (width + 1) // 2


def training_flops(macs: int) -> int:
    """Returns the floating-point operations of training on one image: 6 a multiply-accumulate.

    Two for the multiply and the add, times three: forward, and backward to inputs and to
    parameters. Recomputation by remat does not count, as in model FLOPs utilisation
    (arXiv:2204.02311, appendix B).
    """
    return 6 * macs
