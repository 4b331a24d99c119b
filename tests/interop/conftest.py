import pytest
from interop.files import tiny, write_golden, write_npz

from vit_jax.interop.load import load


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """The tiny ViT as an npz of vision_transformer."""
    return write_npz(tmp_path_factory.mktemp("tiny") / "tiny.npz", tiny())


@pytest.fixture(scope="session")
def tiny_loaded(tiny_path):
    return load(tiny_path)


@pytest.fixture(scope="session")
def golden_path(tmp_path_factory):
    """The weights of the golden `vit_ti16_224`."""
    return write_golden("vit_ti16_224", tmp_path_factory.mktemp("golden"))
