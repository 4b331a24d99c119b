"""A ViT written out by hand in float64 NumPy, straight from the papers' formulas."""

import numpy as np


def layer_norm(x, p):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    y = (x - mean) / np.sqrt(variance + 1e-6) * p["scale"]
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
    """One image: x [N, D]. Loops over heads and, for the bias, over every query and key."""
    n, d = x.shape
    heads = p["qkv"]["kernel"].shape[2]
    out = np.zeros((n, d))
    for h in range(heads):
        q, k, v = (x @ p["qkv"]["kernel"][:, i, h] + p["qkv"]["bias"][i, h] for i in range(3))
        logits = q @ k.T
        if relative is not None:
            for i in range(n):
                for j in range(n):
                    logits[i, j] += q[i] @ relative[i - j + n - 1, h]
        weights = softmax(logits / np.sqrt(q.shape[1]))
        out += weights @ v @ p["out"]["kernel"][h]
    return out + p["out"]["bias"]


def block(x, p, placement="pre"):
    relative = p["attention"].get("relative", {}).get("table")
    if placement == "pre":
        x = x + attention(layer_norm(x, p["attention_norm"]), p["attention"], relative)
        return x + mlp(layer_norm(x, p["mlp_norm"]), p["mlp"])
    x = layer_norm(x + attention(x, p["attention"], relative), p["attention_norm"])
    return layer_norm(x + mlp(x, p["mlp"]), p["mlp_norm"])


def map_head(tokens, p):
    """One image: tokens [N, D] -> [D]."""
    probe = p["probe"][0, 0]
    out = np.zeros_like(probe)
    for h in range(p["query"]["kernel"].shape[1]):
        q = probe @ p["query"]["kernel"][:, h] + p["query"]["bias"][h]
        k = tokens @ p["key"]["kernel"][:, h] + p["key"]["bias"][h]
        v = tokens @ p["value"]["kernel"][:, h] + p["value"]["bias"][h]
        out += softmax(k @ q / np.sqrt(len(q))) @ v @ p["out"]["kernel"][h]
    x = out + p["out"]["bias"]
    return x + mlp(layer_norm(x, p["norm"]), p["mlp"])


def vit(image, p, *, placement="pre", pooling="token"):
    """One image [H, W, 3] -> logits [C], with a 1-D table of positions or relative ones."""
    kernel = p["patch_embedding"]["kernel"]
    size = kernel.shape[0]
    rows, columns = image.shape[0] // size, image.shape[1] // size
    x = []
    for i in range(rows):
        for j in range(columns):
            patch = image[i * size : (i + 1) * size, j * size : (j + 1) * size]
            x.append(np.einsum("ijc,ijcd->d", patch, kernel) + p["patch_embedding"]["bias"])
    if pooling == "token":
        x.insert(0, p["class_token"][0, 0])
    x = np.array(x)
    if "position_embedding" in p:
        x = x + p["position_embedding"]["table"][0]
    blocks = p["encoder"]["blocks"]
    for layer in range(blocks["mlp_norm"]["scale"].shape[0]):
        x = block(x, slice_layer(blocks, layer), placement)
    if placement == "pre":
        x = layer_norm(x, p["norm"])
    if pooling == "map":
        features = map_head(x, p["attention_pooling"])
    else:
        features = {"token": x[0], "gap": x.mean(0), "flatten": x.reshape(-1)}[pooling]
    return linear(features, p["head"]["linear"])


def slice_layer(tree, layer):
    if isinstance(tree, dict):
        return {key: slice_layer(value, layer) for key, value in tree.items()}
    return tree[layer]
