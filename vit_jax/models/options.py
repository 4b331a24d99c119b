"""The config section of the model."""

from typing import Literal

from vit_jax.schema import Section, option


class ModelConfig(Section):
    """What `create_model` builds.

    Source: arXiv:2010.11929, sections 3.1 and D; later options cite their own.
    """

    name: str = option()
    """The paper's name: `ViT-{Ti,S,M,B,L,H,g,G}/{patch}`, `R50+ViT-B/16`, `BiT-R50x1`, ...; or
    `auto`: what `init_from` holds, with the options set here on top.
    """
    width: int | None = option(None, at_least=1)
    """Overrides of the named variant's table row (None: as named)."""
    depth: int | None = option(None, at_least=1)
    mlp_dim: int | None = option(None, at_least=1)
    num_heads: int | None = option(None, at_least=1)
    pooling: Literal["token", "gap", "map", "flatten"] = option("token")
    """How tokens become one feature vector: class token, mean, attention pooling, all of them."""
    class_token: bool | None = option(None)
    """Whether there is a class token; None: where pooling is "token"."""
    position_embedding: Literal[
        "none", "learned_1d", "learned_2d", "sincos_2d", "relative", "rope_2d"
    ] = option("learned_1d")
    position_placement: Literal["stem", "every_layer", "shared"] = option("stem")
    """Where the table is added: after the patch embedding, or to the input of every block, each
    with a table of its own or all with the same (D.4).
    """
    norm_placement: Literal["pre", "post"] = option("pre")
    norm_epsilon: float = option(1e-6, above=0)
    num_registers: int = option(0, at_least=0)
    """Extra learned tokens without a position (arXiv:2309.16588)."""
    layer_scale: float | None = option(None, above=0)
    """Initial value of the per-channel residual scale (arXiv:2103.17239); None: no such scale."""
    qk_norm: bool = option(False)
    """LayerNorm on queries and keys (arXiv:2302.05442)."""
    qkv_bias: bool = option(True)
    mlp: Literal["gelu", "swiglu"] = option("gelu")
    gelu_approximate: bool = option(True)
    """True: the tanh form that the paper's code uses; False: the exact erf form."""
    representation_size: int | None = option(None, at_least=1)
    """Width of the tanh layer before the head during pretraining; None: no such layer."""
    head_bias_init: float = option(0.0)
    dropout: float = option(0.0, at_least=0, below=1)
    """After every dense layer except qkv, and after the position embedding (Table 3)."""
    stochastic_depth: float = option(0.0, at_least=0, below=1)
    """Rate of the last block; grows linearly from 0 with depth (arXiv:1603.09382)."""
    dtype: Literal["float32", "bfloat16"] = option("float32")
    """Type of activations and matmuls; parameters, softmax, LayerNorm and loss stay float32."""
    remat: Literal["none", "dots", "full"] = option("none", changes_result=False)
    """What a block keeps for its backward pass: everything, matmul results, or only its input."""
    scan: bool = option(True, changes_result=False)
    """True: one compiled block looped over depth; False: the same blocks written out one by one."""
    attention_implementation: Literal["auto", "xla", "cudnn", "einsum"] = option(
        "auto", changes_result=False
    )
