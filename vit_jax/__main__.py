"""The command line: `python -m vit_jax COMMAND`. `commands.COMMANDS` lists them.

Exit codes; docs/how-to/train.md has a table of them:
    0: success.
    1: some jobs of a sweep failed.
    2: an error that the user can fix. One line on stderr describes it.
    75: stopped by a signal, such as SIGTERM or SIGINT, after saving. Run the command again to
        continue.
    76: another process of the run was lost. Run the command again to continue.
    130: interrupted by Ctrl-C without saving.
    141: the reader of standard output is gone, as in `... | head -1`.
    128 + N: ended by signal N without saving, such as 143 for SIGTERM and 137 for SIGKILL.

Any other exit code is a bug.
"""

import argparse
import errno
import importlib
import importlib.metadata
import logging
import os
import platform
import re
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from vit_jax import __version__
from vit_jax.closed_pipes import EXIT_CLOSED_PIPE, PipeClosed, watch_pipes
from vit_jax.commands import COMMANDS
from vit_jax.errors import (
    EXIT_INTERRUPTED,
    ConfigError,
    FileError,
    MemoryLimitError,
    RunFolderError,
    UserError,
    nearest,
    similarity,
)
from vit_jax.storage.private import hide_secrets
from vit_jax.synonyms import key_of_word

EXIT_USER_ERROR = 2
# Modules to import first, separated by commas.
_PLUGINS = "VIT_JAX_PLUGINS"
# Errors of a path or disk that a user can fix.
_DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ELOOP,
)
# JAX would draw or compute other numbers: see `rng.fixed_jax_settings`.
_OTHER_NUMBERS = (
    "JAX_ENABLE_X64", "JAX_DEFAULT_PRNG_IMPL", "JAX_THREEFRY_PARTITIONABLE",
    "JAX_RANDOM_SEED_OFFSET",
)  # fmt: skip
# Loggers of what is opened more than once, as data for training and for evaluation.
_OF_INPUTS = ("vit_jax.data.", "vit_jax.models.")
# The PCI vendor of TPUs.
_GOOGLE = "0x1ae0"
# What XLA says when a device has too little memory.
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory")


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises its errors as UserErrors."""

    def error(self, message: str):
        # A type function, such as `user_path`, can raise a UserError. argparse replaces it.
        error = sys.exc_info()[1]
        cause = None if error is None else error.__context__
        if isinstance(error, argparse.ArgumentError) and isinstance(cause, UserError):
            raise type(cause)(
                f"{error.argument_name}: {cause.got}", cause.expected, cause.fix
            ) from None
        raise ConfigError(message, f"the arguments of {self.prog}", f"see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = (
                action.option_strings[0] if action.option_strings else action.metavar or action.dest
            )
            words = [str(choice) for choice in action.choices]
            fix = f"did you mean '{nearest(str(value), words)}'?"
            raise ConfigError(f"{name}: {value!r}", f"one of {', '.join(words)}", fix)


class _Formatter(logging.Formatter):
    """A formatter that hides secrets: clients of the hub and of buckets log addresses."""

    def format(self, record: logging.LogRecord) -> str:
        return hide_secrets(super().format(record))


class _StderrHandler(logging.StreamHandler):
    """Writes to what `sys.stderr` is now, so that lines appear above a live display.

    A line that code of data or models logs again is written once.
    """

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self._said = set[str]()

    def filter(self, record: logging.LogRecord) -> Any:
        if record.name.startswith(_OF_INPUTS):
            text = record.getMessage()
            if text in self._said:
                return False
            self._said.add(text)
        return super().filter(record)

    @property
    def stream(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr


def main(argv: list[str] | None = None, began_s: float | None = None) -> int:
    """Runs a command and returns the exit code.

    `argv` are by default those of this process. `began_s` is the start of the command in unix
    seconds.
    """
    began_s = time.time() if began_s is None else began_s
    argv = sys.argv[1:] if argv is None else argv
    debug = "--debug" in argv
    _set_up_logging(debug)
    for variable in _OTHER_NUMBERS:
        os.environ.pop(variable, None)
    try:
        argv, plugins = _without_plugins([a for a in argv if a != "--debug"])
        plugins = [*filter(None, os.environ.get(_PLUGINS, "").split(",")), *plugins]
        if plugins:
            from vit_jax.plugins import load_plugins

            load_plugins(plugins)
        code = _dispatch(argv, began_s)
        if sys.stdout is not None:
            sys.stdout.flush()  # Here a closed pipe can still be handled.
        return code
    except PipeClosed:
        return EXIT_CLOSED_PIPE
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except UserError as error:
        from vit_jax.run.job_folder import note_data_error

        note_data_error(error)
        return _report(str(error), debug, error.exit_code)
    except MemoryError as error:
        return _report(str(_memory_error(error)), debug)
    except RuntimeError as error:
        if not any(text in str(error) for text in _OUT_OF_MEMORY):
            raise
        return _report(str(_memory_error(error)), debug)
    except OSError as error:
        if "://" in str(error.filename):
            return _report(str(_bucket_error(error)), debug)
        if error.errno not in _DISK_ERRORS:
            raise
        return _report(str(_disk_error(error)), debug)


def _set_up_logging(debug: bool) -> None:
    handler = _StderrHandler()
    handler.setFormatter(_Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("vit_jax").setLevel(logging.INFO)
    # Orbax and TFDS also raise the errors that they log, and `main` prints those in one line.
    for library in ("absl", "asyncio"):
        logging.getLogger(library).setLevel(logging.INFO if debug else logging.CRITICAL)


def _without_plugins(argv: list[str]) -> tuple[list[str], list[str]]:
    """Returns the arguments without each `--plugin=MODULE`, and these modules."""
    given = [word for word in argv if word.partition("=")[0] == "--plugin"]
    plugins = [word.partition("=")[2] for word in given]
    if "" in plugins:
        raise ConfigError("--plugin without a module", "--plugin=MODULE", "name it after a '='")
    return [word for word in argv if word not in given], plugins


def _dispatch(argv: list[str], began_s: float) -> int:
    parser = _Parser(prog="python -m vit_jax", description="Vision Transformers in JAX.")
    parser.add_argument("--debug", action="store_true", help="show the traceback of errors")
    parser.add_argument(
        "--plugin",
        metavar="MODULE",
        help="import this module or run this Python file first, which registers code of yours; may"
        f" be repeated. Also the variable {_PLUGINS}, separated by commas",
    )
    parser.add_argument("--version", action="store_true", help="print the versions and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    if not argv or argv[0] in ("-h", "--help"):
        parser.print_help()
        return 0
    if argv[0] == "--version":
        print(_versions())
        return 0
    if argv[0] not in COMMANDS:
        raise ConfigError(
            f"unknown command {argv[0]!r}",
            f"one of {', '.join(COMMANDS)}",
            f"did you mean {nearest(argv[0], COMMANDS)!r}?",
        )
    module = importlib.import_module(f"vit_jax.commands.{argv[0]}")
    command = _Parser(
        prog=f"python -m vit_jax {argv[0]}",
        description=module.__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="--plugin=MODULE and --debug go with every command: see python -m vit_jax --help",
    )
    module.add_arguments(command)
    # Most commands take --config.KEY=VALUE; those that build a model take --model.KEY=VALUE. To
    # argparse, an unknown option with a space is a positional argument: the spaces are hidden.
    prefix = getattr(module, "OVERRIDES", "--config.")
    hidden = [a.replace(" ", "\0") if re.match(r"--\w+\.[^=]+=", a) else a for a in argv[1:]]
    try:
        args, rest = command.parse_known_args(hidden)
    except ConfigError as error:
        recipe = _recipe_without_flag(hidden)
        if recipe is None or not re.search("required: --(config|sweep)", error.got):
            raise
        raise _unknown_argument(recipe, command, prefix) from None
    _check_one_recipe(argv[1:])
    args.began_s = began_s
    rest = [a.replace("\0", " ") for a in rest]
    overrides = [a.removeprefix(prefix) for a in rest if a.startswith(prefix)]
    unknown = [a for a in rest if not a.startswith(prefix)]
    if unknown:
        raise _unknown_argument(unknown[0], command, prefix)
    sections = [text for text in overrides if text.rpartition(".")[2] == "help"]
    if sections:
        return _print_keys(sections[0], prefix, getattr(args, "config", None))
    return module.run(args, overrides)


def _versions() -> str:
    """Returns the version of this package, and those of Python and JAX."""
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("jax", "jaxlib", "flax")]
    return f"vit_jax {__version__} (Python {platform.python_version()}, {', '.join(packages)})"


def _check_one_recipe(arguments: list[str]) -> None:
    """Raises ConfigError if there are two recipes."""
    given = dict.fromkeys(a for a in arguments if a.startswith("--config="))
    if len(given) > 1:
        raise ConfigError(f"two values: {' and '.join(given)}", "one", "leave one of them out")


def _unknown_argument(text: str, command: argparse.ArgumentParser, prefix: str) -> ConfigError:
    """Returns the error for an argument that a command does not have; it names what is meant."""
    name, equals, value = text.partition("=")
    flags = [flag for action in command._actions for flag in action.option_strings]
    expected, fix = f"the arguments of {command.prog}", f"see {command.prog} --help"
    longer = [flag for flag in flags if len(name) > 4 and flag.startswith(name)]
    near = (longer or [nearest(name, flags)])[0]
    likeness = similarity(name.replace("-", "_"), near.replace("-", "_"))
    if "--sweep" in flags and ".py" in text and not text.startswith("-"):
        fix = f"did you mean --sweep={text}?"
    elif "--config" in flags and _is_recipe(text):
        fix = f"did you mean --config={text}?"
    elif longer or (name.startswith("-") and likeness > 0.8):
        fix = f"did you mean {near}{equals}{value}?"
    elif name.startswith("--") or equals:
        word = name.lstrip("-")
        head, _, rest = word.partition(".")
        is_prefix = rest and similarity(head, prefix.strip("-.")) > 0.7
        key = _meant_key(rest if is_prefix else word)
        key = key.removeprefix("model.") if prefix == "--model." else key
        if key and (prefix == "--config." or "." not in key):
            fix = f"did you mean {prefix}{key}{equals}{value}?"
    return ConfigError(f"unknown argument {text!r}", expected, fix)


def _is_recipe(text: str) -> bool:
    """Whether an argument is the name or the file of a recipe."""
    from vit_jax.config.recipes import recipes

    path = text if text.endswith(".json") else text.partition(":")[0]
    return not text.startswith("-") and (path in recipes() or path.endswith((".py", ".json")))


def _recipe_without_flag(arguments: list[str]) -> str | None:
    """Returns the first argument that is neither an option nor the value of one."""
    for before, text in zip(["", *arguments], arguments, strict=False):
        if not text.startswith("-") and not (before.startswith("-") and "=" not in before):
            return text
    return None


def _meant_key(word: str) -> str:
    """Returns the config key that a word means, which may be its last part only; "": none."""
    from vit_jax.config.keys import config_keys
    from vit_jax.models.registry import options_class

    keys = config_keys(options_class({"name": "ViT-B/16"}))
    if word in keys or key_of_word(word):
        return word if word in keys else key_of_word(word) or ""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.rpartition(".")[2], []).append(key)
    found |= {key: [key] for key in keys}
    near = nearest(word, found)
    return found[near][0] if similarity(word, near) > 0.8 and len(found[near]) == 1 else ""


def _print_keys(text: str, prefix: str, config: str | None) -> int:
    """Prints the keys of `--config.help` or `--config.SECTION.help`."""
    section = text.rpartition(".")[0]
    command = importlib.import_module("vit_jax.commands.config")
    parser = _Parser(prog="config")
    command.add_arguments(parser)
    if prefix == "--model.":
        section = ".".join(filter(None, ["model", section]))
    given = [] if config is None else [f"--config={config}"]
    return command.run(parser.parse_args([*([section] if section else []), *given]), [])


def _disk_error(error: OSError) -> RunFolderError:
    got = f"{error.filename or 'disk'}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        expected, fix = "a writable folder with free space", "free some space"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        expected, fix = "a writable folder", "change its permissions"
    else:
        expected, fix = "a path that can be opened", "correct the path"
    return RunFolderError(got, expected, f"{fix}, or choose another path")


def _memory_error(error: Exception) -> MemoryLimitError:
    reason = (str(error).splitlines() or [""])[0][:200]
    return MemoryLimitError(
        f"out of memory{': ' if reason else ''}{reason}",
        "a run that fits the memory",
        "use a smaller batch, image or model, or a machine with more memory",
    )


def _bucket_error(error: OSError) -> FileError:
    is_refused = isinstance(error, PermissionError)
    return FileError(
        f"{error.filename}: {error.strerror}",
        "a bucket that this account may use" if is_refused else "a bucket that can be reached",
        "log in again, or check the account's rights" if is_refused else "run the command again",
    )


def _report(line: str, debug: bool, code: int = EXIT_USER_ERROR) -> int:
    if debug:
        traceback.print_exc()
    print(f"error: {hide_secrets(line)}", file=sys.stderr)
    return code


def quiet_libtpu(devices: Path = Path("/sys/bus/pci/devices")) -> None:
    """Keeps libtpu from printing errors on a machine without a TPU, by what it asks for."""
    vendors = [path.read_text().strip() for path in devices.glob("*/vendor")]
    if _GOOGLE not in vendors:
        os.environ.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-1")
        os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")


def run() -> None:
    """Runs the command of this process and exits with its code; the console command `vit-jax`."""
    from vit_jax.run.time_account import process_start_s

    if "--debug" not in sys.argv:
        # After a failed save, Orbax's threads warn about a closed event loop and coroutines that
        # were never awaited. The error itself is already printed.
        sys.unraisablehook = lambda unraisable: None
        warnings.filterwarnings("ignore", r"coroutine .* was never awaited", RuntimeWarning)
    quiet_libtpu()
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
    if command == "train" and sys.stderr is not None and sys.stderr.isatty():
        print("loading ...", file=sys.stderr)  # The imports take seconds.
    watch_pipes(command)
    sys.exit(main(began_s=process_start_s()))


if __name__ == "__main__":
    run()
