"""Completion, by running bash as it runs when Tab is pressed."""

import shlex
import subprocess

import pytest

from vit_jax.__main__ import main
from vit_jax.commands import COMMANDS
from vit_jax.config.recipes import recipes
from vit_jax.models.registry import list_models

_COMPLETE = """\
. {script}
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$(complete -p vit-jax | sed 's/.*-F \\([^ ]*\\).*/\\1/')
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def complete(tmp_path, capsys):
    """Returns a function: line -> what Tab offers at its end."""
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "complete.sh"
    script.write_text(capsys.readouterr().out)

    def offered(line):
        words = " ".join(map(shlex.quote, line.split(" ")))
        code = _COMPLETE.format(script=script, words=words)
        shell = ["bash", "--norc", "-c", code]
        return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()

    return offered


def test_tab_offers_commands_flags_recipes_keys_and_values(complete):
    assert set(complete("vit-jax ")) >= set(COMMANDS)
    for line, offered in {
        "vit-jax run": ["runs"],
        "vit-jax train --work": ["--workdir"],
        "vit-jax train --config ": recipes(),
        "vit-jax config --against pre": ["pretrain"],
        "vit-jax train --config.optimizer.learn": ["--config.optimizer.learning_rate"],
        "vit-jax train --config.model.norm_placement ": ["pre", "post", "res_post"],
        "vit-jax train --config.model.name ": list_models(),
        "vit-jax predict --model.pool": ["--model.pooling"],
        "vit-jax runs --sort sc": ["score"],
    }.items():
        assert complete(line) == list(offered), line


def test_zsh_gets_a_script_of_its_own(capsys):
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef vit-jax")
