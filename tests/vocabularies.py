"""Vocabularies for tests, made on the spot."""

import contextlib
import io
import json

WORDS = ("a", "photo", "of", "red", "green", "blue", "square", "thing", "cat", "dog", "the", "big")


def write_sentencepiece(folder, *, size=28, name="words.model"):
    """Trains a vocabulary: 0 is padding, 1 the end, 2 what is unknown, as in C4's of SigLIP."""
    import sentencepiece

    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS[:4]]
    model = io.BytesIO()
    with contextlib.redirect_stderr(io.StringIO()):
        ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(texts), model_writer=model, vocab_size=size, minloglevel=2, **ids
        )
    (folder / name).write_bytes(model.getvalue())
    return folder / name


def write_clip(folder):
    """Writes vocab.json and merges.txt of CLIP's layout; "cat" is one token, "dog" is not."""
    letters = sorted(set("".join(WORDS)) | set("!.,'0123456789jkvwxyzm"))
    merges = [("c", "a"), ("ca", "t</w>"), ("o", "g</w>"), ("p", "h"), ("t", "o</w>")]
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(m) for m in merges)]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    lines = ["#version: 0.2", *(" ".join(m) for m in merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    return tokens


def write_bert(folder):
    """Writes vocab.txt; "photos" is two of its tokens."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, "##s", ".", "##to", "pho"]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")
    return tokens


def write_word_level(folder, words=WORDS):
    """Writes a tokenizer.json of whole words: 0 padding, 1 end, 2 unknown, 3 and on the words."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    flags = ("single_word", "lstrip", "rstrip", "normalized")
    special = [
        {"id": i, "content": word, "special": True, **dict.fromkeys(flags, False)}
        for i, word in enumerate(["<pad>", "</s>", "<unk>"])
    ]
    first = {"Sequence": {"id": "A", "type_id": 0}}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [first, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [first, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path
