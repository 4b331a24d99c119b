"""Pairs of towers in npz files: published names, against NumPy, and written bit for bit."""

import jax
import numpy as np
import numpy_reference as reference
import pytest
from interop.files import assert_same, by_kind, scanned, tiny, write_npz
from random_models import params64

from vit_jax.interop.load import load
from vit_jax.interop.save import save

WIDTH, DEPTH, HIDDEN, HEADS, VOCABULARY, LENGTH = 16, 2, 24, 2, 30, 6
_TEXT = {"text": {"num_heads": HEADS}}


def random(shapes, seed=3):
    rng = np.random.default_rng(seed)
    return {
        name: (0.4 * rng.standard_normal(shape) + (name[-5:] == "scale")).astype(np.float32)
        for name, shape in shapes.items()
    }


def image_tower(pooling, *, head=None, numbered="together"):
    """Tensors of the tiny ViT below `img/`; `head`: width of its linear layer."""
    tensors = tiny(pooling=pooling)
    if numbered == "by_kind":
        tensors = by_kind(tensors)
    tensors = {n: a for n, a in tensors.items() if not n.startswith("head/")}
    if head:
        tensors |= random({"head/kernel": (WIDTH, head), "head/bias": (head,)})
    return {f"img/{name}": array for name, array in tensors.items()}


def transformer(width=WIDTH):
    """Tensors of the text Transformer of big_vision and LiT below `txt/`."""
    tower = by_kind(tiny(width=width))
    found = random(
        {
            "txt/Embed_0/embedding": (VOCABULARY, width),
            "txt/pos_embedding": (1, LENGTH, width),
            "txt/head/kernel": (width, WIDTH),
            "txt/head/bias": (WIDTH,),
        }
    )
    parts = (name for name in tower if name.startswith("Transformer/"))
    return found | {n.replace("Transformer/", "txt/Encoder_0/"): tower[n] for n in parts}


def bert():
    """Tensors of flaxformer's BERT below `txt/`; its kernels are matrices."""
    root, norm = "txt/BertEncoder_0", {"scale": (WIDTH,), "bias": (WIDTH,)}
    dense = {"kernel": (WIDTH, WIDTH), "bias": (WIDTH,)}
    shapes = {
        f"{root}/embedder/embedders_token_ids/embedding": (VOCABULARY, WIDTH),
        f"{root}/embedder/embedders_position_ids/embedding": (12, WIDTH),
        f"{root}/embedder/embedders_segment_ids/embedding": (2, WIDTH),
        "txt/head/kernel": (WIDTH, WIDTH),
        "txt/head/bias": (WIDTH,),
    }
    shapes |= {f"{root}/layer_norm/{n}": s for n, s in norm.items()}
    for layer in range(DEPTH):
        block = f"{root}/encoder_block/layer_sequence/layers_{layer}"
        for part in ("query", "key", "value"):
            name = f"{block}/attention_block/attention_layer/{part}"
            shapes |= {f"{name}/{n}": s for n, s in dense.items()}
        for part in ("attention_block", "mlp_block"):
            shapes |= {f"{block}/{part}/layer_norm/{n}": s for n, s in norm.items()}
        shapes |= {f"{block}/attention_block/dense_layer/{n}": s for n, s in dense.items()}
        shapes[f"{block}/mlp_block/mlp/dense_layer/kernel"] = (WIDTH, HIDDEN)
        shapes[f"{block}/mlp_block/mlp/dense_layer/bias"] = (HIDDEN,)
        shapes[f"{block}/mlp_block/dense_layer/kernel"] = (HIDDEN, WIDTH)
        shapes[f"{block}/mlp_block/dense_layer/bias"] = (WIDTH,)
    return random(shapes)


def t(value=2.3):
    return {"t": np.array([value], np.float32)}


def siglip():
    tensors = {**image_tower("map", numbered="by_kind"), **transformer(), **t()}
    tensors["b"] = np.array([-9.5], np.float32)
    return {f"params/{name}": array for name, array in tensors.items()}


FILES = {
    "LiT with BERT and a linear image layer": lambda: {
        **image_tower("token", head=WIDTH), **bert(), **t()
    },
    "LiT with BERT": lambda: {**image_tower("token"), **bert(), **t()},
    "LiT with a small text tower": lambda: {**image_tower("token"), **transformer(8), **t()},
    "SigLIP": siglip,
}  # fmt: skip


def tokens():
    found = np.random.default_rng(1).integers(1, VOCABULARY, (3, LENGTH)).astype(np.int32)
    found[1, 4:] = 0  # Padding, which only BERT ignores.
    return found


def normalised(x):
    return x / np.linalg.norm(x)


def text_by_hand(text, p, *, is_bert):
    """The text tower in float64, from the parameters."""
    x = p["token_embedding"][text] + p["positions"][: len(text)]
    blocks = p["encoder"]["blocks"]
    layers = [jax.tree.map(lambda a, i=i: a[i], blocks) for i in range(DEPTH)]
    if not is_bert:
        for layer in layers:
            x = reference.block(x, layer)
        return reference.linear(reference.layer_norm(x, p["norm"])[-1], p["projection"])
    x = x + p["segment_embedding"][0]
    x = reference.layer_norm(x, p["embedding_norm"], 1e-12)
    x = x[text != 0]  # Padding is after the text, and no token of the text attends to it.
    for layer in layers:
        x = reference.block(x, layer, "post", 1e-12)
    return reference.linear(x[0], p["projection"])


@pytest.mark.parametrize("kind", FILES)
def test_embeddings_equal_those_of_numpy(kind, tmp_path):
    loaded = load(write_npz(tmp_path / "w.npz", FILES[kind]()), **_TEXT)
    model, p = loaded.model, params64(loaded.model)
    images = np.random.default_rng(2).uniform(-1, 1, (2, 16, 16, 3)).astype(np.float32)
    with jax.default_matmul_precision("highest"):
        found_images, found_texts = jax.jit(lambda i, t: model(i, t))(images, tokens())
        logits = model.logits(found_images, found_texts)
    texts = [normalised(text_by_hand(t, p["text"], is_bert="BERT" in kind)) for t in tokens()]
    np.testing.assert_allclose(found_texts, texts, atol=2e-5)
    features = {"linear": {"kernel": np.eye(WIDTH), "bias": np.zeros(WIDTH)}}
    embeddings = [
        reference.vit(image, {**p["image"], "head": features}, pooling=model.image.pooling)
        for image in np.float64(images)
    ]
    if "image_projection" in p:
        embeddings = [reference.linear(x, p["image_projection"]) for x in embeddings]
    embeddings = [normalised(x) for x in embeddings]
    np.testing.assert_allclose(found_images, embeddings, atol=2e-5)
    want = np.exp(2.3) * np.array(embeddings) @ np.array(texts).T
    want += -9.5 if kind == "SigLIP" else 0
    np.testing.assert_allclose(logits, want, atol=3e-4)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_written_bit_for_bit(kind, tmp_path):
    path = write_npz(tmp_path / "theirs.npz", FILES[kind]())
    loaded = load(path, **_TEXT)
    save(loaded, tmp_path / "ours.npz", "vision_transformer")
    theirs, ours = np.load(path), np.load(tmp_path / "ours.npz")
    assert set(theirs.files) == set(ours.files)
    for name in theirs.files:
        np.testing.assert_array_equal(theirs[name], ours[name], err_msg=name)
    assert_same(load(tmp_path / "ours.npz", **_TEXT), loaded)


def test_layers_in_one_tensor_are_read(tmp_path):
    plain = load(write_npz(tmp_path / "plain.npz", FILES["SigLIP"]()))
    stacked = load(write_npz(tmp_path / "stacked.npz", scanned(FILES["SigLIP"]())))
    assert_same(stacked, plain)


def test_a_position_table_in_two_parts_is_added(tmp_path):
    tensors = FILES["SigLIP"]()
    whole = tensors["params/txt/pos_embedding"]
    half = {"params/txt/Encoder_0/pos_embedding": 0.25 * whole, "params/txt/pos_embedding": whole}
    loaded = load(write_npz(tmp_path / "w.npz", tensors | half))
    np.testing.assert_array_equal(loaded.model.text.positions[...], 1.25 * whole[0])
