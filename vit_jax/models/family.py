"""The description of a model family, and the interface that all models share.

A family is one `Family` in one file of this package, listed in `image_families.IMAGE_FAMILIES`.
Other code (commands, sharding, optimizers) reads these attributes instead of testing names.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer
from jaxtyping import Array, Float

from vit_jax.errors import ModelError
from vit_jax.models.options import ModelConfig
from vit_jax.models.stacking import Stack

# Values normalised by any usual mean and deviation are smaller.
_LARGEST_PIXEL = 20
_MOST_BYTES_CHECKED = 64_000_000
# Default image size in pixels: of small models (Mini, Micro, Nano, Pico), and of all others.
SMALL_IMAGE_SIZE = 32
IMAGE_SIZE = 224

# (pattern, axes): a regular expression over whole parameter names, and the mesh axis of each of the
# parameter's last dimensions.
ShardingRule = tuple[str, tuple[str | None, ...]]


# A layer: its number, or the name of a feature map of a ResNet ("root", "stage1", ...).
Layer = int | str


@dataclasses.dataclass(frozen=True)
class EvalView:
    """How images were cropped and resized when weights were evaluated."""

    crop: str = "central"  # See `data.eval_crop`.
    central_fraction: float = 0.875  # Side of a central crop / the image's short side.
    antialias: bool = True  # Downscaling averages over all pixels.
    interpolation: str = "bilinear"  # Or "bicubic".


class ImageModel(nnx.Module):
    """Base of all models: images f32[B, H, W, 3] in [-1, 1] -> logits f32[B, num_classes].

    Attributes:
        image_size: (height, width) in pixels that the model is built for.
        grid: rows and columns of patches, or of the last feature map.
        num_tokens: length of the sequence of tokens, class token and registers included; None: a
            model without tokens.
        num_prefix: number of tokens before the patches: class token and registers.
        num_heads: number of attention heads; None: a model without self-attention.
        parts: names of the top-level modules and parameters, in the order of the forward pass.
        num_layers: L, number of layers after layer 0 that `features` returns.
        map_names: names that `features` takes besides numbers -> number of the layer; None: a map
            of a hybrid's ResNet, which comes before layer 0.
        config: the model section that it was built from, with all options of its family.
        class_names: names of the classes, in the order of the logits; loading sets them. None: not
            known.
        view: how images were cropped and resized when the weights were evaluated; loading sets it.
    """

    image_size: tuple[int, int]
    grid: tuple[int, int]
    num_tokens: int | None = None
    num_prefix: int = 0
    num_heads: int | None = None
    parts: ClassVar[tuple[str, ...]] = ()
    config: ModelConfig
    class_names: tuple[str, ...] | None = None
    view: EvalView = EvalView()

    @property
    def num_layers(self) -> int:
        raise NotImplementedError

    @property
    def map_names(self) -> dict[str, int | None]:
        return {}

    @property
    def attention_lengths(self) -> tuple[int, ...]:
        """Numbers of tokens that attend to each other; empty: a model without self-attention."""
        return ()

    @property
    def table_grid(self) -> tuple[int, int]:
        """Rows and columns of the parameters with one vector per position."""
        return self.grid

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Valid names for `return_intermediates`.

        All models have "pre_logits", the input of the head's last layer; those of this repository
        also "encoded", the output of the last layer after the final norm.
        """
        raise NotImplementedError

    def example_inputs(self, batch: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Returns the shapes and types of what the model is called with."""
        return (jax.ShapeDtypeStruct((batch, *self.image_size, 3), jnp.float32),)

    def __call__(
        self,
        images: Any,
        *,
        key: jax.Array | None = None,
        return_intermediates: tuple[str, ...] = (),
    ) -> Any:
        """Returns the logits; with `return_intermediates`, also a dict of the named values.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1].
            key: turns dropout and stochastic depth on; without it the model is deterministic.
            return_intermediates: names from `intermediates`.
        """
        raise NotImplementedError

    def features(
        self,
        images: Any,
        layers: Sequence[Layer] = (-1,),
        *,
        reshape: bool = True,
        normalise: bool = False,
        prefix: bool = False,
    ) -> tuple[Any, ...]:
        """Returns the feature maps of some layers, and computes no layer after the last of them.

        Layer 0 is the input of the first block: the embedded patches, or a ResNet's root. Layer i
        is the output of block i of a ViT or Mixer, or of stage i of a ResNet. Negative numbers
        count from the last layer, -1. The maps of a ResNet, also of the one inside a hybrid, have
        the names "root", "stage1", ... as well.

        Args:
            images: floating point [B, H, W, 3] in [-1, 1].
            layers: in any order.
            reshape: False: patches as a sequence, [B, h * w, D], in raster order.
            normalise: apply the model's final norm, and for a ResNet the ReLU after it. Maps of
                other channels than it has (all but the last stage of a ResNet) stay as they are.
            prefix: also return the class token and the registers.

        Returns:
            A map [B, h, w, D] for each layer, in the order of `layers`; with `prefix`, pairs of the
            map and the tokens before the patches [B, P, D], class token first. P may be 0.

        Raises:
            ModelError: images of another size, or a layer that the model does not have.
        """
        images = as_images(images, None)
        chosen = tuple(self.known_layer(layer) for layer in layers)
        found = self.layer_outputs(images, frozenset(chosen)) if chosen else {}

        def of_layer(layer: Layer) -> Any:
            is_of_stem = isinstance(layer, str)  # Maps of other models have numbers.
            x = self.final_norm(found[layer]) if normalise and not is_of_stem else found[layer]
            patches, tokens = self.split_prefix(x)
            patches = patches if reshape else patches.reshape(len(x), -1, x.shape[-1])
            return (patches, tokens) if prefix else patches

        return tuple(of_layer(layer) for layer in chosen)

    def split_prefix(
        self, x: Float[Array, "B *N D"]
    ) -> tuple[Float[Array, "B h w D"], Float[Array, "B P D"]]:
        """Returns the patches of a layer as a map, and the tokens before them.

        Args:
            x: tokens [B, N, D], or a map, which has no such tokens.
        """
        if x.ndim == 4:
            return x, x[:, :0, 0]
        patches = x[:, self.num_prefix :].reshape(len(x), *self.grid, -1)
        return patches, x[:, : self.num_prefix]

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        """Returns the tokens or maps of some layers; stops after the last of them.

        Args:
            images: as for `features`.
            layers: numbers from 0 to `num_layers`, and names of maps before layer 0.
        """
        raise NotImplementedError

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        """Returns the output of a layer after the final norm, if it has the norm's width."""
        raise NotImplementedError

    def known_layer(self, layer: Layer) -> Layer:
        """Returns a layer as `layer_outputs` takes it.

        Raises:
            ModelError: the model has no such layer.
        """
        if isinstance(layer, str) and layer in self.map_names:
            number = self.map_names[layer]
            return layer if number is None else number
        if not isinstance(layer, str) and -self.num_layers - 1 <= layer <= self.num_layers:
            return int(layer) % (self.num_layers + 1)
        names = "".join(f", {name!r}" for name in self.map_names)
        raise ModelError(
            f"layer {layer!r} of a {type(self).__name__} with {self.num_layers} layers",
            f"0 to {self.num_layers}{names}",
            "ask for one of these",
        )


@dataclasses.dataclass(frozen=True)
class Family:
    """A model family.

    Attributes:
        name: e.g. "ViT".
        options: class of its config section.
        sizes: listed model name -> shape. A shape is the family's own dataclass; it has
            `image_multiple`, by which image sides must be divisible.
        small: listed names of the models for 32-pixel images.
        parse: name that is not listed -> shape; None for an unknown name.
        pattern: pattern of the names, for error messages.
        shape: options -> sizes of the named model, with their overrides.
        build: see `registry.build_model`.
        describe: (options, model) -> rows of (label, value, note) for the `models` command.
        sharding_rules: which mesh axis each dimension of a parameter is split over.
        layer_order: regular expressions over whole parameter names, in the order of the forward
            pass. Each matches one layer, or all layers of a scanned stack (`blocks`). Parameters
            that none of them matches (final norm, head) are the last layer. Without an order,
            `optimizer.layer_decay` is refused.
        formats: modules of `vit_jax.interop` that read and write published weights.
        stack: (options, (height, width) of the images) -> sizes of the stack of layers, by which a
            run chooses how to execute it; None: the options `scan` and `remat` mean True and "none"
            if they are "auto".
    """

    name: str
    options: type[ModelConfig]
    sizes: Mapping[str, Any]
    parse: Callable[[str], Any]
    pattern: str
    shape: Callable[[Any], Any]
    build: Callable[..., ImageModel]
    small: frozenset[str] = frozenset()
    describe: Callable[[Any, Any], list[tuple[str, str, str]]] = lambda options, model: []
    sharding_rules: tuple[ShardingRule, ...] = ()
    layer_order: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    stack: Callable[[Any, tuple[int, int]], Stack] | None = None
    has_classes: bool = True

    @property
    def default_classes(self) -> int:
        """Number of classes of a new model, unless another is asked for."""
        return 1000 if self.has_classes else 0


def override_sizes(shape: Any, options: ModelConfig, names: tuple[str, ...]) -> Any:
    """Returns a shape with those of the named sizes that the options set; None: not set."""
    given = {name: getattr(options, name) for name in names}
    return dataclasses.replace(shape, **{k: v for k, v in given.items() if v is not None})


def check_image_size(image_size: tuple[int, int], multiple: int, what: str) -> None:
    """Raises ModelError unless both sides are divisible by `multiple`, the size of a patch.

    `what` names the multiple in the message, e.g. "patch size".
    """
    if all(side >= multiple and side % multiple == 0 for side in image_size):
        return
    below, above = (
        tuple(max(multiple, side // multiple * multiple + d) for side in image_size)
        for d in (0, multiple)
    )
    fitting = " or ".join(dict.fromkeys(f"{height}x{width}" for height, width in (below, above)))
    raise ModelError(
        f"image size {image_size[0]}x{image_size[1]} with {what} {multiple}",
        f"a multiple of {multiple}",
        f"use e.g. {fitting}, or another patch size",
    )


def as_images(images: Any, image_size: tuple[int, int] | None) -> jax.Array:
    """Returns images as an array, float [B, H, W, 3] of `image_size`; None: of any size.

    Raises:
        ModelError: something else, or values far from [-1, 1].
    """
    given = images
    try:
        images = jnp.asarray(given)
    except (TypeError, ValueError):  # Paths.
        raise ModelError(
            f"{type(given).__name__} as images",
            "a floating-point array in [-1, 1]",
            "call vit_jax.predict(model, FILES), or model(vit_jax.preprocess_of(model)(FILES))",
        ) from None
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ModelError(
            f"images of type {images.dtype}",
            "floating point in [-1, 1]",
            "use x / 127.5 - 1, or vit_jax.predict(model, IMAGES), which takes pixels",
        )
    size = image_size or images.shape[1:3]
    if images.ndim != 4 or images.shape[1:] != (*size, 3):
        height, width = image_size or ("height", "width")
        raise ModelError(
            f"images of shape {tuple(images.shape)}",
            f"(batch, {height}, {width}, 3)",
            _shape_fix(images.shape),
        )
    if isinstance(images, Tracer) or not images.is_fully_addressable:
        return images
    # Only of small arrays, which may have to be copied from a device.
    largest = np.abs(given).max(initial=0) if images.nbytes <= _MOST_BYTES_CHECKED else 0
    if largest > _LARGEST_PIXEL:
        raise ModelError(
            f"images with values up to {largest:g}",
            "values in [-1, 1]",
            "use x / 127.5 - 1 for values of 0 to 255",
        )
    return images


def _shape_fix(shape: tuple[int, ...]) -> str:
    """Returns how to make images [B, H, W, 3] of an array of this shape."""
    if len(shape) == 3 and shape[-1] == 3:
        return "give a single image a batch axis, as with image[None]"
    if len(shape) == 3 and shape[0] == 3:
        return (
            "give a single image a batch axis and put its channels last, as with"
            " image.transpose(1, 2, 0)[None]"
        )
    if len(shape) == 4 and shape[1] == 3 and shape[-1] != 3:
        return "put the channels last, as with images.transpose(0, 2, 3, 1)"
    if len(shape) == 2 or (len(shape) in (3, 4) and shape[-1] != 3):
        return "give the images 3 channels and a batch axis"
    return "resize the images, or make the model with their image_size"


def check_intermediates(names: tuple[str, ...], known: tuple[str, ...]) -> None:
    """Raises ModelError for an intermediate that the model cannot return."""
    for name in names:
        if name not in known:
            raise ModelError(
                f"unknown intermediate {name!r}",
                f"names from {', '.join(known)}",
                "ask for one of these",
            )


def with_intermediates(
    logits: jax.Array, found: Mapping[str, jax.Array], names: Sequence[str]
) -> Any:
    """Returns what a model's call returns: the logits, or with names (logits, values by name)."""
    return (logits, {name: found[name] for name in names}) if names else logits
