"""Tokens equal those of transformers, with the same vocabularies."""

import json

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
