"""Fixtures: a bucket on a server of GCS (`gcs`), of S3 (`s3`), or on each in turn (`bucket`).

All tests of a process share one server of a kind, which starts when the first test needs it. Each
test has its own empty bucket, no faults and counters at zero, and the environment variables that
make all libraries, here and in children, talk to the server.
"""

import asyncio
import contextlib
import dataclasses
import os
import sys
import tempfile
import time
import types
from pathlib import Path

import pytest
from buckets import mounted
from buckets.servers import GCSFS_WITHOUT_GRPC, Server

os.environ.update(GCSFS_WITHOUT_GRPC)  # gcsfs reads it when it is imported


@dataclasses.dataclass
class Bucket:
    """An empty bucket for one test."""

    url: str  # such as "gs://test-1", without a slash at its end
    server: Server  # takes faults and counts requests


@pytest.fixture(scope="session")
def gcs_server():
    with Server("gs") as server:
        yield server


@pytest.fixture(scope="session")
def s3_server():
    with Server("s3") as server:
        yield server


@pytest.fixture
def gcs(gcs_server, monkeypatch):
    yield from open_bucket(gcs_server, monkeypatch)


@pytest.fixture
def s3(s3_server, monkeypatch):
    yield from open_bucket(s3_server, monkeypatch)


@pytest.fixture(params=["gcs", pytest.param("s3", marks=pytest.mark.slow)])
def bucket(request):
    """The test runs once with a bucket of each kind; on S3 in the slow set."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def impatient(monkeypatch):
    """The clients do not wait before they try again."""
    import aiobotocore.endpoint
    import gcsfs.retry
    import s3fs.core

    async def sleep(seconds):
        await asyncio.get_running_loop().run_in_executor(None, time.sleep, 0.001)

    for module in (aiobotocore.endpoint, gcsfs.retry, s3fs.core):
        names = {**vars(asyncio), "sleep": sleep}
        monkeypatch.setattr(module, "asyncio", types.SimpleNamespace(**names))


def open_bucket(server, monkeypatch):
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    if "fsspec" in sys.modules:  # which has read the environment already
        from fsspec.config import conf, set_conf_env

        set_conf_env(conf, server.env)
    server.clear()
    yield Bucket(server.make_bucket(), server)
    server.faults()


@pytest.fixture
def mount_bucket(tmp_path):
    """A function that mounts a bucket and returns the folder; each call stands for another host."""
    reason = mounted.why_not()
    if reason:
        pytest.skip(f"no bucket can be mounted: {reason}")
    objects = tmp_path / "objects"
    objects.mkdir()
    with contextlib.ExitStack() as mounts:

        def mount():
            point = Path(tempfile.mkdtemp(prefix="host-", dir=tmp_path))
            return mounts.enter_context(mounted.mounted(objects, point))

        yield mount
