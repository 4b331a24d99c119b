import json

import jsonschema
import pytest
from small_config import small_mapping

import vit_jax
from vit_jax.__main__ import main
from vit_jax.config.fewshot import FewshotDatasetConfig, FewshotRunConfig
from vit_jax.config.file import load_config
from vit_jax.config.keys import config_keys
from vit_jax.data.augment import AUGMENTATIONS
from vit_jax.models.image_families import any_image_config
from vit_jax.models.registry import families
from vit_jax.models.text import TextConfig
from vit_jax.synonyms import _WORDS, key_of_word, words_of_key


def test_config_lists_every_key_with_its_type_default_and_meaning(capsys):
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert 'optimizer.name = "adamw"' in printed
    assert "optimizer.learning_rate (required)\n    a number, above 0." in printed
    assert "loss.label_smoothing = 0.0\n    a number, at least 0 and below 1." in printed
    assert "model.pooling" in printed


def test_config_shows_one_section_of_a_recipe_with_overrides(capsys):
    recipe = "--config=configs/quickstart.py"
    assert (
        main(["config", "data.augment.mix", recipe, "--config.data.augment.mix.cutmix_alpha=0.5"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    keys = [line for line in lines if not line.startswith(" ")]
    assert keys == [
        "data.augment.mix = True",
        "data.augment.mix.mixup_alpha = 0.1",
        "data.augment.mix.cutmix_alpha = 0.5",
    ]


def test_the_model_section_is_that_of_the_recipes_family(capsys):
    recipe = "--config=configs/cifar10_small.py:BiT-R-Nano"
    assert main(["config", "model", recipe]) == 0
    printed = capsys.readouterr().out
    assert "model.representation_size" in printed
    assert "model.position_embedding" not in printed


def test_a_recipe_that_reads_its_model_from_weights_is_shown_without_them(capsys):
    assert main(["config", "--config=transfer:pets", "--changed"]) == 0
    printed = capsys.readouterr().out
    assert 'model.name = "auto"' in printed
    assert "\n    a number, above 0. Required. Peak of the" in printed
    assert main(["config", "init_from", "--config=transfer:pets", "--values"]) == 0
    assert capsys.readouterr().out.startswith("init_from = none\n")
    other = ["--against=transfer:cifar10", "--config.model.name=auto"]
    assert main(["config", "--config=transfer:pets", *other]) == 0
    assert "data.name" in capsys.readouterr().out
    assert main(["config", "--config=transfer:pets", "--config.model.name=ViT-Bb/16"]) == 2
    assert "ViT-Bb/16" in capsys.readouterr().err


def keys(capsys, *arguments):
    assert main(["config", *arguments, "--values"]) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()]


def test_keys_are_found_by_other_words_and_by_their_meaning(capsys):
    assert keys(capsys, "lr")[0] == "optimizer.learning_rate"
    assert "optimizer.schedule.timescale_steps" not in keys(capsys, "warmup_epochs")
    assert "data.augment.mix.mixup_alpha" in keys(capsys, "Beta mixup")
    assert keys(capsys, "early stopping")


def test_changed_shows_only_values_that_are_not_defaults(capsys):
    recipe = "--config=configs/quickstart.py"
    mix = ["data.augment.mix", "data.augment.mix.mixup_alpha"]
    assert keys(capsys, "data.augment.mix", recipe, "--changed") == mix


def test_operations_that_are_off_are_listed_without_their_keys(capsys):
    recipe = "--config=configs/quickstart.py"
    mix = ["mix.mixup_alpha", "mix.cutmix_alpha"]  # The only one that is on.
    names = ["crop.name", "crop.pixels", *AUGMENTATIONS.names, *mix]
    assert {*keys(capsys, "data.augment", recipe)} == {f"data.augment.{name}" for name in names}
    assert main(["config", "data.augment.flip", recipe, "--values"]) == 0
    assert capsys.readouterr().out == "data.augment.flip = False\n"
    everything = keys(capsys, "data.augment")
    assert {"data.augment.flip", "data.augment.erasing.probability"} <= {*everything}
    assert {"data.augment.crop.min_area", "data.augment.crop.pixels"} <= {*everything}


def test_two_configs_are_compared_also_of_two_families(capsys):
    one, other = "configs/quickstart.py", "configs/cifar10_small.py:BiT-R-Nano"
    assert main(["config", f"--config={one}", f"--against={other}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["optimizer.learning_rate", "0.004", "0.002"] in rows
    assert ["model.width", "64", "(no", "such", "key)"] in rows
    assert not [row for row in rows if row[:1] == ["model.qk_norm"]]  # A default in both.
    assert main(["config", f"--config={one}", f"--against={one}"]) == 0
    assert "have the same values" in capsys.readouterr().out


def test_a_run_is_compared_with_its_recipe(tmp_path, capsys):
    config = load_config("configs/quickstart.py", ["seed=7"])
    (tmp_path / "config.json").write_text(json.dumps(config.to_mapping()))
    assert main(["config", f"--config={tmp_path}", "--against=configs/quickstart.py"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.split()]
    assert [row[:3] for row in rows[2:]] == [["seed", "7", "0"]]


def test_every_other_word_belongs_to_a_key():
    known = config_keys(any_image_config())
    for key in _WORDS:
        assert key in known
        for word in words_of_key(key).split():
            assert key_of_word(word) == key


def test_help_of_a_section_is_printed(capsys):
    arguments = ["train", "--config=configs/quickstart.py", "--config.data.augment.mix.help"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("data.augment.mix = True\n    true or false")


def test_the_version_names_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith(f"vit_jax {vit_jax.__version__} (Python 3.")


@pytest.mark.parametrize(
    ("key", "value", "valid"), [("seed", 3, True), ("seed", -1, False), ("sed", 3, False)]
)
def test_the_json_schema_accepts_and_refuses_configs(capsys, key, value, valid):
    assert main(["config", "--json_schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    config = small_mapping(model__pooling="gap") | {key: value}
    assert jsonschema.Draft202012Validator(schema).is_valid(config) == valid


@pytest.mark.parametrize("options", [any_image_config(), *(f.options for f in families())])
def test_every_key_has_a_meaning(options):
    assert [name for name, key in config_keys(options).items() if not key.meaning] == []


@pytest.mark.parametrize("section", [FewshotDatasetConfig, FewshotRunConfig, TextConfig])
def test_every_key_of_a_section_inside_has_a_meaning(section):
    assert [name for name, field in section.model_fields.items() if not field.description] == []
