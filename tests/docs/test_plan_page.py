"""The figures of docs/how-to/plan.md are those that its command prints."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys

import pytest
from processes import ROOT

PAGE = ROOT / "docs/how-to/plan.md"
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?%?")


def figures(line: str) -> list[float]:
    return [float(text.strip("%").replace(",", "")) for text in _NUMBER.findall(line)]


def tolerances(line: str) -> list[float]:
    """Percentages may differ by one: other versions of JAX compile a little differently."""
    return [1.0 if text.endswith("%") else 0.0 for text in _NUMBER.findall(line)]


def label(line: str) -> str:
    return re.split(r"\s{2,}", line.strip())[0]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed: jax[tpu]"
)
def test_the_page_shows_what_the_command_prints(tmp_path):
    text = PAGE.read_text()
    command = next(line for line in text.splitlines() if "vit_jax plan" in line)
    assert text.index(command) < text.index("prints (shortened")
    shown = text[text.index("prints (shortened") :].split("```")[1].strip("\n").splitlines()
    arguments = shlex.split(command.replace("PLAN.json", str(tmp_path / "plan.json")))[1:]
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1800,
        # The flags of the tests are for CPUs.
        env={k: v for k, v in os.environ.items() if k != "XLA_FLAGS"} | {"COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling for ")
    printed = iter(done.stdout.splitlines())
    for line in shown:
        found = next((other for other in printed if label(other) == label(line)), None)
        assert found is not None, line
        for want, got, apart in zip(figures(line), figures(found), tolerances(line), strict=True):
            assert got == pytest.approx(want, rel=0.02, abs=apart), (line, found)
