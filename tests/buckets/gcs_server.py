"""A GCS server for tests: the part of the JSON API that the clients of this project use, in memory.

The public emulator ignores preconditions and pages. This server has both, because a lease rests on
`ifGenerationMatch=0`. It changes its objects between two awaits of one event loop, so no two
requests interleave.

Source: https://cloud.google.com/storage/docs/json_api/v1 and its guide to resumable uploads.
"""

import base64
import dataclasses
import datetime
import hashlib
import itertools
import json
import re
import time
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

import google_crc32c
from aiohttp import web

MOST_IN_A_PAGE = 1000
_BYTES = "application/octet-stream"
_ROUTES = [
    ("copy", r"/b/([^/]+)/o/([^/]+)/rewriteTo/b/([^/]+)/o/([^/]+)"),
    ("object", r"/b/([^/]+)/o/([^/]+)"),
    ("objects", r"/b/([^/]+)/o"),
    ("bucket", r"/b/([^/]+)"),
    ("buckets", r"/b"),
    ("content", r"/([^/]+)/(.+)"),  # the XML API, by which some clients read
]


class Refused(Exception):
    """An answer that is an error: its HTTP status and a message."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


@dataclasses.dataclass
class Stored:
    """One object: its content, and how the JSON API describes it."""

    data: bytes
    resource: dict

    @property
    def generation(self):
        return self.resource["generation"]


@dataclasses.dataclass
class Call:
    """A request, taken apart. `route` names a method of the server, `names` come from the path."""

    method: str
    route: str
    names: list[str]
    query: dict[str, str]
    headers: dict
    body: bytes
    origin: str  # http://host:port, as the client wrote it

    @classmethod
    async def of(cls, request):
        url = urlsplit(request.raw_path)
        path = re.sub(r"^(/upload|/download|/resumable)*/storage/v1", "", url.path)
        found = ((route, re.fullmatch(pattern, path)) for route, pattern in _ROUTES)
        route, match = next((pair for pair in found if pair[1]), ("", None))
        if match is None:
            raise Refused(501, f"this server has no {request.method} {request.raw_path}")
        names = [unquote(name) for name in match.groups()]
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        if route == "objects" and "uploadType" in query:
            route = "upload"
        if route == "object" and query.get("alt") == "media":
            route = "content"
        return cls(
            request.method, route, names, query, request.headers, await request.read(),
            f"http://{request.host}",
        )  # fmt: skip


class GcsServer:
    """Answers requests; `describe` tells what a request is about, for counters and faults."""

    throttled = (429, "rateLimitExceeded")
    expired = (401, "Invalid Credentials")

    def __init__(self):
        self._buckets = {}  # bucket -> name -> Stored
        self._uploads = {}  # id of a resumable upload -> what it has
        self._generations = itertools.count(time.time_ns() // 1000)

    @staticmethod
    def error(status, message):
        """An error as the JSON API writes it."""
        errors = [{"message": message, "reason": message}]
        body = {"error": {"code": status, "message": message, "errors": errors}}
        return web.json_response(body, status=status)

    async def describe(self, request):
        """Returns (operation, "bucket/object"): list, stat, read, write or delete."""
        try:
            call = await Call.of(request)
        except Refused:
            return "unknown", request.raw_path
        bucket, name = (*call.names, "", "")[:2]
        if call.route == "upload":
            upload = self._uploads.get(call.query.get("upload_id"))
            return "write", f"{bucket}/{(upload['said'] if upload else _parts(call)[0])['name']}"
        if call.route == "copy":
            return "write", "/".join(call.names[2:])
        if call.method not in ("GET", "HEAD"):
            return "delete" if call.method == "DELETE" else "write", f"{bucket}/{name}"
        if call.route == "objects":
            return "list", f"{bucket}/{call.query.get('prefix', '')}"
        return "read" if call.route == "content" else "stat", f"{bucket}/{name}"

    async def answer(self, request):
        try:
            call = await Call.of(request)
            return getattr(self, f"_on_{call.route}")(call)
        except Refused as refused:
            return self.error(refused.status, str(refused))

    def _objects(self, bucket):
        if bucket not in self._buckets:
            raise Refused(404, "The specified bucket does not exist.")
        return self._buckets[bucket]

    def _object(self, bucket, name, generation=None):
        stored = self._objects(bucket).get(name)
        if stored is None or generation not in (None, stored.generation):
            raise Refused(404, f"No such object: {bucket}/{name}")
        return stored

    def _check(self, query, bucket, name, prefix="if"):
        """Checks the preconditions on an object; generation 0 stands for no object."""
        stored = self._objects(bucket).get(name)
        has = stored.generation if stored else "0"
        if query.get(f"{prefix}GenerationMatch", has) != has:
            raise Refused(412, "conditionNotMet: the generation of the object is another one")
        if query.get(f"{prefix}GenerationNotMatch") == has:
            raise Refused(304, "the object has this generation")

    def _store(self, query, bucket, said, data):
        """Stores an object of which the client has said the name, and maybe more; describes it."""
        self._check(query, bucket, said["name"])
        now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
        generation = str(next(self._generations))
        resource = {
            **said,
            "metadata": said.get("metadata") or {},
            "kind": "storage#object",
            "id": f"{bucket}/{said['name']}/{generation}",
            "bucket": bucket,
            "generation": generation,
            "metageneration": "1",
            "size": str(len(data)),
            "timeCreated": now,
            "updated": now,
            "etag": generation,
            "storageClass": "STANDARD",
            "crc32c": base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode(),
            "md5Hash": base64.b64encode(hashlib.md5(data).digest()).decode(),
        }
        self._objects(bucket)[said["name"]] = Stored(data, resource)
        return resource

    def _on_buckets(self, call):
        """Makes a bucket."""
        bucket = json.loads(call.body)["name"]
        self._buckets[bucket] = {}
        return web.json_response({"kind": "storage#bucket", "name": bucket})

    def _on_bucket(self, call):
        (bucket,) = call.names
        self._objects(bucket)
        return web.json_response({"kind": "storage#bucket", "name": bucket})

    def _on_objects(self, call):
        """A page of a bucket's objects and common prefixes."""
        (bucket,), query = call.names, call.query
        objects = self._objects(bucket)
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        end = query.get("endOffset")
        most = min(int(query.get("maxResults", MOST_IN_A_PAGE)), MOST_IN_A_PAGE)
        items, prefixes, last, more = [], [], query.get("pageToken", ""), False
        for name in sorted(name for name in objects if name.startswith(prefix)):
            if name < query.get("startOffset", "") or (end and name >= end):
                continue
            rest = name[len(prefix) :]
            folder, found, _ = rest.partition(delimiter) if delimiter else (rest, "", "")
            entry = prefix + folder + found
            if entry <= last:
                continue
            more = len(items) + len(prefixes) == most
            if more:
                break
            last = entry
            if found:
                prefixes.append(entry)
            else:
                items.append(objects[name].resource)
        page = {"kind": "storage#objects", "items": items, "prefixes": prefixes}
        page |= {"nextPageToken": last} if more else {}
        return web.json_response({key: value for key, value in page.items() if value})

    def _on_object(self, call):
        bucket, name = call.names
        stored = self._object(bucket, name, call.query.get("generation"))
        self._check(call.query, bucket, name)
        if call.method == "DELETE":
            del self._objects(bucket)[name]
            return web.Response(status=204)
        return web.json_response(stored.resource)

    def _on_content(self, call):
        """The content of an object, or the range of it that was asked for."""
        bucket, name = call.names
        stored = self._object(bucket, name, call.query.get("generation"))
        self._check(call.query, bucket, name)
        size = len(stored.data)
        headers = {
            "Content-Type": stored.resource["contentType"],
            "ETag": stored.generation,
            "X-Goog-Generation": stored.generation,
            "X-Goog-Metageneration": "1",
            "X-Goog-Stored-Content-Length": str(size),
        }
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", call.headers.get("Range", ""))
        if not match:
            crc32c, md5 = stored.resource["crc32c"], stored.resource["md5Hash"]
            headers["X-Goog-Hash"] = f"crc32c={crc32c},md5={md5}"
            return web.Response(body=stored.data, headers=headers)
        first, last = match.groups()
        start = int(first) if first else max(size - int(last), 0)
        stop = min(int(last) + 1, size) if first and last else size
        if start >= size:
            headers["Content-Range"] = f"bytes */{size}"
            return web.Response(status=416, headers=headers)
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return web.Response(status=206, body=stored.data[start:stop], headers=headers)

    def _on_copy(self, call):
        from_bucket, from_name, bucket, name = call.names
        self._check(call.query, from_bucket, from_name, prefix="ifSource")
        stored = self._object(from_bucket, from_name, call.query.get("sourceGeneration"))
        said = {key: stored.resource[key] for key in ("contentType", "metadata")}
        resource = self._store(call.query, bucket, {"name": name, **said}, stored.data)
        done = {"kind": "storage#rewriteResponse", "done": True, "resource": resource}
        return web.json_response(
            done | {"objectSize": resource["size"], "totalBytesRewritten": resource["size"]}
        )

    def _on_upload(self, call):
        (bucket,) = call.names
        if "upload_id" in call.query:
            return self._continue_upload(call, bucket)
        said, data = _parts(call)
        if call.query["uploadType"] != "resumable":
            return web.json_response(self._store(call.query, bucket, said, data))
        self._check(call.query, bucket, said["name"])
        query = call.query | {"upload_id": str(next(self._generations))}
        self._uploads[query["upload_id"]] = {"said": said, "data": b"", "query": query}
        path = f"{call.origin}/upload/storage/v1/b/{quote(bucket)}/o"
        return web.Response(headers={"Location": f"{path}?{urlencode(query)}"})

    def _continue_upload(self, call, bucket):
        """Takes a chunk; the object appears with the last one, all at once."""
        upload = self._uploads.get(call.query["upload_id"])
        if upload is None:
            raise Refused(404, "no such upload")
        if "resource" in upload:  # A client whose answer was lost asks again.
            return web.json_response(upload["resource"])
        said = re.fullmatch(
            r"bytes (?:\*|(\d+)-\d+)/(\*|\d+)", call.headers.get("Content-Range", "")
        )
        start, total = said.groups() if said else ("0", str(len(call.body)))
        if start is not None:
            if int(start) > len(upload["data"]):
                raise Refused(400, f"the chunk starts at {start}, {len(upload['data'])} are here")
            upload["data"] = upload["data"][: int(start)] + call.body
        if total != str(len(upload["data"])):
            have = {"Range": f"bytes=0-{len(upload['data']) - 1}"} if upload["data"] else {}
            return web.Response(status=308, headers=have)
        resource = self._store(upload["query"], bucket, upload["said"], upload["data"])
        upload |= {"resource": resource, "data": b""}
        return web.json_response(resource)


def _parts(call):
    """Returns what a request to upload an object says about it, and the content."""
    kind, content_type = call.query.get("uploadType"), call.headers.get("Content-Type", _BYTES)
    said, data = {"name": call.query.get("name", "")}, call.body
    if kind == "resumable":
        content_type = call.headers.get("X-Upload-Content-Type", _BYTES)
        said, data = said | json.loads(call.body or b"{}"), b""
    elif kind == "multipart":
        boundary = b"--" + re.search(r'boundary="?([^";]+)', content_type)[1].encode()
        newline = b"\r\n" if call.body.startswith(boundary + b"\r\n") else b"\n"
        parts = (newline + call.body).split(newline + boundary)[1:3]
        (_, fields), (header, data) = (part.split(newline * 2, 1) for part in parts)
        types = re.search(rb"(?i)content-type: *([^\r\n]+)", header)
        content_type = types[1].decode() if types else _BYTES
        said |= json.loads(fields)
    return {"contentType": content_type, **said}, data
