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
    """A running server; the protocol is "gs" or "s3"."""

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
        environment = _ENVIRONMENTS[protocol].items()
        self.env = {name: self.url if value == "{}" else value for name, value in environment}
        self._names = itertools.count(1)

    def __enter__(self):
        return self

    def __exit__(self, *_):
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
        """Returns a list of {"operation", "object", "requests", "faults", "bytes_out"}."""
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


# The environment in which the libraries talk to a server; {} stands for its URL.
_ENVIRONMENTS = {
    "gs": {
        "STORAGE_EMULATOR_HOST": "{}",  # gcsfs
        **GCSFS_WITHOUT_GRPC,
        "FSSPEC_GS": '{"token": "anon"}',  # gcsfs: no search for credentials
        "TENSORSTORE_GCS_HTTP_URL": "{}",
        "NO_GCE_CHECK": "true",  # likewise, in a process that had fsspec before the variables
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "test",  # TensorStore: likewise
        "CLOUD_STORAGE_EMULATOR_ENDPOINT": "{}",  # array_record
    },
    # TensorStore reads all but the URL, which its specification must have as "endpoint".
    "s3": {
        "AWS_ENDPOINT_URL": "{}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,  # the user's own stay out of tests
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    },
}


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
