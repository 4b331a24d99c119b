from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from vit_jax.data import batch_buffers
from vit_jax.data.arrays import ArraySpec
from vit_jax.data.batch_buffers import BatchBuffers

SHAPE = (2, 2, 3)
ARRAYS = {"image": ArraySpec(SHAPE, np.uint8), "tokens": ArraySpec((3,), np.int32)}


@pytest.fixture(autouse=True)
def keep_small_arrays(monkeypatch):
    monkeypatch.setattr(batch_buffers, "_MIN_BYTES", 1)


def fill(memory: BatchBuffers, step: int, rows: range, parts: int) -> np.ndarray:
    """Fills a step's images with the numbers of their rows, part by part, and returns them."""
    size = len(rows) // parts
    for start in range(rows.start, rows.stop, size):
        part = memory.part(step, range(start, start + size), ARRAYS)
        part["image"][:] = np.arange(start, start + size, dtype=np.uint8)[:, None, None, None]
        part["tokens"][:] = step
    batch = memory.whole(step)
    assert (batch["tokens"] == step).all()
    return batch["image"]


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_parts_of_a_step_form_its_batch_without_a_copy():
    rows = range(8, 16)  # The second of several hosts.
    batch = fill(BatchBuffers(rows), 5, rows, 4)
    assert batch.shape == (8, *SHAPE)
    np.testing.assert_array_equal(batch[:, 0, 0, 0], np.arange(8, 16))


def test_steps_filled_at_the_same_time_do_not_mix():
    memory, rows = BatchBuffers(range(4)), range(4)
    first, second = (memory.part(step, rows, ARRAYS)["image"] for step in (1, 2))
    first[:], second[:] = 1, 2
    assert (memory.whole(1)["image"] == 1).all()
    assert (memory.whole(2)["image"] == 2).all()


def test_small_arrays_are_left_to_the_loader(monkeypatch):
    monkeypatch.setattr(batch_buffers, "_MIN_BYTES", 8 * 12)
    assert BatchBuffers(range(8)).part(0, range(8), ARRAYS).keys() == {"image", "tokens"}
    assert BatchBuffers(range(7)).part(0, range(7), ARRAYS).keys() == set()


def test_memory_is_reused_only_when_nothing_refers_to_it_or_to_a_part():
    memory, rows = BatchBuffers(range(8)), range(8)
    batch = fill(memory, 0, rows, 2)
    first = address(batch)
    row = batch[3]
    del batch
    other = fill(memory, 1, rows, 2)  # One row of the first is still referred to.
    assert address(other) != first
    assert (row == 3).all()
    del row
    assert address(fill(memory, 2, rows, 2)) == first


def test_batches_of_several_shapes_do_not_share_memory():
    memory, rows = BatchBuffers(range(2)), range(2)
    places = []
    for step, side in enumerate((2, 4, 2, 4)):
        shape = ArraySpec((side, side, 3), np.uint8)
        memory.part(step, rows, {"image": shape})["image"][:] = step
        whole = memory.whole(step)["image"]
        assert whole.shape == (2, side, side, 3)
        places.append(address(whole))
        del whole
    assert places[:2] == places[2:]
    assert places[0] != places[1]


def test_batches_in_use_do_not_change_with_many_threads():
    memory, rows = BatchBuffers(range(16)), range(16)

    def work(step: int) -> np.ndarray | None:
        batch = fill(memory, step, rows, 4)
        assert batch[:, 0, 0, 0].tolist() == list(rows)
        return batch if step % 5 == 0 else None

    with ThreadPoolExecutor(4) as pool:
        held = [batch for batch in pool.map(work, range(200)) if batch is not None]
    assert len({address(batch) for batch in held}) == len(held) == 40
    for batch in held:
        assert batch[:, 0, 0, 0].tolist() == list(rows)
