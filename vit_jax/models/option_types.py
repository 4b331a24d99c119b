# Made by `python -m vit_jax.models.make_option_types`; do not edit.
# fmt: off
# ruff: noqa: E501
"""The options of models as types: for completion in editors, and for type checkers."""

from typing import Literal, TypedDict


class TextOptions(TypedDict, total=False):
    """Options of the text tower of a pair."""

    name: str
    """Width, depth, MLP dim and heads, e.g. `Text-B`: those of the ViT of that size. Default:
    'Text-B'.
    """
    width: int | None
    """Overrides the width of the named size; None: no override. The sizes below work the same.
    Default: None.
    """
    depth: int | None
    """Number of blocks. Default: None."""
    mlp_dim: int | None
    """Hidden features of a block's MLP. Default: None."""
    num_heads: int | None
    """Attention heads of a block. Default: None."""
    vocabulary_size: int
    """Number of token embeddings. It must be that of the tokenizer. Default: 32000."""
    context_length: int
    """Number of position embeddings: the longest text, in tokens. Default: 64."""
    is_causal: bool
    """Whether a token attends only to itself and the tokens before it, as in CLIP. Default: False.
    """
    pad_token: int | None
    """Token that no token attends to, as in BERT, nor attention pooling. None: all tokens are
    attended to, as in SigLIP. Default: None.
    """
    pooling: Literal['first', 'last', 'end_token', 'map', 'mean']
    """How tokens become one vector. first: BERT's class token. last: the last position, as in
    SigLIP. end_token: the position of `end_token`, as in CLIP. map: attention pooling. mean: the
    mean of all tokens that are not padding. Default: 'last'.
    """
    end_token: int | None
    """Token that ends a text, for pooling `end_token`, which takes its first position. None: the
    position of the largest token, as in CLIP, whose end token is the last of its vocabulary.
    Default: None.
    """
    activation: Literal['gelu', 'gelu_tanh', 'quick_gelu']
    """gelu: exact. gelu_tanh: its tanh approximation. quick_gelu: x * sigmoid(1.702 x). Default:
    'gelu_tanh'.
    """
    norm_placement: Literal['pre', 'post']
    """post: LayerNorm after each residual sum and after the embedding, as in BERT. Default: 'pre'.
    """
    norm_epsilon: float
    """Added to the variance in LayerNorm. Default: 1e-06."""
    num_segments: int
    """Number of segment embeddings, as in BERT. The first is added to every token. Default: 0."""


class ModelOptions(TypedDict, total=False):
    """Options of a model. Those that its family does not have are an error."""

    head_bias_init: float
    """Initial bias of the head. -10 suits sigmoid cross-entropy over many classes. Default: 0.0."""
    dtype: Literal['float32', 'bfloat16']
    """Type of activations and matmuls. Parameters, softmax, normalisation and loss stay float32.
    Default: 'float32'.
    """
    remat: Literal['auto', 'none', 'dots', 'full']
    """What a block keeps for its backward pass: everything, matmul results, or only its input.
    auto: the fastest that fits, see `train/step_choice.py`. Default: 'auto'.
    """
    scan: Literal['auto'] | bool
    """True: compile one block and loop over the depth. False: compile every block. auto: as remat.
    Default: 'auto'.
    """
    width: int | None
    """Overrides the width of the named model; None: no override. The sizes below work the same.
    Default: None. For a ViT, an MLP-Mixer.
    """
    depth: int | None
    """Number of blocks. Default: None. For a ViT, an MLP-Mixer."""
    mlp_dim: int | None
    """Hidden features of a block's MLP. Default: None. For a ViT."""
    num_heads: int | None
    """Attention heads of a block. Default: None. For a ViT."""
    pooling: Literal['token', 'gap', 'map', 'flatten']
    """How tokens become one feature vector: the class token, the mean of the patches, attention
    pooling, or all patches concatenated. What the head sees: the mean over the positions of the
    last feature map, or all of them concatenated, which fixes the image size. Source: "flatten" is
    ours, for comparisons with ViTs. For a ViT, a ResNet.
    """
    class_token: bool | None
    """Whether there is a class token. None: only with pooling "token". Default: None. For a ViT."""
    position_embedding: Literal['none', 'learned_1d', 'learned_2d', 'sincos_2d', 'relative', 'rope_2d']
    """How tokens know their position: not at all; by a learned vector for each; by the sum of
    learned vectors for row and column; by fixed sines and cosines; by a learned vector for each
    offset between two tokens, in the attention logits; or by rotated queries and keys (RoPE).
    Default: 'learned_1d'. For a ViT.
    """
    patch_kernel_size: int | None
    """Side in pixels of the stored patch kernel, which is resized to the patch size of the model by
    pseudo-inverse. With `position_grid`, the same weights fit every patch size (arXiv:2212.08013).
    None: the patch size. Default: None. For a ViT.
    """
    position_grid: int | None
    """Rows and columns of the stored table `learned_1d`, which is interpolated to the grid of the
    model's patches. None: that grid. Default: None. For a ViT.
    """
    position_placement: Literal['stem', 'every_layer', 'shared']
    """Where the position table is added: after the patch embedding; to the input of every block,
    each with its own table; or the same table to the input of every block (D.4). Default: 'stem'.
    For a ViT.
    """
    norm_placement: Literal['pre', 'post', 'res_post']
    """Where a block applies LayerNorm: before each branch; after each residual sum; or to each
    branch's output, before it is added (arXiv:2111.09883, section 3.2). Default: 'pre'. For a ViT.
    """
    norm: Literal['layer', 'rms']
    """LayerNorm, or RMSNorm, which subtracts no mean and has no bias (arXiv:1910.07467): in the
    blocks, after the last one, and for `embedding_norm` and `qk_norm`. Default: 'layer'. For a ViT.
    """
    norm_epsilon: float
    """Added to the variance in LayerNorm. Default: 1e-06. For a ViT."""
    num_registers: int
    """Extra learned tokens (arXiv:2309.16588). As in DINOv2, they get no position embedding: added
    to a token that is itself learned, it would change nothing. Default: 0. For a ViT.
    """
    register_head: bool
    """A second head, on the last register. The logits are the mean of both heads' logits, as in
    DeiT with its second token (arXiv:2012.12877, section 4). Default: False. For a ViT.
    """
    layer_scale: float | None
    """Initial value of the residual scale of each channel (arXiv:2103.17239). None: no scale.
    Default: None. For a ViT.
    """
    qk_norm: bool
    """LayerNorm on queries and keys (arXiv:2302.05442). Default: False. For a ViT."""
    qkv_bias: bool
    """Whether queries, keys and values have a bias. Default: True. For a ViT."""
    embedding_norm: bool
    """LayerNorm on the tokens before the first block, as in CLIP. Default: False. For a ViT."""
    mlp: Literal['gelu', 'quick_gelu', 'swiglu']
    """quick_gelu is x * sigmoid(1.702 x), as in CLIP. Default: 'gelu'. For a ViT."""
    gelu_approximate: bool
    """True: the tanh approximation that the paper's code uses. False: the exact erf form. Default:
    True. For a ViT.
    """
    representation_size: int | None
    """Width of a tanh layer before the head, used in pretraining. None: no such layer. Default:
    None. For a ViT, a ResNet.
    """
    dropout: float
    """Rate after every dense layer except qkv, and after the position embedding (Table 3). Default:
    0.0. For a ViT.
    """
    stochastic_depth: float
    """Rate of the last block, see `stochastic_depth_rates`. Rate of the last block. It grows
    linearly from 0 at the first (arXiv:1603.09382). Default: 0.0. For a ViT, an MLP-Mixer.
    """
    stochastic_depth_rates: Literal['linear', 'constant']
    """linear: the rate grows linearly from 0 at the first block (arXiv:1603.09382). constant: all
    blocks have the rate of the last (arXiv:2204.07118). Default: 'linear'. For a ViT.
    """
    attention_implementation: Literal['auto', 'xla', 'cudnn', 'einsum', 'pallas']
    """Program of the attention. auto: the fastest for the device and the sizes. Default: 'auto'.
    For a ViT.
    """
    token_mlp_dim: int | None
    """Hidden features of the MLP over tokens. Default: None. For an MLP-Mixer."""
    channel_mlp_dim: int | None
    """Hidden features of the MLP over channels. Default: None. For an MLP-Mixer."""
    image: "TowerOptions"
    """The image tower: a section of any image model. For a pair of towers."""
    text: TextOptions
    """The text tower. For a pair of towers."""
    embedding_size: int | None
    """Width of a linear layer after each tower. None: the image tower has no such layer, and the
    text tower is projected to the width of the image tower. Default: None. For a pair of towers.
    """
    projection_bias: bool
    """Whether these linear layers have a bias. Default: True. For a pair of towers."""
    temperature_init: float
    """Initial factor of the similarities. It is learned as its logarithm. Default: 10.0. For a pair
    of towers.
    """
    bias_init: float | None
    """Initial bias of the similarities, for the sigmoid loss. None: no bias. Default: None. For a
    pair of towers.
    """


class TowerOptions(ModelOptions, total=False):
    """Options of the image tower of a pair."""

    name: str
    """Another image model, e.g. `R50+ViT-B/16`."""
