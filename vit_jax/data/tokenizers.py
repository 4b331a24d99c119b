"""Turns texts into the tokens of a text tower, with vocabularies that are read from files.

| file | library | what is added |
| --- | --- | --- |
| `NAME.model` | sentencepiece | the end token (SigLIP, SigLIP 2, small LiT models) |
| `tokenizer.json` | tokenizers | what the file says |
| `vocab.json` and `merges.txt` | tokenizers, ftfy | start and end token (CLIP) |
| `vocab.txt` | tokenizers | `[CLS]` in front (LiT with BERT) |

The end token of a text that is cut is kept. CLIP's texts are cleaned first, see `cleaned`. Source:
`preprocess.py` of github.com/google-research/vision_transformer (LiT); `pp/ops_text.py` of
google-research/big_vision, eos="sticky" (SigLIP); `clip/clip.py` of github.com/openai/CLIP;
transformers' tokenizers.
"""

import dataclasses
import functools
import html
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Int32

from vit_jax.config.captions import CaseAndPunctuation
from vit_jax.errors import DataError, FileError
from vit_jax.storage.files import parse_json, read_file
from vit_jax.storage.paths import user_path

_LARGEST_BYTES = 256 << 20
_KINDS = "a sentencepiece .model, tokenizer.json, vocab.json with merges.txt, or vocab.txt"
# Files of a folder in the order in which they are looked for.
_NAMES = (
    "tokenizer.json", "spiece.model", "tokenizer.model", "sentencepiece.model", "vocab.json",
    "vocab.txt",
)  # fmt: skip
# How CLIP splits a text into words. Source: `clip/simple_tokenizer.py` of openai/CLIP.
_CLIP_WORDS = (
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
)
_GEMMA_SIZE = 256_000
_NO_PUNCTUATION = str.maketrans("_", " ", string.punctuation.replace("_", ""))


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
    """What a file says."""

    encode: Callable[[str], list[int]]  # Text -> all its tokens, with those that are added.
    size: int
    end_token: int | None  # Ends each text; None: there is none.
    pad_token: int  # Fills short texts.


class Tokenizer:
    """Turns texts into tokens of one length. It may be used from several threads and pickled.

    Attributes:
        path: of the vocabulary.
        context_length: N, number of tokens of each text.
        vocabulary_size: number of tokens that exist.
        pad_token: fills texts that are shorter.
        end_token: ends each text, also one that is cut; None: there is none.
        canonicalize: what is done with the case and the punctuation of texts.
    """

    def __init__(
        self,
        vocabulary: _Vocabulary,
        path: Path,
        context_length: int,
        pad_token: int,
        canonicalize: CaseAndPunctuation,
        too_long: Literal["truncate", "error"],
    ):
        self._vocabulary = vocabulary
        self._too_long: Literal["truncate", "error"] = too_long
        self.path, self.context_length = path, context_length
        self.canonicalize: CaseAndPunctuation = canonicalize
        self.vocabulary_size, self.end_token = vocabulary.size, vocabulary.end_token
        self.pad_token = pad_token

    def __reduce__(self):
        """Pickles the path; another process reads the file again."""
        load = functools.partial(
            load_tokenizer,
            context_length=self.context_length,
            pad_token=self.pad_token,
            canonicalize=self.canonicalize,
            too_long=self._too_long,
        )
        return load, (self.path,)

    def encode(self, texts: Sequence[str]) -> Int32[np.ndarray, "B N"]:
        """Returns the tokens of texts. A text that is too long is cut or refused."""
        rows = np.full((len(texts), self.context_length), self.pad_token, np.int32)
        for row, text in zip(rows, texts, strict=True):
            found, length = self._tokens(text), self.context_length
            if len(found) > length:
                if self._too_long == "error":
                    raise _too_long_error(text, len(found), length)
                end = found[-1:] if found[-1] == self.end_token else []
                found = [*found[: length - len(end)], *end]
            row[: len(found)] = found
        return rows

    def count(self, text: str) -> int:
        """Returns the number of tokens of a text that is not cut."""
        return len(self._tokens(text))

    def _tokens(self, text: str) -> list[int]:
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"caption {text!r:.80}", "a text in UTF-8", "repair it") from None
        return self._vocabulary.encode(canonical(text, self.canonicalize))


def load_tokenizer(
    path: Path | str,
    *,
    context_length: int,
    pad_token: int | None = None,
    canonicalize: CaseAndPunctuation | None = None,
    too_long: Literal["truncate", "error"] = "truncate",
) -> Tokenizer:
    """Reads a vocabulary.

    Args:
        path: a file or a folder, see the top of this file; also in a bucket.
        context_length: N, number of tokens of each text.
        pad_token: fills short texts; None: the token that the vocabulary pads with, or its end
            token.
        canonicalize: see `config.captions`; None: as a tokenizer_config.json next to the vocabulary
            says, otherwise "none".
        too_long: what to do with a text of more tokens.

    Raises:
        FileError: there is no vocabulary, it is damaged, or its library is not installed.
    """
    path = user_path(path)
    file, config = _find_file(path)
    published = config.get("tokenizer_class") or ""
    spiece = file.parent / "spiece.model"
    if published == "SiglipTokenizer" and file.name == "tokenizer.json" and spiece.is_file():
        file = spiece  # As transformers does.
    if file.suffix == ".model":
        vocabulary = _read_sentencepiece(file)
    else:
        vocabulary = _read_tokenizers(file, config)
    if pad_token is None:
        pad_token = vocabulary.pad_token
    if not 0 <= pad_token < vocabulary.size:
        raise FileError(
            f"pad token {pad_token} for {file} with {vocabulary.size:,} tokens",
            f"0 to {vocabulary.size - 1}",
            "set another pad_token",
        )
    if canonicalize is None:
        lower = bool(config.get("do_lower_case", published == "SiglipTokenizer"))
        is_siglip = published == "SiglipTokenizer"
        canonicalize = "punctuation" if is_siglip else "lower" if lower else "none"
    return Tokenizer(vocabulary, path, context_length, pad_token, canonicalize, too_long)


def published_conventions(
    model_name: str, vocabulary_size: int
) -> tuple[CaseAndPunctuation | None, int | None]:
    """Returns the `canonicalize` and pad token of published weights; None: as the vocabulary says.

    The vocabulary's size tells SigLIP 2, with Gemma's vocabulary, from SigLIP.

    Source: arXiv:2303.15343 and 2502.14786, and the tokenizers of transformers.
    """
    if not model_name.startswith("SigLIP"):
        return None, None
    return ("punctuation", 1) if vocabulary_size < _GEMMA_SIZE else ("lower", 0)


def canonical(text: str, how: CaseAndPunctuation) -> str:
    """Returns a text without upper case and, for "punctuation", without punctuation.

    Source: `canonicalize_text` of google-research/big_vision.

    >>> canonical("A photo of a tabby_cat,  sleeping.", "punctuation")
    'a photo of a tabby cat sleeping'
    """
    if how == "punctuation":
        text = re.sub(r"\s+", " ", text.translate(_NO_PUNCTUATION)).strip()
    return text if how == "none" else text.lower()


def cleaned(text: str) -> str:
    """Returns a text as CLIP's code cleans it: Unicode repaired, HTML's characters written out.

    Source: `clip/simple_tokenizer.py` of openai/CLIP; open_clip does the same.

    >>> cleaned("salt &amp; ｐｅｐｐｅｒ")
    'salt & pepper'
    """
    import ftfy

    # Most texts have nothing to repair, and looking for it takes ftfy 0.1 ms.
    if text.isascii() and text.isprintable() and "&" not in text:
        return text.strip()
    # Twice, because texts of the web are often escaped twice.
    return html.unescape(html.unescape(ftfy.fix_text(text))).strip()


def _find_file(path: Path) -> tuple[Path, dict[str, Any]]:
    """Returns the file of a vocabulary and what tokenizer_config.json says, if there is one."""
    folder = path if path.is_dir() else path.parent
    file = path
    if path.is_dir():
        found = [folder / name for name in _NAMES if (folder / name).is_file()]
        others = sorted(folder.glob("*.model"))
        if not found and len(others) != 1:
            raise FileError(f"no vocabulary in {path}", _KINDS, "give the path of the file")
        file = (found or others)[0]
    elif not path.is_file():
        raise FileError(f"no file {path}", _KINDS, "correct the path of the tokenizer")
    elif path.suffix != ".model" and path.suffix not in (".json", ".txt"):
        raise FileError(f"{path} as a tokenizer", _KINDS, "give another file")
    settings = folder / "tokenizer_config.json"
    config = _parse(settings) if settings.is_file() else {}
    return file, config if isinstance(config, dict) else {}


def _parse(path: Path) -> Any:
    """Returns the content of a JSON file of a vocabulary."""
    try:
        return parse_json(_read(path))
    except ValueError as error:
        raise _damaged(path, error) from None


def _read(path: Path) -> bytes:
    try:
        return read_file(path, _LARGEST_BYTES)
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror}", _KINDS, "check the path of the tokenizer"
        ) from None


def _read_sentencepiece(path: Path) -> _Vocabulary:
    try:
        import sentencepiece
    except ImportError:
        raise _not_installed(path, "sentencepiece") from None
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(_read(path))
    except (RuntimeError, OSError) as error:
        raise _damaged(path, error) from None
    end = processor.eos_id()
    if end < 0:
        raise FileError(
            f"{path} has no end token", "a vocabulary with </s>", "train it with an eos_id"
        )

    def encode(text: str) -> list[int]:
        return [*processor.EncodeAsIds(text), end]

    return _Vocabulary(encode, processor.GetPieceSize(), end, end)


def _read_tokenizers(path: Path, config: dict[str, Any]) -> _Vocabulary:
    try:
        import tokenizers
    except ImportError:
        raise _not_installed(path, "tokenizers") from None
    is_clip = path.name in ("vocab.json", "merges.txt")
    if is_clip:
        try:
            import ftfy  # noqa: F401  # For `cleaned`.
        except ImportError:
            raise _not_installed(path, "ftfy") from None
    try:
        if path.name == "vocab.txt":
            made = _bert(tokenizers, _read(path).decode())
        elif is_clip:
            made = _clip(tokenizers, path.parent)
        else:
            made = tokenizers.Tokenizer.from_str(_read(path).decode())
    except FileError:
        raise
    except Exception as error:  # The library raises plain Exceptions.
        raise _damaged(path, error) from None
    padding = made.padding or {}
    made.no_truncation()
    made.no_padding()
    example = made.encode("a")
    has_end = bool(example.ids) and example.special_tokens_mask[-1] == 1
    end = example.ids[-1] if has_end else None
    named = config.get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    known = [padding.get("pad_id"), made.token_to_id(named) if isinstance(named, str) else None]
    known += [made.token_to_id("[PAD]"), made.token_to_id("<pad>"), end, 0]
    pad = next(token for token in known if token is not None)

    def encode(text: str) -> list[int]:
        return made.encode(cleaned(text) if is_clip else text).ids

    return _Vocabulary(encode, made.get_vocab_size(with_added_tokens=True), end, pad)


def _bert(tokenizers: Any, text: str) -> Any:
    """Returns BERT's tokenizer with [CLS] in front, as LiT uses it."""
    vocabulary = {word: number for number, word in enumerate(text.removesuffix("\n").split("\n"))}
    vocabulary = {word.removesuffix("\r"): number for word, number in vocabulary.items()}
    missing = [word for word in ("[CLS]", "[UNK]") if word not in vocabulary]
    if missing:
        raise ValueError(f"no {missing[0]} in it")
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", vocabulary["[CLS]"])]
    )
    return made


def _clip(tokenizers: Any, folder: Path) -> Any:
    """Returns CLIP's tokenizer."""
    vocabulary = _parse(folder / "vocab.json")
    lines = _read(folder / "merges.txt").decode().split("\n")
    lines = [line.rstrip("\r") for line in lines]
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    start, end = "<|startoftext|>", "<|endoftext|>"
    for token in (start, end):
        if token not in vocabulary:
            raise ValueError(f"no {token} in it")
    model = tokenizers.models.BPE(
        vocabulary, merges, unk_token=end, continuing_subword_prefix="", end_of_word_suffix="</w>"
    )
    made = tokenizers.Tokenizer(model)
    norms, splits = tokenizers.normalizers, tokenizers.pre_tokenizers
    made.normalizer = norms.Sequence(
        [norms.NFC(), norms.Replace(tokenizers.Regex(r"\s+"), " "), norms.Lowercase()]
    )
    made.pre_tokenizer = splits.Sequence(
        [
            splits.Split(tokenizers.Regex(_CLIP_WORDS), behavior="removed", invert=True),
            splits.ByteLevel(add_prefix_space=False),
        ]
    )
    made.post_processor = tokenizers.processors.RobertaProcessing(
        (end, vocabulary[end]),
        (start, vocabulary[start]),
        trim_offsets=False,
        add_prefix_space=False,
    )
    made.add_special_tokens([start, end])
    return made


def _too_long_error(text: str, got: int, most: int) -> DataError:
    return DataError(
        f"caption {text[:60]!r} with {got} tokens",
        f"at most {most}, the length of the text tower",
        "shorten it, or set data.captions.too_long=truncate",
    )


def _damaged(path: Path, error: Exception) -> FileError:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return FileError(f"{path} is damaged: {reason}", _KINDS, "restore the file")


def _not_installed(path: Path, package: str) -> FileError:
    return FileError(
        f"{path} needs the package `{package}`, which is not installed",
        f"the package `{package}`",
        f"run: pip install {package} (the `text` extra)",
    )
