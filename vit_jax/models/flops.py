"""Analytic operation counts, since XLA's own counts a scanned block once."""

from vit_jax.config import ModelConfig
from vit_jax.models.registry import resolve
from vit_jax.models.vit import mlp_hidden


def forward_macs(options: ModelConfig, *, num_classes: int, image_size: tuple[int, int]) -> int:
    """Returns the multiply-accumulates of one image's forward pass: every matmul, nothing else.

    Patch embedding, projections, attention logits and their weighted sum, MLPs, pooling and head
    count; LayerNorm, softmax, GELU and additions do not.

    Args:
        options: the model section of a config.
        num_classes: C; 0 for a model without a head.
        image_size: (height, width) in pixels.

    >>> config = ModelConfig(name="ViT-B/16")
    >>> round(forward_macs(config, num_classes=1000, image_size=(224, 224)) / 1e9, 2)
    17.56
    """
    shape = resolve(options)
    width, patch = shape.width, shape.patch_size
    patches = (image_size[0] // patch) * (image_size[1] // patch)
    tokens = patches + (options.pooling == "token") + options.num_registers

    projections = 4 * tokens * width * width
    scores_and_sum = 2 * tokens * tokens * width
    if options.position_embedding == "relative":
        scores_and_sum += tokens * (2 * tokens - 1) * width
    matrices = 3 if options.mlp == "swiglu" else 2
    mlp = matrices * tokens * width * mlp_hidden(shape, options)
    total = patches * patch * patch * 3 * width + shape.depth * (projections + scores_and_sum + mlp)

    features = width
    if options.pooling == "map":
        # Query and output of one probe, keys and values of all patches, and the probe's MLP.
        total += 2 * width * width + 2 * patches * width * width
        total += 2 * patches * width + 2 * width * shape.mlp_dim
    elif options.pooling == "flatten":
        features = patches * width
    if options.representation_size is not None:
        total += features * options.representation_size
        features = options.representation_size
    return total + features * num_classes


def training_flops(macs: int) -> int:
    """Returns the floating-point operations of training on one image: 6 a multiply-accumulate.

    Two for the multiply and the add, times three: forward, and backward to inputs and to
    parameters. Recomputation by remat does not count, as in model FLOPs utilisation
    (arXiv:2204.02311, appendix B).
    """
    return 6 * macs
