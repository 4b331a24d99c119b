"""Runs that use a family, a loss, augmentations, an optimizer, a task and hooks from outside."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from own_code import own_code  # noqa: F401
from shared_programs import stop_after
from task_runs import digits_config, losses_of

import vit_jax
from vit_jax.config.run import Config
from vit_jax.config.task import TaskConfig, TaskName
from vit_jax.data.device import to_unit_range
from vit_jax.errors import PluginError, UserError
from vit_jax.schema import option
from vit_jax.tasks.image_task import LabelTask
from vit_jax.train.loop import train
from vit_jax.train.signals import Stopped, StopSignals

pytestmark = pytest.mark.usefixtures("own_code")


def changed(config, **sections):
    mapping = config.to_mapping()
    for key, section in sections.items():
        mapping[key] = {**mapping.get(key, {}), **section} if isinstance(section, dict) else section
    return Config.from_mapping(mapping)


@pytest.fixture(scope="module")
def config(digits_dir):
    return changed(
        digits_config(digits_dir),
        train_steps=4,
        checkpoint={"interval_steps": 2},
        logging={"interval_steps": 1},
    )


def test_a_copy_of_ours_from_outside_trains_to_the_same_numbers(config, tmp_path):
    """Loss, optimizer and an augmentation that changes nothing; hooks see each step's metrics."""
    seen = {}

    @vit_jax.register_loss
    def ours(logits, targets):
        return optax.losses.softmax_cross_entropy(logits, targets)

    @vit_jax.register_augmentation(stage="device")
    def nothing(images, key):
        return images

    @vit_jax.register_optimizer
    def our_adam(learning_rate, b1: float = 0.9):
        return optax.adam(learning_rate, b1)

    @vit_jax.register_hook
    def collect(step, state, metrics, *, spoil: bool = False):
        seen[step] = metrics["train/loss"], int(state.step)
        if spoil:
            state.params.clear()
            metrics.clear()

    expected = train(changed(config, optimizer={"name": "adam"}), tmp_path / "a", StopSignals())
    own = changed(
        config,
        loss={"name": "ours"},
        optimizer={"name": "our_adam", "options": {"b1": 0.9}},
        data={"augment": config.data.augment.to_mapping() | {"nothing": True}},
        hooks={"collect": {"every_steps": 2, "spoil": True}},
    )
    result = train(own, tmp_path / "b", StopSignals())
    assert losses_of(tmp_path / "b") == losses_of(tmp_path / "a")
    assert {k: v for k, v in result.items() if "loss" in k} == {
        k: v for k, v in expected.items() if "loss" in k
    }
    losses = losses_of(tmp_path / "b")
    assert seen == {step: (losses[step], step) for step in (2, 4)}
    saved = json.loads((tmp_path / "b" / "config.json").read_text())
    assert saved["hooks"] == {"collect": {"every_steps": 2, "spoil": True}}
    assert saved["loss"]["name"] == "ours"


def test_a_metric_of_your_own_is_measured_and_one_that_fails_stops_before_training(
    config, tmp_path
):
    @vit_jax.register_metric(direction="higher")
    def share_right(logits, labels):
        return (logits.argmax(1) == labels).mean()

    @vit_jax.register_metric(direction="higher")
    def broken(logits, labels):
        return logits[labels.max() + len(logits)]

    evaluation = {"metrics": ["share_right"], "interval_steps": None}
    result = train(changed(config, evaluation=evaluation), tmp_path / "run", StopSignals())
    assert result["eval/test/share_right"] == result["eval/test/accuracy_top1"]
    wrong = changed(config, evaluation={**evaluation, "metrics": ["broken"]})
    with pytest.raises(PluginError, match=r"metric 'broken' .*IndexError"):
        train(wrong, tmp_path / "wrong", StopSignals())
    assert not (tmp_path / "wrong").exists()


def test_a_source_whose_length_changes_does_not_resume(config, tmp_path, monkeypatch):
    length = 64

    @vit_jax.register_source
    def squares(data_dir, split):
        return [(np.full((8, 8, 3), i, np.uint8), i % 10) for i in range(length)]

    data = {"source": "squares", "num_classes": 10, "global_batch_size": 16}
    run = changed(config, data=data, evaluation={"splits": {}, "interval_steps": None})
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        train(run, tmp_path / "run", stop_after(2, patch))
    length = 65
    with pytest.raises(UserError, match="the dataset"):
        train(run, tmp_path / "run", StopSignals())
    length = 64
    train(run, tmp_path / "run", StopSignals())
    names = json.loads((tmp_path / "run" / "env.json").read_text())["plugins"]
    assert __name__.partition(".")[0] in names


def test_an_error_in_a_hook_is_one_line_with_its_place(config, tmp_path):
    @vit_jax.register_hook
    def fails(step, state, metrics):
        raise KeyError("train/lost")

    on = changed(config, hooks={"fails": {"every_steps": 3}})
    words = rf"hook 'fails' \({__file__}, line \d+\): KeyError: 'train/lost'"
    with pytest.raises(PluginError, match=words):
        train(on, tmp_path / "run", StopSignals())
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()


def test_a_loss_of_the_wrong_shape_stops_a_run_before_its_first_step(config, tmp_path):
    @vit_jax.register_loss
    def unsummed(logits, targets):
        return logits - targets

    wrong = changed(config, loss={"name": "unsummed"})
    with pytest.raises(PluginError, match=r"loss 'unsummed' .*returned float32\[\d+, 10\]"):
        train(wrong, tmp_path / "run", StopSignals())
    assert losses_of(tmp_path / "run") == {}


def test_an_optimizer_that_gives_no_updates_is_refused(config, tmp_path):
    @vit_jax.register_optimizer
    def half(learning_rate):
        return optax.stateless(lambda updates, params: jax.tree.map(lambda u: u[:1], updates))

    with pytest.raises(PluginError, match=r"optimizer 'half' .*updates .*expected updates with"):
        train(changed(config, optimizer={"name": "half"}), tmp_path / "run", StopSignals())


class NegativeConfig(TaskConfig):
    """Learns labels of negative images."""

    name: TaskName = option("negative")
    reads_loss = True
    strength: float = option(1.0, above=0)
    """What pixels are multiplied with."""


def test_a_task_and_a_family_of_your_own_train(config, tmp_path):
    from vit_jax.tasks.classification.task import Classification

    @vit_jax.register_task(NegativeConfig)
    class Negative(Classification):
        def prepare(self, batch, step):
            images = -self.section.strength * to_unit_range(batch["image"])
            return {"image": images, "label": batch["label"]}

    assert issubclass(Negative, LabelTask)
    run = changed(config, task={"name": "negative", "strength": 0.5}, train_steps=2)
    train(run, tmp_path / "run", StopSignals())
    assert np.isfinite(losses_of(tmp_path / "run")[2])


def test_a_family_that_is_not_complete_is_refused_before_the_first_step():
    import dataclasses

    from vit_jax.models.mixer import MIXER

    class Half(vit_jax.ImageModel):
        def __init__(self, rngs):
            self.linear = nnx.Linear(3, 4, rngs=rngs)

    sizes = {"Half-B/16": MIXER.sizes["Mixer-B/16"]}

    def build(options, *, num_classes, image_size, key, platform=None):
        return Half(nnx.Rngs(params=key))

    half = dataclasses.replace(MIXER, name="Half", sizes=sizes, parse=sizes.get, build=build)
    vit_jax.register_family(half)
    words = f"family Half of {__name__} built a Half without __call__, layer_outputs, final_norm"
    with pytest.raises(PluginError, match=words):
        vit_jax.create_model("Half-B/16", num_classes=3)

    class Wrong(Half):
        image_size, grid, num_layers, intermediates = (224, 224), (14, 14), 1, ()
        parts = ("linear",)

        def __call__(self, images, *, key=None, return_intermediates=()):
            return self.linear(images).mean((1, 2))

        def layer_outputs(self, images, layers):
            return {}

        def final_norm(self, x):
            return x

    def build_wrong(options, *, num_classes, image_size, key, platform=None):
        return Wrong(nnx.Rngs(params=key))

    vit_jax.register_family(dataclasses.replace(half, build=build_wrong))
    with pytest.raises(PluginError, match=r"family Half .*for two images and 3 classes.*\[2, 3\]"):
        vit_jax.create_model("Half-B/16", num_classes=3)
    Wrong.parts = ()
    with pytest.raises(PluginError, match="Wrong whose `parts` lack linear"):
        vit_jax.create_model("Half-B/16", num_classes=4)
    Wrong.parts = ("linear",)
    assert vit_jax.create_model("Half-B/16", num_classes=4)(jnp.zeros((1, 224, 224, 3))).shape == (
        1,
        4,
    )

    def build_with_bug(options, *, num_classes, image_size, key, platform=None):
        return Wrong(key.not_there)

    vit_jax.register_family(dataclasses.replace(half, build=build_with_bug))
    with pytest.raises(PluginError, match=r"family Half .*test_own_code.py, line \d+\): Attrib"):
        vit_jax.create_model("Half-B/16", num_classes=4)
