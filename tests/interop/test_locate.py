"""Addresses: what is fetched, once, and what is left behind when it fails."""

import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from interop.files import assert_same, tiny, write_npz
from short_runs import content

from vit_jax.errors import WeightsError
from vit_jax.interop import locate
from vit_jax.interop.load import load
from vit_jax.interop.locate import local_weights, weights_path
from vit_jax.storage.paths import user_path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def remote(monkeypatch):
    """A file system that lives in memory, in place of the Hugging Face Hub."""
    system = fsspec.filesystem("memory")
    monkeypatch.setattr(
        locate, "_file_system", lambda address: (system, address.removeprefix("hf:/").rstrip("/"))
    )
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture
def fetched(monkeypatch):
    """Names of the files fetched."""
    names = []
    original = MemoryFileSystem.get_file

    def get_file(self, name, target, **arguments):
        names.append(name)
        return original(self, name, target, **arguments)

    monkeypatch.setattr(MemoryFileSystem, "get_file", get_file)
    return names


def test_a_local_path_is_not_changed(tmp_path, monkeypatch):
    assert weights_path(tmp_path) == tmp_path
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.npz").touch()
    assert weights_path("~/w.npz") == tmp_path / "w.npz"
    with pytest.raises(WeightsError, match=r"nowhere does not exist; expected a file or folder"):
        weights_path(tmp_path / "nowhere")


def test_a_file_is_fetched_once_and_again_when_its_size_changes(cache, remote, fetched):
    remote.pipe_file("/bucket/a/w.npz", b"weights")
    path = weights_path("hf://bucket/a/w.npz")
    assert path == cache / "hf" / "bucket" / "a" / "w.npz"
    assert path.read_bytes() == b"weights"
    assert weights_path("hf://bucket/a/w.npz") == path
    assert fetched == ["/bucket/a/w.npz"]
    assert content(cache) == {"hf/bucket/a/w.npz": b"weights"}
    remote.pipe_file("/bucket/a/w.npz", b"more weights")
    assert weights_path("hf://bucket/a/w.npz").read_bytes() == b"more weights"
    assert len(fetched) == 2


@pytest.mark.parametrize(
    ("names", "asked", "wanted"),
    [
        (
            "config.json model.safetensors parts/two.safetensors pytorch_model.bin old.npz",
            "",
            "config.json model.safetensors old.npz",
        ),
        # Configs beside a file come with it.
        (
            "config.json preprocessor_config.json model.safetensors other.json",
            "model.safetensors",
            "config.json preprocessor_config.json model.safetensors",
        ),
        # A run folder is fetched whole.
        (
            "config.json checkpoints/7/params/d/data checkpoints/7/commit_success.txt",
            "",
            "config.json checkpoints/7/params/d/data checkpoints/7/commit_success.txt",
        ),
    ],
)
def test_only_what_loading_needs_is_fetched(cache, remote, fetched, names, asked, wanted):
    for name in names.split():
        remote.pipe_file(f"/models/vit/{name}", name.encode())
    remote.pipe_file("/models/other/config.json", b"{}")
    for _ in range(2):
        path = weights_path(f"hf://models/vit/{asked}")
        assert path == cache / "hf" / "models" / "vit" / asked
    assert len(fetched) == len(wanted.split())
    found = content(cache / "hf" / "models" / "vit")
    assert found == {name: name.encode() for name in wanted.split()}
    assert len(content(cache)) == len(found)


@pytest.mark.parametrize("error", [OSError("connection reset"), KeyboardInterrupt()])
def test_an_interrupted_fetch_leaves_nothing_and_the_next_one_works(
    cache, remote, monkeypatch, error
):
    remote.pipe_file("/w.npz", b"weights")

    def interrupted(self, name, target, **arguments):
        with open(target, "wb") as file:  # noqa: PTH123
            file.write(b"wei")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "get_file", interrupted)
        with pytest.raises((WeightsError, KeyboardInterrupt)) as caught:
            weights_path("hf://w.npz")
    if isinstance(error, OSError):
        assert "hf://w.npz cannot be fetched: connection reset" in str(caught.value)
    assert content(cache) == {}
    assert weights_path("hf://w.npz").read_bytes() == b"weights"


def test_a_missing_package_is_named(cache, monkeypatch):
    def refuse(address):
        raise ImportError("Please install it")

    monkeypatch.setattr(fsspec.core, "url_to_fs", refuse)
    with pytest.raises(WeightsError, match="pip install huggingface_hub"):
        weights_path("hf://google/vit")
    assert not cache.exists()


@pytest.mark.parametrize("address", ["http://host/w.npz", "gss://bucket/w.npz", "gs:/bucket/w"])
def test_an_address_that_nobody_speaks_is_an_error(cache, address):
    with pytest.raises(WeightsError, match=r"s3://|two slashes"):
        load(address)
    assert not cache.exists()


def test_addresses_without_weights_are_errors(cache, remote, bucket):
    with pytest.raises(WeightsError, match=f"{bucket.url}/w.npz does not exist; expected a file"):
        weights_path(f"{bucket.url}/w.npz")
    with pytest.raises(WeightsError, match=r"hf://bucket/w.npz cannot be fetched: .*w\.npz"):
        weights_path("hf://bucket/w.npz")
    assert content(cache) == {}


def test_weights_in_a_bucket_are_fetched_once_and_again_when_they_change(
    cache, bucket, tmp_path, tiny_loaded
):
    path = user_path(f"{bucket.url}/a folder/w #1.npz")
    path.upload(write_npz(tmp_path / "w.npz", tiny()))
    loaded = load(str(path))
    assert_same(loaded, tiny_loaded)
    assert loaded.report.path == str(path)
    bucket.server.clear()
    assert local_weights(weights_path(path)).read_bytes() == (tmp_path / "w.npz").read_bytes()
    assert bucket.server.requests("read") == 0
    time.sleep(1.1)  # S3 counts seconds.
    path.write_bytes(bytes(path.stat().st_size))
    assert not any(local_weights(path).read_bytes())


def test_files_that_are_gone_in_a_bucket_are_not_read_from_the_cache(cache, bucket):
    root = user_path(f"{bucket.url}/models/vit")
    for name in ("model-1-of-2.safetensors", "model-2-of-2.safetensors", "config.json"):
        (root / name).write_text("{}")
    path = local_weights(root)
    assert len(content(path)) == 3
    for number in (1, 2):
        (root / f"model-{number}-of-2.safetensors").unlink()
    (root / "model.safetensors").write_text("{}")
    assert content(local_weights(root)).keys() == {"model.safetensors", "config.json"}


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("google/vit-base-patch16-224", "hf://google/vit-base-patch16-224"),
        ("timm/vit_base_patch16_224.augreg_in21k", "hf://timm/vit_base_patch16_224.augreg_in21k"),
        ("vit_base_patch16_224.augreg_in21k", "hf://timm/vit_base_patch16_224.augreg_in21k"),
        ("vit_base_patch16_224", None),  # timm publishes several.
        ("runs/mine", None),
        ("B/16", None),
    ],
)
def test_published_names_stand_for_their_addresses(name, address, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(locate, "_download", lambda text: asked.append(text) or Path(text))
    if address is None:
        with pytest.raises(WeightsError, match="does not exist"):
            locate.weights_path(name)
    else:
        locate.weights_path(name)
    assert asked == ([] if address is None else [address])
