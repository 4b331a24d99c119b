"""What code from outside the package registers, and what is refused."""

import dataclasses
import json
import pickle
from typing import Literal

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from own_code import own_code  # noqa: F401
from PIL import Image
from small_config import small_mapping

import vit_jax
from vit_jax.__main__ import main
from vit_jax.config.file import apply_override_texts, load_config
from vit_jax.config.run import Config
from vit_jax.config.task import TaskConfig, TaskName
from vit_jax.errors import ConfigError, PluginError
from vit_jax.losses import LOSSES, formula_of, loss_class
from vit_jax.models.mixer import MIXER
from vit_jax.models.registry import layer_indices, model_options, options_class
from vit_jax.schema import option
from vit_jax.tasks.image_task import ImageTask

pytestmark = pytest.mark.usefixtures("own_code")


def own_focal(logits, targets, *, sharpness: float = 2.0, mode: Literal["mean", "sum"] = "sum"):
    """The focal loss.

    Args:
        logits: f32[B, C].
        sharpness: how much less an example counts
            that is classified well.
        mode: how classes are added.

    Returns:
        The loss.
    """
    p = jax.nn.softmax(logits)
    losses = -targets * (1 - p) ** sharpness * jax.nn.log_softmax(logits)
    return losses.sum(-1) if mode == "sum" else losses.mean(-1)


def own_noise(images, key, *, deviation: float = 0.1):
    """Adds noise."""
    return images + deviation * jax.random.normal(key, images.shape)


def invert(image, rng, *, below: int = 128):
    return np.where(image < below, 255 - image, image).astype(np.uint8)


def left(size, rng, *, share: float = 0.5):
    return 0, 0, int(size[0] * share), size[1]


def config_of(*overrides):
    mapping = small_mapping()
    apply_override_texts(mapping, overrides)
    return Config.from_mapping(mapping)


def test_a_loss_of_your_own_has_its_keys_and_its_value_by_hand():
    assert vit_jax.register_loss(own_focal) is own_focal
    config = config_of("loss.sharpness=1", "loss.name=own_focal", "loss.label_smoothing=0.5")
    assert "hooks" not in config.to_mapping()
    assert config.to_mapping()["loss"] == {
        "name": "own_focal", "label_smoothing": 0.5, "class_weights": "none", "sharpness": 1.0,
        "mode": "sum",
    }  # fmt: skip
    assert Config.from_mapping(config.to_mapping()) == config
    # Targets 1/4 and 3/4 after smoothing, probabilities 1/2: the factor is 1/2 of cross-entropy.
    np.testing.assert_allclose(
        config.label_loss(jnp.zeros((1, 2)), jnp.array([1])), [np.log(2) / 2], rtol=1e-6
    )


def test_keys_of_your_own_are_in_the_help_and_the_schema(capsys):
    vit_jax.register_loss(own_focal)
    vit_jax.register_augmentation(stage="device")(own_noise)
    assert main(["config", "sharpness"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    meaning = "how much less an example counts that is classified well."
    assert f"loss.sharpness = 2.0 a number. With loss.name=own_focal. {meaning}" in text
    assert main(["config", "--json_schema"]) == 0
    schema = json.loads(capsys.readouterr().out)["$defs"]
    assert schema["own_focal"]["properties"]["sharpness"]["default"] == 2.0
    assert schema["own_noise"]["properties"]["deviation"]["type"] == "number"
    assert main(["config", "data.augment.own_noise"]) == 0
    assert "data.augment.own_noise = False true or false. Adds noise." in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_key_of_two_losses_is_shown_with_both(capsys):
    @vit_jax.register_loss
    def harder(logits, targets, *, sharpness: float = 7.0):
        """Like the other.

        Args:
            sharpness: another meaning.
        """
        return own_focal(logits, targets, sharpness=sharpness)

    vit_jax.register_loss(own_focal)
    assert main(["config", "loss.sharpness"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "With loss.name=harder. another meaning. With loss.name=own_focal. how much less" in text
    assert "Its default is then 2.0." in text
    assert formula_of({"loss.name": "harder", "loss.sharpness": 0.0}) == "harder, sharpness=0.0"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "loss.sharpnes=1",
            "unknown config key 'loss.sharpnes' for loss 'own_focal'.*did you mean 'loss.sharpness",
        ),
        ("loss.sharpness=x", "'loss.sharpness' is 'x' .*expected a number"),
        ("loss.mode=max", "'loss.mode' is 'max' .*one of mean, sum"),
        ("data.augment.own_noise.deviaton=1", "did you mean 'data.augment.own_noise.deviation'"),
        ("data.augment.own_noize=true", "did you mean 'data.augment.own_noise'"),
        ("data.augment.crop.name=lift", "'data.augment.crop.name' is 'lift'.*did you mean 'left'"),
        ("hooks.shw.every_steps=1", "'hooks.shw'.*did you mean 'hooks.show'"),
        ("hooks.show.every_steps=0", "'hooks.show.every_steps' is 0; expected a value at least 1"),
        ("data.bare.x=1", "'data.bare.x' for source 'bare'.*it has no keyword parameters"),
        ("evaluation.metrics=mre", "expected a list, each item one of .*worst"),
    ],
)
def test_a_typing_mistake_is_one_line_with_the_key_that_is_meant(override, words):
    vit_jax.register_loss(own_focal)
    vit_jax.register_augmentation(stage="device")(own_noise)
    vit_jax.register_augmentation(stage="crop")(left)

    @vit_jax.register_hook
    def show(step, state, metrics):
        pass

    @vit_jax.register_metric(direction="higher")
    def worst(logits, labels):
        return 0.0

    @vit_jax.register_source
    def bare(data_dir, split):
        return []

    with pytest.raises(ConfigError, match=words):
        config_of("loss.name=own_focal", override)


def test_a_wrong_name_lists_your_own():
    vit_jax.register_loss(own_focal)
    with pytest.raises(ConfigError, match=r"'loss.name' is 'own_focla'.*did you mean 'own_focal'"):
        config_of("loss.name=own_focla", "loss.sharpness=1")


def test_the_same_module_may_register_a_name_again_and_another_may_not():
    vit_jax.register_loss(own_focal)

    def again(logits, targets, *, strength: int = 1):
        return logits[:, 0]

    again.__name__ = "own_focal"
    vit_jax.register_loss(again)
    assert "strength" in LOSSES["own_focal"].model_fields
    again.__module__ = "other.losses"
    words = f"loss 'own_focal' of other.losses has the name of one of {__name__}"
    with pytest.raises(PluginError, match=words):
        vit_jax.register_loss(again)
    again.__name__ = "softmax_cross_entropy"
    with pytest.raises(PluginError, match=r"the name of one of vit_jax.losses.softmax_cross_ent"):
        vit_jax.register_loss(again)


def bad_functions():
    def no_type(logits, targets, *, sharpness=2.0): ...
    def no_default(logits, targets, *, sharpness: float): ...
    def a_dict(logits, targets, *, weights: dict = {}): ...  # noqa: B006
    def a_name(logits, targets, *, name: str = "x"): ...
    def smoothing(logits, targets, *, label_smoothing: float = 0.1): ...
    def wrong_default(logits, targets, *, sharpness: int = 0.5): ...  # pyright: ignore
    def one(logits, *, sharpness: float = 2.0): ...
    def positional(logits, targets, sharpness: float = 2.0): ...
    def rest(logits, targets, **options): ...
    def unknown(logits, targets, *, sharpness: "Missing" = 2.0): ...  # pyright: ignore

    return [
        (no_type, "has the keyword 'sharpness=2.0'; expected a default and a type"),
        (no_default, "'sharpness: float'; expected a default and a type"),
        (a_dict, "'weights: dict = {}'; expected a default and a type: bool, int"),
        (a_name, "has the keyword 'name'; expected a name that the section does not need itself"),
        (smoothing, "has the keyword 'label_smoothing'"),
        (wrong_default, "has a wrong default: 'sharpness' is 0.5"),
        (one, r"takes \(logits\); expected \(logits, targets\), then"),
        (positional, r"takes \(logits, targets, sharpness: float = 2.0\)"),
        (rest, r"takes \(logits, targets, \*\*options\)"),
        (unknown, "name 'Missing' is not defined"),
        (lambda logits, targets: 0, r"loss '<lambda>' .* cannot be a key; expected"),
        (3, "a loss that is 3; expected a function"),
    ]


@pytest.mark.parametrize(("function", "words"), bad_functions())
def test_a_function_that_cannot_be_a_loss_is_refused_with_its_line(function, words):
    with pytest.raises(PluginError, match=words) as caught:
        vit_jax.register_loss(function)
    if callable(function):
        assert f"{__file__}, line " in str(caught.value)
    assert not LOSSES._found.keys() & {getattr(function, "__name__", "")}


def test_a_loss_of_the_wrong_shape_or_with_an_error_is_one_line_when_it_is_traced():
    @vit_jax.register_loss
    def unsummed(logits, targets):
        return logits * targets

    @vit_jax.register_loss
    def broken(logits, targets):
        return logits @ targets

    for name, words in [
        ("unsummed", r"loss 'unsummed' .*returned float32\[2, 3\]; expected float32\[2\]"),
        ("broken", r"loss 'broken' .*line \d+\): TypeError: dot_general"),
    ]:
        loss = loss_class({"name": name})(name=name)
        with pytest.raises(PluginError, match=words) as caught:
            jax.eval_shape(loss, jnp.zeros((2, 3)), jnp.zeros(2, jnp.int32))
        assert "\n" not in str(caught.value)


def test_augmentations_of_your_own_by_hand_and_after_pickling():
    for stage, function in {"device": own_noise, "host": invert, "crop": left}.items():
        vit_jax.register_augmentation(stage=stage)(function)
    augment = config_of(
        "data.augment.own_noise=true", "data.augment.invert.below=10", "data.augment.crop.name=left"
    ).data.augment
    assert [*augment.operations("host", "device")] == ["invert", "own_noise"]
    pixels = np.full((2, 2, 3), 9, np.uint8)
    pixels[0] = 20
    for made in (augment, None):
        crop, host, device = augment.crop, augment.invert, augment.own_noise
        if made is None:  # As reader processes get them.
            crop, host, device = pickle.loads(cloudpickle.dumps((crop, host, device)))
        assert crop.box((10, 20), np.random.default_rng(0)) == (0, 0, 5, 20)
        changed = np.asarray(host(Image.fromarray(pixels), np.random.default_rng(0)))
        assert changed[:, 0, 0].tolist() == [20, 246]
        key = jax.random.key(1)
        np.testing.assert_allclose(
            device(jnp.zeros((1, 2, 2, 3)), key), 0.1 * jax.random.normal(key, (1, 2, 2, 3))
        )


def test_a_loss_of_your_own_keeps_all_its_keys_when_it_is_pickled():
    vit_jax.register_loss(own_focal)
    loss = config_of("loss.name=own_focal", "loss.sharpness=1.5", "loss.label_smoothing=0.1").loss
    assert pickle.loads(cloudpickle.dumps(loss)).to_mapping() == loss.to_mapping()


def test_an_augmentation_that_changes_shape_or_type_is_refused():
    @vit_jax.register_augmentation(stage="device")
    def smaller(images, key):
        return images[:, 1:]

    @vit_jax.register_augmentation(stage="host")
    def floats(image, rng):
        return image / 255

    @vit_jax.register_augmentation(stage="crop")
    def outside(size, rng):
        return 0, 0, size[0] + 1, size[1]

    augment = config_of(
        "data.augment.smaller=true", "data.augment.floats=true", "data.augment.crop.name=outside"
    ).data.augment
    words = r"'smaller'.*returned float32\[2, 7, 8, 3\]; expected float32\[2, 8, 8, 3\]"
    with pytest.raises(PluginError, match=words):
        jax.eval_shape(augment.smaller, jnp.zeros((2, 8, 8, 3)), jax.random.key(0))
    with pytest.raises(PluginError, match=r"'floats'.*returned float64\[4, 4, 3\]; expected uint8"):
        augment.floats(Image.new("RGB", (4, 4)), np.random.default_rng(0))
    with pytest.raises(PluginError, match=r"crop 'outside'.*\(0, 0, 9, 6\) for an image of 8x6"):
        augment.crop.box((8, 6), np.random.default_rng(0))
    with pytest.raises(PluginError, match="stage 'later'; expected one of crop, host, device"):
        vit_jax.register_augmentation(stage="later")

    def crop(images, key):
        return images

    with pytest.raises(PluginError, match=r"has the name of a part of data.augment"):
        vit_jax.register_augmentation(stage="device")(crop)


def test_an_optimizer_or_a_task_that_lacks_something_is_refused():
    with pytest.raises(PluginError, match=r"optimizer 'bare' of .* has no learning_rate"):

        @vit_jax.register_optimizer
        def bare(rate):
            return optax.sgd(rate)

    class HalfConfig(TaskConfig):
        name: TaskName = option("half")

    with pytest.raises(PluginError, match=r"task Half of .* has no .*\bloss\b"):

        @vit_jax.register_task(HalfConfig)
        class Half(ImageTask):
            pass

    with pytest.raises(PluginError, match="has no base class Task"):
        vit_jax.register_task(HalfConfig)(int)  # pyright: ignore


def twin(**fields):
    """A family whose only model is a Mixer."""
    named = {"Twin-B/16": MIXER.sizes["Mixer-B/16"]}
    own = {"sizes": named, "parse": named.get, "shape": lambda options: named[options.name]}
    return dataclasses.replace(MIXER, name="Twin", **own, **fields)


def test_an_unknown_model_is_of_no_family_and_a_family_needs_names_of_its_own():
    with pytest.raises(PluginError, match=r"Mixer-\S+ of family Twin \(.*\) is one of family"):
        vit_jax.register_family(dataclasses.replace(MIXER, name="Twin"))
    vit_jax.register_family(twin())
    assert "Twin-B/16" in vit_jax.list_models("twin*")
    assert options_class({"name": "Twin-B/16"}) is MIXER.options
    assert options_class({"name": "auto"}).kind == "any model"


def test_config_finds_the_options_of_a_family_of_your_own(capsys):
    class TwinConfig(MIXER.options):
        blinks: int = option(2, at_least=0)
        """How often it blinks."""

    vit_jax.register_family(twin(options=TwinConfig))
    assert main(["config", "blinks"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "model.blinks = 2 a whole number, at least 0. How often it blinks. An option of the fam"
        in text
    )


def test_the_order_of_layers_of_a_family_of_your_own_is_that_of_no_other_model():
    vit_jax.register_family(twin(layer_order=("patch_embedding/.*|norm/.*", "blocks/.*")))
    params = {"patch_embedding": {"bias": np.zeros(2)}, "norm": {"scale": np.zeros(2)}}
    for name, layer in {"ViT-B/16": 1, "Mixer-B/16": 1, "Twin-B/16": 0}.items():
        assert layer_indices(params, model_options(name))["norm/scale"] == layer


def test_recipes_define_what_they_use(tmp_path):
    recipe = tmp_path / "recipe.py"
    recipe.write_text(
        "import vit_jax\n"
        "@vit_jax.register_loss\n"
        "def halved(logits, targets, *, share: float = 0.5):\n"
        "    return -share * (logits * targets).sum(-1)\n"
        "def get_config():\n"
        f"    return {small_mapping()!r} | {{'loss': {{'name': 'halved', 'share': 0.25}}}}\n"
    )
    for _ in range(2):  # Read again, as by a sweep or in a notebook.
        loss = load_config(str(recipe)).label_loss
        assert loss(jnp.array([[0.0, 4.0]]), jnp.array([1])).tolist() == [-1.0]
    assert LOSSES.owner("halved") == str(recipe)
    (tmp_path / "other.py").write_text(recipe.read_text())
    with pytest.raises(PluginError, match=r"'halved' of .*other.py has .* of one of .*recipe.py"):
        load_config(str(tmp_path / "other.py"))
