"""`vit_jax.storage` on buckets that are slow, throttled, cut off, read-only or refuse us."""

import concurrent.futures
import threading
import time

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
    for call in (path.read_bytes, lambda: path.write_bytes(b"x" * 100)):
        with pytest.raises(OSError, match=r"config\.json") as error:
            call()
        check_one_line(error.value, path)
    with pytest.raises(FileError) as error:
        read_json(path)
    assert str(error.value).startswith(f"cannot read {path}: ")
    assert "\n" not in str(error.value)


def check_one_line(error, path):
    assert error.filename == str(path)
    assert error.strerror
    assert "\n" not in str(error)
    assert len(error.strerror) <= 200


@pytest.mark.usefixtures("impatient")
def test_a_bucket_that_becomes_read_only(folder, bucket):
    path = folder / "config.json"
    write_json(path, {"a": 1})
    bucket.server.faults(read_only=True)
    assert read_json(path) == {"a": 1}
    for call in (lambda: write_json(path, {}), lambda: path.create(b""), path.unlink):
        with pytest.raises(PermissionError) as error:
            call()
        check_one_line(error.value, path)
    bucket.server.faults()
    assert read_json(path) == {"a": 1}


@pytest.mark.usefixtures("impatient")
def test_expired_credentials(folder, bucket):
    path = folder / "config.json"
    write_json(path, {"a": 1})
    bucket.server.faults(expired=True)
    for call in (path.read_bytes, path.exists, lambda: path.write_bytes(b"x")):
        with pytest.raises(PermissionError, match="access was refused") as error:
            call()
        check_one_line(error.value, path)


def test_missing_credentials(s3, monkeypatch):
    import s3fs

    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3fs.S3FileSystem.clear_instance_cache()
    path = user_path(f"{s3.url}/run/config.json")
    try:
        with pytest.raises(PermissionError, match="redentials") as error:
            path.read_bytes()
        check_one_line(error.value, path)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()


def test_an_object_that_was_deleted_is_named(folder):
    path = folder / "config.json"
    write_json(path, {"a": 1})
    path.unlink()
    with pytest.raises(FileNotFoundError) as error:
        path.read_bytes()
    check_one_line(error.value, path)
    with pytest.raises(FileError, match=f"no file {path}; expected a JSON object"):
        read_json(path)


def test_a_bucket_that_does_not_exist_is_named(bucket):
    path = user_path(f"{bucket.url}-missing/run/config.json")
    with pytest.raises(FileNotFoundError) as error:
        path.write_bytes(b"x")
    check_one_line(error.value, path)


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


@pytest.mark.usefixtures("fast_leases", "impatient")
def test_a_lease_whose_answer_was_lost_is_ours(folder, bucket, monkeypatch):
    monkeypatch.setattr(lock, "STALE_S", 60.0)
    bucket.server.faults(answer_lost=1, only="write .*lock-000001", times=1)
    start = time.monotonic()
    with locked(folder / ".lock"):
        assert is_locked(folder / ".lock")
    assert time.monotonic() - start < 30


@pytest.mark.slow
@pytest.mark.usefixtures("fast_leases", "impatient")
def test_a_lease_that_was_not_renewed_is_taken_over_and_its_owner_is_told(folder, bucket):
    reasons, told = [], threading.Event()

    def on_lost(reason):
        reasons.append(reason)
        told.set()

    with locked(folder / ".lock", on_lost=on_lost):
        bucket.server.faults(burst=(1, 1), only="write .*lock-000001")
        with locked(folder / ".lock", timeout_s=None):
            bucket.server.faults()
            assert told.wait(10)
    assert len(reasons) == 1
    assert str(folder / ".lock") in reasons[0]
    assert [path.name for path in folder.iterdir()] == [".lock-000002"]


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
