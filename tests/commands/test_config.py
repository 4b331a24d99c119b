import json

import jsonschema
import pytest

from vit_jax.__main__ import main


def test_config_lists_every_key_with_its_type_default_and_meaning(capsys):
    assert main(["config"]) == 0
    printed = capsys.readouterr().out
    assert 'optimizer.name = "adamw"' in printed
    assert "optimizer.learning_rate (required)\n    a number, above 0." in printed
    assert "loss.label_smoothing = 0.0\n    a number, at least 0 and below 1." in printed
    assert "model.pooling" in printed


def test_config_shows_one_section_of_a_recipe_with_overrides(capsys):
    recipe = "--config=configs/quickstart.py"
    assert main(["config", "mixing", recipe, "--config.mixing.cutmix_alpha=0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    keys = [line for line in lines if not line.startswith(" ")]
    assert keys == ["mixing.mixup_alpha = 0.1", "mixing.cutmix_alpha = 0.5"]


def test_the_model_section_is_that_of_the_recipes_family(capsys):
    recipe = "--config=configs/cifar10_small.py:BiT-R-Nano"
    assert main(["config", "model", recipe]) == 0
    printed = capsys.readouterr().out
    assert "model.representation_size" in printed
    assert "model.position_embedding" not in printed


def test_an_unknown_key_names_the_nearest(capsys):
    assert main(["config", "optimizr"]) == 2
    assert "did you mean 'optimizer'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value", "valid"), [("seed", 3, True), ("seed", -1, False), ("sed", 3, False)]
)
def test_the_json_schema_accepts_and_refuses_configs(capsys, key, value, valid):
    assert main(["config", "--json_schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    config = {
        "model": {"name": "ViT-Ti/16", "pooling": "gap"},
        "data": {"name": "digits", "global_batch_size": 8},
        "optimizer": {"learning_rate": 1e-3},
        "train_steps": 1,
        key: value,
    }
    assert jsonschema.Draft202012Validator(schema).is_valid(config) == valid
