"""`vit_jax.storage` on buckets that are slow, throttled, cut off, read-only or refuse us."""

import concurrent.futures
import threading

import pytest

from vit_jax.errors import FileError, LockedError
from vit_jax.storage import lock
from vit_jax.storage.files import read_json, remove_tree, write_json
from vit_jax.storage.lock import is_locked, locked
from vit_jax.storage.log_file import LogFile, read_log
from vit_jax.storage.paths import is_bucket, user_path

TRANSIENT = {
    "throttled": {"throttled": 1, "times": 2},
    "burst of 503": {"burst": (3, 3), "times": 3},
    "cut": {"cut": 1, "times": 2},
    "answer lost": {"answer_lost": 1, "times": 2},
    "slow": {"latency_s": 0.1},
}


@pytest.fixture(params=["gcs", "s3"])
def bucket(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def folder(bucket):
    return user_path(f"{bucket.url}/run")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("harm", TRANSIENT)
def test_what_passes_is_not_noticed(harm, folder, bucket):
    path = folder / "a b.json"
    faults = TRANSIENT[harm]

    def with_harm(call, *args):
        bucket.server.faults(**faults)
        return call(*args)

    with_harm(write_json, path, {"step": 1})
    assert with_harm(read_json, path) == {"step": 1}
    assert with_harm(path.read_range, 0, 3) == b"{\n "
    assert with_harm(path.exists)
    assert with_harm(lambda: list(folder.iterdir())) == [path]
    with_harm(write_json, path, {"step": 2})
    bucket.server.faults()
    assert read_json(path) == {"step": 2}
    with_harm(remove_tree, folder)
    bucket.server.faults()
    assert not folder.exists()
    if harm != "slow":
        assert bucket.server.requests(what="faults") > 0


@pytest.mark.usefixtures("impatient")
def test_everything_arrives_when_a_tenth_of_all_requests_fails(folder, bucket):
    bucket.server.faults(seed=3, throttled=0.03, cut=0.03, answer_lost=0.03, burst=(1, 20))
    contents = {f"shard-{n}": bytes([n]) * 10_000 for n in range(40)}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: (folder / name).write_bytes(contents[name]), contents))
        read = dict(pool.map(lambda name: (name, (folder / name).read_bytes()), contents))
    assert read == contents
    assert [path.name for path, _ in folder.find()] == sorted(contents)
    assert bucket.server.requests(what="faults") >= 4


@pytest.mark.usefixtures("impatient")
def test_a_large_file_arrives_though_parts_and_answers_are_lost(folder, bucket):
    bucket.server.faults(seed=2, cut=0.2, answer_lost=0.3, only="write", times=4)
    content = bytes(range(256)) * 4096 * 12
    with (folder / "large").open("wb") as file:
        file.write(content)
    assert (folder / "large").read_bytes() == content
    assert bucket.server.requests("write", "large", "faults") > 0


FOREVER = {"throttled": {"throttled": 1}, "unavailable": {"burst": (1, 1)}, "cut": {"cut": 1}}


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("harm", FOREVER)
def test_a_store_that_stays_away_is_one_line_with_the_object(harm, folder, bucket):
    path = folder / "config.json"
    write_json(path, {})
    bucket.server.faults(**FOREVER[harm])
    check_one_line(OSError, path, path.read_bytes, lambda: path.write_bytes(b"x" * 100))
    with pytest.raises(FileError) as error:
        read_json(path)
    assert str(error.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(error.value)


def check_one_line(kind, path, *calls):
    """Checks that each call fails with a short line that names the object."""
    for call in calls:
        with pytest.raises(kind) as caught:
            call()
        error = caught.value
        assert error.filename == str(path)
        assert 0 < len(error.strerror) <= 200
        assert "\n" not in str(error)
        if kind is PermissionError:
            assert "access was refused" in str(error) or "redentials" in str(error)


@pytest.mark.usefixtures("impatient")
def test_a_bucket_that_becomes_read_only(folder, bucket):
    path = folder / "config.json"
    write_json(path, {"a": 1})
    bucket.server.faults(read_only=True)
    assert read_json(path) == {"a": 1}
    writes = (lambda: write_json(path, {}), lambda: path.create(b""), path.unlink)
    check_one_line(PermissionError, path, *writes)
    with pytest.raises(PermissionError):
        remove_tree(folder)
    bucket.server.faults()
    assert read_json(path) == {"a": 1}


@pytest.mark.usefixtures("impatient")
def test_expired_credentials(folder, bucket):
    path = folder / "config.json"
    write_json(path, {"a": 1})
    bucket.server.faults(expired=True)
    calls = (path.read_bytes, path.exists, lambda: path.write_bytes(b"x"))
    check_one_line(PermissionError, path, *calls)


def test_missing_credentials(s3, monkeypatch):
    import s3fs

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    path = user_path(f"{s3.url}/run/config.json")
    try:
        check_one_line(PermissionError, path, path.read_bytes)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.usefixtures("impatient")
def test_no_line_of_a_log_is_lost(folder, bucket):
    log = LogFile(folder / "metrics.jsonl")
    bucket.server.faults(seed=5, throttled=0.1, cut=0.1, answer_lost=0.1)
    for step in range(30):
        log.write({"step": step})
        if step % 3 == 0:
            log.flush()
    log.close()
    assert read_log(folder / "metrics.jsonl") == [{"step": step} for step in range(30)]
    assert bucket.server.requests("write", what="faults") > 0


@pytest.mark.usefixtures("impatient")
def test_a_log_in_a_read_only_bucket_says_so_and_is_complete_afterwards(folder, bucket):
    log = LogFile(folder / "metrics.jsonl")
    log.write({"step": 1})
    bucket.server.faults(read_only=True)
    with pytest.raises(PermissionError, match=r"metrics-000001\.jsonl"):
        log.flush()
    bucket.server.faults()
    log.close()
    assert read_log(folder / "metrics.jsonl") == [{"step": 1}]


@pytest.fixture
def fast_leases(monkeypatch):
    """Leases are renewed ten times a second and are stale after a second."""
    monkeypatch.setattr(lock, "RENEWAL_INTERVAL_S", 0.1)
    monkeypatch.setattr(lock, "STALE_S", 2.0)
    monkeypatch.setattr(lock, "_RENEWAL_TIMEOUT_S", 1.0)


def race(locks):
    """Takes locks at the same time; returns how many were got and how many were refused.

    A lock that was got is held until the others are refused.
    """
    barrier, ended = threading.Barrier(len(locks)), threading.Semaphore(0)

    def take(path):
        barrier.wait()
        try:
            with locked(path):
                for _ in locks[1:]:
                    ended.acquire(timeout=60)
                return "got"
        except LockedError:
            return "refused"
        finally:
            ended.release()

    with concurrent.futures.ThreadPoolExecutor(len(locks)) as pool:
        outcomes = list(pool.map(take, locks))
    return outcomes.count("got"), outcomes.count("refused")


def test_of_racing_threads_one_gets_the_lease(folder):
    assert race([folder / ".lock"] * 6) == (1, 5)
    assert not is_locked(folder / ".lock")


def test_leases_and_logs_on_a_mounted_bucket(mount_bucket, fast_leases):
    here, there = mount_bucket(), mount_bucket()
    assert is_bucket(here / "run")
    log = LogFile(here / "run" / "metrics.jsonl")
    log.write({"step": 1})
    log.flush()
    assert read_log(there / "run" / "metrics.jsonl") == [{"step": 1}]
    log.close()
    write_json(here / "run" / "config.json", {"a": 1})
    assert read_json(there / "run" / "config.json") == {"a": 1}
    with locked(here / "run" / ".lock"):
        assert is_locked(there / "run" / ".lock")
        with pytest.raises(LockedError, match="locked by process"), locked(there / "run" / ".lock"):
            pass
    with locked(there / "run" / ".lock"):
        assert is_locked(here / "run" / ".lock")


def test_of_hosts_that_race_on_a_mounted_bucket_one_gets_the_lease(mount_bucket):
    assert race([mount_bucket() / "run" / ".lock" for _ in range(3)]) == (1, 2)
