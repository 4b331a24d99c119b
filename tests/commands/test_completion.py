"""Completion, by running bash as it runs when Tab is pressed."""

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time

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


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ("vit-jax tra", "vit-jax train "),
        ("python -m vit_jax conv", "python -m vit_jax convert "),
        ("vit-jax train --work", "vit-jax train --workdir="),
        ("vit-jax train --config=a/q", "vit-jax train --config=a/quickstart.py "),
        (
            "vit-jax train --config.optimizer.learn",
            "vit-jax train --config.optimizer.learning_rate=",
        ),
        (
            "vit-jax train --config.data.augment.flip=t",
            "vit-jax train --config.data.augment.flip=true ",
        ),
        (
            "vit-jax train --config.model.name=ViT-Mic",
            "vit-jax train --config.model.name=ViT-Micro/4 ",
        ),
        ("vit-jax models --model.num_re", "vit-jax models --model.num_registers="),
        ("python oth", "python other.py "),
    ],
)  # fmt: skip
def test_tab_completes_a_line_in_zsh(tmp_path, keys, line):
    (tmp_path / "a").mkdir()
    for name in ("a/quickstart.py", "a/questions.txt", "other.py"):
        (tmp_path / name).touch()
    with_zsh = subprocess.run(
        [sys.executable, "-m", "vit_jax", "completion", "zsh"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (tmp_path / "complete.zsh").write_text(with_zsh.stdout)
    # Another key prints what stands on the line instead of running it.
    setup = "show() { print -r -- \"<$BUFFER>\"; BUFFER=; }; zle -N show; bindkey '^T' show"
    screen = _typed(f". ./complete.zsh; {setup}\n", f"{keys}\t", "\x14", folder=tmp_path)
    assert f"<{line}>" in screen


def _typed(*keys, folder):
    """Returns what a zsh in a terminal shows for some keys."""
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {**os.environ, "TERM": "dumb", "COLUMNS": "200"})
    shown = b""
    for text in ("PS1=\n", *keys, "exit\n"):
        os.write(terminal, text.encode())
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if not select.select([terminal], [], [], 2)[0]:
                break
            try:
                shown += os.read(terminal, 65_536)
            except OSError:  # The shell has ended.
                break
    os.close(terminal)
    os.waitpid(child, 0)
    return shown.decode(errors="replace")
