"""The documentation builds, and every link in it leads somewhere."""

import functools
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from processes import ROOT

import vit_jax


@functools.cache
def attributes(page, *names):
    """Returns the values of attributes of all elements of a page."""
    found = re.findall(rf'\s(?:{"|".join(names)})="([^"]+)"', page.read_text())
    return {html.unescape(value) for value in found}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if built := os.environ.get("VIT_JAX_SITE"):  # .ci/run has built it.
        return Path(built)
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={folder}"],
        cwd=ROOT, text=True, capture_output=True, timeout=300,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_every_link_leads_to_a_page_and_an_anchor(site):
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]
    assert len(pages) > 50
    broken = []
    for page in pages:
        for target in attributes(page, "href", "src"):
            if re.match(r"[a-z]+:|//", target):
                continue
            path, anchor = urldefrag(unquote(target))
            there = (page.parent / path).resolve() if path else page
            there = there / "index.html" if there.is_dir() else there
            if not there.is_file() or (
                anchor and there.suffix == ".html" and anchor not in attributes(there, "id", "name")
            ):
                broken.append((page.relative_to(site).as_posix(), target))
    assert not broken


def test_the_site_needs_no_network(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)", page.read_text()
        )
        assert not [url for url in loaded if "canonical" not in url], page


def test_the_reference_lists_keys_and_commands(site):
    for key in ("optimizer.schedule.warmup_steps", "model.num_registers", "run.train_steps"):
        section, _, name = key.partition(".")
        page = (site / f"reference/config/{section}/index.html").read_text()
        assert f"<code>{name if section == 'run' else key}</code>" in page
    assert "--at_once" in (site / "reference/commands/index.html").read_text()


def test_the_api_page_has_every_public_name_and_its_examples_are_code(site):
    page = (site / "reference/api/index.html").read_text()
    same = {"preprocess", "__version__"}  # preprocess is preprocess_of.
    headings = re.findall(r'<h3 id="vit_jax\.[\w.]*?(\w+)"', page)
    assert set(vit_jax.__all__) - same <= set(headings)
    assert "<blockquote>" not in page
