"""The options that all model families share. Each family's section adds its own options."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeVar

from vit_jax.models.aliases import our_name
from vit_jax.schema import Section, option

AUTO = "auto"
"""`model.name`: take the architecture from the weights in `init_from`. `model.scan` and
`model.remat`: choose for the device.
"""

SIZES = ("width", "depth", "mlp_dim", "token_mlp_dim", "channel_mlp_dim", "num_heads")
"""Options that override a size of the named model."""

Remat = Literal["none", "dots", "full"]

C = TypeVar("C", bound="ModelConfig")


class LayerOptions(Section):
    """How the layers of a model are computed."""

    dtype: Literal["float32", "bfloat16"] = option("float32")
    """Type of activations and matmuls. Parameters, softmax, normalisation and loss stay float32."""
    remat: Remat | Literal["auto"] = option(AUTO, changes_result=False)
    """What a block keeps for its backward pass: everything, matmul results, or only its input.
    auto: the fastest that fits, see `train/step_choice.py`.
    """
    scan: bool | Literal["auto"] = option(AUTO, changes_result=False)
    """True: compile one block and loop over the depth. False: compile every block. auto: as remat.
    """


class ModelConfig(LayerOptions):
    """The model to build."""

    kind: ClassVar[str] = "a model"

    def __init__(self, **values: Any):
        if isinstance(values.get("name"), str):
            values["name"] = our_name(values["name"])
        super().__init__(**values)

    name: str = option()
    """The paper's name, e.g. `ViT-B/16`, `R50+ViT-B/16`, `BiT-R50x1`, `Mixer-B/16`; or `auto`: the
    architecture of the weights in `init_from`, with the options that are set here. A name of timm,
    transformers or torchvision stands for the model of the same sizes.
    """
    head_bias_init: float = option(0.0)
    """Initial bias of the head. -10 suits sigmoid cross-entropy over many classes."""
    initial_values: Literal["vision_transformer", "big_vision", "flexivit", "timm", "mae"] = option(
        "vision_transformer"
    )
    """Whose code the initial values follow, see `models.initial_values`."""

    def with_loop(self: C, scan: bool, remat: Remat) -> C:
        """Returns the options with this loop over the layers, see `stacking.LayerLoop`."""
        return self.replace(scan=scan, remat=remat)

    @property
    def label(self) -> str:
        """The name, and the sizes that differ from it: "ViT-Ti/8 (width 128, depth 6)"."""
        return sized_name(self.name, {name: getattr(self, name, None) for name in SIZES})

    @property
    def draws_random_numbers(self) -> bool:
        """Whether a training step of the model draws random numbers for each example."""
        return any(getattr(self, name, 0.0) > 0 for name in ("dropout", "stochastic_depth"))

    def on_any_platform(self: C) -> C:
        """Returns the options without kernels that only run on some platforms."""
        return self

    def with_xla_attention(self: C) -> C:
        """Returns the options with XLA's attention, where the choice is left to us."""
        return self


def sized_name(name: str, sizes: Mapping[str, Any]) -> str:
    """Returns a model's name with the sizes that differ from it; None: it does not differ.

    >>> sized_name("ViT-Ti/8", {"width": 128, "depth": None})
    'ViT-Ti/8 (width 128)'
    """
    shown = ", ".join(f"{key} {size}" for key, size in sizes.items() if size is not None)
    return f"{name} ({shown})" if shown else name


def with_patch_size(name: str, patch_size: int) -> str | None:
    """Returns the name of a model with another patch size; None: it cuts no patches from images.

    >>> with_patch_size("ViT-B/16", 8), with_patch_size("R50+ViT-B/16", 8)
    ('ViT-B/8', None)
    """
    if not re.fullmatch(r"[^+/]+/\d+", name):
        return None
    return f"{name.rsplit('/', 1)[0]}/{patch_size}"
