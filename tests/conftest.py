"""Shared by all tests: shapes and types are checked at every call, sloppy promotion is an error."""

import fcntl
import json
import os
import pkgutil
from pathlib import Path

# Children started by tests run in the same way.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of their time went into optimizing small programs that run once.
os.environ["XLA_FLAGS"] = " ".join(
    ["--xla_backend_optimization_level=0", os.environ.get("XLA_FLAGS", "")]
)

from jaxtyping import install_import_hook

# An int where a float is declared is fine (PEP 484). The config sections are left out: they check
# their fields themselves and convert lists to tuples on the way.
_CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
_PACKAGE = Path(__file__).resolve().parents[1] / "vit_jax"
_CHECKED = {m.name for m in pkgutil.iter_modules([str(_PACKAGE)])} - {
    "config",
    "schema",
    "__main__",
}
install_import_hook([f"vit_jax.{name}" for name in sorted(_CHECKED)], _CHECKER)

# Tests compile the same small programs again and again; children share what was compiled.
_CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax  # noqa: E402
import pytest  # noqa: E402

# Its import sets up logging and closes all handlers there are. Of them absl's, where a test has
# made it, writes to what pytest captures with, and takes it along; so it comes first.
import submitit  # noqa: E402, F401

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory, worker_id):
    """A folder with the digits dataset prepared, made once a test process."""
    from vit_jax.data.sources import TfdsSource

    folder = tmp_path_factory.mktemp("datasets")
    TfdsSource("digits", "train", str(folder))
    return folder


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id):
    """A function of a name and a function: what the latter returns, called in one process alone.

    What is expensive and read by several tests is so made once, whichever of pytest's processes
    get these tests. It has to be JSON; folders are passed on by their path.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder if worker_id == "master" else folder.parent

    def get(name, make):
        path = folder / f"once-{name.replace('/', '-')}.json"
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(make()))
        return json.loads(path.read_text())

    return get
