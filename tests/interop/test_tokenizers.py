"""Tokens equal those of transformers, with the same vocabularies."""

import json

import numpy as np
import pytest
from vocabularies import write_bert, write_clip, write_sentencepiece

from vit_jax.data.tokenizers import load_tokenizer

pytestmark = pytest.mark.interop

TEXTS = [
    "A photo of a big cat.",
    "the  DOG's photo, red & green!",
    "photos_of a blue square",
    "cat " * 12,
    "zebra",
]


def test_clip(tmp_path):
    transformers = pytest.importorskip("transformers")
    write_clip(tmp_path)
    theirs = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    expected = theirs(TEXTS, padding="max_length", truncation=True, max_length=16)["input_ids"]
    assert load_tokenizer(tmp_path, context_length=16).encode(TEXTS).tolist() == expected
    theirs.save_pretrained(tmp_path / "saved")  # tokenizer.json
    found = load_tokenizer(tmp_path / "saved", context_length=16)
    assert found.path.joinpath("tokenizer.json").is_file()
    assert found.encode(TEXTS).tolist() == expected


def test_siglip(tmp_path):
    transformers = pytest.importorskip("transformers")
    path = write_sentencepiece(tmp_path, name="spiece.model")
    # An underscore is a space for big_vision, whose code we follow; transformers removes it.
    texts = [text.replace("_", " ") for text in TEXTS]
    theirs = transformers.SiglipTokenizer(str(path), model_max_length=12, extra_ids=0)
    expected = theirs(texts, padding="max_length", truncation=True, max_length=12)["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "SiglipTokenizer"})
    )
    assert load_tokenizer(tmp_path, context_length=12).encode(texts).tolist() == expected


def test_bert_as_lit_uses_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokens = write_bert(tmp_path)
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"))
    separator = tokens.index("[SEP]")
    found = load_tokenizer(tmp_path / "vocab.txt", context_length=16).encode(TEXTS).tolist()
    for text, own in zip(TEXTS, found, strict=True):
        expected = [token for token in theirs(text)["input_ids"] if token != separator]
        assert own == [*expected, *[0] * 16][:16]


def test_class_embeddings_of_a_folder_of_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from vit_jax.config.mesh import MeshConfig
    from vit_jax.evaluation.zeroshot import class_embeddings
    from vit_jax.interop.load import load
    from vit_jax.parallel.mesh import make_mesh

    tokens = write_clip(tmp_path)
    end = tokens.index("<|endoftext|>")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    text = {"vocab_size": len(tokens), "max_position_embeddings": 12, "num_attention_heads": 2}
    torch.manual_seed(0)
    theirs = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config={**sizes, **text, "eos_token_id": end, "bos_token_id": end - 1},
            vision_config={**sizes, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
            projection_dim=16,
        )
    ).eval()
    own = transformers.CLIPTokenizer.from_pretrained(tmp_path)
    for saved in (theirs, own):
        saved.save_pretrained(tmp_path / "clip")
    names, templates = ["cat", "big dog", "Red square"], ["a photo of a {}.", "the {}, big"]
    rows = []
    for name in names:
        texts = [template.format(name) for template in templates]
        batch = own(texts, padding="max_length", truncation=True, max_length=12)
        with torch.no_grad():
            found = theirs.text_model(torch.tensor(batch["input_ids"])).pooler_output
            found = theirs.text_projection(found)
        rows.append(torch.nn.functional.normalize(found, dim=-1).mean(0))
    expected = torch.nn.functional.normalize(torch.stack(rows), dim=-1).numpy()
    model = load(tmp_path / "clip").model
    tokenizer = load_tokenizer(tmp_path / "clip", context_length=12)
    mesh = make_mesh(MeshConfig())
    got = class_embeddings(model, tokenizer, names, templates, mesh, batch_size=4)
    np.testing.assert_allclose(got, expected, atol=2e-5)
