"""Self-distillation: targets, losses, crops, the teacher, resume, and fine-tuning from it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_reference import softmax
from task_runs import assert_resumes, program_of, run_mapping
from tasks.pretraining import fine_tune

from vit_jax.config.run import Config
from vit_jax.data.decode import StoredImage
from vit_jax.data.sources.base import Example
from vit_jax.interop.load import load
from vit_jax.interop.native import open_native
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import to_devices
from vit_jax.tasks.dino.crops import crop_preprocessing, draw_blocks, draw_masked
from vit_jax.tasks.dino.losses import (
    entropy,
    patch_losses,
    sinkhorn_targets,
)
from vit_jax.tasks.dino.model import cubic_matrix, resample_positions
from vit_jax.tasks.dino.task import masked_places, teacher_temperature
from vit_jax.tasks.task import DataInfo

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
MODEL = {"name": "ViT-Ti/4", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
SECTION = {
    "local_crops": 1, "local_size": 8, "prototypes": 16, "head_width": 16, "bottleneck": 8,
    "momentum": 0.9, "distort": False,
    "teacher_temperature": 0.08, "temperature_warmup_steps": 4,
}  # fmt: skip
LAST_LAYER = "projector/prototypes/kernel"


def mapping(section=None, **changes):
    content = run_mapping(
        6,
        task={"name": "dino"} | SECTION | (section or {}),
        model=MODEL,
        optimizer={
            "learning_rate": 1e-2, "weight_decay": 0.04, "end_weight_decay": 0.4,
            "freeze": (LAST_LAYER,), "freeze_steps": 2,
        },
    )  # fmt: skip
    content["data"]["augment"] = {"flip": True}
    return content | changes


@pytest.fixture(scope="module")
def config(digits_dir):
    found = Config.from_mapping(mapping())
    return found.replace(data=found.data.replace(data_dir=str(digits_dir)))


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_sinkhorn_is_that_of_its_authors():
    """SwAV's listing 1, without logarithms, in float64."""
    logits = normal(8, 5)
    q = np.exp(logits.astype(np.float64) / 0.3).T
    q /= q.sum()
    for _ in range(3):
        q /= q.sum(axis=1, keepdims=True) * 5
        q /= q.sum(axis=0, keepdims=True) * 8
    want = (q * 8).T
    found = np.asarray(sinkhorn_targets(jnp.asarray(logits), jnp.float32(0.3)))
    np.testing.assert_allclose(found, want, rtol=1e-5)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-6)
    np.testing.assert_allclose(found.mean(0), 1 / 5, atol=0.05)
    # Rows that do not count change nothing, and temperatures near 0 do not overflow.
    more = np.concatenate([logits, 100 * normal(3, 5, seed=2)])
    counted = jnp.array([True] * 8 + [False] * 3)
    padded = sinkhorn_targets(jnp.asarray(more), jnp.float32(0.3), counted)
    np.testing.assert_allclose(padded[:8], want, rtol=1e-4)
    assert np.isfinite(sinkhorn_targets(jnp.asarray(100 * logits), jnp.float32(0.01))).all()
    none = sinkhorn_targets(jnp.asarray(logits), jnp.float32(0.3), jnp.zeros(8, bool))
    assert np.isfinite(none).all()


def test_patch_losses_are_means_over_masked_patches():
    targets, logits = softmax(normal(2, 3, 4)), normal(2, 3, 4, seed=1)
    masked = jnp.array([[True, False, True], [False, False, False]])
    each = -(targets * np.log(softmax(logits / 0.5))).sum(-1)
    found = patch_losses(jnp.asarray(targets), jnp.asarray(logits), masked, 0.5)
    np.testing.assert_allclose(found, [(each[0, 0] + each[0, 2]) / 2, 0], rtol=1e-5)


def test_entropy_is_between_0_and_log_k():
    assert float(entropy(jnp.eye(3))) == pytest.approx(0, abs=1e-6)
    assert float(entropy(jnp.full((2, 8), 1 / 8))) == pytest.approx(np.log(8), rel=1e-6)


def test_a_warmup_in_steps_raises_the_temperature_linearly(config):
    temperature = teacher_temperature(config, DataInfo(10))
    assert [round(float(temperature(s)), 3) for s in (0, 2, 4, 9)] == [0.04, 0.06, 0.08, 0.08]


def test_a_warmup_in_epochs_changes_the_temperature_once_an_epoch(config):
    """Epochs of 3 whole batches; np.linspace(0.04, 0.07, 4), then 0.07."""
    warmup = {"temperature_warmup_steps": None, "temperature_warmup_epochs": 4.0}
    section = config.task.replace(**warmup, teacher_temperature=0.07)
    temperature = teacher_temperature(config.replace(task=section), DataInfo(10, num_examples=50))
    found = [round(float(temperature(step)), 4) for step in range(0, 15)]
    assert found == [0.04] * 3 + [0.05] * 3 + [0.06] * 3 + [0.07] * 6
    constant = config.replace(task=section.replace(temperature_warmup_epochs=None))
    assert float(teacher_temperature(constant, DataInfo(10))(0)) == pytest.approx(0.07)


def test_crops_lie_inside_the_image_and_have_the_areas(config, monkeypatch):
    boxes = []
    part = StoredImage.part

    def noted(self, box, shrink=1):
        boxes.append(box)
        return part(self, box, shrink)

    monkeypatch.setattr(StoredImage, "part", noted)
    section = config.task.replace(local_crops=6, ibot_weight=1.0)
    made = crop_preprocessing(config.replace(task=section), (4, 4))
    pixels = np.broadcast_to(np.array([7, 130, 250], np.uint8), (50, 70, 3))
    example = Example(pixels, 0, "a")
    rows = [made.make_row(example, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    for name, array in made.arrays.items():
        assert rows[0][name].shape == array.shape
        assert (rows[0][name] == rows[1][name]).all()  # By the generator alone.
        if name != "masked":
            assert (rows[0][name] == [7, 130, 250]).all(), name  # No pixel from elsewhere.
    assert all(0 <= x < r <= 70 and 0 <= y < b <= 50 for x, y, r, b in boxes)
    areas = np.array([(r - x) * (b - y) / 3500 for x, y, r, b in boxes]).reshape(3, 8)
    assert (areas[:, :2] > 0.38).all()
    assert ((areas[:, 2:] > 0.03) & (areas[:, 2:] < 0.42)).all()
    assert len(np.unique(areas[1:])) > 12


def test_blocks_mask_exactly_as_many_patches():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        count = int(rng.integers(1, 60))
        assert draw_blocks((6, 10), count, rng).sum() == count
    counts = [draw_masked((8, 8), np.random.default_rng(s)).sum() for s in range(60)]
    assert set(counts) - {0} <= set(range(6, 33))
    assert 15 <= counts.count(0) <= 45


def test_masked_patches_come_first():
    masked = np.zeros((2, 2, 16), bool)
    masked[0, 1, [3, 9]] = True
    places, counted = masked_places({"masked": jnp.asarray(masked)})
    assert places.shape == (4, 8)
    assert places[1, :2].tolist() == [3, 9]
    assert counted.sum(1).tolist() == [0, 2, 0, 0]


def test_positions_are_resampled_as_pytorch_does_for_the_authors():
    """4 to 2 positions: the first centre is 0.5 * 4 / 2.1 - 0.5 = 0.45238, the second 2.35714."""
    first, second = 0.45238095, 2.35714286

    def near(d):
        return 1.25 * d**3 - 2.25 * d**2 + 1

    def far(d):
        return -0.75 * d**3 + 3.75 * d**2 - 6 * d + 3

    want = [
        # Place -1 is outside, so that the first value counts for it.
        [far(1 + first) + near(first), near(1 - first), far(2 - first), 0],
        # Place 4 is outside.
        [0, far(second - 1), near(second - 2), near(3 - second) + far(4 - second)],
    ]
    np.testing.assert_allclose(cubic_matrix(4, 2), want, rtol=1e-5)
    assert cubic_matrix(14, 6).shape == (6, 14)
    np.testing.assert_allclose(cubic_matrix(14, 6).sum(1), 1, rtol=1e-6)
    # Not antialiased: each value comes from at most four.
    assert (np.count_nonzero(cubic_matrix(14, 6), axis=1) <= 4).all()
    table = normal(1, 1 + 12, 3)
    params = {"position_embedding": {"table": jnp.asarray(table)}, "head": jnp.ones(2)}
    resampled = resample_positions(params, (3, 4), (2, 2))
    found = resampled["position_embedding"]["table"]
    grid = table[0, 1:].reshape(3, 4, 3)
    want = np.einsum("rh,cw,hwd->rcd", cubic_matrix(3, 2), cubic_matrix(4, 2), grid)
    np.testing.assert_allclose(found[0, 1:], want.reshape(4, 3), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found[0, 0], table[0, 0])  # The class token's.
    assert resampled["head"] is params["head"]
    assert resample_positions(params, (3, 4), (3, 4)) is params


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(config, finished, tmp_path, monkeypatch):
    """With the teacher and its centre, which are part of the checkpoint."""
    folder, want = finished
    assert_resumes(config, folder, want, tmp_path, monkeypatch)
    for item in ("params", "ema", "extra"):
        assert (folder / "checkpoints" / "6" / item).is_dir()
    assert 0 < want["eval/test/feature_std"] < 1


@pytest.mark.slow
def test_the_teacher_is_what_other_runs_start_from(config, finished, tmp_path):
    folder, _ = finished
    file, _ = open_native(folder)
    loaded = load(folder)
    assert loaded.num_classes == 0
    assert not hasattr(loaded.model, "projector")
    teacher = np.asarray(file.read("class_token"))
    np.testing.assert_array_equal(loaded.model.class_token[...], teacher)
    _, report = fine_tune(mapping(), config, folder, tmp_path)
    assert {name.split("/")[0] for name in report["left_out"]} == {"projector"}
    assert report["missing"] == report["unexpected"] == []


@pytest.mark.slow
@pytest.mark.parametrize("centring", ["mean", "sinkhorn"])
def test_ibot_trains_the_mask_token(config, centring):
    changes = {"ibot_weight": 1.0, "centring": centring, "distort": True}
    found = Config.from_mapping(mapping(changes))
    program = program_of(found)
    assert program.task.splits_exactly == (centring == "mean")
    state = program.init()
    first = jax.device_get(state.params)
    batch = program.example_batch()
    batch["masked"][:, :, :6] = True
    for _ in range(2):
        state, metrics = program.compiled(state, to_devices(batch, program.mesh))
    assert float(metrics["train/patch_loss"]) > 0
    assert np.isfinite(float(metrics["train/gradient_norm"]))
    last = named_leaves(jax.device_get(state.params))
    for name in ("mask_token", "patch_projector/first/kernel"):
        assert (last[name] != named_leaves(first)[name]).any(), name
    assert (state.extra is None) == (centring == "sinkhorn")
