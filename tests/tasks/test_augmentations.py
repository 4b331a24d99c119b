"""Each task applies each operation of `data.augment`, or refuses it by its name."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from images import encode, noise
from own_code import own_code  # noqa: F401
from processes import run_command
from weight_files import random_weights

from vit_jax.config.run import Config
from vit_jax.data.augment import AUGMENTATIONS, STAGES, Operation, augment_class
from vit_jax.data.sources import TfdsSource
from vit_jax.data.sources.base import Example
from vit_jax.errors import ConfigError
from vit_jax.tasks.task import DataInfo, build_task

SIZES = {"width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
VIT = {"name": "ViT-Ti/4", **SIZES}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "digit", *"0123456789"]
TEXT = {**SIZES, "vocabulary_size": len(WORDS), "context_length": 4, "pooling": "first"}
SEQUENCES = {"sequence_length": 16, "eval_crop": "resize"}
DINO = {"local_crops": 1, "local_size": 8, "prototypes": 16, "head_width": 16, "bottleneck": 8}
# Task -> what differs from a classification, and the operations that it refuses.
TASKS = {
    "classification": ({}, set()),
    "NaFlex": (
        {"model": {**VIT, "pooling": "map", "position_grid": 2}, "data": SEQUENCES},
        {"erasing", "mix"},
    ),
    "distillation": ({"task": {"name": "distillation"}}, set()),
    "distillation at the teacher's size": (
        {"task": {"name": "distillation", "teacher_image_size": 16}},
        {"erasing", "mix", "randaugment", "three_augment"},
    ),
    "masked_patches": ({"task": {"name": "masked_patches"}}, {"erasing", "mix"}),
    "mae": (
        {"task": {"name": "mae", "decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}},
        {"erasing", "mix"},
    ),
    "dino": (
        {"task": {"name": "dino", **DINO, "distort": False}},
        {"color_jitter", "mix", "randaugment", "three_augment"},
    ),
    "image_text": (
        {
            "task": {"name": "image_text"},
            "model": {"name": "LiT-ViT-Ti/4", "image": VIT, "text": {**TEXT, "pad_token": 0}},
        },
        {"mix"},
    ),
}
# Those that need no values are switched on with their defaults.
ON = {"mix": {"cutmix_alpha": 1.0}, "erasing": {"probability": 1.0}}
EXAMPLES = [Example(encode(noise(20, 30, seed)), seed, str(seed)) for seed in range(8)]


@pytest.fixture(scope="module")
def content(tmp_path_factory, digits_dir):
    """A function (task, augment) -> the content of a config."""
    folder = tmp_path_factory.mktemp("augmentations")
    names = tuple("0123456789")
    random_weights(folder / "teacher", num_classes=10, class_names=names, image_size=(16, 16))
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    captions = {"tokenizer": str(folder / "vocab.txt"), "templates": ("digit {}",)}

    def made(task, augment):
        changes, _ = TASKS[task]
        mapping = {
            "model": VIT,
            "optimizer": {"learning_rate": 1e-2},
            "train_steps": 10,
            **changes,
            "data": {
                "name": "digits", "data_dir": str(digits_dir), "image_size": 16,
                "global_batch_size": 8, "augment": augment, **changes.get("data", {}),
            },
        }  # fmt: skip
        if task.startswith("distillation"):
            mapping["task"] = {**changes["task"], "teacher": str(folder / "teacher")}
        if task == "image_text":
            mapping["data"]["captions"] = captions
        return mapping

    return made


@pytest.fixture(scope="module")
def prepared(content):
    """A function (task, augment) -> arrays of a batch on the host, and those on the device."""
    kept = {}

    def made(task, augment):
        key = json.dumps([task, augment, AUGMENTATIONS.names])
        if key not in kept:
            config = Config.from_mapping(content(task, augment))
            source = TfdsSource("digits", "train", config.data.data_dir)
            built = build_task(config, DataInfo(10, source=source), platform="cpu")
            make_row = built.train_preprocessing.make_row
            rows = [make_row(one, np.random.default_rng(i)) for i, one in enumerate(EXAMPLES)]
            host = {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
            ready = jax.jit(built.prepare)(host, jnp.int32(3))
            leaves = jax.tree.leaves_with_path(ready)
            device = {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}
            kept[key] = host, device
        return kept[key]

    return made


def changed(one, other):
    return {n for n in one if not np.array_equal(one[n], other[n])}


@pytest.mark.parametrize("name", AUGMENTATIONS.names)
@pytest.mark.parametrize("task", TASKS)
def test_a_task_applies_an_operation_or_refuses_it_by_its_name(content, prepared, task, name):
    augment = {name: ON.get(name, True)}
    if name in TASKS[task][1]:
        with pytest.raises(ConfigError, match=rf"'data\.augment\.{name}' is on with "):
            Config.from_mapping(content(task, augment))
        return
    (host, device), (own_host, own_device) = prepared(task, {}), prepared(task, augment)
    on_host = AUGMENTATIONS[name].stage == "host" or task == "NaFlex"
    assert bool(changed(host, own_host)) == on_host
    assert changed(device, own_device)
    # All images of the batch may be changed: those of a teacher and local crops, too.
    images = {n for n in device if "image" in n and device[n].ndim == 4}
    if name != "flip":
        assert images <= changed(device, own_device)


@pytest.mark.usefixtures("own_code")
@pytest.mark.parametrize("task", TASKS)
def test_an_operation_of_your_own_is_applied_or_refused(content, prepared, task):
    class Darken(Operation):
        """Halves the brightness."""

        stage = "device"

        def __call__(self, images, key):
            return (images + 1) / 2 - 1

    AUGMENTATIONS.add("darken", Darken, "mine")
    if "erasing" in TASKS[task][1]:
        with pytest.raises(ConfigError, match=r"'data\.augment\.darken' is on with "):
            Config.from_mapping(content(task, {"darken": True}))
        return
    before, after = (prepared(task, augment)[1] for augment in ({}, {"darken": True}))
    np.testing.assert_allclose(after["['image']"], (before["['image']"] + 1) / 2 - 1, atol=1e-6)


@pytest.mark.usefixtures("own_code")
def test_operations_are_applied_in_their_order_and_own_ones_last():
    class Aardvark(Operation):
        stage = "device"

        def __call__(self, images, key):
            return images

    AUGMENTATIONS.add("aardvark", Aardvark, "mine")
    names = AUGMENTATIONS.names
    augment = augment_class({}).from_mapping({name: ON.get(name, True) for name in names})
    assert [*augment.operations("host")] == ["randaugment", "three_augment", "color_jitter"]
    assert [*augment.operations("uint8")] == ["flip"]
    assert [*augment.operations("device")] == ["erasing", "aardvark"]
    assert [*augment.operations("mix")] == ["mix"]
    assert {*augment.operations(*STAGES)} == {*names}


# A script, because types are checked in test processes and checked functions cannot be pickled.
_SCRIPT = """
import json, sys
import cloudpickle, numpy as np
from vit_jax.config.run import Config
from vit_jax.data.sources import TfdsSource, open_source
from vit_jax.data.loader import batch_spec, train_batches
from vit_jax.tasks.task import DataInfo, build_task

if __name__ == "__main__":
    for number, content in enumerate(json.loads(sys.argv[1])):
        config = Config.from_mapping(content)
        source = open_source(config.data, "train")
        task = build_task(config, DataInfo(10, source=source), platform="cpu")
        preprocessing = task.train_preprocessing
        loaded = cloudpickle.loads(cloudpickle.dumps(preprocessing))
        example = source.read([0])[0]
        rows = [p.make_row(example, np.random.default_rng(0)) for p in (preprocessing, loaded)]
        for name, value in rows[0].items():
            np.testing.assert_array_equal(value, rows[1][name])
        if number:
            continue
        batches = []
        for workers in (0, 1):
            data = config.data.replace(num_workers=workers)
            spec = batch_spec(data, 8, range(8))
            options = {"seed": 1, "start_step": 0, "end_step": 2}
            with train_batches(source, lambda step: preprocessing, spec, **options) as feed:
                batches.append({name: np.array(value) for name, value in next(feed).items()})
        for name, value in batches[0].items():
            np.testing.assert_array_equal(value, batches[1][name])
"""


@pytest.mark.slow
def test_reader_processes_apply_the_same_operations(content, tmp_path):
    contents = [
        content(task, {name: True for name in ("randaugment", "three_augment", "color_jitter")
                       if name not in refused} | {"flip": True})
        for task, (_, refused) in TASKS.items()
    ]  # fmt: skip
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = run_command(script, json.dumps(contents))
    assert done.returncode == 0, done.stderr
