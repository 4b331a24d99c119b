import json

from PIL import Image

from vit_jax.report.curves import _eval_names, draw_curves


def write(folder, rows):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


ROWS = [
    {"step": 1, "time": 0, "train/loss": 2.0, "train/learning_rate": 0.1},
    {"step": 2, "time": 1, "train/loss": 1.0, "train/learning_rate": 0.2},
    {"step": 2, "time": 2, "eval/test/loss": 1.5, "eval/test/accuracy_top1": 0.5},
]


def test_a_picture_with_three_panels_is_drawn(tmp_path):
    write(tmp_path / "run", ROWS)
    path = draw_curves(tmp_path / "run")
    assert path == tmp_path / "run" / "report" / "curves.png"
    image = Image.open(path)
    assert image.width > 2 * image.height
    assert len(set(image.convert("L").tobytes())) > 20  # Not an empty sheet.


def test_evaluations_are_found_by_split():
    assert _eval_names(ROWS, "accuracy_top1") == {"eval/test/accuracy_top1": "test"}


def test_a_run_without_evaluation_still_gets_its_picture(tmp_path):
    write(tmp_path / "run", ROWS[:2])
    assert draw_curves(tmp_path / "run").exists()
