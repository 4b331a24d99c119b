"""`predict` on images and folders, in all its formats."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image
from processes import user_error

from vit_jax.__main__ import main


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two folders with two images each, a file that is no image, and a damaged one."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.PNG", "b/1.jpg", "b/2.png"):
        (root / name).parent.mkdir(exist_ok=True)
        pixels = generator.integers(0, 256, (40, 60, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / name)
    (root / "notes.txt").write_text("no image")
    (root / "b" / "broken.png").write_bytes(b"\x89PNG broken")
    return root


def predict(capsys, *arguments):
    assert main(["predict", *map(str, arguments)]) == 0
    return capsys.readouterr()


@pytest.fixture
def answers(ours_path, photos, capsys):
    """Image -> its best classes, each predicted alone."""
    found = {}
    for name in ("a/1.png", "a/2.PNG", "b/1.jpg", "b/2.png"):
        printed = predict(capsys, photos / name, f"--model={ours_path}", "--format=json").out
        found[str(photos / name)] = json.loads(printed)["classes"]
    return found


def test_a_folder_gives_the_answers_of_its_images_in_every_format(
    ours_path, photos, answers, capsys, caplog
):
    model = f"--model={ours_path}"
    captured = predict(capsys, photos, model, "--format=json")
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert [row["image"] for row in rows] == list(answers)
    for row in rows:
        assert [n for n, _ in row["classes"]] == [n for n, _ in answers[row["image"]]]
        want = [s for _, s in answers[row["image"]]]
        np.testing.assert_allclose([s for _, s in row["classes"]], want, atol=2e-6)
    assert "left out: " in caplog.text
    assert "broken.png" in caplog.text
    lines = list(csv.DictReader(io.StringIO(predict(capsys, photos, model, "--format=csv").out)))
    assert [line["class_1"] for line in lines] == [row["classes"][0][0] for row in rows]
    assert float(lines[0]["probability_5"]) == pytest.approx(rows[0]["classes"][4][1], abs=2e-6)
    listed = predict(capsys, photos, model, "--top=1").out
    assert f"{rows[3]['classes'][0][1]:.1%}  {rows[3]['classes'][0][0]}" in listed


def test_a_linked_folder_is_one_of_its_folder(ours_path, photos, tmp_path, capsys, caplog):
    """As in training, where links are followed and hidden folders are passed over."""
    (tmp_path / "b").symlink_to(photos / "b")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / ".trash").symlink_to(photos / "a")
    out = predict(capsys, tmp_path, f"--model={ours_path}", "--format=json").out
    found = [json.loads(line)["image"] for line in out.splitlines()]
    assert found == [str(tmp_path / "b" / "1.jpg"), str(tmp_path / "b" / "2.png")]
    assert "gone.png" in caplog.text


def test_a_folder_without_images_is_one_line(ours_path, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    line = user_error(capsys, ["predict", str(tmp_path / "empty"), f"--model={ours_path}"])
    assert "is a folder without images; expected files ending in" in line
