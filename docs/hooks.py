"""Builds what the documentation takes from the rest of the repository. MkDocs calls it as a hook.

- Pages of `experiments/` and `notebooks/`, CONTRIBUTING.md and CHANGELOG.md become pages of the
  site, with their pictures, and links to other files of the repository lead to a copy of the file.
  So links between pages work on the site as they do in the repository.
- `reference/commands.md` is made from the commands' own help, and from the config sections
  `reference/config.md` with a page for each of them.
- Tables outside `experiments/` are marked, so that `style.css` can stack their rows on a phone.
"""

import argparse
import contextlib
import functools
import html as escapes
import importlib
import inspect
import io
import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from vit_jax.__main__ import COMMANDS
from vit_jax.config.keys import ConfigKey, config_keys, section_keys
from vit_jax.config.run import Config
from vit_jax.config.task import TaskConfig
from vit_jax.data.crops import Crop
from vit_jax.losses import LabelLoss
from vit_jax.models.options import ModelConfig
from vit_jax.models.registry import families
from vit_jax.schema import section_in

ROOT = Path(__file__).resolve().parents[1]
_PAGES = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "examples/**/*.md",
    "experiments/**/*.md",
    "notebooks/README.md",
)
_FILES = (
    "experiments/**/*", "examples/**/*", "configs/*.py", "notebooks/*.ipynb", "vit_jax/**/*.py",
    "tests/**/*.py", "tests/**/*.md",
)  # fmt: skip
_SUFFIXES = {".png", ".svg", ".csv", ".md", ".py", ".sh", ".yaml", ".txt", ".ipynb"}
_CONFIG = "reference/config.md"
_RUN = "run"  # Title of the keys that are in no section.
_LINK = re.compile(r"(\]\(|src=\")([^)#\"\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Puts the pages of the config sections into the navigation."""
    assert config.nav is not None
    reference = next(item["Reference"] for item in config.nav if "Reference" in item)
    entry = next(item for item in reference if "Config keys" in item)
    entry["Config keys"] = sorted(config_pages(), key=lambda path: path != _CONFIG)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages and the files of the repository."""
    pages = {**config_pages(), "reference/commands.md": commands_page()}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    linked = {path for path in _linked_files() if path not in pages}
    for path in sorted(linked):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Points links that leave `docs/` to the copies of the files."""
    del config, files
    here = page.file.src_uri
    folder = posixpath.dirname(here)
    if page.file.generated_by is not None:  # A page of the repository, or made above.
        return _LINK.sub(
            lambda match: match[1] + re.sub(r"(^|\.\./)docs/", r"\1", match[2]), markdown
        )

    def replace(match: re.Match[str]) -> str:
        target = match[2]
        if "://" in target:
            return match[0]
        in_repository = posixpath.normpath(posixpath.join("docs", folder, target))
        if in_repository.startswith("docs/"):
            return match[0]
        return match[1] + posixpath.relpath(in_repository, folder or ".")

    return _LINK.sub(replace, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Marks tables that are stacked on a phone, and names the column in their cells."""
    del config, files
    if page.file.src_uri.startswith("experiments/"):
        return html
    return re.sub(r"<table>.*?</table>", lambda match: _stacked(match[0]), html, flags=re.DOTALL)


def _stacked(table: str) -> str:
    """Returns a table in a box of class `stacked`.

    Cells after the first get the attribute `data-label`, unless there are only two columns.
    """
    heads = re.findall(r"<th[^>]*>(.*?)</th>", table, re.DOTALL)
    names = [escapes.escape(re.sub(r"<[^>]+>", "", head)) for head in heads]

    def label(row: re.Match[str]) -> str:
        cells = row[0].split("<td")
        for i, name in enumerate(names[1:], 2):
            # An empty cell stays without a label; style.css hides it.
            if i < len(cells) and name and not re.match(r"[^>]*></td>", cells[i]):
                cells[i] = f' data-label="{name}"{cells[i]}'
        return "<td".join(cells)

    if len(names) > 2:
        table = re.sub(r"<tr[^>]*>.*?</tr>", label, table, flags=re.DOTALL)
    return f'<div class="stacked">{table}</div>'


def _linked_files() -> set[str]:
    """Returns the pages of the repository, and the files that pages link to."""
    pages = {path for pattern in _PAGES for path in ROOT.glob(pattern)}
    every = pages | set((ROOT / "docs").rglob("*.md"))
    linked = set(pages)
    allowed = {path for pattern in _FILES for path in ROOT.glob(pattern)}
    for page in every:
        for _, target in _LINK.findall(page.read_text()):
            path = (page.parent / target).resolve()
            if path in allowed and path.suffix in _SUFFIXES:
                linked.add(path)
    return {path.relative_to(ROOT).as_posix() for path in linked}


@functools.cache
def config_pages() -> dict[str, str]:
    """Returns path -> page: every config key with type, default, meaning, and a list of pages."""
    tables: dict[str, list[str]] = {}  # Title -> rows.
    for family in families():
        for key in config_keys(family.options).values():
            section = key.name.rpartition(".")[0] or _RUN
            title = f"model: {family.name}" if section == "model" else section
            _add_row(tables, title, key)
    chosen = {"task": TaskConfig, "loss": LabelLoss, "data.augment.crop": Crop}
    for section, cls in chosen.items():
        del tables[section]
        for name, other in cls.named_classes().items():
            for key in section_keys(other, None, ModelConfig, f"{section}."):
                _add_row(tables, f"{section}: {name}", key)
    bodies: dict[str, list[str]] = {}  # Section of the run -> lines of its page.
    for title, rows in tables.items():
        head = ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        name = re.split(r"[.:]", title)[0]
        bodies.setdefault(name, []).extend([f"## {title}", "", *head, *rows, ""])
    lines = [
        "# Config keys",
        "",
        "Set a key with `--config.KEY=VALUE`, or in a recipe. `python -m vit_jax config WORD`",
        "prints the keys that a word finds, and `config --config=FILE` the values of a recipe.",
        "The search above finds keys too.",
        "",
        "| section | keys | what they are for |",
        "| --- | --- | --- |",
    ]
    pages = {}
    for name in sorted(bodies, key=lambda name: (name != _RUN, name)):
        doc = "Keys that are in no section: how long to train, the seed, the weights to start from."
        if name != _RUN:
            cls = section_in(Config.model_fields[name].annotation)
            doc = inspect.getdoc(cls).partition("\n\n")[0]
        count = sum(line.startswith("| `") for line in bodies[name])
        lines.append(f"| [{name}](config/{name}.md) | {count} | {' '.join(doc.split())} |")
        pages[f"reference/config/{name}.md"] = "\n".join([f"# {name}", "", doc, "", *bodies[name]])
    return {_CONFIG: "\n".join(lines) + "\n", **pages}


def _add_row(sections: dict[str, list[str]], title: str, key: ConfigKey) -> None:
    rows = sections.setdefault(title, [])
    if (row := _row(key)) not in rows:
        rows.append(row)


def _row(key: ConfigKey) -> str:
    default = json.dumps(key.default, default=str).replace("null", "none")
    cells = [key.kind, "required" if key.required else f"`{default}`", key.meaning]
    text = " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| `{key.name}` | {text} |"


def commands_page() -> str:
    """Returns a page with the help of every command."""
    lines = ["# Commands", "", "`python -m vit_jax COMMAND --help` prints the same.", ""]
    lines += ["| command | what it does |", "| --- | --- |"]
    lines += [f"| [`{name}`](#{name}) | {text} |" for name, text in COMMANDS.items()]
    for name in COMMANDS:
        lines += ["", f"## {name}", "", "```text", _help(name), "```"]
    return "\n".join(lines) + "\n"


def _help(name: str) -> str:
    module = importlib.import_module(f"vit_jax.commands.{name}")
    parser = argparse.ArgumentParser(
        prog=f"python -m vit_jax {name}",
        description=module.__doc__,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100),
    )
    module.add_arguments(parser)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        parser.print_help()
    return text.getvalue().rstrip()
