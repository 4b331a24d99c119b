"""Learning from pairs of images and texts: training, resume, a locked tower, init_from, errors."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from processes import one_line
from task_runs import assert_resumes, program_of, run_mapping, steps_of

from vit_jax.__main__ import main
from vit_jax.config.run import Config
from vit_jax.errors import WeightsError
from vit_jax.interop.load import load
from vit_jax.named_tree import named_leaves
from vit_jax.plan.estimate import find_sizes
from vit_jax.tasks.image_text.totals import PairTotals
from vit_jax.train.init_from import start_from_weights
from vit_jax.train.loop import train
from vit_jax.train.signals import StopSignals

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
SIZES = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
IMAGE = {"name": "ViT-Ti/4", **SIZES}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "a", "photo", "of", "the", "number", *"0123456789"]
MODEL = {
    "name": "LiT-ViT-Ti/4",
    "image": IMAGE,
    "text": {
        **SIZES, "vocabulary_size": len(WORDS), "context_length": 8, "pooling": "first",
        "pad_token": 0,
    },
}  # fmt: skip
LOCKED = {"learning_rate": 1e-2, "weight_decay": 0.1, "freeze": ("image/.*",)}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(WORDS) + "\n")
    return str(path)


def mapping(tokenizer="none", task=None, **changes):
    evaluation = {"splits": {"test": "test[:20%]"}}
    content = run_mapping(
        4, task={"name": "image_text", **(task or {})}, model=MODEL, evaluation=evaluation
    )
    templates = ("a photo of a {}", "the number {}")
    content["data"]["captions"] = {"tokenizer": tokenizer, "templates": templates}
    return content | changes


@pytest.fixture(scope="module")
def config(digits_dir, vocabulary):
    zeroshot = {"digits": {"name": "digits", "split": "test[:20%]", "prompts": ("the number {}",)}}
    found = Config.from_mapping(mapping(vocabulary, task={"zeroshot": zeroshot}))
    return found.replace(data=found.data.replace(data_dir=str(digits_dir)))


def test_recalls_by_hand():
    """Image 0 is nearest to text 1; the padding row is nearer to everything."""
    images = np.array([[0.6, 0.8], [0.0, 1.0], [-0.6, 0.8], [9.0, 9.0]], np.float32)
    texts = np.array([[1.0, 0.0], [0.1, 0.9], [-1.0, 0.0], [9.0, 9.0]], np.float32)
    totals = PairTotals()
    mask = np.array([True, True, True, False])
    totals.add({"images": images, "texts": texts, "mask": mask})
    found = totals.metrics()
    assert found["image_to_text/recall_at_1"] == pytest.approx(1 / 3)
    assert found["text_to_image/recall_at_1"] == 1
    assert found["image_to_text/recall_at_5"] == 1
    assert found["examples"] == 3


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit_and_is_evaluated(config, tmp_path, monkeypatch, capfd):
    want = train(config, tmp_path / "whole", StopSignals())
    assert_resumes(config, tmp_path / "whole", want, tmp_path, monkeypatch)
    rows = steps_of(tmp_path / "whole")
    assert rows[-1]["train/loss"] < rows[0]["train/loss"]
    assert rows[0]["train/temperature"] == pytest.approx(10)
    assert all(0 <= row["train/accuracy_in_batch"] <= 1 for row in rows)
    assert "train/bias" not in rows[0]
    assert want["eval/test/examples"] == want["zeroshot/digits/examples"] == 72
    assert 0 <= want["zeroshot/digits/accuracy_top1"] <= want["zeroshot/digits/accuracy_top5"] <= 1
    assert main(["eval", f"--workdir={tmp_path / 'whole'}", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out.splitlines()[-1])
    starts = ("eval/", "zeroshot/")
    assert figures == {name: value for name, value in want.items() if name.startswith(starts)}
    kept = json.loads((tmp_path / "whole/report/evaluations.json").read_text())
    settings = {"settings": {"eval/test": []}}
    assert kept == figures | settings | {"weights_digest": want["weights_digest"]}
    loaded = load(tmp_path / "whole").model
    found = loaded(np.zeros((2, 16, 16, 3), np.float32), np.zeros((3, 8), np.int32))
    assert [x.shape for x in found] == [(2, 16), (3, 16)]


@pytest.fixture(scope="module")
def image_run(digits_dir, tmp_path_factory):
    """The folder of a trained image model."""
    content = mapping(
        task={"name": "classification"},
        model=IMAGE,
        data={"name": "digits", "image_size": 16, "global_batch_size": 16,
              "data_dir": str(digits_dir)},
        evaluation={},
        train_steps=1,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("image") / "run"
    train(Config.from_mapping(content), folder, StopSignals())
    return folder


@pytest.mark.slow
def test_a_locked_tower_is_that_of_the_weights_after_training(config, image_run, tmp_path):
    """Bit for bit, although there is weight decay; without gradients and optimizer state."""
    content = config.to_mapping() | {"init_from": str(image_run), "optimizer": LOCKED}
    locked = Config.from_mapping(content)
    train(locked, tmp_path / "run", StopSignals())
    image = named_leaves(nnx.to_pure_dict(nnx.state(load(image_run, num_classes=0).model)))
    pair = named_leaves(nnx.to_pure_dict(nnx.state(load(tmp_path / "run").model)))
    tower = {n.removeprefix("image/"): v for n, v in pair.items() if n.startswith("image/")}
    assert tower.keys() == image.keys()
    for name, value in image.items():
        np.testing.assert_array_equal(tower[name], value, err_msg=name)
    report = json.loads((tmp_path / "run/init.json").read_text())
    assert set(report["left_out"]) == {"image/head/linear/kernel", "image/head/linear/bias"}
    assert {n.split("/")[0] for n in report["reinitialised"]} == {"text", "log_temperature"}
    assert report["missing"] == report["unexpected"] == []


def test_a_locked_tower_has_no_backward_pass_and_no_optimizer_state(config):
    whole = program_of(config)
    locked = program_of(Config.from_mapping(config.to_mapping() | {"optimizer": LOCKED}))
    state = "/".join(named_leaves(locked.abstract.opt_state))
    assert "text" in state
    assert "image" not in state
    # Forward 2 FLOPs per multiply-accumulate, training 6.
    by_hand = 16 * 48 * 16 + 17 * (4 * 16**2 + 2 * 16 * 32) + 2 * 17**2 * 16
    assert whole.flops_per_image - locked.flops_per_image == 4 * by_hand
    assert locked.task.activations < whole.task.activations

    def matmuls(program):
        text = str(jax.make_jaxpr(program.step_fn)(program.abstract, program.batch_shapes()))
        return text.count("dot_general")

    # Of 7 matmuls of the tower's block and patches, a backward pass has two each.
    assert matmuls(whole) - matmuls(locked) >= 12


@pytest.mark.slow
def test_gradients_flow_to_everything_but_locked_parameters(config):
    program = program_of(config)
    state = program.init()
    batch = program.example_batch()
    batch["tokens"] = np.random.default_rng(0).integers(0, 18, batch["tokens"].shape, np.int32)

    def loss(params):
        prepared = program.task.prepare(batch, jnp.int32(0))
        return program.task.batch_loss(params, prepared, jax.random.key(0))[0]

    batch = jax.tree.map(jnp.asarray, batch)
    found = named_leaves(jax.jit(jax.grad(loss))(state.params))
    still = [name for name, leaf in found.items() if not np.abs(leaf).max() > 0]
    assert still == []


def test_the_temperature_is_limited_after_each_update(config):
    content = config.to_mapping()
    content["task"]["max_temperature"] = 10.0
    program = program_of(Config.from_mapping(content))
    params = {"log_temperature": jnp.float32(5), "text": jnp.float32(7)}
    found = program.task.clamp(params)
    assert float(found["log_temperature"]) == pytest.approx(np.log(10))
    assert float(found["text"]) == 7
    assert program_of(config).task.clamp is None


@pytest.mark.parametrize(
    ("image", "message"),
    [
        ({**IMAGE, "width": 32}, "holds a ViT-Ti/4 (width 16); expected the ViT-Ti/4 of the image"),
        ({"name": "BiT-R-Nano"}, "set model.image.name=ViT-Ti/4"),
        ({**IMAGE, "pooling": "map"}, "lacks"),
    ],
)
@pytest.mark.slow
def test_weights_of_another_tower_are_refused(config, image_run, image, message):
    model = {**MODEL, "image": image, "text": {**MODEL["text"], "width": 16}}
    content = config.to_mapping() | {"init_from": str(image_run), "model": model}
    with pytest.raises(WeightsError) as caught:
        start_from_weights(program_of(Config.from_mapping(content)))
    assert message in str(caught.value)


def test_a_vocabulary_of_another_size_is_one_line(digits_dir, tmp_path, capfd):
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS[:-1]) + "\n")
    path = tmp_path / "config.py"
    path.write_text(f"def get_config():\n    return {mapping(str(tmp_path / 'vocab.txt'))!r}\n")
    arguments = [f"--config={path}", f"--workdir={tmp_path / 'run'}"]
    assert main(["train", *arguments, f"--config.data.data_dir={digits_dir}"]) == 2
    assert "17 tokens for a text tower with 18 embeddings" in one_line(capfd)


def test_a_plan_needs_neither_classes_nor_a_vocabulary():
    data = {"name": "web", "source": "captioned", "global_batch_size": 8}
    content = mapping(data={**data, "captions": {"tokenizer": "none"}})
    sizes = find_sizes(Config.from_mapping(content), None, 100)
    assert (sizes.num_classes, sizes.num_examples) == (0, 100)
