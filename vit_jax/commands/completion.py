"""Print shell completion for commands, arguments, recipes, config keys and their values.

    eval "$(python -m vit_jax completion bash)"      in ~/.bashrc
    eval "$(python -m vit_jax completion zsh)"       in ~/.zshrc

It completes `python -m vit_jax`. The script holds the keys of this version, so that a key press
starts no Python: print it again after an update.
"""

import argparse
import importlib

from vit_jax.commands import COMMANDS
from vit_jax.errors import ConfigError

# Options whose values are recipes, and those whose values are Python files.
_RECIPES = ("--config", "--against")
_FILES = (*_RECIPES, "--sweep")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of the command."""
    parser.add_argument("shell", choices=("bash", "zsh"))


def run(args: argparse.Namespace, overrides: list[str]) -> int:
    """Runs the command and returns its exit code."""
    if overrides:
        raise ConfigError(f"--config.{overrides[0]}", "no override", "leave it out")
    script = completion_script()
    print(f"{_ZSH_BEFORE}{script}{_ZSH_AFTER}" if args.shell == "zsh" else script + _BASH, end="")
    return 0


def completion_script() -> str:
    """Returns a completion function for bash."""
    from vit_jax.analysis.catalogue import ANALYSES
    from vit_jax.config.keys import config_keys
    from vit_jax.config.recipes import recipes
    from vit_jax.interop.save import format_names
    from vit_jax.models.registry import AnyImageConfig, list_models
    from vit_jax.tasks import tasks_with_pictures

    keys, models = config_keys(AnyImageConfig), list_models()
    known = {
        "--config.model.name": models,
        "analyze:--what": [*(a.name for a in ANALYSES), *tasks_with_pictures()],
        "convert:--format": format_names(),
        **dict.fromkeys(_RECIPES, recipes()),
    }
    values = [f"{name}) echo '{' '.join(words)}' ;;" for name, words in known.items()]
    flags = [
        f"config:words) echo '{' '.join(keys)}' ;;",
        f"models:words) echo '{' '.join(models)}' ;;",
    ]
    for name in COMMANDS:
        parser = argparse.ArgumentParser(add_help=True)
        module = importlib.import_module(f"vit_jax.commands.{name}")
        module.add_arguments(parser)
        takes_config = getattr(module, "OVERRIDES", "--config.") == "--config."
        own = [_flag(a, text) for a in parser._actions for text in a.option_strings]
        own += ["--config."] if takes_config and "--config=" in own else []
        own += ["--model."] if getattr(module, "OVERRIDES", "") == "--model." else []
        flags.append(f"{name}) echo '{' '.join(own)}' ;;")
        for action in parser._actions:
            if action.choices:
                words = " ".join(map(str, action.choices))
                values += [f"{name}:{flag}) echo '{words}' ;;" for flag in action.option_strings]
                if not action.option_strings:
                    flags.append(f"{name}:words) echo '{words}' ;;")
    values += [
        f"--config.{k.name}) echo '{' '.join(k.choices)}' ;;" for k in keys.values() if k.choices
    ]
    indent = "\n        "
    return _SCRIPT.format(
        commands=" ".join(COMMANDS),
        flags=indent.join(flags),
        values=indent.join(values),
        keys=" ".join(f"--config.{name}=" for name in keys),
        options=" ".join(
            f"--model.{n.removeprefix('model.')}=" for n in keys if n.startswith("model.")
        ),
        files="|".join(_FILES),
    )


def _flag(action: argparse.Action, text: str) -> str:
    """Returns an option as it is completed: with "=" if it takes a value."""
    takes_value = action.nargs is None or (isinstance(action.nargs, int) and action.nargs > 0)
    return f"{text}=" if takes_value and text.startswith("--") else text


_SCRIPT = """\
_vit_jax_flags() {{
    case "$1" in
        {flags}
    esac
}}

_vit_jax_values() {{
    case "$1" in
        {values}
    esac
}}

# Files with an ending, and folders.
_vit_jax_files() {{
    local file
    for file in "$1"*; do
        if [ -d "$file" ]; then echo "$file/"
        elif [ -e "$file" ]; then case "$file" in *"$2") echo "$file" ;; esac; fi
    done
}}

# The line is read from the first word of the command, in $words, to the current one, in $current.
# bash takes "=" and ":" for words of their own; zsh does not.
_vit_jax() {{
    local words=() current="" i word text="${{COMP_LINE:0:$COMP_POINT}}" name value reply prefix
    COMPREPLY=()
    if [ -n "$ZSH_VERSION" ]; then read -r -A words <<< "$text"
    else read -r -a words <<< "$text"; fi
    case "$text" in *[[:space:]]) current="" ;; *)
        current="${{words[${{#words[@]}}-1]}}"; words=("${{words[@]:0:${{#words[@]}}-1}}") ;;
    esac
    local first=1
    case "${{words[0]}}" in *python*)
        [ "${{words[1]}}" = "-m" ] && [ "${{words[2]}}" = "vit_jax" ] || return 0
        first=3 ;;
    esac
    local command="${{words[$first]}}"
    if [ -z "$command" ]; then
        COMPREPLY=($(compgen -W "{commands} --help --version --debug" -- "$current"))
        return 0
    fi
    case "$current" in
        --*=*)
            name="${{current%%=*}}" value="${{current#*=}}"
            case "$name" in
                {files}) reply="$(_vit_jax_files "$value" .py)
                    $(compgen -W "$(_vit_jax_values "$name")" -- "$value")"
                    compopt -o nospace 2> /dev/null ;;
                *) reply="$(_vit_jax_values "$command:$name")"
                    [ -n "$reply" ] || reply="$(_vit_jax_values "$name")"
                    if [ -n "$reply" ]; then reply="$(compgen -W "$reply" -- "$value")"
                    else reply="$(_vit_jax_files "$value")"; fi ;;
            esac
            # bash replaces only what follows the last "=" or ":".
            prefix="$name="
            case "$COMP_WORDBREAKS" in *=*) prefix="" ;; esac
            for word in $reply; do COMPREPLY+=("$prefix$word"); done ;;
        --config.*)
            COMPREPLY=($(compgen -W "{keys}" -- "$current"))
            compopt -o nospace 2> /dev/null ;;
        --model.*)
            COMPREPLY=($(compgen -W "{options}" -- "$current"))
            compopt -o nospace 2> /dev/null ;;
        -*)
            COMPREPLY=($(compgen -W "$(_vit_jax_flags "$command") --debug" -- "$current"))
            compopt -o nospace 2> /dev/null ;;
        *)
            COMPREPLY=($(compgen -W "$(_vit_jax_flags "$command:words")" -- "$current")
                $(compgen -f -- "$current")) ;;
    esac
    return 0
}}
"""

_BASH = """
complete -o default -F _vit_jax python python3 vit-jax vit_jax
"""

# zsh runs completion functions of bash. It has no compopt, so a space is a part of a finished word.
_ZSH_BEFORE = """\
autoload -Uz compinit bashcompinit && compinit -u && bashcompinit
"""
_ZSH_AFTER = """
_vit_jax_zsh() {
    local offered=() word
    _vit_jax
    for word in "${COMPREPLY[@]}"; do
        case "$word" in *=|*/|*.) offered+=("$word") ;; *) offered+=("$word ") ;; esac
    done
    COMPREPLY=("${offered[@]}")
}
complete -o default -o nospace -F _vit_jax_zsh python python3 vit-jax vit_jax
"""
