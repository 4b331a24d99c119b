"""The program of a TPU step, read as soon as the compiler has decided on it.

A compilation for a TPU takes minutes, nearly all of them for the code of a program that is already
decided. libtpu can write that program into a folder. A child process compiles; its parent reads the
program and stops it. Traffic and memory are those of the whole compilation.
"""

from pathlib import Path


def settings(folder: Path) -> dict[str, str]:
    """Returns the environment variables for the child, so that libtpu writes into a folder."""
    flags = f"--xla_jf_dump_to={folder} --xla_jf_dump_hlo_text=true --xla_jf_dump_llo_text=false"
    return {"LIBTPU_INIT_ARGS": flags}


def decided_program(folder: Path) -> str | None:
    """Returns the text of the program; None: it is missing or not yet written to the end."""
    for path in folder.glob("*TLP-hlo.txt"):
        text = path.read_text()
        if "\nENTRY " in text and text.rstrip().endswith("}"):  # The entry comes last.
            return text
    return None
