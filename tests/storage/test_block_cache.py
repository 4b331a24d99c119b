"""Parts of objects, read ahead and cached on the disk."""

import concurrent.futures
import errno
import multiprocessing
import os
import random

import pytest

from vit_jax.storage import block_cache, block_files
from vit_jax.storage.block_cache import BLOCK_BYTES, BlockCache, Part
from vit_jax.storage.paths import user_path

SIZE = 5 * BLOCK_BYTES + 1000
GB = 10**9


@pytest.fixture(scope="module")
def content():
    return random.Random(0).randbytes(SIZE)


@pytest.fixture
def found(bucket, content):
    """The object in a listing."""
    return stored(bucket, "data/shard 0", content)


def stored(bucket, name, content):
    """Writes an object, and returns it as a listing has it; counts start anew."""
    path = user_path(f"{bucket.url}/{name}")
    path.write_bytes(content)
    bucket.server.clear()
    return listed(path)


def listed(path):
    (found,) = path.list_objects()
    return found


def parts_of(found, count=200):
    """Parts of all sizes at random places, across blocks and neighbours too."""
    rng = random.Random(1)
    starts = [rng.randrange(found.size) for _ in range(count)]
    sizes = [rng.choice([0, 1, 100, 30_000, BLOCK_BYTES, 2 * BLOCK_BYTES]) for _ in starts]
    pairs = zip(starts, sizes, strict=True)
    return [Part(found, a, min(a + size, found.size)) for a, size in pairs]


def size_of(folder):
    return sum(p.stat().st_size for p in folder.glob("??/*"))


def test_each_block_is_one_request_and_stays_for_other_caches(bucket, found, content, tmp_path):
    parts = parts_of(found)
    expected = [content[part.start : part.stop] for part in parts]
    assert BlockCache(tmp_path, GB).read(parts) == expected
    assert bucket.server.requests("read") == 6
    assert bucket.server.requests("read", what="bytes_out") == size_of(tmp_path) == SIZE
    assert BlockCache(tmp_path, GB).read(parts) == expected  # Another process, or a restart.
    assert bucket.server.requests("read") == 6


def test_reading_ahead_happens_at_the_same_time(gcs, content, tmp_path):
    cache, found = BlockCache(tmp_path, GB), stored(gcs, "object", content)
    cache.read_ahead([Part(found, 0, found.size)])
    cache.read_ahead([Part(found, 0, found.size)])
    assert cache.read([Part(found, 10, 20)]) == [content[10:20]]
    assert cache.read([Part(found, 0, SIZE)]) == [content]
    assert gcs.server.requests("read") == 6


@pytest.mark.parametrize("folder", [True, False])
def test_without_room_neighbours_are_one_request_and_only_they_are_read(
    folder, gcs, content, tmp_path
):
    cache = BlockCache(tmp_path, 0) if folder else BlockCache(None, GB)
    found = stored(gcs, "object", content)
    near = [Part(found, start, start + 900) for start in range(0, 90_000, 1000)]
    parts = [*near, Part(found, 3_000_000, 3_000_010)]
    assert cache.read(parts) == [content[part.start : part.stop] for part in parts]
    assert gcs.server.requests("read") == 2
    assert gcs.server.requests("read", what="bytes_out") == 89_900 + 10
    assert not list(tmp_path.iterdir())


def test_of_data_that_does_not_fit_a_fixed_share_is_kept(bucket, content, tmp_path, monkeypatch):
    # Hashes choose the blocks: of 324 blocks 74 +- 8 are kept, and there is room for 128.
    monkeypatch.setattr(block_cache, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(block_files, "_FILL", 0.6)
    monkeypatch.setattr(block_cache, "_MAX_GAP_BYTES", 0)  # Not across a block that is kept.
    for number in range(4):
        user_path(f"{bucket.url}/data/{number}").write_bytes(content)
    objects = user_path(f"{bucket.url}/data").list_objects()
    limit = 8 * BLOCK_BYTES
    parts = [Part(found, 0, SIZE) for found in objects]
    kept = set()
    for _ in range(3):
        cache = BlockCache(tmp_path, limit)
        cache.add_data("data", 4 * SIZE)
        assert 0.23 < cache.share < 0.25
        bucket.server.clear()
        assert cache.read(parts) == [content] * 4
        assert 0.3 * limit < size_of(tmp_path) < limit
        now = {path.name for path in tmp_path.glob("??/*")}
        assert not kept or now == kept
        kept = now
    # What is kept is not read again, and nothing else is read twice.
    assert bucket.server.requests("read", what="bytes_out") == 4 * SIZE - size_of(tmp_path)


def test_a_new_version_of_an_object_is_read_anew(found, content, tmp_path):
    cache = BlockCache(tmp_path, GB)
    cache.read([Part(found, 0, SIZE)])
    found.path.write_bytes(content[::-1])
    new = listed(found.path)
    assert new.key != found.key
    assert cache.read([Part(new, 0, SIZE)]) == [content[::-1]]


def test_the_oldest_blocks_go_when_the_limit_is_reached(gcs, content, tmp_path):
    runs = []
    for number in range(3):  # Runs on three datasets, each of which fits.
        found = stored(gcs, f"data/{number}", content)
        cache = BlockCache(tmp_path, 8 * BLOCK_BYTES)
        cache.add_data(str(number), SIZE)
        assert cache.share == 1
        assert cache.read([Part(found, 0, SIZE)]) == [content]
        runs.append((cache, found))
        # Blocks that are written at once are counted before any of them is there.
        assert size_of(tmp_path) < 10 * BLOCK_BYTES
    # The first cache believes that its blocks are still there.
    cache, found = runs[0]
    assert cache.read([Part(found, 0, SIZE)]) == [content]


def test_a_truncated_block_is_read_again(found, content, tmp_path):
    BlockCache(tmp_path, GB).read([Part(found, 0, SIZE)])
    for path in tmp_path.glob("??/*"):
        os.truncate(path, 500)
    for _ in range(2):
        cache = BlockCache(tmp_path, GB)
        assert cache.read([Part(found, 0, SIZE)]) == [content]


def test_what_killed_processes_left_is_deleted(found, tmp_path):
    cache = BlockCache(tmp_path, GB)
    (tmp_path / "ab").mkdir()
    old, new = tmp_path / "ab" / ".old.1", tmp_path / "ab" / ".new.1"
    for path in (old, new):
        path.write_text("unfinished")
    os.utime(old, (0, 0))
    cache.read([Part(found, 0, SIZE)])
    assert (old.exists(), new.exists()) == (False, True)


def test_a_full_disk_does_not_stop_reading(found, content, tmp_path, monkeypatch, caplog):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = BlockCache(tmp_path, GB)
    with monkeypatch.context() as patch:
        patch.setattr(block_files.os, "fsync", full)
        for _ in range(2):
            assert cache.read([Part(found, 0, SIZE)]) == [content]
    assert caplog.text.count("cannot cache data") == 1
    assert "No space left" in caplog.text
    # Nor does a disk of which the last twentieth is left.
    monkeypatch.setattr(block_files, "_MIN_FREE_FRACTION", 1.1)
    assert BlockCache(tmp_path, GB).read([Part(found, 0, SIZE)]) == [content]
    assert "of the disk is free" in caplog.text
    assert not list(tmp_path.glob("??/*"))


def read_all(folder, path):
    cache, found = BlockCache(folder, GB), listed(user_path(path))
    return cache.read([Part(found, 0, found.size)])[0]


@pytest.mark.slow
def test_of_several_processes_one_fetches_a_block(gcs, content, tmp_path):
    path = stored(gcs, "object", content).path
    gcs.server.faults(latency_s=0.3)
    spawn = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=spawn) as pool:
        assert list(pool.map(read_all, [tmp_path] * 2, [str(path)] * 2)) == [content] * 2
    assert gcs.server.requests("read") == 6


def test_lists_are_remembered(tmp_path):
    calls = []
    for limit in (GB, GB, 0):
        cache = BlockCache(tmp_path, limit)
        assert cache.remembered("tar-1", lambda: calls.append(1) or [["a", 1]]) == [["a", 1]]
    assert len(calls) == 2


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "faults", [{"throttled": 1, "times": 3}, {"burst": (2, 4), "times": 4}, {"cut": 1, "times": 3}]
)
def test_what_is_throttled_or_cut_is_asked_for_again(faults, bucket, found, content, tmp_path):
    bucket.server.faults(**faults)
    assert BlockCache(tmp_path, GB).read([Part(found, 0, SIZE)]) == [content]
    assert bucket.server.requests("read", what="faults") >= 3


@pytest.mark.usefixtures("impatient")
def test_a_read_that_always_fails_names_the_object(bucket, found, tmp_path, monkeypatch):
    monkeypatch.setattr("vit_jax.storage.bucket_path.time.sleep", lambda seconds: None)
    cache = BlockCache(tmp_path, GB)
    bucket.server.faults(burst=(1, 1))
    with pytest.raises(OSError, match="shard 0") as error:
        cache.read([Part(found, 0, 10)])
    assert error.value.filename == str(found.path)
    bucket.server.faults()
    assert len(cache.read([Part(found, 0, 10)])[0]) == 10  # The failure is not remembered.
