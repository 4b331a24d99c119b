"""An S3 server for tests: moto's, called in this process, with atomic preconditions."""

import asyncio
import collections
from urllib.parse import unquote

from aiohttp import web
from moto.server import create_backend_app
from multidict import CIMultiDict
from werkzeug.test import EnvironBuilder, run_wsgi_app


class S3Server:
    """Answers requests; `describe` tells what a request is about, for counters and faults."""

    throttled = (503, "SlowDown")
    expired = (400, "ExpiredToken")

    def __init__(self):
        self._locks = collections.defaultdict(asyncio.Lock)
        self._app = create_backend_app("s3")

    @staticmethod
    def error(status, message):
        """An error as S3 writes it."""
        text = f"<Error><Code>{message}</Code><Message>{message}</Message></Error>"
        return web.Response(status=status, text=text, content_type="application/xml")

    async def describe(self, request):
        """Returns (operation, "bucket/object"): list, stat, read, write or delete."""
        path = unquote(request.raw_path.partition("?")[0]).strip("/")
        if request.method == "GET" and ("/" not in path or "list-type" in request.query):
            return "list", f"{path}/{request.query.get('prefix', '')}"
        if request.method == "POST" and "delete" in request.query:
            return "delete", path
        operations = {"GET": "read", "HEAD": "stat", "DELETE": "delete"}
        return operations.get(request.method, "write"), path

    async def answer(self, request):
        """Writes of one object go one by one, so that no two pass the same precondition."""
        arguments = request.method, request.raw_path, list(request.headers.items())
        body = await request.read()
        if request.method in ("GET", "HEAD"):
            return await asyncio.to_thread(self._call, *arguments, body)
        async with self._locks[request.path]:
            return await asyncio.to_thread(self._call, *arguments, body)

    def _call(self, method, raw_path, headers, body):
        path, _, query = raw_path.partition("?")
        environ = EnvironBuilder(
            path=unquote(path), query_string=query, method=method, headers=headers, data=body
        ).get_environ()
        environ["RAW_URI"] = environ["REQUEST_URI"] = raw_path
        parts, status, found = run_wsgi_app(self._app, environ, buffered=True)
        answer = web.Response(
            status=int(status.split()[0]), body=b"".join(parts), headers=CIMultiDict(found)
        )
        if method != "HEAD":  # whose length is that of the object, not of the answer
            answer.headers["Content-Length"] = str(len(answer.body))
        return answer
