import pytest
from interop.files import tiny, write_npz

from vit_jax.interop.load import load


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """The tiny ViT as an npz of vision_transformer."""
    return write_npz(tmp_path_factory.mktemp("tiny") / "tiny.npz", tiny())


@pytest.fixture(scope="session")
def tiny_loaded(tiny_path):
    return load(tiny_path)
