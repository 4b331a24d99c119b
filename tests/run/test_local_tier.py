"""Copies of the training state on the local disk."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from vit_jax.run.local_tier import LocalTier, run_id
from vit_jax.train.state import TrainState

pytestmark = pytest.mark.slow

ABOUT = {"data": {"seed": 3}, "config": {"a": 1}}


def state(factor):
    return TrainState(
        step=jnp.int32(7),
        params={"kernel": jnp.arange(6.0).reshape(2, 3) * factor, "bias": jnp.ones(3)},
        opt_state=[jnp.full((2, 2), factor, jnp.bfloat16), jnp.int32(5)],
        ema=None,
    )


def abstract(tree=None):
    sharding = SingleDeviceSharding(jax.devices()[0])
    found = {"params": state(1.0).params, "optimizer": state(1.0).opt_state}
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree or found
    )


@pytest.fixture
def tier(tmp_path):
    made = LocalTier(tmp_path / "disk", "run", abstract())
    yield made
    made.close()


def files(tmp_path):
    return sorted(p.name for p in (tmp_path / "disk").rglob("*") if p.is_file())


def test_a_copy_is_restored_bit_for_bit(tier):
    assert tier.newest() is None
    tier.save(20, state(1 / 3), **ABOUT)
    assert tier.newest() == 20
    found = tier.restore(20)
    assert (found.step, found.data, found.config) == (20, {"seed": 3}, {"a": 1})
    saved = {"params": state(1 / 3).params, "optimizer": state(1 / 3).opt_state}
    assert jax.tree.structure(found.arrays) == jax.tree.structure(saved)
    for ours, theirs in zip(jax.tree.leaves(found.arrays), jax.tree.leaves(saved), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_the_two_newest_copies_are_kept_and_a_finished_run_keeps_none(tier, tmp_path):
    for step in (8, 9, 10):
        tier.save(step, state(float(step)), **ABOUT)
    tier.wait()
    assert [name.partition("-")[0] for name in files(tmp_path)] == ["10", "9"]
    assert tier.newest() == 10
    tier.remove()
    assert not list((tmp_path / "disk").iterdir())


def test_a_copy_is_independent_of_the_arrays_that_the_next_step_overwrites(tier):
    made = state(2.0)
    tier.save(1, made, **ABOUT)
    jax.block_until_ready(
        jax.jit(lambda p: jax.tree.map(jnp.zeros_like, p), donate_argnums=0)(made.params)
    )
    np.testing.assert_array_equal(tier.restore(1).arrays["params"]["bias"], np.ones(3))


def test_a_copy_that_was_not_written_to_the_end_does_not_count(tier, tmp_path):
    tier.save(1, state(1.0), **ABOUT)
    tier.wait()
    (tmp_path / "disk/run/process-0-of-1/.tmp").write_bytes(b"half")
    assert tier.newest() == 1
    LocalTier(tmp_path / "disk", "run", abstract()).close()
    assert ".tmp" not in files(tmp_path)


def test_a_full_disk_is_not_kept_full_by_half_a_copy(tier, tmp_path, monkeypatch, caplog):
    def fill(file, **arrays):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fill)
    tier.save(1, state(1.0), **ABOUT)
    tier.wait()
    assert "No space left on device" in caplog.text
    assert files(tmp_path) == []


def test_copies_for_other_meshes_and_processes_go_when_there_are_new_ones(tier, tmp_path):
    wider = LocalTier(tmp_path / "disk", "run", abstract({"params": {"bias": jnp.ones(3)}}))
    wider.save(1, state(1.0), **ABOUT)
    wider.close()
    (tmp_path / "disk/run/process-0-of-2").mkdir()
    (tmp_path / "disk/run/process-0-of-2/1-abc.npz").write_bytes(b"")
    assert len(files(tmp_path)) == 2
    tier.save(2, state(2.0), **ABOUT)
    tier.wait()
    assert [name.partition("-")[0] for name in files(tmp_path)] == ["2"]


def test_a_damaged_copy_is_warned_about_and_not_taken(tier, tmp_path, caplog):
    tier.save(1, state(1.0), **ABOUT)
    tier.wait()
    (copy,) = (tmp_path / "disk").rglob("*.npz")
    content = copy.read_bytes()
    at = content.index(np.ones(3, np.float32).tobytes())
    copy.write_bytes(content[:at] + b"x" + content[at + 1 :])
    assert tier.restore(1) is None
    assert "the copy of step 1" in caplog.text


def test_copies_of_another_run_or_of_other_shapes_do_not_count(tier, tmp_path):
    tier.save(1, state(1.0), **ABOUT)
    tier.wait()
    other = LocalTier(tmp_path / "disk", "other", abstract())
    wider = LocalTier(tmp_path / "disk", "run", abstract({"params": {"kernel": jnp.ones((2, 4))}}))
    assert other.newest() is None
    assert wider.newest() is None
    for made in (other, wider):
        made.close()


def test_a_disk_that_cannot_be_written_is_warned_about_and_the_run_goes_on(tmp_path, caplog):
    (tmp_path / "disk").write_text("a file")
    tier = LocalTier(tmp_path / "disk", "run", abstract())
    tier.save(1, state(1.0), **ABOUT)
    tier.close()
    assert "no copy of the state" in caplog.text
    assert tier.newest() is None


def test_the_id_of_a_run_stays_and_a_new_run_has_another(tmp_path):
    first = run_id(tmp_path)
    assert run_id(tmp_path) == first
    (tmp_path / "run_id.json").unlink()
    assert run_id(tmp_path) != first
