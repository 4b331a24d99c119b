"""The servers, their faults and counters, as plain clients see them."""

import concurrent.futures
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import fsspec
import pytest

THREADS = 8


def open_bucket(bucket):
    """A file system of fsspec and the name of the bucket in it; nothing is kept or retried."""
    options = {"skip_instance_cache": True, "use_listings_cache": False}
    protocol, name = bucket.url.split("://")
    return fsspec.filesystem(protocol, **options), name


def ask(bucket, method, name, content=None, headers=None):
    """Sends one request by a client that knows nothing of retries; returns status and content."""
    place = bucket.url.partition("://")[2]
    headers = {"Content-Type": "application/octet-stream"} | (headers or {})
    if bucket.url.startswith("s3"):
        url = f"{bucket.server.url}/{place}/{name}"
        headers["Authorization"] = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4"
    elif method == "GET":
        url = f"{bucket.server.url}/storage/v1/b/{place}/o/{name}?alt=media"
    else:
        url = f"{bucket.server.url}/upload/storage/v1/b/{place}/o?uploadType=media&name={name}"
        url += "&ifGenerationMatch=0" * ("If-None-Match" in headers)
        method = "POST"
    request = urllib.request.Request(url, content, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


def get(bucket, name, **headers):
    return ask(bucket, "GET", name, headers=headers)


def put(bucket, name, content, only_new=False):
    headers = {"If-None-Match": "*"} if only_new else {}
    return ask(bucket, "PUT", name, content, headers)[0]


def status_of(bucket, name):
    return get(bucket, name)[0]


def test_objects_come_back_as_they_were_written(bucket):
    fs, root = open_bucket(bucket)
    content = b"\r\n\n" + bytes(range(256)) + b"\r"
    fs.pipe_file(f"{root}/a b/+%.bin", content)
    assert fs.cat_file(f"{root}/a b/+%.bin") == content
    assert fs.cat_file(f"{root}/a b/+%.bin", start=2, end=5) == content[2:5]
    assert fs.find(root) == [f"{root}/a b/+%.bin"]
    assert fs.ls(root, detail=False) == [f"{root}/a b"]
    fs.rm_file(f"{root}/a b/+%.bin")
    assert not fs.exists(f"{root}/a b")


def test_a_large_object_appears_when_it_is_closed(bucket):
    fs, root = open_bucket(bucket)
    blocks = [bytes([n]) * (1 << 20) for n in range(12)]
    with fs.open(f"{root}/large", "wb", block_size=5 << 20) as file:
        for block in blocks:
            file.write(block)
        assert not fs.exists(f"{root}/large")
    assert fs.cat_file(f"{root}/large") == b"".join(blocks)
    fs.copy(f"{root}/large", f"{root}/copy")
    assert fs.info(f"{root}/copy")["size"] == 12 << 20


def test_gcs_lists_in_pages(gcs):
    root = gcs.url.removeprefix("gs://")
    names = [f"{root}/{folder}/{n}" for folder in "abc" for n in range(4)]
    for name in names:
        put(gcs, urllib.parse.quote(name.removeprefix(f"{root}/"), safe=""), b"x")
    url = f"{gcs.server.url}/storage/v1/b/{root}/o?"
    for query, expected in [
        ({}, names),
        ({"delimiter": "/"}, ["a/", "b/", "c/"]),
        ({"prefix": "b/"}, names[4:8]),
    ]:
        found, token = [], ""
        while token is not None:
            page_query = urllib.parse.urlencode(query | {"maxResults": 2, "pageToken": token})
            with urllib.request.urlopen(url + page_query) as answer:
                page = json.load(answer)
            found += [f"{root}/{item['name']}" for item in page.get("items", [])]
            found += page.get("prefixes", [])
            token = page.get("nextPageToken")
        assert found == expected


def test_of_racing_writers_one_makes_the_object(bucket):
    fs, root = open_bucket(bucket)
    barrier = threading.Barrier(THREADS)

    def make(writer):
        barrier.wait()
        return put(bucket, "lease", str(writer).encode(), only_new=True)

    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        for _ in range(5):
            answers = list(pool.map(make, range(THREADS)))
            assert sorted(answers) == [200] + [412] * (THREADS - 1)
            assert get(bucket, "lease")[1] == str(answers.index(200)).encode()
            fs.rm_file(f"{root}/lease")


def test_gcs_replaces_only_the_generation_that_was_named(gcs):
    put(gcs, "object", b"one")
    fs, root = open_bucket(gcs)
    generation = fs.info(f"{root}/object")["generation"]
    url = f"{gcs.server.url}/upload/storage/v1/b/{root}/o?uploadType=media&name=object"

    def replace(content):
        request = urllib.request.Request(f"{url}&ifGenerationMatch={generation}", content)
        with urllib.request.urlopen(request) as answer:
            return answer.status

    assert replace(b"two") == 200
    with pytest.raises(urllib.error.HTTPError, match="412") as error:
        replace(b"three")
    error.value.close()
    assert get(gcs, "object")[1] == b"two"


def test_latency_is_added_to_each_request_but_not_to_their_sum(bucket):
    put(bucket, "object", b"x")
    bucket.server.faults(latency_s=1)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert [code for code, _ in pool.map(lambda _: get(bucket, "object"), range(4))] == [
            200
        ] * 4
    assert 1 <= time.monotonic() - start < 3


def test_throttled(bucket):
    put(bucket, "object", b"x")
    bucket.server.faults(throttled=0.5, seed=1)
    answers = [status_of(bucket, "object") for _ in range(20)]
    slow_down = 429 if bucket.url.startswith("gs") else 503
    assert set(answers) == {200, slow_down}
    bucket.server.faults(throttled=0.5, seed=1)
    assert [status_of(bucket, "object") for _ in range(20)] == answers
    assert bucket.server.requests("read", "object", "faults") == 2 * answers.count(slow_down)


def test_bursts_of_503(bucket):
    put(bucket, "object", b"x")
    bucket.server.faults(burst=(2, 5))
    assert [status_of(bucket, "object") for _ in range(7)] == [503] * 2 + [200] * 3 + [503] * 2


def test_a_read_is_cut_in_the_middle(bucket):
    content = bytes(range(256)) * 4
    put(bucket, "object", content)
    bucket.server.faults(cut=1, only="read .*object$", times=1)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)) as error:
        get(bucket, "object")
    assert error.value.partial == content[:512]
    assert get(bucket, "object") == (200, content)


def test_a_write_that_is_cut_is_not_done(bucket):
    bucket.server.faults(cut=1, times=1)
    with pytest.raises((http.client.HTTPException, ConnectionError, urllib.error.URLError)):
        put(bucket, "object", b"x")
    assert status_of(bucket, "object") == 404


def test_a_write_whose_answer_is_lost_is_done(bucket):
    bucket.server.faults(answer_lost=1, times=1)
    with pytest.raises((http.client.HTTPException, ConnectionError, urllib.error.URLError)):
        put(bucket, "object", b"x")
    assert get(bucket, "object") == (200, b"x")


def test_read_only(bucket):
    put(bucket, "object", b"x")
    bucket.server.faults(read_only=True)
    assert put(bucket, "object", b"y") == 403
    assert get(bucket, "object") == (200, b"x")
    bucket.server.faults()
    assert put(bucket, "object", b"y") == 200


def test_expired_credentials(bucket):
    put(bucket, "object", b"x")
    bucket.server.faults(expired=True)
    refused = 401 if bucket.url.startswith("gs") else 400
    assert status_of(bucket, "object") == put(bucket, "object", b"y") == refused


def test_only_the_chosen_objects_are_harmed(bucket):
    put(bucket, "one", b"x")
    put(bucket, "two", b"x")
    bucket.server.faults(burst=(1, 1), only="read .*/two")
    assert [status_of(bucket, name) for name in ("one", "two")] == [200, 503]


def test_requests_and_bytes_are_counted(bucket):
    put(bucket, "object", b"0123456789")
    get(bucket, "object")
    assert get(bucket, "object", Range="bytes=2-4") == (206, b"234")
    assert bucket.server.requests("write", "object") == 1
    assert bucket.server.requests("write", "object", "bytes_in") == 10
    assert bucket.server.requests("read", "object") == 2
    assert bucket.server.requests("read", "object", "bytes_out") == 13


def test_a_test_starts_without_faults(bucket):
    assert bucket.server.requests(what="faults") == 0
    assert status_of(bucket, "object") == 404
