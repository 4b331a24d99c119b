"""Runs on sequences of patches: batches by hand, draws of the length, resume, bad options."""

import io

import jax
import numpy as np
import pytest
from PIL import Image
from task_runs import assert_resumes, program_of, run_mapping

from vit_jax.config.run import Config
from vit_jax.data.sources.base import Example
from vit_jax.errors import ConfigError
from vit_jax.train.feed import program_of_batch
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals

TINY = {"name": "ViT-Ti/2", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
STEPS = 8


def config(digits_dir=None, *, model=None, flexible=None, data=None, **changes):
    content = run_mapping(
        STEPS,
        size=8,
        model={**TINY, "pooling": "map", "position_grid": 3, **(model or {})},
        flexible={"sequence_lengths": [4, 16], **(flexible or {})},
        evaluation={"splits": {"test": "test"}, "batch_size": 128},
    )
    content["data"] |= {"sequence_length": 16, "data_dir": digits_dir and str(digits_dir)}
    content["data"] |= {"augment": {"crop": {"name": "resize"}}, **(data or {})}
    return Config.from_mapping(content | changes)


def test_a_wide_image_becomes_patches_that_keep_its_shape():
    """4 x 8 pixels of one gray per column, with at most 16 patches of 2 x 2: a grid of 3 x 5."""
    pixels = np.repeat(np.arange(8, dtype=np.uint8)[None, :, None] * 30, 4, axis=0).repeat(3, 2)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    program = program_of(config())
    preprocessing = program.task.eval_preprocessing
    row = preprocessing.make_row(Example(file.getvalue(), 3, "one"), np.random.default_rng(0))
    rows, columns = row["grid"]
    assert (rows, columns) == (3, 5)
    assert row["label"] == 3
    patches = np.asarray(row["patches"])
    assert patches.shape == (16, 12)
    assert (patches[15:] == 0).all()
    np.testing.assert_array_equal(patches[:5], patches[10:15])  # Rows of the image are equal.
    assert (np.diff(patches[:5].mean(1)) > 0).all()
    short = program.variants["n4"].task.train_preprocessing
    again = short.make_row(Example(file.getvalue(), 3, "one"), np.random.default_rng(0))
    assert tuple(np.asarray(again["grid"])) == (1, 2)
    assert np.shape(again["patches"]) == (4, 12)
    assert not np.asarray(again["patches"])[2:].any()


@pytest.fixture(scope="module")
def finished(digits_dir, tmp_path_factory):
    folder = tmp_path_factory.mktemp("naflex") / "run"
    made = config(digits_dir)
    return folder, made, train(made, folder, StopSignals())


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch):
    folder, made, want = finished
    program = program_of(made)
    drawn = [program_of_batch(program, batch).config.data for batch in range(4, STEPS)]
    assert {data.sequence_length for data in drawn} == {4, 16}  # After the stop.
    assert_resumes(made, folder, want, tmp_path, monkeypatch, step=4)
    assert want["eval/test@n4/examples"] == want["eval/test/examples"] == 360
    assert want["eval/test@n16/loss"] == want["eval/test/loss"] != want["eval/test@n4/loss"]


def test_the_shapes_of_a_batch_are_those_of_its_length():
    program = program_of(config())
    shapes = {name: p.batch_shapes()["patches"].shape for name, p in program.variants.items()}
    assert shapes == {"n4": (16, 4, 12), "n16": (16, 16, 12)}
    costs = [p.task.flops_per_image for p in program.variants.values()]
    assert 3 < costs[1] / costs[0] < 4.5
    state, _ = jax.eval_shape(program.step_fn, program.abstract, program.batch_shapes())
    assert jax.tree.structure(state) == jax.tree.structure(program.abstract)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"flexible": {"sequence_lengths": [2]}},
            r"'flexible.sequence_lengths' is \[2\]",
        ),
        (
            {"flexible": {"sequence_lengths": [4, 64]}},
            r"'flexible.sequence_lengths' has 64",
        ),
        ({"data": {"sequence_length": 2}}, r"'data.sequence_length' is 2"),
        ({"flexible": {"patch_sizes": [2]}}, r"'flexible.patch_sizes' is given and so is"),
        ({"model": {"position_embedding": "rope_2d"}}, r"'model.position_embedding' is 'rope_2d'"),
        ({"model": {"position_grid": None}}, r"'model.position_grid' is not set"),
        ({"model": {"pooling": "flatten"}}, r"'model.pooling' is 'flatten'"),
        ({"data": {"eval_crop": "central"}}, r"'data.eval_crop' is 'central'"),
        (
            {"task": {"name": "masked_patches"}, "model": {"pooling": "gap"}},
            r"'task.name' is 'masked_patches'",
        ),
    ],
)
def test_impossible_options_are_config_errors(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)
