"""Print shell completion for commands, arguments, recipes, config keys and models.

    eval "$(vit-jax completion bash)"      in ~/.bashrc
    eval "$(vit-jax completion zsh)"       in ~/.zshrc

It completes `vit-jax`. The script holds the keys of this version, so that a key press starts no
Python: print it again after an update.
"""

import argparse
import importlib

from vit_jax.commands import COMMANDS
from vit_jax.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    import shtab

    if overrides:
        raise ConfigError(f"--config.{overrides[0]}", "no override", "leave it out")
    print(shtab.complete(_whole_parser(), shell=args.shell))
    return 0


def _whole_parser() -> argparse.ArgumentParser:
    """Returns a parser of all commands with their config keys, as options."""
    import shtab

    from vit_jax.config.keys import config_keys
    from vit_jax.config.recipes import recipes
    from vit_jax.models.image_families import any_image_config
    from vit_jax.models.registry import list_models

    keys = config_keys(any_image_config())
    whole = argparse.ArgumentParser(prog="vit-jax")
    commands = whole.add_subparsers()
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"vit_jax.commands.{name}")
        command = commands.add_parser(name, help=text)
        module.add_arguments(command)
        own = [flag for action in command._actions for flag in action.option_strings]
        prefix = getattr(module, "OVERRIDES", "--config.")
        for key in keys.values():
            if prefix == "--config." and "--config" in own:
                command.add_argument(f"--config.{key.name}", choices=key.choices or None)
            elif prefix == "--model." and key.name.startswith("model."):
                command.add_argument(f"--{key.name}", choices=key.choices or None)
        for action in command._actions:
            if "--config.model.name" in action.option_strings:
                action.choices = list_models()
            elif {"--config", "--against"} & {*action.option_strings}:
                action.choices = recipes()
            elif action.choices is None and action.nargs != 0:
                action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
    return whole
