"""Completion, by running bash as it runs when Tab is pressed."""

import shlex
import subprocess

import pytest

from vit_jax.commands import COMMANDS
from vit_jax.commands.completion import completion_script
from vit_jax.config.recipes import recipes
from vit_jax.models.registry import list_models


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "complete.sh"
    path.write_text(completion_script())
    return path


def complete(script, line, folder):
    """Returns what Tab offers at the end of a line."""
    words = f"COMP_LINE={shlex.quote(line)}; COMP_POINT={len(line)}"
    code = f'. {script}; {words}; _vit_jax; printf "%s\\n" "${{COMPREPLY[@]}}"'
    shell = ["bash", "--norc", "-c", code]
    done = subprocess.run(shell, capture_output=True, text=True, cwd=folder, check=True)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("python -m vit_jax tr", ["train"]),
        ("vit-jax run", ["runs"]),
        (".venv/bin/python -m vit_jax train --work", ["--workdir="]),
        ("python -m vit_jax train --config=a/q", ["a/quickstart.py"]),
        ("python -m vit_jax train --config=", ["a/", *recipes()]),
        ("vit-jax config --config=quick", ["quickstart"]),
        ("vit-jax config --against=pre", ["pretrain"]),
        ("vit-jax sweep --sweep=quick", []),
        ("vit-jax config optimizer.learn", ["optimizer.learning_rate"]),
        ("vit-jax models ViT-Mic", ["ViT-Micro/4"]),
        ("vit-jax analyze --what=dist", ["distance"]),
        ("vit-jax convert a b --format=tim", ["timm"]),
        ("python -m vit_jax train --config.optimizer.learn", ["--config.optimizer.learning_rate="]),
        ("python -m vit_jax train --config.model.mlp=", ["gelu", "quick_gelu", "swiglu"]),
        ("python -m vit_jax train --config.data.augment.flip=t", ["true"]),
        ("python -m vit_jax train --config.model.name=ViT-Mi", ["ViT-Mini/4", "ViT-Micro/4"]),
        ("python -m vit_jax predict --model.pool", ["--model.pooling="]),
        ("python -m vit_jax runs --sort=sc", ["score"]),
        ("python -m vit_jax completion z", ["zsh"]),
        ("python -m http.server --", []),
        ("python other.py --config.", []),
    ],
)
def test_tab_offers_commands_flags_recipes_keys_and_values(script, tmp_path, line, offered):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "quickstart.py").touch()
    (tmp_path / "a" / "notes.txt").touch()
    assert complete(script, line, tmp_path) == offered


def test_every_command_and_model_is_offered(script, tmp_path):
    assert set(COMMANDS) <= set(complete(script, "python -m vit_jax ", tmp_path))
    line = "python -m vit_jax train --config.model.name="
    assert complete(script, line, tmp_path) == list_models()
