import pytest
from shared_programs import _share_programs  # noqa: F401

from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """The folder of a finished run with the test file's own `config`, and its result."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, train(config, folder, StopSignals())
