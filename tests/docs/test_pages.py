"""The code and the commands in the README and the documentation work as printed."""

import json
import re
import shutil
import signal

import jax
import numpy as np
import pytest
from golden import recipe as golden
from own_code import own_code  # noqa: F401
from PIL import Image
from processes import ROOT
from vocabularies import write_word_level

from vit_jax.closed_pipes import EXIT_CLOSED_PIPE
from vit_jax.errors import EXIT_INTERRUPTED, EXIT_STOPPED, HostsError, UserError
from vit_jax.sweep.scheduler import EXIT_FAILED

PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
README = PAGES["README.md"]


def blocks(language, text):
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_short_and_each_first_step_takes_one_line():
    install_and_train, *_, install_and_test = blocks("bash", README)
    for block, words in (
        (install_and_train, ["-r requirements.txt", "train --config=configs/quickstart.py"]),
        (install_and_test, ["-r requirements-dev.txt", "pytest"]),
    ):
        assert len(block.strip().splitlines()) == 1
        assert all(word in block for word in words)
    front = README.partition("## For reference")[0]
    shown = re.sub(r"\]\([^)]*\)|<[^>]*>|\|[ -]*", " ", front)
    assert len(README.splitlines()) <= 150
    assert len(shown.split()) <= 450


def put_stand_ins(folder):
    """Writes the files that the examples open. The weights belong to a small ViT."""
    described = json.loads((ROOT / "tests/golden/vit_ti16_224.json").read_text())
    np.savez(folder / "B_16.npz", **golden.weights(described["shapes"]))
    random = np.random.default_rng(0)
    for name, brightest in (("photo", 256), ("PHOTOS/cat/a", 256), ("PHOTOS/dog/b", 100)):
        pixels = random.integers(0, brightest, (300, 400, 3)).astype(np.uint8)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{name}.jpg")
    write_word_level(folder)
    small = "experiments/transfer/checkpoints/ViT-Micro-4"
    shutil.copytree(ROOT / small, folder / small, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def folder_with_files(tmp_path_factory, finished):
    folder = tmp_path_factory.mktemp("files")
    put_stand_ins(folder)
    shutil.copytree(finished, folder / "runs/quickstart")  # As the first run leaves it.
    return folder


def is_brightness(brightness):
    """The augmentation of the page adds one amount to each image."""
    images = brightness(np.zeros((64, 2, 2, 3), np.float32), jax.random.key(0), max_change=0.5)
    return np.ptp(images, axis=(1, 2, 3)).max() == 0 and abs(images.max() - 0.5) < 0.1


CAPTURED = {"attention_weights", "pre_logits"}
# What each Python example leaves behind: (page, number of the block) -> check.
RESULTS = {
    ("docs/index.md", 0): lambda names: names["probabilities"].shape == (1, 10),
    ("docs/explanation/how-a-vit-works.md", 0): lambda names: callable(names["SmallViT"]),
    ("docs/explanation/how-a-vit-works.md", 1): lambda names: names["difference"] < 1e-6,
    ("docs/how-to/analyze.md", 0): lambda names: (
        names["found"].mean.shape == (12, 3) and names["found"].uniform > 0
    ),
    ("docs/how-to/image-text.md", 0): lambda names: names["logits"].shape == (1, 2),
    ("docs/how-to/images.md", 0): lambda names: (
        names["run"].result["eval/test/examples"] == 16 and len(names["classes"]) == 3
    ),
    ("docs/how-to/models.md", 0): lambda names: (
        names["logits"].shape == (2, 10) and set(names["found"]) == CAPTURED
    ),
    ("docs/how-to/models.md", 1): lambda names: (
        [m.shape for m in names["maps"]] == [(1, 14, 14, 192)] * 4
    ),
    ("docs/how-to/sweeps.md", 0): lambda names: len(list(names["get_sweep"]())) == 3,
    ("docs/how-to/weights.md", 0): lambda names: (
        names["model"].head.linear.kernel.shape == (192, 37)
    ),
    ("docs/how-to/weights.md", 1): lambda names: names["logits"].shape == (2, 10),
    ("docs/reference/api.md", 0): lambda names: names["model"].head.linear.kernel.shape[1] == 10,
    ("docs/tutorials/first-run.md", 0): lambda names: (
        names["run"].result["step"] == 30 and names["model"].head.linear.kernel.shape[1] == 10
    ),
    ("docs/tutorials/transfer-sweep.md", 0): lambda names: len(list(names["get_sweep"]())) == 4,
    ("docs/tutorials/vit-and-resnet.md", 0): lambda names: len(list(names["get_sweep"]())) == 6,
    ("docs/tutorials/weights.md", 0): lambda names: names["found"]["pre_logits"].shape == (2, 192),
    ("docs/tutorials/vit-and-resnet.md", 1): lambda names: "data.data_dir" in names["SETTINGS"],
    ("docs/tutorials/weights.md", 1): lambda names: "ship" in names["model"].class_names,
    ("docs/how-to/own-repository.md", 0): lambda names: np.allclose(
        names["poly"](np.log([[0.25, 0.75]]), np.array([[0.0, 1.0]])), np.log(4 / 3) + 1 / 4
    ),
    ("docs/how-to/own-repository.md", 1): lambda names: is_brightness(names["brightness"]),
    ("docs/how-to/own-repository.md", 2): lambda names: (
        names["Stripes"]([0, 5])[1][1] == 1
        and (np.ptp(names["Stripes"]([0, 5])[1][0], axis=0) == 0).all()
    ),
    ("docs/how-to/own-repository.md", 3): lambda names: (
        names["worst_class"](np.eye(3)[[0, 1, 1]], np.array([0, 1, 0])) == 0.5
    ),
    ("docs/how-to/own-repository.md", 4): lambda names: names["get_config"]()["train_steps"] == 200,
    ("docs/tutorials/weights.md", 2): lambda names: (
        names["larger"].grid == (24, 24) and names["other"].head.linear.kernel.shape == (192, 37)
    ),
    ("docs/tutorials/weights.md", 3): lambda names: names["losses"][-1] < names["losses"][0],
}
EXAMPLES = {
    (page, index): code
    for page, text in PAGES.items()
    for index, code in enumerate(blocks("python", text))
}
# The block that a block continues.
CONTINUED = {("docs/explanation/how-a-vit-works.md", 1): ("docs/explanation/how-a-vit-works.md", 0)}


def test_every_python_example_has_a_check():
    assert EXAMPLES.keys() == RESULTS.keys()


def test_the_tutorial_prints_the_sweep_that_it_runs():
    printed = EXAMPLES["docs/tutorials/vit-and-resnet.md", 0]
    assert printed == (ROOT / "experiments/data_size/digits.py").read_text()


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("example", EXAMPLES)
def test_the_python_examples_run_and_give_what_they_say(example, folder_with_files, monkeypatch):
    monkeypatch.chdir(folder_with_files)
    names = {}
    before = EXAMPLES[CONTINUED[example]] if example in CONTINUED else ""
    code = compile(before + EXAMPLES[example], " block ".join(map(str, example)), "exec")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(code, names)  # As users have it.
    assert RESULTS[example](names)


def test_the_table_of_exit_codes_has_all_that_the_program_uses():
    rows = re.findall(r"^  \| (\d+) \| ", PAGES["docs/how-to/train.md"], re.MULTILINE)
    signals = [128 + number for number in (signal.SIGINT, signal.SIGKILL, signal.SIGPIPE)]
    own = [0, EXIT_FAILED, UserError.exit_code, EXIT_STOPPED, HostsError.exit_code]
    assert list(map(int, rows)) == [*own, *signals, 128 + signal.SIGTERM]
    assert (signals[0], signals[2]) == (EXIT_INTERRUPTED, EXIT_CLOSED_PIPE)
