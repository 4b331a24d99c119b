"""A ViT, ResNets and an MLP-Mixer in float64 NumPy, written from the papers' formulas.

They take one image at a time: tokens are [N, D], feature maps [H, W, C]. `p` are nested dicts of
parameters with the names that the models use.
"""

import numpy as np


def layer_norm(x, p, epsilon=1e-6):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + epsilon) * p["scale"]
    return y + p["bias"] if "bias" in p else y


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def linear(x, p):
    return x @ p["kernel"] + p["bias"]


def mlp(x, p):
    return linear(gelu_tanh(linear(x, p["expand"])), p["contract"])


def attention(x, p, relative=None):
    """Loops over heads and, for the relative bias, over every query and key."""
    n, d = x.shape
    heads = p["qkv"]["kernel"].shape[2]
    bias = p["qkv"].get("bias", np.zeros(p["qkv"]["kernel"].shape[1:]))
    out = np.zeros((n, d))
    for h in range(heads):
        q, k, v = (x @ p["qkv"]["kernel"][:, i, h] + bias[i, h] for i in range(3))
        logits = q @ k.T
        if relative is not None:
            for i in range(n):
                for j in range(n):
                    logits[i, j] += q[i] @ relative[i - j + n - 1, h]
        weights = softmax(logits / np.sqrt(q.shape[1]))
        out += weights @ v @ p["out"]["kernel"][h]
    return out + p["out"]["bias"]


def block(x, p, placement="pre", epsilon=1e-6):
    relative = p["attention"].get("relative", {}).get("table")

    def norm(x, name):
        return layer_norm(x, p[name], epsilon)

    if placement == "pre":
        x = x + attention(norm(x, "attention_norm"), p["attention"], relative)
        return x + mlp(norm(x, "mlp_norm"), p["mlp"])
    if placement == "res_post":
        branch = attention(x, p["attention"], relative)
        x = x + layer_norm(branch, p["attention_norm"], epsilon)
        return x + layer_norm(mlp(x, p["mlp"]), p["mlp_norm"], epsilon)
    x = norm(x + attention(x, p["attention"], relative), "attention_norm")
    return norm(x + mlp(x, p["mlp"]), "mlp_norm")


def map_head(tokens, p, epsilon=1e-6):
    probe = p["probe"][0, 0]
    out = np.zeros_like(probe)
    for h in range(p["query"]["kernel"].shape[1]):
        q = probe @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
        k = tokens @ p["key"]["kernel"][:, h] + p["key"]["bias"][h]
        v = tokens @ p["value"]["kernel"][:, h] + p["value"]["bias"][h]
        out += softmax(k @ q / np.sqrt(len(q))) @ v @ p["out"]["kernel"][h]
    x = out + p["out"]["bias"]
    return x + mlp(layer_norm(x, p["norm"], epsilon), p["mlp"])


def positions(p, before, patches):
    """[N, D] to add: zeros for the `before` tokens, but for the class token of a 1-D table."""
    if "table" in p:
        rows = p["table"][0]
    else:
        rows = np.array([[*x, *y] for y in p["by_row"] for x in p["by_column"]])
    table = np.zeros((before + patches, rows.shape[1]))
    table[before:] = rows[len(rows) - patches :]
    table[: len(rows) - patches] = rows[: len(rows) - patches]
    return table


def vit(image, p, *, placement="pre", pooling="token", shared=False, epsilon=1e-6):
    """Logits [C] of an image, or of a feature map.

    Positions: none, 1-D or 2-D tables after the embedding, in each block, or `shared` by all, or
    relative ones. `placement` is that of the norms.
    """
    kernel = p["patch_embedding"]["kernel"]
    size = kernel.shape[0]
    rows, columns = image.shape[0] // size, image.shape[1] // size
    x = [*p.get("class_token", [[]])[0], *p.get("registers", [[]])[0]]
    before = len(x)
    for i in range(rows):
        for j in range(columns):
            patch = image[i * size : (i + 1) * size, j * size : (j + 1) * size]
            x.append(np.einsum("ijc,ijcd->d", patch, kernel) + p["patch_embedding"]["bias"])
    x = np.array(x)
    table = 0
    if "position_embedding" in p:
        table = positions(p["position_embedding"], before, rows * columns)
    x = x if shared else x + table
    blocks = p["encoder"]["blocks"]
    for layer in range(len(blocks["mlp_norm"]["scale"])):
        own = slice_layer(blocks, layer)
        x = x + table if shared else x
        if "position_embedding" in own:
            x = x + positions(own["position_embedding"], before, rows * columns)
        x = block(x, own, placement, epsilon)
    if placement != "post":
        x = layer_norm(x, p["norm"], epsilon)
    patches = x[before:]
    if pooling == "map":
        features = map_head(patches, p["attention_pooling"], epsilon)
    else:
        features = {"token": x[0], "gap": patches.mean(0), "flatten": patches.reshape(-1)}[pooling]
    return linear(features, p["head"]["linear"])


def mixer(image, p):
    """Logits [C] of an MLP-Mixer."""
    kernel = p["patch_embedding"]["kernel"]
    size = kernel.shape[0]
    rows, columns = image.shape[0] // size, image.shape[1] // size
    patches = image.reshape(rows, size, columns, size, 3).swapaxes(1, 2).reshape(-1, size, size, 3)
    x = np.einsum("nijc,ijcd->nd", patches, kernel) + p["patch_embedding"]["bias"]
    for layer in range(len(p["blocks"]["token_norm"]["scale"])):
        own = slice_layer(p["blocks"], layer)
        x = x + mlp(layer_norm(x, own["token_norm"]).T, own["token_mixing"]).T
        x = x + mlp(layer_norm(x, own["channel_norm"]), own["channel_mixing"])
    return linear(layer_norm(x, p["norm"]).mean(0), p["head"]["linear"])


def standardize(kernel, version):
    """Zero mean and unit variance for each output channel; the epsilon's place tells versions."""
    centred = kernel - kernel.mean((0, 1, 2))
    variance = (centred**2).mean((0, 1, 2))
    if version == 1:
        return centred / (np.sqrt(variance) + 1e-5)
    return centred / np.sqrt(variance + 1e-10)


def windows(x, size, stride, version, fill=0.0):
    """[H', W', size, size, C]: what a kernel sees at each of its places.

    Version 1 pads what the last window lacks, half of it (rounded down) before; version 2 half the
    kernel on both sides.
    """
    pads = []
    for n in x.shape[:2]:
        lacking = max((-(-n // stride) - 1) * stride + size - n, 0)
        before = lacking // 2 if version == 1 else size // 2
        pads.append((before, lacking - before if version == 1 else size // 2))
    x = np.pad(x, (*pads, (0, 0)), constant_values=fill)
    tops, lefts = (range(0, n - size + 1, stride) for n in x.shape[:2])
    return np.array([[x[i : i + size, j : j + size] for j in lefts] for i in tops])


def convolution(x, p, stride, version):
    kernel = standardize(p["kernel"], version)
    return np.tensordot(windows(x, kernel.shape[0], stride, version), kernel, 3)


def group_norm(x, p, groups, epsilon):
    y = np.zeros_like(x)
    size = x.shape[2] // groups
    for start in range(0, x.shape[2], size):
        group = x[:, :, start : start + size]
        normal = (group - group.mean()) / np.sqrt(group.var() + epsilon)
        y[:, :, start : start + size] = normal
    return y * p["scale"] + p["bias"]


def relu(x):
    return np.maximum(x, 0)


def unit(x, p, stride, version, groups):
    """Bottleneck: convolution, norm, ReLU (1) or norm, ReLU, convolution (2)."""

    def conv(x, name, stride=1):
        return convolution(x, p[f"conv{name}"], stride, version)

    def norm(x, name):
        return group_norm(x, p[f"norm{name}"], groups, 1e-6 if version == 1 else 1e-5)

    if version == 1:
        residual = norm(conv(x, "_proj", stride), "_proj") if "conv_proj" in p else x
        y = relu(norm(conv(x, "1"), "1"))
        y = relu(norm(conv(y, "2", stride), "2"))
        return relu(residual + norm(conv(y, "3"), "3"))
    y = relu(norm(x, "1"))
    residual = conv(y, "_proj", stride) if "conv_proj" in p else x
    y = conv(y, "1")
    y = conv(relu(norm(y, "2")), "2", stride)
    return residual + conv(relu(norm(y, "3")), "3")


def trunk(image, p, *, version, groups, small):
    """The last feature map of root and stages."""
    x = convolution(image, p["conv_root"], 1 if small else 2, version)
    if version == 1:
        x = relu(group_norm(x, p["norm_root"], groups, 1e-6))
    if not small:
        x = windows(x, 3, 2, version, fill=-np.inf).max((2, 3))
    for name in sorted(name for name in p if name.startswith("stage")):
        x = unit(x, p[name]["first"], 1 if name == "stage1" else 2, version, groups)
        blocks = p[name].get("blocks")
        for layer in range(len(blocks["norm1"]["scale"]) if blocks else 0):
            x = unit(x, slice_layer(blocks, layer), 1, version, groups)
    return x


def resnet(image, p, *, groups, small=False, pooling="gap"):
    """Logits [C] of a BiT ResNet."""
    x = trunk(image, p["trunk"], version=2, groups=groups, small=small)
    x = relu(group_norm(x, p["norm"], groups, 1e-5))
    features = x.mean((0, 1)) if pooling == "gap" else x.reshape(-1)
    return linear(features, p["head"]["linear"])


def slice_layer(tree, layer):
    if isinstance(tree, dict):
        return {key: slice_layer(value, layer) for key, value in tree.items()}
    return tree[layer]
