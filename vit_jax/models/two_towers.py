"""Pairs of an image tower and a text tower: CLIP, SigLIP and LiT."""

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float

from vit_jax.errors import ConfigError, ModelError
from vit_jax.models.activation_sharding import constrain
from vit_jax.models.aliases import our_name
from vit_jax.models.blocks import EncoderShape
from vit_jax.models.family import Family, ImageModel, Layer
from vit_jax.models.heads import Head
from vit_jax.models.image_families import any_image_config, find_family, is_image_model
from vit_jax.models.options import ModelConfig
from vit_jax.models.stacking import Stack
from vit_jax.models.text import TEXT_SIZES, TextConfig, TextTower, text_shape
from vit_jax.models.vit_family import VIT
from vit_jax.schema import ChosenBy, option, section

_SHARED = ("dtype", "initial_values", "remat", "scan")


def _image_section(mapping: Mapping[str, Any]) -> type[ModelConfig]:
    """Returns the class of the section of an image tower, chosen by its name."""
    name = mapping.get("name")
    return find_family(name).options if isinstance(name, str) else any_image_config()


class TwoTowersConfig(ModelConfig):
    """Options of a pair of towers.

    The name gives the defaults of both towers. `image` and `text` override them. Both towers take
    `dtype`, `remat` and `scan` of this section.

    Source: arXiv:2103.00020 (CLIP), 2303.15343 (SigLIP), 2502.14786 (SigLIP 2), 2111.07991 (LiT).
    """

    kind: ClassVar[str] = "a pair of towers"

    image: Annotated[ModelConfig, ChosenBy(_image_section)] = section()
    """The image tower: a section of any image model."""
    text: TextConfig = section()
    """The text tower."""
    embedding_size: int | None = option(None, at_least=1)
    """Width of a linear layer after each tower. None: the image tower has no such layer, and the
    text tower is projected to the width of the image tower.
    """
    projection_bias: bool = option(True)
    """Whether these linear layers have a bias."""
    temperature_init: float = option(10.0, above=0)
    """Initial factor of the similarities. It is learned as its logarithm."""
    bias_init: float | None = option(None)
    """Initial bias of the similarities, for the sigmoid loss. None: no bias."""

    def __init__(self, **values: Any):
        name = values.get("name")
        if isinstance(name, str) and (defaults := named_options(our_name(name))):
            shared = {key: values[key] for key in _SHARED if key in values}
            values = {**defaults, **values}
            values["image"] = _tower(values["image"], defaults["image"], shared, "image")
            values["text"] = _tower(values["text"], defaults["text"], {}, "text")
        super().__init__(**values)

    @property
    def draws_random_numbers(self) -> bool:
        return self.image.draws_random_numbers

    def on_any_platform(self) -> "TwoTowersConfig":
        return self.replace(image=self.image.on_any_platform())

    def with_xla_attention(self) -> "TwoTowersConfig":
        return self.replace(image=self.image.with_xla_attention())


def _tower(given: Any, defaults: Mapping[str, Any], shared: Mapping[str, Any], key: str) -> Any:
    """Returns the section of a tower: the defaults of the pair, with what is given."""
    if isinstance(given, ModelConfig):
        return given.replace(**shared)
    if not isinstance(given, Mapping):
        return given
    for name in _SHARED:
        if given.get(name, shared.get(name)) != shared.get(name):
            raise ConfigError(
                f"is {given[name]!r} in one tower of a pair",
                "one value for both towers",
                f"set model.{name}",
                key=f"{key}.{name}",
            )
    if key == "image" and isinstance(name := given.get("name"), str):
        # Another image tower keeps the defaults that its family has.
        known = find_family(name).options.model_fields
        defaults = {option: value for option, value in defaults.items() if option in known}
    return {**defaults, **shared, **given}


@dataclasses.dataclass(frozen=True)
class TwoTowersShape:
    """The sizes of both towers."""

    image: Any  # Of its family's class.
    text: EncoderShape

    @property
    def stride(self) -> int:
        return self.image.stride

    @property
    def image_multiple(self) -> int:
        return self.image.image_multiple


# Options of the towers of each method. CLIP: arXiv:2103.00020, Table 20 and section 2.4. SigLIP:
# arXiv:2303.15343, section 4, and configs of big_vision. LiT: arXiv:2111.07991, section 4; its text
# towers are BERT's (arXiv:1810.04805) or small ones.
_CLIP_TEXT = {
    "vocabulary_size": 49_408, "context_length": 77, "is_causal": True, "pooling": "end_token",
    "activation": "quick_gelu", "norm_epsilon": 1e-5,
}  # fmt: skip
_CLIP_IMAGE = {
    "pooling": "token", "embedding_norm": True, "mlp": "quick_gelu", "norm_epsilon": 1e-5,
}  # fmt: skip
_SIGLIP_TEXT = {"vocabulary_size": 32_000, "context_length": 64, "pooling": "last"}
_LIT_TEXT = {"vocabulary_size": 16_000, "context_length": 16, "pooling": "last"}
_BERT_TEXT = {
    "vocabulary_size": 30_522, "context_length": 512, "pooling": "first", "pad_token": 0,
    "norm_placement": "post", "norm_epsilon": 1e-12, "num_segments": 2,
}  # fmt: skip
# Size of a CLIP's ViT -> that of its text tower, where they differ.
_CLIP_SIZES = {"B": "M", "L": "B"}
# Published LiT models: image tower, text tower, embedding size.
_LIT: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "LiT-B16B": ("ViT-B/16", {"name": "Text-B", **_BERT_TEXT}, 768),
    "LiT-B16B_2": ("ViT-B/16", {"name": "Text-B", **_BERT_TEXT}, None),
    "LiT-L16L": ("ViT-L/16", {"name": "Text-L", **_BERT_TEXT}, None),
    "LiT-L16S": ("ViT-L/16", {"name": "Text-S", **_LIT_TEXT}, None),
    "LiT-L16Ti": ("ViT-L/16", {"name": "Text-Ti", **_LIT_TEXT}, None),
}
_LISTED = (
    "CLIP-ViT-B/32", "CLIP-ViT-B/16", "CLIP-ViT-L/14", "SigLIP-ViT-B/16", "SigLIP-ViT-L/16",
    "SigLIP-ViT-So400m/14", "SigLIP2-ViT-B/32", "SigLIP2-ViT-B/16", "SigLIP2-ViT-L/16",
    "SigLIP2-ViT-So400m/14", "SigLIP2-ViT-So400m/16", *_LIT,
)  # fmt: skip


def named_options(name: str) -> dict[str, Any] | None:
    """Returns the options that the name of a pair stands for; None: not the name of a pair.

    A name is a method and an image model, e.g. "CLIP-ViT-B/16" or "SigLIP-BiT-R50x1", or that of a
    published LiT model.
    """
    if name in _LIT:
        image, text, width = _LIT[name]
        return {"image": {"name": image}, "text": text, "embedding_size": width}
    match = re.fullmatch(r"(CLIP|SigLIP|SigLIP2|LiT)-(.+)", name)
    if match is None or not is_image_model(match[2]):
        return None
    method, image = match[1], match[2]
    found = re.search(r"ViT-(\w+)/", image)
    size = found[1] if found else "B"
    is_vit = find_family(image) is VIT
    if method == "CLIP":
        text = f"Text-{_CLIP_SIZES.get(size, size)}"
        return {
            "image": {"name": image, **(_CLIP_IMAGE if is_vit else {})},
            "text": {"name": text, **_CLIP_TEXT},
            "embedding_size": TEXT_SIZES[text][0],
            "projection_bias": False,
            "temperature_init": 1 / 0.07,
        }
    if method == "LiT":
        return {"image": {"name": image}, "text": {"name": f"Text-{size}", **_LIT_TEXT}}
    vocabulary = {"vocabulary_size": 256_000} if method == "SigLIP2" else {}
    return {
        "image": {"name": image, **({"pooling": "map"} if is_vit else {})},
        "text": {"name": f"Text-{size}", **_SIGLIP_TEXT, **vocabulary},
        "bias_init": -10.0,
    }


def _parse(name: str) -> TwoTowersShape | None:
    return None if named_options(name) is None else towers_shape(TwoTowersConfig(name=name))


def towers_shape(options: TwoTowersConfig) -> TwoTowersShape:
    """Returns the sizes of both towers, with the overrides of the options."""
    family = find_family(options.image.name)
    return TwoTowersShape(family.shape(options.image), text_shape(options.text))


class TwoTowers(ImageModel):
    """An image tower and a text tower whose embeddings are compared by their cosine similarity.

    The image tower must return features f32[B, F], no classes. The embeddings of both towers must
    have one width.

    Attributes:
        log_temperature: logarithm of the factor of the similarities, f32[].
        bias: of the similarities, f32[]; None: no bias.
    """

    parts = ("image", "image_projection", "text", "log_temperature", "bias")

    def __init__(
        self,
        image: ImageModel,
        text: TextTower,
        options: TwoTowersConfig,
        *,
        rngs: nnx.Rngs,
    ):
        head: Head = image.head  # pyright: ignore[reportAttributeAccessIssue]
        if head.linear is not None:
            raise ModelError(
                f"an image tower with {head.linear.out_features} classes",
                "a model that returns features",
                "build it with num_classes=0",
            )
        width = options.embedding_size or head.num_features
        if width != text.embedding_size:
            raise ModelError(
                f"an image tower with embeddings of {width} features and a text tower with"
                f" {text.embedding_size}",
                "the same number",
                f"build the text tower with embedding_size={width}, or set embedding_size",
            )
        self.image = image
        make_linear = partial(nnx.Linear, head.num_features, use_bias=options.projection_bias)
        self.image_projection = make_linear(width, rngs=rngs) if options.embedding_size else None
        self.text = text
        temperature, bias = options.temperature_init, options.bias_init
        self.log_temperature = nnx.Param(jnp.asarray(math.log(temperature), jnp.float32))
        self.bias = None if bias is None else nnx.Param(jnp.asarray(bias, jnp.float32))
        self.embedding_size = width
        self.image_size, self.grid = image.image_size, image.grid
        self.num_tokens, self.num_prefix = image.num_tokens, image.num_prefix
        self.num_heads = image.num_heads

    @property
    def temperature(self) -> Float[Array, ""]:
        """The factor of the similarities."""
        return jnp.exp(self.log_temperature[...])

    @property
    def attention_lengths(self) -> tuple[int, ...]:
        return (*self.image.attention_lengths, self.text.num_tokens)

    @property
    def intermediates(self) -> tuple[str, ...]:
        return ()

    def example_inputs(self, batch: int) -> tuple[jax.ShapeDtypeStruct, ...]:
        texts = jax.ShapeDtypeStruct((batch, self.text.num_tokens), jnp.int32)
        return (*self.image.example_inputs(batch), texts)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        images: Array | np.ndarray,
        tokens: Array | np.ndarray,
        *,
        key: jax.Array | None = None,
    ) -> tuple[Float[Array, "B E"], Float[Array, "C E"]]:
        """Returns the embeddings of the images and of the texts, f32, of length 1.

        Images are floating point [B, H, W, 3] in [-1, 1], of the image tower's size. Tokens are
        whole numbers [C, N], N at most the text tower's context length. A key turns dropout and
        stochastic depth of the image tower on.
        """
        return self.encode_image(images, key=key), self.encode_text(tokens)

    @property
    def num_layers(self) -> int:
        return self.image.num_layers

    @property
    def map_names(self) -> dict[str, int | None]:
        return self.image.map_names

    def layer_outputs(
        self, images: jax.Array, layers: frozenset[Layer]
    ) -> dict[Layer, Float[Array, "B *N D"]]:
        return self.image.layer_outputs(images, layers)

    def final_norm(self, x: Float[Array, "B *N D"]) -> Float[Array, "B *N D"]:
        return self.image.final_norm(x)

    def encode_image(
        self, images: Array | np.ndarray, *, key: jax.Array | None = None
    ) -> Float[Array, "B E"]:
        """Returns the embeddings of images [B, H, W, 3], f32, of length 1."""
        features = self.image(images, key=key)
        if self.image_projection is not None:
            features = constrain(self.image_projection(features), "batch")
        return normalized(features)

    def encode_text(self, tokens: Array | np.ndarray) -> Float[Array, "B E"]:
        """Returns the embeddings of tokenized texts [B, N], f32, of length 1."""
        return normalized(constrain(self.text(tokens), "batch"))

    def logits(
        self, images: Float[Array, "B E"], texts: Float[Array, "C E"]
    ) -> Float[Array, "B C"]:
        """Returns temperature * images texts^T + bias of embeddings, f32."""
        found = self.temperature * (images @ texts.T)
        return found if self.bias is None else found + self.bias[...]


def normalized(x: Float[Array, "*B"], axis: int = -1) -> Float[Array, "*B"]:
    """Returns the vectors along an axis divided by their length; zero stays zero."""
    squares = jnp.square(x).sum(axis, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))


def _build(
    options: TwoTowersConfig,
    *,
    num_classes: int,
    image_size: tuple[int, int],
    key: jax.Array,
    platform: str | None = None,
) -> TwoTowers:
    if num_classes:
        raise ModelError(
            f"{options.name} with {num_classes} classes",
            "num_classes 0: a pair of towers has embeddings, no classes",
            f"use a task of images and texts, or the image model {options.image.name}",
        )
    rngs = nnx.Rngs(params=key)
    family = find_family(options.image.name)
    image = family.build(
        options.image, num_classes=0, image_size=image_size, key=rngs.params(), platform=platform
    )
    image.config = options.image
    width = options.embedding_size or image.head.num_features  # pyright: ignore[reportAttributeAccessIssue]
    text = TextTower(
        options.text,
        embedding_size=width,
        projection_bias=options.projection_bias,
        pair=options,
        platform=platform,
        rngs=rngs,
    )
    return TwoTowers(image, text, options, rngs=rngs)


def _describe(options: TwoTowersConfig, model: TwoTowers) -> list[tuple[str, str, str]]:
    family, shape = find_family(options.image.name), text_shape(options.text)
    rows = family.describe(options.image, model.image)
    return [
        ("image tower", options.image.name, ""),
        *((f"  {label}", value, note) for label, value, note in rows),
        ("text tower", options.text.name, "causal" if options.text.is_causal else ""),
        ("  width", f"{shape.width:,}", ""),
        ("  depth", f"{shape.depth}", "blocks"),
        ("  heads", f"{shape.num_heads}", f"of {shape.width // shape.num_heads} features"),
        ("  MLP dim", f"{shape.mlp_dim:,}", ""),
        ("  vocabulary", f"{options.text.vocabulary_size:,}", "tokens"),
        ("  context", f"{options.text.context_length}", f"tokens, pooling {options.text.pooling}"),
        ("embedding", f"{model.embedding_size:,}", ""),
    ]


def tower_stacks(options: TwoTowersConfig, image_size: tuple[int, int]) -> list[Stack]:
    """Returns the stacks of the image tower, if it has one, and of the text tower."""
    family, shape = find_family(options.image.name), text_shape(options.text)
    tokens = options.text.context_length
    features = 9 * shape.width + 2 * shape.mlp_dim
    text = Stack(shape.depth, shape.width, tokens, tokens * (features + shape.num_heads * tokens))
    image = [] if family.stack is None else [family.stack(options.image, image_size)]
    return [*image, text]


def _stack(options: TwoTowersConfig, image_size: tuple[int, int]) -> Stack:
    """Returns the stack of the tower that keeps more values for its backward pass."""
    return max(tower_stacks(options, image_size), key=lambda s: s.depth * s.layer_values)


TWO_TOWERS = Family(
    name="TwoTowers",
    options=TwoTowersConfig,
    sizes={name: _parse(name) for name in _LISTED},
    parse=_parse,
    pattern="{CLIP,SigLIP,SigLIP2,LiT}-IMAGE_MODEL, " + ", ".join(_LIT),
    shape=towers_shape,
    stack=_stack,
    build=_build,
    describe=_describe,
    sharding_rules=(
        *((rf"text/(?:{pattern})", axes) for pattern, axes in VIT.sharding_rules),
        (r"text/token_embedding", (None, "fsdp")),
        (r"(image_|text/)projection/kernel", ("fsdp", "tensor")),
        (r"(image_|text/)projection/bias", ("tensor",)),
    ),
    # Of the text tower. The image tower has that of its family.
    layer_order=(
        r"(token|segment)_embedding|positions|embedding_norm/.*",
        *VIT.layer_order[1:],
    ),
    formats=("towers_npz", "towers_transformers"),
    has_classes=False,
)
