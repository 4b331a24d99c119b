"""Which head a loaded model has, what may be missing or unused, and what the report says."""

import numpy as np
import pytest
from interop.files import CLASSES, IMAGE_SIZE, WIDTH, intermediates, logits, params, tiny, write_npz

from vit_jax.interop.load import load
from vit_jax.interop.report import LoadReport, Status

HEAD = ("head/linear/kernel", "head/linear/bias")
# A ViT's parameters: patch embedding 2, class token 1, table 1, block 12, last norm 2, head 2.
NAMES = 2 + 1 + 1 + 12 + 2 + 2


def counts(report):
    found = {status: len(report.names(status)) for status in Status}
    return {status: count for status, count in found.items() if count}


def test_every_tensor_is_used_once(tiny_loaded):
    report = tiny_loaded.report
    assert counts(report) == {Status.TAKEN: NAMES}
    assert sorted(name for _, name, _ in report.entries) == sorted(params(tiny_loaded.model))
    assert (report.format, report.model) == ("vision_transformer npz", "ViT-Ti/4")


@pytest.mark.parametrize("arguments", [{"num_classes": 7}, {"keep_head": False}])
def test_a_new_head_is_zero(tiny_path, arguments):
    loaded = load(tiny_path, **arguments)
    classes = arguments.get("num_classes", CLASSES)
    found = params(loaded.model)
    assert loaded.num_classes == classes
    assert found[HEAD[0]].shape == (WIDTH, classes)
    assert not found[HEAD[0]].any()
    assert not found[HEAD[1]].any()
    assert counts(loaded.report)[Status.TAKEN] == NAMES - 2
    assert sorted(loaded.report.names(Status.LEFT_OUT)) == sorted(HEAD)
    assert sorted(loaded.report.names(Status.REINITIALISED)) == sorted(HEAD)


@pytest.mark.parametrize("arguments", [{"num_classes": CLASSES}, {"keep_head": True}])
def test_the_head_is_kept(tiny_path, arguments):
    loaded = load(tiny_path, **arguments)
    np.testing.assert_array_equal(params(loaded.model)[HEAD[0]], tiny()["head/kernel"])
    assert counts(loaded.report) == {Status.TAKEN: NAMES}


def test_without_classes_the_head_is_dropped(tiny_path, tiny_loaded):
    loaded = load(tiny_path, num_classes=0)
    assert not set(HEAD) & params(loaded.model).keys()
    assert counts(loaded.report) == {Status.TAKEN: NAMES - 2, Status.LEFT_OUT: 2}
    images = np.random.default_rng(0).uniform(-1, 1, (2, *IMAGE_SIZE, 3)).astype(np.float32)
    want = intermediates(tiny_loaded.model, images, "pre_logits")["pre_logits"]
    np.testing.assert_allclose(logits(loaded.model, images), want, atol=1e-6)


def test_a_file_without_a_head(tmp_path):
    tensors = {n: a for n, a in tiny().items() if not n.startswith("head/")}
    path = write_npz(tmp_path / "features.npz", tensors)
    assert load(path).num_classes == 0
    loaded = load(path, num_classes=5)
    assert counts(loaded.report) == {Status.TAKEN: NAMES - 2, Status.REINITIALISED: 2}


def test_a_pattern_that_matches_the_whole_name_allows_a_missing_parameter(tmp_path):
    tensors = tiny()
    del tensors["Transformer/encoder_norm/scale"]
    path = write_npz(tmp_path / "no_norm.npz", tensors)
    loaded = load(path, allow_missing=["nothing", "norm/.*"])
    assert counts(loaded.report) == {Status.TAKEN: NAMES - 1, Status.REINITIALISED: 1}
    np.testing.assert_array_equal(params(loaded.model)["norm/scale"], np.ones(WIDTH))


def test_missing_parameters_are_initialised_from_the_seed(tiny_path):
    found = []
    for seed in (0, 0, 1):
        loaded = load(tiny_path, num_registers=2, allow_missing="registers", seed=seed)
        found.append(params(loaded.model)["registers"])
    assert found[0].shape == (1, 2, WIDTH)
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 0.01


def test_a_pattern_that_matches_the_whole_name_allows_an_unused_tensor(tmp_path, tiny_loaded):
    more = {"extra/kernel": np.zeros((2, 2), np.float32), "step": np.zeros((), np.float32)}
    path = write_npz(tmp_path / "more.npz", tiny() | more)
    loaded = load(path, allow_unexpected=["extra/.*|step"])
    assert counts(loaded.report) == {Status.TAKEN: NAMES, Status.UNEXPECTED: 2}
    assert params(loaded.model).keys() == params(tiny_loaded.model).keys()


def test_the_printed_table(tiny_path, capsys):
    """Brackets are not taken for rich's markup."""
    brackets = LoadReport("/runs/[/bold]x[1].npz", "npz", "ViT-Ti/4", 12_345_678)
    brackets.print()
    assert "/runs/[/bold]x[1].npz" in capsys.readouterr().err
    report = load(tiny_path, image_size=24, num_classes=7).report
    report.print()
    out, err = capsys.readouterr()
    assert out == ""
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in err.splitlines()]
    rows = [row for row in rows if len(row) == 3]
    assert ["taken", str(NAMES - 3), ""] in rows
    assert ["resized", "1", "position_embedding/table (1, 17, 16) -> (1, 37, 16)"] in rows
    assert ["re-initialised", "2", "head/linear/bias"] in rows
    assert ["left out", "2", "head/linear/kernel"] in rows
