"""The lock files hold what requirements.txt and the extras ask for, on every supported Python."""

import re
import shutil
import subprocess
import tomllib
from importlib import metadata

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import ROOT

import vit_jax

EXTRAS = {"cpu": [], "cuda": ["cuda"], "tpu": ["tpu"]}  # of pyproject.toml, beside gcs and s3
LOCKS = ["requirements.lock", *(f"requirements-{accelerator}.lock" for accelerator in EXTRAS)]
# libtpu has no wheel for arm64.
INSTALLED = [(name, "x86_64") for name in EXTRAS] + [("cpu", "aarch64"), ("cuda", "aarch64")]
PYTHONS = ["3.11", "3.12", "3.13"]


def requirements():
    lines = (line.partition("#")[0].strip() for line in _read("requirements.txt").splitlines())
    return [Requirement(line) for line in lines if line]


def extra(name):
    lines = tomllib.loads(_read("pyproject.toml"))["project"]["optional-dependencies"][name]
    return [Requirement(line) for line in lines]


def entries(lock):
    """Returns (requirement, hashes) of each pinned package."""
    texts = re.split(r"^(?=[A-Za-z0-9])", _read(lock), flags=re.MULTILINE)[1:]
    hashes = [re.findall(r"--hash=sha256:([0-9a-f]{64})\b", text) for text in texts]
    return [
        (Requirement(text.partition("\\")[0]), of) for text, of in zip(texts, hashes, strict=True)
    ]


def versions(lock, python, machine="x86_64"):
    """Returns name -> version of what is installed on Linux."""
    where = _linux(python, machine)
    found = {}
    for pin, _ in entries(lock):
        if pin.marker is None or pin.marker.evaluate(where):
            assert pin.name not in found, f"{pin.name} is pinned twice for Python {python}"
            found[pin.name] = str(pin.specifier).removeprefix("==")
    return found


def _linux(python, machine="x86_64"):
    system = {"sys_platform": "linux", "platform_system": "Linux", "platform_machine": machine}
    return {
        **default_environment(), **system, "os_name": "posix", "python_version": python,
        "python_full_version": f"{python}.0", "extra": "",
    }  # fmt: skip


def _unfulfilled(wanted, found, where):
    return [
        str(one)
        for one in wanted
        if (one.marker is None or one.marker.evaluate(where))
        and not one.specifier.contains(found.get(canonicalize_name(one.name), "0"), True)
    ]


def _read(name):
    return (ROOT / name).read_text()


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", PYTHONS)
def test_every_requirement_is_pinned_at_a_version_that_satisfies_it(python, machine):
    where, found = _linux(python, machine), versions("requirements.lock", python, machine)
    assert _unfulfilled(requirements(), found, where) == []
    for accelerator, names in EXTRAS.items():
        added = versions(f"requirements-{accelerator}.lock", python, machine)
        wanted = [one for name in (*names, "gcs", "s3") for one in extra(name)]
        assert _unfulfilled(wanted, found | added, where) == []


@pytest.mark.parametrize("python", PYTHONS)
def test_the_accelerators_locks_hold_only_what_the_first_lacks_and_fit_it(python):
    first = versions("requirements.lock", python)
    cpu, cuda, tpu = (versions(f"requirements-{name}.lock", python) for name in EXTRAS)
    for added in (cpu, cuda, tpu):
        assert first.keys().isdisjoint(added)
    for added in (cuda, tpu):
        assert cpu.items() < added.items()
    assert cuda["jax-cuda13-plugin"] == cuda["jax-cuda13-pjrt"] == first["jax"]
    assert first["jaxlib"] == first["jax"]
    assert set(tpu) - set(cpu) == {"libtpu"}


def test_what_an_installed_package_of_the_locked_version_needs_is_locked():
    where = default_environment() | {"extra": ""}
    found = {
        pin.name: str(pin.specifier).removeprefix("==")
        for lock in LOCKS
        for pin, _ in entries(lock)
        if pin.marker is None or pin.marker.evaluate(where)
    }
    compared = 0
    for name, version in found.items():
        try:
            installed = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if installed.version == version:
            compared += 1
            wanted = [Requirement(line) for line in installed.requires or []]
            assert _unfulfilled(wanted, found, where) == [], name
    assert compared > 40


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pinned_package_has_hashes_and_comes_from_the_index(lock):
    assert [pin.name for pin, hashes in entries(lock) if not hashes] == []
    assert "://" not in _read(lock)
    assert "file:" not in _read(lock)
    assert not re.search(r"(^|\s)/", _read(lock))  # no path of the machine that made it


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
@pytest.mark.parametrize("python", [PYTHONS[0], PYTHONS[-1]])
@pytest.mark.parametrize(("accelerator", "machine"), INSTALLED)
def test_uv_would_install_the_locks_by_their_hashes(accelerator, python, machine, tmp_path):
    done = subprocess.run(
        [
            "uv", "pip", "sync", "--dry-run", "--require-hashes", "--target", str(tmp_path),
            "--python-version", python, "--python-platform", f"{machine}-manylinux_2_31",
            "requirements.lock", f"requirements-{accelerator}.lock",
        ],
        cwd=ROOT, text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = len(versions("requirements.lock", python, machine))
    expected += len(versions(f"requirements-{accelerator}.lock", python, machine))
    assert f"Would install {expected} packages" in done.stderr


def test_an_image_installs_only_the_locks_and_itself():
    text = _read("docker/Dockerfile").replace("\\\n", " ")
    locked, itself = re.findall(r"pip install (.*)", text)
    assert locked.split()[1:] == [
        "--require-hashes", "-r", "requirements.lock", "-r", "requirements-$ACCELERATOR.lock",
    ]  # fmt: skip
    assert itself.split()[1:] == ["--no-deps", "."]
    assert "ENV VIT_JAX_REVISION=$REVISION" in text


def test_the_citation_has_the_version_of_the_package():
    version = re.search(r"^version: (.+)$", _read("CITATION.cff"), re.MULTILINE)[1]
    assert version == vit_jax.__version__
