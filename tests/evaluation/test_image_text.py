"""Zero-shot classification by hand; published templates; the script for published weights."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from images import encode
from vocabularies import WORDS, write_word_level

from experiments.image_text import zeroshot
from vit_jax.config.captions import CaptionsConfig
from vit_jax.config.data import DataConfig
from vit_jax.config.mesh import MeshConfig
from vit_jax.data.arrays import labelled_image
from vit_jax.data.captions import Captions
from vit_jax.data.loader import BatchSpec
from vit_jax.data.sources import open_source
from vit_jax.data.tokenizers import load_tokenizer
from vit_jax.data.transforms import make_eval_transform
from vit_jax.errors import ConfigError, DataError, FileError
from vit_jax.evaluation.embeddings import EvaluatedImages
from vit_jax.evaluation.prompts import published_templates, read_class_names, read_templates
from vit_jax.evaluation.zeroshot import class_embeddings, evaluate_zero_shot
from vit_jax.interop.load import load
from vit_jax.interop.save import save
from vit_jax.models.text import TextConfig
from vit_jax.models.two_towers import TwoTowers, normalized
from vit_jax.parallel.mesh import make_mesh

TEXT = TextConfig(name="Text-Nano", vocabulary_size=3 + len(WORDS), context_length=8)
TRANSFORM = make_eval_transform(8, "resize")
COLOURS = {"red": (255, 0, 0), "green": (0, 255, 0), "blue": (0, 0, 255)}


class Colours(TwoTowers):
    """An image is its mean colour, and a word is a colour; "big" is green, others are nothing."""

    def __init__(self):
        table = np.zeros((TEXT.vocabulary_size, 3), np.float32)
        for axis, word in enumerate(COLOURS):
            table[3 + WORDS.index(word), axis] = 1
        table[3 + WORDS.index("big"), 1] = 1
        self.table = nnx.Param(jnp.asarray(table))
        self.log_temperature, self.bias = nnx.Param(jnp.float32(0)), None
        self.embedding_size = 3

    def encode_image(self, images, *, key=None):
        return normalized((images.mean((1, 2)) + 1) / 2)

    def encode_text(self, tokens):
        return normalized(self.table[...][tokens].sum(1))


@pytest.fixture
def tokenizer(tmp_path):
    return load_tokenizer(write_word_level(tmp_path), context_length=8)


@pytest.fixture
def mesh():
    return make_mesh(MeshConfig())


def solid(colour):
    return encode(np.full((8, 8, 3), colour, np.uint8))


@pytest.fixture
def folder(tmp_path):
    """Three classes of which one image has the colour of another class."""
    place = tmp_path / "colours"
    for name, colour in COLOURS.items():
        (place / name).mkdir(parents=True)
        (place / name / "right.png").write_bytes(solid(colour))
    (place / "red" / "wrong.png").write_bytes(solid((10, 10, 250)))
    return place


@pytest.fixture
def labelled(folder, mesh):
    data = DataConfig(source="folder", name="colours", data_dir=str(folder), global_batch_size=3)
    source = open_source(data, "train")
    return EvaluatedImages(source, labelled_image(TRANSFORM, 8, 3), BatchSpec(3, range(3)), mesh)


def test_the_embedding_of_a_class_is_the_mean_over_templates(tokenizer, mesh):
    found = class_embeddings(
        Colours(), tokenizer, ["red", "green"], ["a {}", "a big {}"], mesh, batch_size=3
    )
    # Red is (1, 0, 0), big red (1, 1, 0) / sqrt 2: their mean lies at 22.5 degrees.
    angle = np.pi / 8
    expected = [[np.cos(angle), np.sin(angle), 0], [0, 1, 0]]
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_zero_shot_accuracy_by_hand(tokenizer, labelled):
    names = labelled.source.class_names
    assert names == ("blue", "green", "red")
    model = Colours()
    found = evaluate_zero_shot(model, tokenizer, labelled, names, ["a {}"])
    assert found == {"accuracy_top1": 0.75, "examples": 4}  # Four images in two batches of three.
    # The names decide: with red and blue exchanged, the wrong image is right and two are wrong.
    assert evaluate_zero_shot(model, tokenizer, labelled, ["red", "green", "blue"], ["a {}"]) == {
        "accuracy_top1": 0.5,
        "examples": 4,
    }
    stopped = evaluate_zero_shot(model, tokenizer, labelled, names, ["a {}"], stop=lambda: True)
    assert stopped is None


def test_zero_shot_needs_a_template(tokenizer, labelled):
    with pytest.raises(ConfigError, match=r"expected \{\} once"):
        evaluate_zero_shot(Colours(), tokenizer, labelled, list(COLOURS), [])


def test_published_templates():
    found = published_templates()
    sizes = {name: len(templates) for name, templates in found.items()}
    assert sizes == {"imagenet": 80, "short": 7, "lit": 8, "cifar10": 18, "name": 1}
    assert set(found["short"]) < set(found["imagenet"])
    assert all(text.count("{}") == 1 for texts in found.values() for text in texts)
    assert read_templates("short")[0] == "itap of a {}."


def test_prompts_and_names_of_users(tmp_path):
    (tmp_path / "mine.txt").write_text("a {}\n\nthe {} again\n")
    assert read_templates(str(tmp_path / "mine.txt")) == ("a {}", "the {} again")
    assert read_templates("a photo of a {}.") == ("a photo of a {}.",)
    for text in ("a photo", "a {name}", "{} and {}"):
        with pytest.raises(ConfigError, match=r"expected \{\} once"):
            read_templates(text)
    with pytest.raises(ConfigError, match="did you mean 'cifar10'"):
        read_templates("cifar")
    names = tmp_path / "names.txt"
    names.write_text("tabby cat\nbig dog\n")
    assert read_class_names(str(names), ["cat", "dog"]) == ("tabby cat", "big dog")
    assert read_class_names(None, ["tabby_cat"]) == ("tabby cat",)
    with pytest.raises(DataError, match="2 names for 3 classes"):
        read_class_names(str(names), ["a", "b", "c"])
    with pytest.raises(DataError, match="a dataset without classes"):
        read_class_names(None, [])
    with pytest.raises(FileError, match="cannot read"):
        read_class_names(str(tmp_path / "gone.txt"), ["a"])
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(FileError, match="is empty"):
        read_templates(str(tmp_path / "empty.txt"))


def test_imagenet_has_the_names_of_clip():
    from vit_jax.data.benchmarks import imagenet_classes

    names = read_class_names(None, imagenet_classes()["wnid"].tolist())
    assert len(names) == 1000
    assert (names[0], names[4], names[999]) == ("tench", "hammerhead shark", "toilet paper")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A folder with a small pair of towers and its vocabulary."""
    place = tmp_path_factory.mktemp("weights") / "pair"
    text = {"vocabulary_size": TEXT.vocabulary_size, "context_length": 8}
    save(load("untrained:CLIP-ViT-Nano/4", image_size=8, text=text), place, "orbax")
    write_word_level(place)
    return place


def test_the_script_measures_published_weights(weights, folder, capsys):
    arguments = [str(weights), f"--data={folder}", "--prompts=a {}"]
    assert zeroshot.main(arguments) == 0
    assert re.fullmatch(
        r"4 images: \d+\.\d\d% \[\S+%, \S+%\] by 1 templates of 3 classes\n",
        capsys.readouterr().out,
    )
    for wrong, said in (
        ([*arguments, "--tokenizer=gone.model"], "no file gone.model"),
        (["untrained:ViT-Nano/4", *arguments[1:]], "expected a pair of an image and a text tower"),
    ):
        assert zeroshot.main(wrong) == 2
        assert said in capsys.readouterr().err


def test_captions_of_templates_need_labels(tokenizer):
    config = CaptionsConfig(tokenizer="t", templates=("a {}",))
    with pytest.raises(DataError, match="the dataset has no classes"):
        Captions(config, tokenizer, ())
