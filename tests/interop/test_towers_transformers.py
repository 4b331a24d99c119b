"""Pairs of towers from transformers: both towers and the logits against the real classes."""

import json

import jax
import numpy as np
import pytest
from interop.files import assert_same, write_safetensors

from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.interop.tensors import open_tensors
from vit_jax.models.family import EvalView

SIDE, PATCH, WIDTH, TEXT_WIDTH, OUT, VOCABULARY, CONTEXT = 16, 4, 32, 24, 20, 60, 9
_TEXT = {
    "hidden_size": TEXT_WIDTH, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
}  # fmt: skip
_IMAGE = {
    "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH,
}  # fmt: skip


def config_of(kind, activation, end_token=VOCABULARY - 1):
    text, image = ({**part, "hidden_act": activation} for part in (_TEXT, _IMAGE))
    if kind == "clip":
        text |= {"projection_dim": OUT, "eos_token_id": end_token}
        image |= {"projection_dim": OUT}
        more = {"projection_dim": OUT}
    else:
        text |= {"projection_size": WIDTH}
        more = {}
    return {"model_type": kind, "text_config": text, "vision_config": image, **more}


def tensors_of(kind):
    """Returns random tensors under the names of `CLIPModel` or `SiglipModel`."""
    rng = np.random.default_rng(5)
    shapes = {}

    def linear(name, inputs, outputs, bias=True):
        shapes[f"{name}.weight"] = (outputs, inputs)
        if bias:
            shapes[f"{name}.bias"] = (outputs,)

    def norm(name, width):
        shapes.update({f"{name}.weight": (width,), f"{name}.bias": (width,)})

    def encoder(tower, about):
        width = about["hidden_size"]
        for layer in range(about["num_hidden_layers"]):
            name = f"{tower}.encoder.layers.{layer}"
            norm(f"{name}.layer_norm1", width)
            norm(f"{name}.layer_norm2", width)
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(f"{name}.self_attn.{part}", width, width)
            linear(f"{name}.mlp.fc1", width, about["intermediate_size"])
            linear(f"{name}.mlp.fc2", about["intermediate_size"], width)

    encoder("text_model", _TEXT)
    encoder("vision_model", _IMAGE)
    embeddings = "vision_model.embeddings"
    patches = (SIDE // PATCH) ** 2
    shapes["text_model.embeddings.token_embedding.weight"] = (VOCABULARY, TEXT_WIDTH)
    shapes["text_model.embeddings.position_embedding.weight"] = (CONTEXT, TEXT_WIDTH)
    norm("text_model.final_layer_norm", TEXT_WIDTH)
    shapes[f"{embeddings}.patch_embedding.weight"] = (WIDTH, 3, PATCH, PATCH)
    norm("vision_model.post_layernorm", WIDTH)
    if kind == "clip":
        shapes[f"{embeddings}.class_embedding"] = (WIDTH,)
        shapes[f"{embeddings}.position_embedding.weight"] = (patches + 1, WIDTH)
        norm("vision_model.pre_layrnorm", WIDTH)
        linear("visual_projection", WIDTH, OUT, bias=False)
        linear("text_projection", TEXT_WIDTH, OUT, bias=False)
        shapes["logit_scale"] = ()
    else:
        head = "vision_model.head"
        shapes[f"{embeddings}.patch_embedding.bias"] = (WIDTH,)
        shapes[f"{embeddings}.position_embedding.weight"] = (patches, WIDTH)
        shapes[f"{head}.probe"] = (1, 1, WIDTH)
        shapes[f"{head}.attention.in_proj_weight"] = (3 * WIDTH, WIDTH)
        shapes[f"{head}.attention.in_proj_bias"] = (3 * WIDTH,)
        linear(f"{head}.attention.out_proj", WIDTH, WIDTH)
        norm(f"{head}.layernorm", WIDTH)
        linear(f"{head}.mlp.fc1", WIDTH, _IMAGE["intermediate_size"])
        linear(f"{head}.mlp.fc2", _IMAGE["intermediate_size"], WIDTH)
        linear("text_model.head", TEXT_WIDTH, WIDTH)
        shapes |= {"logit_scale": (1,), "logit_bias": (1,)}
    return {
        name: (rng.normal(size=shape) * 0.3 + (len(shape) == 1)).astype(np.float32)
        for name, shape in shapes.items()
    }


# Images in [-1, 1], so that nothing is folded.
HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}


def write_folder(folder, kind, activation, preprocessor=HALF, **more):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(kind, activation, **more)))
    if preprocessor is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor))
    write_safetensors(folder / "model.safetensors", tensors_of(kind))
    return folder


def inputs():
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (3, SIDE, SIDE, 3)).astype(np.float32)
    tokens = rng.integers(3, VOCABULARY - 1, (4, CONTEXT))
    for i, length in enumerate((2, 5, 7, 8)):  # The end token, then padding with it or with zeros.
        tokens[i, length] = VOCABULARY - 1
        tokens[i, length + 1 :] = 0 if i % 2 else VOCABULARY - 1
    return images, tokens.astype(np.int32)


def outputs(model, images, tokens):
    with jax.default_matmul_precision("highest"):
        found = jax.jit(lambda images, tokens: model(images, tokens))(images, tokens)
        return (*found, model.logits(*found))


@pytest.mark.parametrize("kind", ["clip", "siglip"])
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu_pytorch_tanh"])
def test_a_folder_is_read_and_written_bit_for_bit(kind, activation, tmp_path):
    folder = write_folder(tmp_path / "theirs", kind, activation)
    loaded = load(folder)
    save(loaded, tmp_path / "ours", "transformers")
    theirs, ours = (open_tensors(f / "model.safetensors") for f in (folder, tmp_path / "ours"))
    assert theirs.shapes == ours.shapes
    for name in theirs.shapes:
        np.testing.assert_array_equal(theirs.load(name), ours.load(name), err_msg=name)
    save(loaded, tmp_path / "orbax", "orbax")
    for name in ("ours", "orbax"):
        assert_same(load(tmp_path / name), loaded)


def test_crop_and_filter_are_those_of_the_image_processor(tmp_path):
    plain = load(write_folder(tmp_path / "plain", "clip", "gelu"))
    assert plain.view == EvalView("central", 1.0, interpolation="bicubic")
    size = {"size": {"shortest_edge": 10}, "crop_size": {"height": 8, "width": 8}}
    processor = {**size, "do_center_crop": True, "resample": 2}
    folder = write_folder(tmp_path / "own", "clip", "gelu", processor)
    assert load(folder).view == EvalView("central", 0.8)
    save(load(folder), tmp_path / "ours", "transformers")
    assert load(tmp_path / "ours").view == EvalView("central", 0.8)


def test_the_dictionaries_of_old_configs_have_priority(tmp_path):
    more = {"text_config_dict": {"hidden_act": "quick_gelu"}, "vision_config_dict": None}
    folder = write_folder(tmp_path / "old", "clip", "gelu")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | more))
    loaded = load(folder)
    assert (loaded.options.text.activation, loaded.options.image.mlp) == ("quick_gelu", "gelu")


def test_normalisation_is_folded_and_can_be_written(tmp_path):
    mean, std = (0.481, 0.458, 0.408), (0.269, 0.261, 0.276)
    preprocessor = {"image_mean": mean, "image_std": std}
    plain = load(write_folder(tmp_path / "plain", "clip", "quick_gelu"))
    folded = load(write_folder(tmp_path / "theirs", "clip", "quick_gelu", preprocessor))
    images, tokens = inputs()
    normalised = ((images + 1) / 2 - np.array(mean)) / np.array(std)
    want = outputs(plain.model, normalised.astype(np.float32), tokens)
    np.testing.assert_allclose(outputs(folded.model, images, tokens)[0], want[0], atol=1e-5)
    save(folded, tmp_path / "ours", "transformers")
    found = outputs(load(tmp_path / "ours").model, images, tokens)
    np.testing.assert_allclose(found[2], want[2], rtol=1e-5, atol=1e-5)


def test_an_option_or_an_activation_that_the_format_lacks_is_refused(tmp_path):
    loaded = load(write_folder(tmp_path / "theirs", "siglip", "gelu"), text={"pooling": "mean"})
    with pytest.raises(WeightsError, match=r"model\.text\.pooling = 'mean'.*expected 'last'"):
        save(loaded, tmp_path / "ours", "transformers")
    with pytest.raises(WeightsError, match="hidden_act 'relu'"):
        load(write_folder(tmp_path / "theirs", "clip", "relu"))


@pytest.mark.interop
@pytest.mark.parametrize("activation", ["quick_gelu", "gelu_pytorch_tanh", "gelu"])
@pytest.mark.parametrize(
    ("kind", "end_token"), [("clip", VOCABULARY - 1), ("clip", 2), ("clip", 40), ("siglip", 2)]
)
def test_towers_and_logits_equal_those_of_transformers(kind, activation, end_token, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = write_folder(tmp_path / "theirs", kind, activation, end_token=end_token)
    images, tokens = inputs()
    tokens[:, -1] = np.where((tokens == end_token).any(1), tokens[:, -1], end_token)
    loaded = load(folder)
    save(loaded, tmp_path / "ours", "transformers")
    ours = outputs(loaded.model, images, tokens)
    for path in (folder, tmp_path / "ours"):
        cls = transformers.CLIPModel if kind == "clip" else transformers.SiglipModel
        model = cls.from_pretrained(path, attn_implementation="eager").eval()
        with torch.no_grad():
            found = model(
                pixel_values=torch.tensor(images.transpose(0, 3, 1, 2)),
                input_ids=torch.tensor(tokens, dtype=torch.long),
            )
        want = (found.image_embeds, found.text_embeds, found.logits_per_image)
        for got, expected in zip(ours, want, strict=True):
            np.testing.assert_allclose(got, expected.numpy(), atol=1e-4, rtol=1e-4)
