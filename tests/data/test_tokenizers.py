"""Tokenizers: tokens by hand for each kind of file, cut and padded texts, files that are wrong."""

import html
import json
import pickle
import shutil
import sys

import numpy as np
import pytest
from vocabularies import WORDS, write_bert, write_clip, write_sentencepiece, write_word_level

from vit_jax.data.tokenizers import canonical, cleaned, load_tokenizer, published_conventions
from vit_jax.errors import DataError, FileError


@pytest.fixture(scope="module")
def sentencepiece_file(tmp_path_factory):
    return write_sentencepiece(tmp_path_factory.mktemp("vocabulary"))


def test_whole_words_by_hand(tmp_path):
    tokenizer = load_tokenizer(write_word_level(tmp_path), context_length=5)
    a, photo, of, cat = (3 + WORDS.index(word) for word in ("a", "photo", "of", "cat"))
    found = tokenizer.encode(["A photo", "a photo of a cat", "zebra cat", ""])
    assert found.tolist() == [
        [a, photo, 1, 0, 0],
        [a, photo, of, a, 1],  # Cut, and the end token is kept.
        [2, cat, 1, 0, 0],
        [1, 0, 0, 0, 0],
    ]
    assert found.dtype == np.int32
    assert tokenizer.vocabulary_size == 3 + len(WORDS)
    assert (tokenizer.pad_token, tokenizer.end_token) == (0, 1)
    assert tokenizer.count("a photo of a cat") == 6


def test_clip_starts_and_ends_a_text(tmp_path):
    tokens = write_clip(tmp_path)
    tokenizer = load_tokenizer(tmp_path, context_length=8)
    number = tokens.index
    start, end = number("<|startoftext|>"), number("<|endoftext|>")
    found = tokenizer.encode(["CAT  dog", "dog dog dog dog"])
    dog = [number("d"), number("og</w>")]
    assert found[0].tolist() == [start, number("cat</w>"), *dog, end, end, end, end]
    assert found[1].tolist() == [start, *dog, *dog, *dog, end]
    assert (tokenizer.pad_token, tokenizer.end_token) == (end, end)
    assert tokenizer.vocabulary_size == len(tokens)
    # OpenAI's code pads with zeros.
    assert load_tokenizer(tmp_path, context_length=4, pad_token=0).encode(["cat"])[0, 3] == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("salt &amp; pepper", "salt & pepper"),
        ("&amp;lt;b&amp;gt; cat", "<b> cat"),  # Escaped twice.
        ("the cat’s “toy”", 'the cat\'s "toy"'),
        ("a ﬁne ﬂower", "a fine flower"),  # Ligatures.
        ("ｃａｔ １２", "cat 12"),  # Full width.
        ("cafÃ© â€” schÃ¶n", "café — schön"),  # UTF-8 that was read as Windows-1252.
        ("cafe\u0301", "caf\u00e9"),  # NFC.
        ("  a cat \n", "a cat"),
        ("", ""),
    ],
)
def test_texts_of_clip_are_cleaned_as_in_its_authors_code(text, expected):
    assert cleaned(text) == expected


def test_plain_texts_need_no_cleaning():
    """Texts of ASCII without "&" are not given to ftfy, which would not change them."""
    import ftfy

    rng = np.random.default_rng(0)
    letters = [chr(i) for i in range(32, 127) if chr(i) != "&"]
    for _ in range(300):
        text = "".join(rng.choice(letters, size=12))
        assert html.unescape(ftfy.fix_text(text)).strip() == cleaned(text) == text.strip()


def test_cleaned_texts_have_the_tokens_of_plain_ones_in_clip(tmp_path):
    write_clip(tmp_path)
    tokenizer = load_tokenizer(tmp_path, context_length=8)
    odd, plain = tokenizer.encode(["ｃａｔ’s toy&#33;", "cat's toy!"])
    assert odd.tolist() == plain.tolist()
    assert tokenizer.encode(["cat"]).tolist() != [plain.tolist()]


def test_bert_of_lit_has_a_class_token_and_no_end(tmp_path):
    tokens = write_bert(tmp_path)
    tokenizer = load_tokenizer(tmp_path / "vocab.txt", context_length=6)
    number = tokens.index
    expected = [
        [number("[CLS]"), number("a"), number("photo"), number("##s"), number("."), 0],
        [number("[CLS]"), number("[UNK]"), *[number("cat")] * 4],
    ]
    assert tokenizer.encode(["A photos.", "zebra cat cat cat cat cat"]).tolist() == expected
    assert tokenizer.end_token is None


def test_sentencepiece_keeps_the_end_of_a_text_that_is_cut(sentencepiece_file):
    tokenizer = load_tokenizer(sentencepiece_file, context_length=6)
    long, short = tokenizer.encode(["a photo of a red cat and more", "cat"])
    assert long[-1] == 1
    assert 1 not in long[:-1]
    ended = short.tolist().index(1)
    assert (short[ended:] == 1).all()  # Padded with the end token, as SigLIP is.
    padded = load_tokenizer(sentencepiece_file, context_length=6, pad_token=0).encode(["cat"])[0]
    assert padded.tolist() == [*short[: ended + 1].tolist(), *[0] * (5 - ended)]
    assert tokenizer.vocabulary_size == 28


def test_a_tokenizer_can_be_pickled(sentencepiece_file):
    tokenizer = load_tokenizer(sentencepiece_file, context_length=9, canonicalize="punctuation")
    texts = ["A photo of a_cat!", "the big dog"]
    again = pickle.loads(pickle.dumps(tokenizer))
    np.testing.assert_array_equal(again.encode(texts), tokenizer.encode(texts))
    plain = load_tokenizer(sentencepiece_file, context_length=9)
    np.testing.assert_array_equal(tokenizer.encode(texts[:1]), plain.encode(["a photo of a cat"]))


def test_canonical_texts():
    assert canonical("The  DOG's_house.", "punctuation") == "the dogs house"
    assert canonical("The DOG.", "lower") == "the dog."
    assert canonical("The DOG.", "none") == "The DOG."


@pytest.mark.parametrize(
    ("settings", "canonicalize"),
    [
        ({"tokenizer_class": "SiglipTokenizer"}, "punctuation"),
        ({"tokenizer_class": "GemmaTokenizer", "do_lower_case": True}, "lower"),
        (None, "none"),
    ],
)
def test_a_folder_says_how_its_texts_were_trained(
    settings, canonicalize, tmp_path, sentencepiece_file
):
    shutil.copy(sentencepiece_file, tmp_path / "spiece.model")
    if settings:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path, context_length=4).canonicalize == canonicalize


def test_published_models_have_conventions():
    assert published_conventions("SigLIP-ViT-B/16", 32_000) == ("punctuation", 1)
    assert published_conventions("SigLIP-ViT-B/16", 256_000) == ("lower", 0)
    assert published_conventions("CLIP-ViT-B/16", 49_408) == (None, None)


def test_the_pad_token_of_a_folder_is_used(tmp_path):
    write_word_level(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"pad_token": "</s>"}))
    assert load_tokenizer(tmp_path, context_length=4).encode(["cat"])[0, 1:].tolist() == [1, 1, 1]


def test_texts_that_are_too_long_or_not_utf8(tmp_path):
    path = write_word_level(tmp_path)
    tokenizer = load_tokenizer(path, context_length=3, too_long="error")
    assert tokenizer.encode(["a cat"]).shape == (1, 3)
    with pytest.raises(DataError, match=r"'a big cat' with 4 tokens; expected at most 3"):
        tokenizer.encode(["a big cat"])
    with pytest.raises(DataError, match="expected a text in UTF-8"):
        tokenizer.encode(["a \ud800 cat"])


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("sentencepiece", "words.model"),
        ("tokenizers", "tokenizer.json"),
        ("ftfy", "vocab.json"),
    ],
)
def test_a_library_that_is_not_installed_is_named(tmp_path, monkeypatch, package, file):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / file).write_bytes(b"")
    with pytest.raises(FileError, match=f"pip install {package}"):
        load_tokenizer(tmp_path / file, context_length=4)
