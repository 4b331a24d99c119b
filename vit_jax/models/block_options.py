"""The options of a Transformer block, which every model that is made of such blocks shares."""

from typing import Literal

from vit_jax.models.options import LayerOptions
from vit_jax.schema import option


class BlockOptions(LayerOptions):
    """Options of the blocks of an encoder. They are keys of the model section: `model.qk_norm`."""

    mlp: Literal["gelu", "quick_gelu", "swiglu"] = option("gelu")
    """quick_gelu is x * sigmoid(1.702 x), as in CLIP; swiglu is gated (arXiv:2002.05202)."""
    gelu_approximate: bool = option(True)
    """True: the tanh approximation that the paper's code uses. False: the exact erf form."""
    norm_placement: Literal["pre", "post", "res_post"] = option("pre")
    """Where a block applies LayerNorm: before each branch; after each residual sum; or to each
    branch's output, before it is added (arXiv:2111.09883, section 3.2).
    """
    norm_epsilon: float = option(1e-6, above=0)
    """Added to the variance in LayerNorm."""
    layer_scale: float | None = option(None, above=0)
    """Initial value of the residual scale of each channel (arXiv:2103.17239). None: no scale."""
    qk_norm: bool = option(False)
    """LayerNorm on queries and keys (arXiv:2302.05442)."""
    qkv_bias: bool = option(True)
    """Whether queries, keys and values have a bias."""
    dropout: float = option(0.0, at_least=0, below=1)
    """Rate after every dense layer except qkv, and after the position embedding (Table 3)."""
    stochastic_depth: float = option(0.0, at_least=0, below=1)
    """Rate of the last block, see `stochastic_depth_rates`."""
    stochastic_depth_rates: Literal["linear", "constant"] = option("linear")
    """linear: the rate grows linearly from 0 at the first block (arXiv:1603.09382). constant: all
    blocks have the rate of the last (arXiv:2204.07118).
    """
    attention_implementation: Literal["auto", "xla", "cudnn", "einsum", "pallas"] = option(
        "auto", changes_result=False
    )
    """Program of the attention. auto: the fastest for the device and the sizes."""

    @property
    def activation(self) -> str:
        """The activation of MLPs that are not gated: a name of `mlp.ACTIVATIONS`."""
        if self.mlp in ("gelu", "swiglu"):
            return "gelu_tanh" if self.gelu_approximate else "gelu"
        return self.mlp
