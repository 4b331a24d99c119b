"""Shared by all tests: shapes and types are checked at every call, sloppy promotion is an error."""

import os

# Children started by tests run in the same way.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from jaxtyping import install_import_hook  # noqa: E402

install_import_hook("vit_jax", "beartype.beartype")

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory, worker_id):
    """A folder with the digits dataset prepared, made once a test process."""
    from vit_jax.data.sources import TfdsSource

    folder = tmp_path_factory.mktemp("datasets")
    TfdsSource("digits", "train", str(folder))
    return folder
