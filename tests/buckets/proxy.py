"""What stands between a client and a server of buckets: it does harm on request, and counts.

A test sets the `Faults` and reads the counters while the server runs, by requests to `CONTROL`.
"""

import asyncio
import collections
import dataclasses
import random
import re

from aiohttp import web

CONTROL = "/_faults"
WRITES = ("write", "delete")


@dataclasses.dataclass
class Faults:
    """What goes wrong. Probabilities are drawn from the seed, in the order of the requests."""

    seed: int = 0
    only: str = ""  # regular expression searched in "OPERATION BUCKET/OBJECT"
    times: int | None = None  # after so many faults all goes well; latency does not count
    latency_s: float = 0  # added to every request
    throttled: float = 0  # probability of "slow down": 429 on GCS, 503 SlowDown on S3
    burst: tuple[int, int] = (0, 1)  # of every burst[1] requests, the first burst[0] get a 503
    # Probability that the connection ends in the middle of the answer's content. A write that is
    # cut is cut in its own content and not done.
    cut: float = 0
    answer_lost: float = 0  # probability that a write is done, but not answered
    read_only: bool = False  # writes are answered 403
    expired: bool = False  # all requests are refused, as with expired credentials


@dataclasses.dataclass
class Count:
    """How often an operation was asked for on an object, and the bytes of contents read."""

    requests: int = 0
    faults: int = 0
    bytes_out: int = 0


class Proxy:
    """Passes requests to `server`, which has describe, answer, error and its words for errors."""

    def __init__(self, server):
        self._server = server
        self._counts = collections.defaultdict(Count)
        self._set(Faults())

    def app(self):
        app = web.Application(client_max_size=1 << 40)
        app.router.add_route("GET", CONTROL, self._report)
        app.router.add_route("PUT", CONTROL, self._change)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    def _set(self, faults):
        self._faults, self._random = faults, random.Random(faults.seed)
        self._seen, self._done = 0, 0

    async def _report(self, request):
        """All counters; with ?clear they start again."""
        counts = [
            {"operation": operation, "object": name, **dataclasses.asdict(count)}
            for (operation, name), count in self._counts.items()
        ]
        if "clear" in request.query:
            self._counts.clear()
        return web.json_response(counts)

    async def _change(self, request):
        self._set(Faults(**await request.json()))
        return web.Response()

    async def _answer(self, request):
        try:
            await request.read()
        except ConnectionError:  # The client was killed.
            return web.Response()
        operation, name = await self._server.describe(request)
        count = self._counts[operation, name]
        count.requests += 1
        fault = None
        if re.search(self._faults.only, f"{operation} {name}"):
            fault = self._draw(operation)
            await asyncio.sleep(self._faults.latency_s)
        count.faults += fault is not None
        if isinstance(fault, tuple):
            return self._server.error(*fault)
        if fault == "cut" and operation in WRITES:
            return _hang_up(request)
        response = await self._server.answer(request)
        if fault == "answer_lost":
            return _hang_up(request)
        if fault == "cut":
            return await self._cut(request, response, count)
        count.bytes_out += len(response.body or b"")
        return response

    def _draw(self, operation):
        """Returns the fault of a request: a status and a message, "cut", "answer_lost" or None."""
        faults = self._faults
        if faults.times is not None and self._done >= faults.times:
            return None
        draws = [self._random.random() for _ in range(3)]
        in_burst = self._seen % faults.burst[1] < faults.burst[0]
        self._seen += 1
        writes = operation in WRITES
        for happens, fault in [
            (faults.expired, self._server.expired),
            (faults.read_only and writes, (403, "AccessDenied")),
            (in_burst, (503, "ServiceUnavailable")),
            (draws[0] < faults.throttled, self._server.throttled),
            (draws[1] < faults.cut, "cut"),
            (draws[2] < faults.answer_lost and writes, "answer_lost"),
        ]:
            if happens:
                self._done += 1
                return fault
        return None

    async def _cut(self, request, response, count):
        """Sends the headers and half the content."""
        half = response.body[: len(response.body) // 2]
        count.bytes_out += len(half)
        headers = {**response.headers, "Content-Length": str(len(response.body))}
        stream = web.StreamResponse(status=response.status, headers=headers)
        await stream.prepare(request)
        await stream.write(half)
        return _hang_up(request)


def _hang_up(request):
    """Ends the connection without another word."""
    request.transport.abort()
    return web.Response()
