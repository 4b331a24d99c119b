"""Fixtures and settings of all tests: calls check shapes and types, promotion is an error."""

import gc
import json
import os
from importlib.metadata import version
from pathlib import Path

# Processes that tests start inherit these settings.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The programs are small and run once: optimizing them would take longer than running them. The
# older emitters, which need one LLVM module a program, compile in a third of the time.
os.environ["XLA_FLAGS"] = " ".join(
    [
        "--xla_backend_optimization_level=0",
        # JAX 0.11 has no such flag and would end the process. Nothing of JAX 0.12 replaces it: its
        # preset FAST_COMPILE, narrower vectors, older instructions, fewer passes are not faster.
        "--xla_cpu_use_fusion_emitters=false" if version("jaxlib").startswith("0.10.") else "",
        "--xla_cpu_parallel_codegen_split_count=1",
        os.environ.get("XLA_FLAGS", ""),
    ]
)

from jaxtyping import install_import_hook

# The tower of PEP 484 lets an int stand where a float is declared. Only packages with shapes in
# their annotations are checked, because each checked function takes time to import.
_CHECKER = "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
_CHECKED = ("analysis", "data", "evaluation", "models", "tasks")
install_import_hook([f"vit_jax.{name}" for name in _CHECKED], _CHECKER)

# Tests compile the same small programs again and again; all processes share the compiled ones.
_CACHE = Path(__file__).resolve().parents[1] / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")

import jax  # noqa: E402
import pytest  # noqa: E402

# Importing submitit closes all logging handlers. Imported later, it would close a handler of absl
# that writes to the stream in which pytest captures output, and with it that stream.
import submitit  # noqa: E402, F401
from buckets.fixtures import (  # noqa: E402
    bucket,  # noqa: F401
    gcs,  # noqa: F401
    gcs_server,  # noqa: F401
    impatient,  # noqa: F401
    mount_bucket,  # noqa: F401
    s3,  # noqa: F401
    s3_server,  # noqa: F401
)
from short_runs import finished, run  # noqa: E402, F401

from vit_jax.storage.lock import locked  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_xdist_auto_num_workers(config):
    """Runs a single test file without workers, because each would import everything again."""
    paths = {argument.partition("::")[0] for argument in config.args}
    return 0 if len(paths) == 1 and next(iter(paths)).endswith(".py") else 2


def pytest_collection_modifyitems(items):
    """Starts the longest test first, so that no process waits for it at the end."""
    items.sort(key=lambda item: item.name != "test_the_commands_work_in_a_fresh_clone")


def pytest_collection_finish():
    """Leaves imported modules out of garbage collection, and collects the rest less often.

    Tracing makes many short-lived objects. With Python's defaults, looking for cycles among them
    and among all imported modules takes about a twentieth of the CPU time of a test file.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(scope="session")
def digits_dir(tmp_path_factory, once):
    """A folder with the prepared digits dataset; tests only read it."""
    from vit_jax.data.sources import TfdsSource

    def make():
        folder = tmp_path_factory.mktemp("datasets")
        TfdsSource("digits", "train", str(folder))
        return str(folder)

    return Path(once("digits", make))


@pytest.fixture(scope="session")
def ours_path(tmp_path_factory):
    """A random tiny ViT for 32 pixels and 5 classes, in our own format; tests only read it."""
    from weight_files import random_weights

    path = tmp_path_factory.mktemp("ours") / "ours"
    random_weights(path)
    return path


@pytest.fixture(scope="module")
def optax_promotes():
    """optax.adam raises a float to an int power, which strict promotion forbids."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture(scope="session")
def once(tmp_path_factory, worker_id):
    """A function (name, make) -> make(), which runs `make` in only one of the test processes.

    All processes that ask for the name get the same result, which must be JSON; pass folders as
    paths.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = folder if worker_id == "master" else folder.parent

    def get(name, make):
        path = folder / f"once-{name.replace('/', '-')}.json"
        with locked(path.with_suffix(".lock"), timeout_s=None):
            if not path.exists():
                path.write_text(json.dumps(make()))
        return json.loads(path.read_text())

    return get
