"""No crop: the whole image is squashed to a square."""

from vit_jax.data.crops import CROPS, Crop, CropName
from vit_jax.schema import option


@CROPS.register
class Resize(Crop):
    """The whole image, squashed to a square."""

    name: CropName = option("resize")
    """Only squash to a square."""
