"""The output and files of analyze."""

import csv
import json
import shutil

import numpy as np
import pytest
from PIL import Image
from processes import user_error
from weight_files import random_weights

from vit_jax.__main__ import main
from vit_jax.analysis.filters import EmbeddingFilters, embedding_filters, filters_output
from vit_jax.analysis.images import Images, evenly_spaced, read_files
from vit_jax.analysis.output import write_output
from vit_jax.data.preprocess import Preprocess
from vit_jax.interop.load import load
from vit_jax.models.registry import create_model


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights") / "ours"
    random_weights(folder, num_registers=1)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    (folder / "inner").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    for i, image in enumerate(pixels):
        Image.fromarray(image).save((folder / "inner" if i % 2 else folder) / f"{i}.png")
    (folder / "notes.txt").write_text("no image")
    return folder


def table(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_all_analyses_of_a_vit_write_their_files(weights, photos, tmp_path, capsys):
    arguments = ["analyze", str(weights), f"--images={photos}", "--crop=resize"]
    counts = ["--num_pictures=2", "--batch_size=2"]
    assert main([*arguments, *counts, f"--output={tmp_path / 'a'}"]) == 0
    shown = capsys.readouterr().out
    assert "5 images; uniform attention to all patches: 16.1" in shown
    what = ("filters", "positions", "distance", "rollout")
    suffixes = {name: {p.suffix for p in (tmp_path / "a").glob(f"{name}.*")} for name in what}
    assert suffixes == {name: {".png", ".svg", ".csv", ".npz"} for name in what}
    assert all(p.stat().st_size for p in (tmp_path / "a").iterdir())

    found = table(tmp_path / "a" / "distance.csv")
    heads = [(int(row["layer"]), int(row["head"])) for row in found]
    assert heads == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    with np.load(tmp_path / "a" / "distance.npz") as arrays:
        assert arrays["per_image"].shape == (5, 2, 3)
        got = [float(row["distance_px"]) for row in found]
        np.testing.assert_allclose(got, arrays["per_image"].mean(0).ravel(), rtol=1e-4)
    with np.load(tmp_path / "a" / "rollout.npz") as arrays:
        assert arrays["matrices"].shape == (2, 18, 18)
        shares = [float(row["share"]) for row in table(tmp_path / "a" / "rollout.csv")]
        np.testing.assert_allclose(shares, arrays["maps"].ravel(), rtol=1e-4)
    offsets = table(tmp_path / "a" / "positions.csv")
    assert sum(int(row["pairs"]) for row in offsets) == 16 + 16 * 15 / 2  # Each pair once.
    about = json.loads((tmp_path / "a" / "analysis.json").read_text())
    assert about["images"]["distance"] == 5
    assert len(about["images"]["rollout"]) == 2


@pytest.mark.slow
def test_untrained_analyses_the_initial_values_of_the_seed(weights, tmp_path):
    arguments = ["analyze", str(weights), "--untrained", "--what=filters", "--seed=3"]
    assert main([*arguments, f"--output={tmp_path}"]) == 0
    loaded = load(weights)
    options = dict(loaded.options.to_mapping())
    model = create_model(num_classes=loaded.num_classes, image_size=32, seed=3, **options)
    with np.load(tmp_path / "filters.npz") as arrays:
        found = arrays["components"]
    np.testing.assert_allclose(found, embedding_filters(model).components, atol=1e-5)
    assert np.abs(found - embedding_filters(loaded.model).components).max() > 0.1
    assert json.loads((tmp_path / "analysis.json").read_text())["untrained"] is True


def test_the_same_arrays_make_the_same_files(tmp_path):
    components = np.linspace(-1, 1, 24, dtype=np.float32).reshape(2, 2, 2, 3)
    found = EmbeddingFilters(components, np.float32([0.6, 0.4]), "patch embedding", 7)
    written = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        output = filters_output(found)
        paths = write_output("filters", output, tmp_path / name)
        written.append({path.name: path.read_bytes() for path in paths})
    assert written[0] == written[1]
    assert len(written[0]) == 4


@pytest.mark.slow
def test_by_default_all_analyses_that_apply_to_the_model_run(tmp_path, capsys, caplog):
    random_weights(tmp_path / "resnet", "BiT-R-Nano")
    assert main(["analyze", str(tmp_path / "resnet"), "--what=distance"]) == 2
    assert "distance of a ResNet, which has no attention" in capsys.readouterr().err
    output = f"--output={tmp_path / 'out'}"
    assert main(["analyze", str(tmp_path / "resnet"), output]) == 0
    left_out = [r.getMessage() for r in caplog.records if "left out" in r.getMessage()]
    assert [text.split()[2] for text in left_out] == ["positions", "distance", "rollout"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--what=rolout"], "did you mean 'rollout'?"),
        (["--what="], "--what= with ''"),
        ([], "no images to analyse; expected --images=PATH, or --dataset=NAME"),
        (["--images=nothing.png"], "nothing.png cannot be read"),
        (["--images=EMPTY"], "no images in EMPTY; expected files ending in .jpg"),
        (["--images=EMPTY/../text.png"], "unreadable image of 5 bytes"),
        (["--images=EMPTY", "--dataset=cifar10"], "--images and --dataset; expected one of them"),
        (["--dataset=no_such_set", "--data_dir=EMPTY"], "no_such_set"),
        (["--num_images=0"], "'0' is not a positive whole number"),
    ],
)
def test_wrong_input_is_a_one_line_error(
    weights, tmp_path, capsys, monkeypatch, arguments, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.png").write_text("hello")
    places = [a.replace("EMPTY", str(tmp_path / "empty")) for a in arguments]
    line = user_error(capsys, ["analyze", str(weights), *places])
    assert message.replace("EMPTY", str(tmp_path / "empty")) in line


def test_images_are_evenly_spaced_and_preprocessed_as_in_evaluation(photos):
    assert evenly_spaced(10, 4) == [0, 2, 5, 7]
    whole = Preprocess((32, 32), crop="resize").pixels
    found = read_files([photos], 3, whole)
    assert [name.rsplit("/", 1)[-1] for name in found.names] == ["0.png", "2.png", "1.png"]
    np.testing.assert_array_equal(found.subset(2).pixels, found.pixels[:2])
    # A model for rectangular images gets the whole image, squashed.
    wide = Preprocess((16, 64)).pixels((photos / "0.png").read_bytes())
    assert wide.shape == (16, 64, 3)
    white = Images(np.full((1, 2, 2, 3), 255, np.uint8), ("white",), "here").normalized
    assert white.min() == white.max() == 1


@pytest.mark.slow
def test_a_run_folder_is_analysed_with_its_own_images(run, tmp_path, digits_dir):
    few = ["--num_images=3", "--what=distance,rollout"]
    assert main(["analyze", str(run), *few]) == 0
    output = run / "report" / "analysis"
    about = json.loads((output / "analysis.json").read_text())
    assert about["images"]["from"].endswith("split test")
    assert about["images"]["distance"] == 3
    first = {p.name: p.read_bytes() for p in output.iterdir()}
    shutil.rmtree(output)
    assert main(["analyze", str(run), *few]) == 0
    assert {p.name: p.read_bytes() for p in output.iterdir()} == first
    again = ["--dataset=digits", "--split=test[:9]", f"--data_dir={digits_dir}"]
    assert main(["analyze", str(run), *few, *again, f"--output={tmp_path / 'other'}"]) == 0
    about = json.loads((tmp_path / "other" / "analysis.json").read_text())
    assert about["images"]["from"].endswith("split test[:9]")
    assert len(about["images"]["rollout"]) == 3
