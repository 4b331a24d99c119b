"""requirements.lock holds what requirements.txt asks for."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import ROOT

import vit_jax


def requirements():
    lines = (line.partition("#")[0].strip() for line in _read("requirements.txt").splitlines())
    return [Requirement(line) for line in lines if line]


def locked():
    """Returns name -> (version, hashes)."""
    entries = re.split(r"^(?=[A-Za-z0-9])", _read("requirements.lock"), flags=re.MULTILINE)[1:]
    found = {}
    for entry in entries:
        name, version = re.match(r"([\w.\-]+)==([^\s;]+)", entry).groups()
        found[name] = (version, re.findall(r"--hash=sha256:([0-9a-f]{64})\b", entry))
    return found


def _read(name):
    return (ROOT / name).read_text()


@pytest.mark.parametrize("requirement", requirements(), ids=lambda one: one.name)
def test_every_requirement_is_pinned_at_a_version_that_satisfies_it(requirement):
    version, hashes = locked()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(version)
    assert hashes


def test_every_pinned_package_has_hashes_and_comes_from_the_index():
    found = locked()
    assert len(found) > len(requirements())
    assert [name for name, (_, hashes) in found.items() if not hashes] == []
    assert "://" not in _read("requirements.lock")
    assert "file:" not in _read("requirements.lock")


def test_the_citation_has_the_version_of_the_package():
    version = re.search(r"^version: (.+)$", _read("CITATION.cff"), re.MULTILINE)[1]
    assert version == vit_jax.__version__
