"""Recipes are found by name, in any folder."""

import pytest

from vit_jax.config.file import load_config
from vit_jax.config.recipes import recipe_path, recipes
from vit_jax.errors import ConfigError


def test_a_name_stands_for_the_file_in_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config("quickstart") == load_config(str(recipes()["quickstart"]))
    config = load_config("pretrain:imagenet2012,L/16", ["seed=3"])
    assert (config.model.name, config.seed) == ("ViT-L/16", 3)


def test_a_file_of_the_users_has_priority(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("def get_config():\n    return {}\n")
    assert recipe_path("quickstart") == "quickstart"
    assert recipe_path("configs/quickstart.py:x") == "configs/quickstart.py:x"


def test_a_missing_file_says_which_recipes_there_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean --config=quickstart\?"):
        load_config("configs/quickstrat.py")
    load_config("quickstart")  # The advice works.
    with pytest.raises(ConfigError, match=r"did you mean --config=pretrain:imagenet2012,B/16\?"):
        load_config("configs/pretrain.py:imagenet2012,B/16")
    with pytest.raises(ConfigError, match=r"or name a recipe: augreg, .*, transfer$"):
        load_config("none.py")
