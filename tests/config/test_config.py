import copy
import json
import re

import pytest
from small_config import small_mapping as mapping

from vit_jax.config.durations import duration_in_steps
from vit_jax.config.evaluation import EvaluationConfig
from vit_jax.config.file import (
    apply_override_texts,
    apply_overrides,
    load_config,
    override_key,
    parse_arg,
)
from vit_jax.config.optimizer import ScheduleConfig
from vit_jax.config.run import CheckpointConfig, Config
from vit_jax.data.augment import STAGES
from vit_jax.data.augment.flip import Flip
from vit_jax.data.crops.pad import Pad
from vit_jax.errors import ConfigError, FileError
from vit_jax.schema import differences
from vit_jax.train.inputs import check_metrics

_FILE = """
import ml_collections

def get_config(arg="plain"):
    return ml_collections.ConfigDict({
        "model": {"name": "ViT-S/16"},
        "data": {"name": "digits", "global_batch_size": 64},
        "optimizer": {"learning_rate": 1e-3, "schedule": {"warmup_epochs": 5}},
        "train_epochs": 3 if arg == "short" else 30,
    })
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "recipe.py"
    path.write_text(_FILE)
    return path


def test_the_smallest_config_has_four_required_parts():
    config = Config.from_mapping(mapping())
    assert config.train_steps == 100
    for key in ("model", "data", "optimizer"):
        broken = mapping()
        del broken[key]
        with pytest.raises(ConfigError, match=f"no '{key}' in the config"):
            Config.from_mapping(broken)


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("seed", -1, "'seed' is -1"),
        ("seed", 2**32, "'seed' is 4294967296"),
        ("seed", 1.5, "'seed' is 1.5 (float)"),
        ("data__global_batch_size", 0, "'data.global_batch_size' is 0"),
        ("data__augment__crop__min_area", 0.0, "'data.augment.crop.min_area' is 0.0"),
        ("data__augment__crop__name", "centre", "'data.augment.crop.name' is 'centre'"),
        ("data__augment__crop", "pad", "'data.augment.crop' is 'pad'"),
        ("data__augment__color_jitter", 0.3, "'data.augment.color_jitter' is 0.3 (float)"),
        ("data__augment__mix", True, "'data.augment.mix.mixup_alpha' is 0, as is"),
        ("model__pooling", "mean", "'model.pooling' is 'mean' (str)"),
        ("model__dropout", 1.0, "'model.dropout' is 1.0"),
        ("model__layer_scale", 0, "'model.layer_scale' is 0"),
        ("model__dtype", "float16", "'model.dtype' is 'float16' (str)"),
        ("optimizer__learning_rate", 0, "'optimizer.learning_rate' is 0"),
        ("optimizer__learning_rate", float("nan"), "'optimizer.learning_rate' is nan (float)"),
        ("optimizer__layer_decay", 1.1, "'optimizer.layer_decay' is 1.1"),
        ("optimizer__clip_global_norm", 0, "'optimizer.clip_global_norm' is 0"),
        ("optimizer__schedule__decay", "stair", "'optimizer.schedule.decay' is 'stair' (str)"),
        ("ema_decay", 1.0, "'ema_decay' is 1.0"),
        ("accumulation_steps", 0, "'accumulation_steps' is 0"),
        ("accumulation_steps", 3, "'accumulation_steps' is 3"),
        ("loss__label_smoothing", 1, "'loss.label_smoothing' is 1"),
        ("train_epochs", 0.0, "'train_epochs' is 0.0"),
        ("evaluation__splits", {"test": 3}, "'evaluation.splits.test' is 3 (int)"),
        ("logging__interval_steps", 0, "'logging.interval_steps' is 0"),
        ("mesh__data", 0, "mesh data=0, fsdp=1, tensor=1"),
        ("mesh__fsdp", -1, "mesh data=-1, fsdp=-1, tensor=1"),
        ("mesh__tensor", -2, "'mesh.tensor' is -2"),
        ("mesh__slices", 0, "'mesh.slices' is 0"),
        ("mesh__slices", -2, "'mesh.slices' is -2"),
        ("mesh__rules", [["head/(", []]], "'mesh.rules' has 'head/(', which is not a regular"),
        ("mesh__rules", [["a", ["fsdp", None, "fsdp"]]], "'mesh.rules' has the rule ('fsdp', N"),
        ("mesh__rules", [["a", ["rows"]]], "'mesh.rules' is"),
        ("profile__steps", "5", "'profile.steps' is '5'"),
        ("profile__steps", "0:5", "'profile.steps' is '0:5'"),
        ("profile__steps", "7:5", "'profile.steps' is '7:5'"),
    ],
)
def test_an_impossible_value_is_named_with_its_whole_key(key, value, part):
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(mapping(**{key: value}))
    assert caught.value.got.startswith(part)


@pytest.mark.parametrize(
    ("section", "choice", "key", "value", "readers"),
    [
        ("optimizer__schedule", "decay", "step_at", (0.5,), ["step"]),
        ("optimizer__schedule", "decay", "step_factor", 0.5, ["step"]),
        ("optimizer__schedule", "decay", "timescale_steps", 10, ["rsqrt"]),
        ("optimizer__schedule", "decay", "end_learning_rate", 1e-6, ["cosine", "linear"]),
        ("data", "eval_crop", "central_fraction", 0.5, ["central", "squash_central"]),
    ],
)
def test_a_key_that_the_choice_does_not_read_is_refused(section, choice, key, value, readers):
    choices = {
        "decay": ["cosine", "linear", "rsqrt", "step", "constant"],
        "eval_crop": ["central", "resize", "squash_central"],
    }
    for chosen in choices[choice]:
        given = mapping(**{f"{section}__{choice}": chosen, f"{section}__{key}": value})
        if chosen in readers:
            Config.from_mapping(given)
            continue
        with pytest.raises(ConfigError) as caught:
            Config.from_mapping(given)
        full = f"{section}.{key}".replace("__", ".")
        assert caught.value.got == f"'{full}' is {value}, but {choice}={chosen} does not read it"
        assert caught.value.expected == f"{choice}={' or '.join(readers)}"


@pytest.mark.parametrize("key", ["image_key", "label_key", "label_rule"])
@pytest.mark.parametrize("source", ["folder", "csv", "captioned", "passed"])
def test_features_are_named_in_tfds_datasets_only(source, key):
    """The column of the labels in a CSV file is label, whatever label_key says."""
    given = {f"data__{key}": "clevr_count"}
    assert getattr(Config.from_mapping(mapping(**given)).data, key) == "clevr_count"
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(mapping(data__source=source, **given))
    assert (
        caught.value.got == f"'data.{key}' is 'clevr_count', but source={source} does not read it"
    )
    of_recipe = mapping(**given)
    apply_override_texts(of_recipe, [f"data.source={source}"])
    assert getattr(Config.from_mapping(of_recipe).data, key) is None


@pytest.mark.parametrize(
    ("key", "value", "reader", "read"),
    [
        ("data__subset__seed", 3, "data__subset__fraction", 0.5),
        ("fewshot__methods", ("knn",), "fewshot__datasets", {"a": {"name": "digits"}}),
        ("fewshot__shots", (5,), "fewshot__datasets", {"a": {"name": "digits"}}),
    ],
)
def test_a_key_that_nothing_reads_is_refused(key, value, reader, read):
    Config.from_mapping(mapping(**{key: value, reader: read}))
    with pytest.raises(ConfigError, match=r"nothing reads it") as caught:
        Config.from_mapping(mapping(**{key: value}))
    assert caught.value.got.startswith(f"'{key.replace('__', '.')}' is ")


def test_a_new_choice_drops_what_it_does_not_read_of_the_file_only():
    content = mapping(data__central_fraction=0.5, optimizer__schedule__end_learning_rate=1e-6)
    changed = copy.deepcopy(content)
    apply_override_texts(changed, ["data.eval_crop=resize", "optimizer.schedule.decay=rsqrt"])
    config = Config.from_mapping(changed)
    assert config.data.central_fraction == 0.875
    assert config.optimizer.schedule.end_learning_rate == 0
    apply_override_texts(content, ["data.central_fraction=0.7", "data.eval_crop=resize"])
    with pytest.raises(ConfigError, match=r"is 0\.7, but eval_crop=resize does not read it"):
        Config.from_mapping(content)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("sed", "seed"),
        ("model__nam", "model.name"),
        ("data__batch_size", "data.global_batch_size"),
        ("optimizer__lr_schedule", "optimizer.schedule"),
        ("lr", "optimizer.learning_rate"),
        ("bs", "data.global_batch_size"),
        ("model__img_size", "data.image_size"),
        ("model__drop_path", "model.stochastic_depth"),
        ("epochs", "train_epochs"),
        ("optimizer__schedule__warmup_step", "optimizer.schedule.warmup_steps"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_valid_one(key, hint):
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(mapping(**{key: 1}))
    assert caught.value.got.startswith(f"unknown config key '{key.replace('__', '.')}'")
    assert caught.value.fix == f"did you mean '{hint}'?"


def test_a_new_name_of_the_model_drops_the_sizes_of_the_file(caplog):
    content = mapping(model={"name": "ViT-Ti/8", "width": 128, "depth": 6, "pooling": "gap"})
    override_key(content, "model.name", "ViT-Ti/8")
    assert content["model"]["depth"] == 6
    with caplog.at_level("INFO"):
        override_key(content, "model.name", "ViT-B/16")
    assert content["model"] == {"name": "ViT-B/16", "pooling": "gap"}
    assert "has its own sizes, not the config file's width 128, depth 6" in caplog.text
    override_key(content, "model.depth", 3)
    assert content["model"]["depth"] == 3


def test_a_shift_of_more_than_the_image_is_refused():
    augment = {"crop": {"name": "pad", "pixels": 32}}
    with pytest.raises(ConfigError, match=r"'data.augment.crop.pixels' is 32 for images of 32 pix"):
        Config.from_mapping(mapping(data__augment=augment, data__image_size=32))


@pytest.mark.parametrize("units", [(), ("steps", "epochs"), ("epochs", "examples")])
def test_the_training_length_must_have_exactly_one_unit(units):
    broken = mapping()
    del broken["train_steps"]
    broken |= {f"train_{unit}": 10 for unit in units}
    with pytest.raises(ConfigError) as caught:
        Config.from_mapping(broken)
    assert caught.value.expected.endswith(" one of train_steps, train_epochs, train_examples")


@pytest.mark.parametrize(
    ("make", "prefix", "steps"),
    [
        (ScheduleConfig, "warmup", 0),
        (ScheduleConfig, "cooldown", 10),
        (EvaluationConfig, "interval", 10),
        (CheckpointConfig, "interval", 10),
    ],
)
def test_other_durations_have_at_most_one_unit(make, prefix, steps):
    assert getattr(make(), f"{prefix}_steps") is None
    with pytest.raises(ConfigError) as caught:
        make(**{f"{prefix}_steps": steps, f"{prefix}_epochs": 1.0})
    assert caught.value.got == f"'{prefix}_steps' is given and so is '{prefix}_epochs'"
    keys = f"{prefix}_steps, {prefix}_epochs, {prefix}_examples"
    assert caught.value.expected == f"at most one of {keys}"


@pytest.mark.parametrize(
    ("duration", "steps"),
    [
        ({"interval_steps": 7}, 7),
        ({}, None),
        # 1000 examples an epoch in batches of 128: 7.8125 steps.
        ({"interval_epochs": 1.0}, 8),
        ({"interval_epochs": 0.8}, 6),  # 6.25
        ({"interval_epochs": 3.0}, 23),  # 23.4375
        ({"interval_epochs": 0.01}, 1),  # 0.08, but never none at all.
        ({"interval_examples": 1280}, 10),
        ({"interval_examples": 1}, 1),
    ],
)
def test_durations_in_steps_by_hand(duration, steps):
    holder = EvaluationConfig(**duration)
    assert duration_in_steps(holder, "interval", batch_size=128, num_examples=1000) == steps
    for none in (ScheduleConfig(warmup_epochs=0.0), ScheduleConfig(warmup_examples=0)):
        assert duration_in_steps(none, "warmup", batch_size=128, num_examples=1000) == 0


def test_only_keys_that_change_the_result_count_as_differences():
    config = Config.from_mapping(mapping())
    harmless = mapping(
        data__data_dir="/elsewhere",
        data__num_threads=3,
        checkpoint__keep_last=3,
        logging__tensorboard=False,
        mesh__tensor=1,
        mesh__data=4,
    )
    assert differences(config, Config.from_mapping(harmless)) == []
    changed = mapping(data__name="cifar10", model__depth=2, seed=1)
    assert differences(config, Config.from_mapping(changed)) == [
        ("seed", 0, 1),
        ("model.depth", None, 2),
        ("data.name", "digits", "cifar10"),
    ]


def test_a_config_file_is_read_with_and_without_an_argument(config_file):
    assert load_config(str(config_file)).train_epochs == 30
    assert load_config(f"{config_file}:short").train_epochs == 3
    assert load_config(str(config_file)).optimizer.schedule.warmup_epochs == 5.0


def test_overrides_are_applied_in_order_and_reach_nested_keys(config_file):
    config = load_config(
        str(config_file),
        [
            "seed=1",
            "seed=2",
            "optimizer.learning_rate=2e-3",
            "model.pooling=gap",
            "data.augment.flip=true",
            "optimizer.options.b2=0.9",
            "evaluation.splits.test=test",
            "model.layer_scale=1e-5",
            "data.num_classes=none",
            "data.data_dir=/a=b",
        ],
    )
    assert config.seed == 2
    assert config.optimizer.learning_rate == 0.002
    assert config.model.pooling == "gap"
    assert config.data.augment.flip == Flip()
    assert config.optimizer.options == {"b2": 0.9}
    assert config.evaluation.splits == {"test": "test"}
    assert config.model.layer_scale == 1e-5
    assert config.data.num_classes is None
    assert config.data.data_dir == "/a=b"


PADDED = 'data.augment={"crop": {"name": "pad", "pixels": 2}, "flip": false}'


@pytest.mark.parametrize(
    ("overrides", "pixels", "on"),
    [
        ([PADDED], 2, []),
        ([PADDED, "data.augment.flip=true"], 2, ["flip"]),
        (["data.augment.flip=true", PADDED], 2, []),
        ([PADDED, "data.augment={'crop': {'pixels': 3}}"], 3, []),
        (["data.augment.crop.name=pad", PADDED, "data={'augment': {'flip': True}}"], 2, ["flip"]),
        ([PADDED, "data.augment.erasing.probability=0.1", "data.augment={}"], 2, ["erasing"]),
        (["data.augment.erasing=true", PADDED, "data.augment.erasing=none"], 2, []),
        (["data.augment.crop.pixels=3", "data.augment={'crop': {'name': 'pad'}}"], 3, []),
    ],
)
def test_overrides_of_a_section_add_up_in_their_order(config_file, overrides, pixels, on):
    before = load_config(str(config_file)).data
    data = load_config(str(config_file), overrides).data
    assert data.augment.crop == Pad(pixels=pixels)
    assert data.augment.to_mapping().keys() == {"crop", *on}
    assert [*data.augment.operations(*STAGES)] == on
    assert data.replace(augment=before.augment) == before


def test_a_word_that_is_no_switch_is_refused(config_file):
    with pytest.raises(ConfigError, match=r"'data.augment.flip' is 'off'.*; use true or false"):
        load_config(str(config_file), ["data.augment.flip=off"])


@pytest.mark.parametrize(
    ("former", "now"),
    [("randaugment_layers=2", "randaugment.layers"), ("erasing_probability=1", "erasing.prob"),
     ("pad_pixels=2", "crop.name=pad and data.augment.crop.pixels"),
     ("crop=pad", "crop.name=pad"), ("min_area=0.1", "crop.min_area"),
     ("color_jitter=0.3", "color_jitter.strength")],
)  # fmt: skip
def test_a_former_spelling_of_an_augmentation_is_told_the_new_one(config_file, former, now):
    with pytest.raises(ConfigError, match=rf"set data\.augment\.{re.escape(now)}"):
        load_config(str(config_file), [f"data.augment.{former}"])


def test_what_moved_out_of_the_augmentation_is_named(config_file):
    for former, now in {
        "data.augment.interpolation=bicubic": "data.interpolation",
        "data.augment.central_fraction=1.0": "data.central_fraction",
        "data.augment.repeats=3": "data.repeats",
        "mixing.mixup_alpha=0.2": "data.augment.mix",
    }.items():
        with pytest.raises(ConfigError, match=f"set {re.escape(now)}$"):
            load_config(str(config_file), [former])


def test_a_section_of_a_dict_is_merged_and_a_dict_of_values_is_replaced(config_file):
    pets = 'fewshot.datasets.pets={"name": "oxford_iiit_pet", "train_split": "train"}'
    config = load_config(
        str(config_file),
        [pets, "fewshot.datasets.pets.train_split=train[:50%]", "evaluation.splits={'a': 'test'}"],
    )
    found = config.fewshot.datasets["pets"]
    assert (found.name, found.train_split) == ("oxford_iiit_pet", "train[:50%]")
    assert config.evaluation.splits == {"a": "test"}


def test_a_dict_that_replaces_what_an_override_set_says_so(config_file, caplog):
    one, both = "evaluation.splits.a=test", "evaluation.splits={'b': 'train'}"
    assert load_config(str(config_file), [both, one]).evaluation.splits == {
        "a": "test", "b": "train",
    }  # fmt: skip
    assert not caplog.text
    assert load_config(str(config_file), [one, both]).evaluation.splits == {"b": "train"}
    said = "evaluation.splits replaces all that is set before it: evaluation.splits.a"
    assert said in caplog.text


def test_the_units_of_one_override_conflict_and_replace_those_of_the_file(config_file):
    both = "optimizer.schedule={'warmup_steps': 3, 'warmup_examples': 9}"
    with pytest.raises(
        ConfigError, match=r"'optimizer\.schedule\.warmup_steps' is given and so is"
    ):
        load_config(str(config_file), [both])
    schedule = load_config(str(config_file), ["optimizer.schedule={'warmup_steps': 3}"])
    assert schedule.optimizer.schedule.warmup_epochs is None
    config = load_config("quickstart", ["train_steps=none", "train_epochs=2"])
    assert (config.train_steps, config.train_epochs) == (None, 2.0)


def test_the_overrides_of_fit_and_sweeps_have_one_unit_too():
    both = {"train_steps": 3, "data.image_size": 32, "train_epochs": 2}
    with pytest.raises(ConfigError, match="'train_steps' is given and so is 'train_epochs'"):
        apply_overrides(mapping(), both.items())
    changed = mapping()
    apply_overrides(changed, {**both, "train_steps": None}.items())
    assert (changed.get("train_steps"), changed["train_epochs"]) == (None, 2)


def test_a_model_given_as_a_dict_comes_first_and_drops_the_sizes_of_the_file():
    content = mapping(model={"name": "ViT-Ti/8", "width": 128, "depth": 6, "pooling": "gap"})
    changes = {"model.depth": 3, "model": {"name": "ViT-B/16", "num_heads": 8}}
    apply_overrides(content, changes.items())
    assert content["model"] == {
        "name": "ViT-B/16", "pooling": "gap", "depth": 3, "num_heads": 8
    }  # fmt: skip


def test_a_new_task_drops_the_keys_of_the_old_one_in_any_order(config_file):
    """The loss of the file goes with the task that reads it."""
    given = ["task.mask_ratio=0.6", "task.name=mae"]
    content = mapping(task={"name": "dino", "local_crops": 2}, loss={"label_smoothing": 0.1})
    for overrides in (given, given[::-1], ["task={'mask_ratio': 0.6, 'name': 'mae'}"]):
        changed = copy.deepcopy(content)
        apply_override_texts(changed, overrides)
        assert changed["task"] == {"name": "mae", "mask_ratio": 0.6}
        assert "loss" not in changed
    changed = copy.deepcopy(content)
    apply_override_texts(changed, ["loss.name=sigmoid_cross_entropy", "task.name=distillation"])
    assert changed["loss"] == {"name": "sigmoid_cross_entropy", "label_smoothing": 0.1}
    with pytest.raises(ConfigError, match="unknown config key 'loss' for a task without labels"):
        load_config(str(config_file), [*given, "loss.name=sigmoid_cross_entropy"])


def test_only_sections_that_may_be_absent_are_switched():
    content = mapping(data__augment={"erasing": {"probability": 0.1}})
    apply_overrides(content, {"data.augment.erasing": True, "data.augment.flip": True}.items())
    assert content["data"]["augment"] == {"erasing": {"probability": 0.1}, "flip": {}}
    apply_overrides(content, {"optimizer": True}.items())
    with pytest.raises(ConfigError, match="'optimizer' is True"):
        Config.from_mapping(content)


def test_a_new_loss_drops_the_keys_of_the_old_one():
    content = mapping(loss={"name": "sigmoid_cross_entropy", "mean_over_classes": True})
    apply_override_texts(content, ["loss.label_smoothing=0.1", "loss.name=softmax_cross_entropy"])
    assert content["loss"] == {"name": "softmax_cross_entropy", "label_smoothing": 0.1}


def test_a_run_has_the_keys_of_its_task_only():
    classes = Config.from_mapping(mapping()).to_mapping()
    assert classes["task"] == {"name": "classification"}
    assert classes["loss"]["name"] == "softmax_cross_entropy"
    masked = Config.from_mapping(mapping(task={"name": "masked_patches"}))
    assert "loss" not in masked.to_mapping()
    assert Config.from_mapping(masked.to_mapping()) == masked


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("task=mae", "'task' is 'mae'; expected a section with a name; set task.name=mae"),
        ("mae.mask_ratio=0.6", "'mae'.*set task.name=mae, and its other keys as task.KEY"),
        ("task.mask_ratio=0.6", "'task.mask_ratio'.*set task.name=mae, which has it"),
        ("task.name=maee", "'task.name' is 'maee'; expected one of classification"),
        ("loss.binary_targets=True", "set loss.name=sigmoid_cross_entropy, which has it"),
        ("model=ViT-B/16", "'model' is 'ViT-B/16'; .*; set model.name=ViT-B/16"),
    ],
)
def test_a_key_in_the_wrong_place_is_one_line_that_says_the_right_one(override, words, config_file):
    with pytest.raises(ConfigError, match=words):
        load_config(str(config_file), [override])


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ({"task": "mae"}, "set task.name=mae"),
        ({"mae": {"mask_ratio": 0.6}}, "'mae'.*set task.name=mae"),
    ],
)
def test_a_recipe_of_an_earlier_revision_is_told_what_to_write(old, words):
    with pytest.raises(ConfigError, match=words):
        Config.from_mapping(mapping() | old)


def test_a_wrong_key_in_a_section_given_as_a_dict_is_named(config_file):
    with pytest.raises(ConfigError, match=r"key 'data\.augment\.flop'; .* 'data\.augment\.flip'"):
        load_config(str(config_file), ["data.augment={'flop': True}"])


@pytest.mark.parametrize(
    ("override", "train", "warmup"),
    [
        ("train_steps=20", (20, None, None), (None, 5.0, None)),
        ("train_examples=640", (None, None, 640), (None, 5.0, None)),
        ("optimizer.schedule.warmup_steps=3", (None, 30.0, None), (3, None, None)),
        ("optimizer.schedule.warmup_examples=9", (None, 30.0, None), (None, None, 9)),
    ],
)
def test_an_overridden_unit_replaces_its_siblings(config_file, override, train, warmup):
    config = load_config(str(config_file), [override])
    assert (config.train_steps, config.train_epochs, config.train_examples) == train
    schedule = config.optimizer.schedule
    found = (schedule.warmup_steps, schedule.warmup_epochs, schedule.warmup_examples)
    assert found == warmup


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("bad.py", "x = 1", "has no get_config"),
        ("bad.py", "def get_config(): return 3", "returned int"),
        ("bad.py", "def get_config(): return None", "returned NoneType"),
        ("bad.py", "def get_config(): return {'seed': {1, 2}}", "bad.py"),
        ("bad.py:B/16", "def get_config(): return {}", "bad.py takes no argument"),
        ("bad.py", "def get_config(arg): return {}", "bad.py needs an argument"),
        ("bad.py", "version https://git-lfs.github.com/spec/v1", "bad.py is a Git LFS pointer"),
        ("missing.py", None, "no config file at"),
        ("missing.py:arg", None, "missing.py;"),
        ("", None, "no config file at"),
        ("config.json", None, "config.json"),
        ("config.json", "{", "config.json"),
        ("config.json", "[1]", "config.json"),
    ],
)
def test_a_file_without_a_config_is_refused(tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name.partition(":")[0]).write_text(text)
    with pytest.raises((ConfigError, FileError), match=re.escape(words)):
        load_config(f"{tmp_path}/{name}")


def test_get_config_may_return_a_plain_dict_and_gets_any_text_after_the_colon(tmp_path):
    path = tmp_path / "plain.py"
    path.write_text(f"def get_config(arg): return {mapping()!r} | {{'seed': len(arg)}}")
    assert load_config(f"{path}:") == Config.from_mapping(mapping())
    assert load_config(f"{path}:a:b").seed == 3


def test_the_config_json_of_a_run_is_read_as_well(tmp_path):
    config = Config.from_mapping(
        mapping(
            evaluation__splits={"val": "train[90%:]"},
            optimizer__options={"b2": 0.95},
            optimizer__freeze=["head/.*"],
            ema_decay=0.99,
            mesh__fsdp=2,
        )
    )
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config.to_mapping()))
    assert load_config(str(path)) == config
    assert load_config(str(path), ["train_epochs=2"]).train_steps is None


def test_parse_arg_takes_words_in_any_order_and_first_values_as_defaults():
    choices = {"model": ("B/16", "L/16"), "augment": ("none", "light1"), "size": (224, 384)}
    assert parse_arg("", **choices) == {"model": "B/16", "augment": "none", "size": 224}
    assert parse_arg("384,L/16", **choices) == {"model": "L/16", "augment": "none", "size": 384}
    assert parse_arg("light1,B/16,", **choices)["augment"] == "light1"
    with pytest.raises(ConfigError) as caught:
        parse_arg("B/61", model=("B/16", "L/16"), size=(224,))
    assert caught.value.got == "config argument 'B/61'"
    assert caught.value.expected == "words from model: B/16, L/16; size: 224"


@pytest.mark.parametrize(
    ("changes", "num_classes", "measured"),
    [
        ({"data__source": "folder"}, 10, True),
        ({"data__source": "folder"}, 1000, False),
        ({"data__source": "folder", "evaluation__by_class": False}, 10, False),
        ({}, 10, False),
        ({"evaluation__by_class": True}, 1000, True),
    ],
)
def test_the_classes_of_ones_own_photos_are_measured_by_default(changes, num_classes, measured):
    config = Config.from_mapping(mapping(**changes))
    assert config.measures_classes(num_classes) == measured


def test_a_run_cannot_choose_by_a_metric_that_it_does_not_measure():
    changes = {"evaluation__splits": {"test": "test"}, "evaluation__interval_steps": 1}
    chosen = mapping(**changes, early_stopping__metric="eval/test/accuracy_top5")
    config = Config.from_mapping(chosen)
    check_metrics(config, 6)
    with pytest.raises(ConfigError, match=r"with 5 classes.*accuracy_top1") as caught:
        check_metrics(config, 5)
    assert caught.value.key == "early_stopping.metric"
