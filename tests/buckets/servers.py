"""Servers of GCS and S3 for tests, each in a process of its own, with a proxy that does harm.

    with Server("gs") as server:
        bucket = server.make_bucket()           # "gs://test-1"
        os.environ.update(server.env)           # all libraries talk to it; children too
        server.faults(throttled=0.2, seed=1)    # until server.faults()
        server.requests("read")                 # how many reads since the last clear()

`python servers.py gs|s3` runs such a server, writes its port, and ends with its stdin.
"""

import asyncio
import itertools
import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

_CONTROL = "/_faults"
# Otherwise gcsfs asks by gRPC for the type of each bucket, which only Google's endpoint answers.
GCSFS_WITHOUT_GRPC = {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}


class Server:
    """A running server.

    Args:
        protocol: "gs" or "s3".
    """

    def __init__(self, protocol):
        self.protocol = protocol
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), protocol],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the {protocol} server ended with {self._process.wait()}")
        self.url = f"http://127.0.0.1:{port}"
        self.env = _ENVIRONMENTS[protocol](self.url)
        self._names = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        self._process.communicate()  # closes stdin, which ends it

    def make_bucket(self, name=None):
        """Makes a bucket and returns its address; without a name a new one is chosen."""
        name = name or f"test-{next(self._names)}"
        if self.protocol == "gs":
            self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}))
        else:
            self._ask("PUT", f"/{name}")
        return f"{self.protocol}://{name}"

    def faults(self, **faults):
        """Sets what goes wrong from now on, see `proxy.Faults`; without arguments, nothing."""
        self._ask("PUT", _CONTROL, json.dumps(faults))

    def counts(self):
        """Returns a list of {"operation", "object", "requests", "faults", "bytes_in/out"}."""
        return json.loads(self._ask("GET", _CONTROL))

    def clear(self):
        """Sets all counters to zero."""
        self._ask("GET", f"{_CONTROL}?clear")

    def requests(self, operation="", name="", what="requests"):
        """The sum of a count over objects whose "bucket/object" ends in `name`."""
        return sum(
            count[what]
            for count in self.counts()
            if operation in ("", count["operation"]) and count["object"].endswith(name)
        )

    def _ask(self, method, path, body=""):
        request = urllib.request.Request(self.url + path, body.encode() or None, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read()


# The environment in which the libraries talk to a server.
def _gs_environment(url):
    return {
        "STORAGE_EMULATOR_HOST": url,  # gcsfs
        **GCSFS_WITHOUT_GRPC,
        "FSSPEC_GS": '{"token": "anon"}',  # gcsfs: no search for credentials
        "TENSORSTORE_GCS_HTTP_URL": url,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "test",  # TensorStore: likewise
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,  # array_record
    }


def _s3_environment(url):
    # TensorStore reads all but the URL, which its specification must have as "endpoint".
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,  # the user's own stay out of tests
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


_ENVIRONMENTS = {"gs": _gs_environment, "s3": _s3_environment}


async def _serve(protocol):
    from aiohttp import web
    from proxy import Proxy

    if protocol == "gs":
        from gcs_server import GcsServer as Backend
    else:
        from s3_server import S3Server as Backend
    server = Backend()
    runner = web.AppRunner(Proxy(server).app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
