"""Captions: where they are read, how one is drawn, templates, and captions that are wrong."""

import csv
import io
import json

import numpy as np
import pytest
import tensorflow_datasets as tfds
from data.files import write_tar
from images import encode, noise
from tfds_stand_ins import write_tfds
from vocabularies import WORDS, write_word_level

from vit_jax.__main__ import main
from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import DataConfig
from vit_jax.data.captions import build_captions, captioned_image, check_captions
from vit_jax.data.loader import BatchSpec, eval_batches, train_batches
from vit_jax.data.sources import open_source, open_training_data
from vit_jax.data.sources.base import Example
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import DataError, ModelError
from vit_jax.models.text import TextConfig

COLOURS = ("red", "green", "blue")
PIXELS = encode(noise(8, 8))


@pytest.fixture
def vocabulary(tmp_path):
    return str(write_word_level(tmp_path))


def tower(length=6):
    return TextConfig(vocabulary_size=3 + len(WORDS), context_length=length)


def word(text):
    return 3 + WORDS.index(text)


def data(path, vocabulary, **captions):
    return DataConfig(
        source="captioned",
        name="pictures",
        data_dir=str(path),
        global_batch_size=4,
        captions=CaptionsConfig(tokenizer=vocabulary, **captions),
    )


def example(**features):
    return Example(PIXELS, -1, "one", features)


def write_csv(folder, rows, name="captions.csv", columns=("path", "caption")):
    for row in rows:
        (folder / row[0]).write_bytes(PIXELS)
    with (folder / name).open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return folder / name


def texts_of(source, feature="caption"):
    """Returns name of the image -> captions."""
    return {e.id: e.features[feature] for e in source.read(range(len(source)))}


def test_a_csv_file_may_have_several_captions_of_an_image(tmp_path, vocabulary):
    rows = [("1.png", "a red cat"), ("2.png", "a dog"), ("1.png", "the cat, big")]
    config = data(write_csv(tmp_path, rows), vocabulary)
    source = open_source(config, "train")
    assert texts_of(source) == {"1.png": ["a red cat", "the cat, big"], "2.png": ["a dog"]}
    assert source[0].image == PIXELS
    assert source.class_names == ()
    with pytest.raises(DataError, match="has captions, no labels"):
        open_source(data(tmp_path / "captions.csv", None), "train")
    # A subset needs no classes.
    subset = config.subset.replace(examples=1)
    assert len(open_training_data(config.replace(subset=subset)).source) == 1


def test_spellings_of_a_path_are_one_image(tmp_path, vocabulary):
    (tmp_path / "a").mkdir()
    write_csv(tmp_path, [("x.png", "one"), ("y.png", "two")])
    names = ("x.png", "./x.png", "a/../x.png", str(tmp_path / "x.png"))
    lines = ["file_name,caption", *(f"{name},a cat {i}" for i, name in enumerate(names)), "y.png,b"]
    (tmp_path / "captions.csv").write_text("\n".join(lines))
    found = texts_of(open_source(data(tmp_path / "captions.csv", vocabulary), "train"))
    assert found == {"x.png": [f"a cat {i}" for i in range(4)], "y.png": ["b"]}


def test_a_folder_behind_a_link_is_not_the_one_before_it(tmp_path, vocabulary):
    (tmp_path / "b" / "inside").mkdir(parents=True)
    (tmp_path / "a").symlink_to(tmp_path / "b" / "inside")
    write_csv(tmp_path, [("x.png", "one")])
    (tmp_path / "b" / "x.png").write_bytes(PIXELS)
    (tmp_path / "captions.csv").write_text("file_name,caption\nx.png,one\na/../x.png,two")
    found = texts_of(open_source(data(tmp_path / "captions.csv", vocabulary), "train"))
    assert found == {"x.png": ["one"], "a/../x.png": ["two"]}


def test_a_folder_with_jsonl_of_lists_and_splits(tmp_path, vocabulary, caplog):
    lines = [
        {"file_name": "1.png", "text": ["a cat", "the cat"]},
        {"file_name": "2.png", "text": "a dog", "split": "test"},
    ]
    for line in lines:
        (tmp_path / line["file_name"]).write_bytes(PIXELS)
    (tmp_path / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    config = data(tmp_path, vocabulary, feature="text")
    train, test = (texts_of(open_source(config, split), "text") for split in ("train", "test"))
    assert (train, test) == ({"1.png": ["a cat", "the cat"]}, {"2.png": ["a dog"]})
    assert "metadata.jsonl: 1 of 2 lines have no split and are in the split train" in caplog.text


@pytest.mark.parametrize("feature", [None, "txt", "long"])
def test_tar_files_of_webdataset_are_read_in_place(tmp_path, vocabulary, feature):
    for shard in range(2):
        members = {}
        for i in range(3):
            key = f"{shard}/{i:03d}"
            members[f"{key}.seg.png"] = b"another image"
            members[f"{key}.jpg"] = PIXELS
            members[f"{key}.txt"] = f"a {COLOURS[i]} cat".encode()
            members[f"{key}.json"] = json.dumps({"long": ["a big dog", f"shard {shard}"]}).encode()
        write_tar(tmp_path / f"shard-{shard}.tar", members)
    source = open_source(data(tmp_path, vocabulary, feature=feature), "train")
    found = texts_of(source, feature or "caption")
    assert len(found) == 6
    one = found["shard-1.tar/1/002.jpg"]
    assert one == (["a big dog", "shard 1"] if feature == "long" else [b"a blue cat"])
    assert source[0].image == PIXELS
    other = open_source(data(tmp_path, vocabulary, feature="txt"), "train[:3]")
    assert len(other) == 3
    assert other.fingerprint != source.fingerprint


def test_drawn_captions_depend_only_on_seed_and_position(tmp_path, vocabulary):
    rows = [(f"{i}.png", f"a {colour} cat") for i in range(4) for colour in COLOURS]
    config = data(write_csv(tmp_path, rows), vocabulary)
    source = open_training_data(config).source
    captions = build_captions(config.captions, tower())
    transform, spec = make_eval_transform(8, "resize"), BatchSpec(4, range(4), num_threads=2)
    drawn, first = (captioned_image(transform, 8, captions, draws=draws) for draws in (True, False))

    def batches(start, end):
        with train_batches(
            source, lambda step: drawn, spec, seed=3, start_step=start, end_step=end
        ) as feed:
            return [batch["tokens"].copy() for batch in feed]

    whole = batches(0, 40)
    np.testing.assert_array_equal(batches(30, 40), whole[30:])
    assert whole[0].dtype == np.int32
    assert (whole[0][:, [0, 2, 3, 4]] == [word("a"), word("cat"), 1, 0]).all()
    found = np.bincount(np.ravel([tokens[:, 1] for tokens in whole]))
    counts = [found[word(colour)] for colour in COLOURS]
    assert sum(counts) == 160
    assert min(counts) > 35  # A third of 160 each.
    with eval_batches(source, first, spec) as feed:
        assert (next(feed)["tokens"][:, 1] == word("red")).all()


def test_templates_make_captions_from_class_names(vocabulary):
    config = CaptionsConfig(tokenizer=vocabulary, templates=("a photo of a {}", "the {}"))
    captions = build_captions(config, tower(), ["cat", "big_dog"])
    one = Example(PIXELS, 1, "one")
    assert captions.texts(one) == ["a photo of a big dog", "the big dog"]
    first = [word(text) for text in ("a", "photo", "of", "a", "big")]
    assert captions.tokens(one).tolist() == [*first, 1]
    drawn = {tuple(captions.tokens(one, np.random.default_rng(i)).tolist()) for i in range(9)}
    assert drawn == {(*first, 1), (word("the"), word("big"), word("dog"), 1, 0, 0)}
    with pytest.raises(DataError, match="the dataset has no classes"):
        build_captions(config, tower())
    with pytest.raises(DataError, match="label 2; expected 0 to 1"):
        captions.texts(Example(PIXELS, 2, "one"))


@pytest.mark.parametrize(
    "value",
    [
        {"text": [b"a cat", b"the dog"], "id": [1, 2]},
        [{"text": "a cat"}, {"text": "the dog"}],
        {"text": np.array([b"a cat", b"the dog"], object)},
    ],
)
def test_captions_in_a_sequence_of_tfds(vocabulary, value):
    config = CaptionsConfig(tokenizer=vocabulary, feature="captions/text")
    captions = build_captions(config, tower())
    assert captions.texts(example(captions=value)) == ["a cat", "the dog"]


def test_a_tfds_text_feature_is_read(tmp_path, vocabulary):
    features = {
        "image": tfds.features.Image(shape=(8, 8, 3), encoding_format="png"),
        "captions": tfds.features.Sequence({"text": tfds.features.Text()}),
    }
    examples = [
        {
            "image": io.BytesIO(PIXELS),
            "captions": [{"text": f"a {colour} cat"}, {"text": "the cat"}],
        }
        for colour in COLOURS
    ]
    write_tfds(tmp_path, "pictures", features, {"train": examples})
    captions = CaptionsConfig(tokenizer=vocabulary, feature="captions/text")
    config = data(tmp_path, vocabulary).replace(source="tfds", captions=captions)
    source = open_training_data(config).source
    captions = build_captions(config.captions, tower())
    found = sorted(captions.texts(one) for one in source.read(range(3)))
    assert found == [[f"a {colour} cat", "the cat"] for colour in sorted(COLOURS)]


def test_captions_are_checked_before_the_first_step(tmp_path, vocabulary, caplog):
    rows = [("1.png", "a red cat"), ("2.png", "a big red cat of the dog")]
    config = data(write_csv(tmp_path, rows), vocabulary)
    source = open_source(config, "train")
    captions = build_captions(config.captions, tower())
    assert check_captions(source, captions) == 0.5
    assert "1 of 2 captions (50.0 %) have more than 6 tokens and are cut" in caplog.text
    strict = build_captions(config.captions.replace(too_long="error"), tower())
    with pytest.raises(DataError, match=r"example 2.png of .* with 8 tokens; expected at most 6"):
        check_captions(source, strict)
    assert check_captions(source, strict, skips=True) == 0
    with pytest.raises(ModelError, match="15 tokens for a text tower with 99 embeddings"):
        build_captions(config.captions, TextConfig(vocabulary_size=99))


def test_the_data_command_checks_captions(tmp_path, capsys):
    members = {"1.jpg": PIXELS, "1.txt": b"a cat", "2.jpg": PIXELS, "2.txt": b" "}
    write_tar(tmp_path / "0.tar", members | {"3.jpg": PIXELS, "3.txt": b"\xff"})
    arguments = [str(tmp_path), "--source=captioned"]
    assert main(["data", "info", *arguments]) == 0
    assert "3 examples" in capsys.readouterr().out
    assert main(["data", "check", *arguments]) == 2
    shown = capsys.readouterr()
    for words in ("images with captions", "an empty caption", "caption b'\\xff'"):
        assert words in shown.out
    assert "2 of 3 examples are bad" in shown.err
