"""Every recipe in configs/ loads, and its whole training step can be traced."""

import ast
import functools
import itertools
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from images import encode, noise

from vit_jax.config import transfer_protocols as protocols
from vit_jax.config.file import load_config
from vit_jax.config.mesh import MeshConfig
from vit_jax.data.augment.flip import Flip
from vit_jax.data.augment.mix import Mix
from vit_jax.data.crops.squash_random import SquashRandom
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.errors import ConfigError
from vit_jax.parallel.mesh import make_mesh
from vit_jax.train.parameter_groups import weight_decay_mask
from vit_jax.train.program import build_program

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
LEVELS = ("none", "light1", "light2", "medium1", "medium2", "strong1", "strong2")
# Classes and examples; web data have any number of pairs.
DATASETS = {
    "digits": (10, 1437),
    "cifar10": (10, 50_000),
    "cifar100": (100, 50_000),
    "oxford_iiit_pet": (37, 3680),
    "oxford_flowers102": (102, 1020),
    "folder": (10, 2761),
    "imagenet2012": (1000, 1_281_167),
    "imagenet21k": (21_843, 14_197_122),
    "jft": (18_291, 303_000_000),
    "coco_captions": (0, 82_783),
    "web": (0, 400_000_000),
}
# recipe -> arguments; the default set traces the first.
RECIPES = {
    "quickstart.py": [""],
    "cifar10.py": ["", "cpu", "gpu"],
    "cifar10_small.py": ["", "BiT-R-Nano", "R+ViT-Nano/4,fewshot"],
    "pretrain.py": [
        *(f"imagenet2012,{m}" for m in ("B/16", "B/32", "L/16", "L/32")),
        *(f"imagenet21k,{m}" for m in ("B/16", "B/32", "L/16", "L/32", "L/16,30")),
        *(f"jft,{m}" for m in ("B/16", "B/32", "L/32", "L/16", "H/14", "L/16,7")),
        *(f"jft,{m}" for m in ("R50x1", "R50x2", "R101x1", "R152x1", "R152x2")),
        *(f"jft,R50+{m}" for m in ("B/16", "B/32", "L/16", "L/16,7", "L/32")),
    ],
    "folder.py": ["", "whole", "split"],
    "transfer.py": [
        *("pets,polyak,0.75", "flowers,head", "cifar10,augreg,test", "cifar100,bit"),
        "folder,weighted",
    ],
    # Needs a teacher: traced in tests/tasks/test_distillation.py.
    "distillation.py": [],
    # The others need a teacher.
    "flexivit.py": ["cifar10", "supervised"],
    "naflex.py": ["cifar10", ""],
    "masked_patches.py": ["", "jft", "imagenet21k", "small"],
    "mae.py": [
        *("small", "B/16", "L/16,1600", "H/14", "B/16,finetune", "H/14,finetune"),
        "small,finetune",
    ],
    "dino.py": ["small", "S/16", "B/16", "S/16,ibot"],
    "lit.py": ["coco", "B/16", "L/16"],
    "siglip.py": ["lit", "B/16", "L/16", "So400m/14"],
    "clip.py": ["B/32", "B/16", "L/14"],
    "deit3.py": ["S/16", "B/16", "L/16", "H/14", "S/16,800", "L/16,800", "B/16,finetune"],
    "better_plain_vit.py": ["90", "150", "300"],
    "muon.py": ["90", "150", "300", "small"],
    "augreg.py": [
        *(f"Ti/16,{level},{r}" for level, r in itertools.product(LEVELS, ("reg0", "reg1"))),
        *("B/16,imagenet21k,medium1", "S/32,strong2,0.1", "L/16,imagenet21k,30,0.1,reg1"),
        *("R+Ti/16", "R26+S/32,imagenet21k,light1", "R50+L/32,reg1"),
    ],
}
# transfer.py reads the model from the weights; these overrides stand in for them.
TEACHER = ["task.teacher=WEIGHTS"]
WEIGHTS = {"transfer.py": ["init_from=WEIGHTS", "model.name=ViT-Mini/4", "data.image_size=32"]}
CASES = [(name, arg) for name, args in RECIPES.items() for arg in args]
# One recipe of each kind is traced in the default set, all of them in the slow set.
TRACED = [
    pytest.param(name, arg, marks=[pytest.mark.slow] if arg != RECIPES[name][0] else [])
    for name, arg in CASES
]


def load(name, arg):
    return load_config(f"{CONFIGS / name}{':' if arg else ''}{arg}", WEIGHTS.get(name, []))


def planned(config, num_classes, num_examples):
    sizes = {"num_classes": num_classes, "num_examples": num_examples}
    return build_program(config, make_mesh(MeshConfig()), **sizes, planned=True)


def test_every_recipe_is_tested():
    assert {p.name for p in CONFIGS.glob("*.py")} == set(RECIPES)


@pytest.mark.parametrize(("name", "arg"), CASES)
def test_every_recipe_loads(name, arg):
    assert load(name, arg).data.name in DATASETS


@pytest.mark.parametrize(("name", "arg"), TRACED)
def test_the_training_step_of_every_recipe_can_be_traced(name, arg):
    config = load(name, arg)
    num_classes, num_examples = DATASETS[config.data.name]
    with jax.numpy_dtype_promotion("standard"):
        program = planned(config, num_classes, num_examples)
        state, metrics = jax.eval_shape(program.step_fn, program.abstract, program.batch_shapes())
    assert jax.tree.structure(state) == jax.tree.structure(program.abstract)
    for new, old in zip(jax.tree.leaves(state), jax.tree.leaves(program.abstract), strict=True):
        assert (new.shape, new.dtype) == (old.shape, old.dtype)
    assert metrics["train/loss"].shape == ()
    outputs = {"masked_patches": 512, "mae": 0, "dino": 0, "image_text": 0}.get(
        config.task.name, num_classes
    )
    if outputs:
        assert program.abstract.params["head"]["linear"]["bias"].shape == (outputs,)
    else:
        assert not program.abstract.params.get("head")


@pytest.mark.parametrize(
    ("name", "arg", "steps"),
    [
        # 14,197,122 images x 90 / 4096; 303M x 14 / 4096; 99 % of 1,281,167 x 90 / 1024.
        ("pretrain.py", "imagenet21k,B/16", 311_948),
        ("pretrain.py", "jft,H/14", 1_035_645),
        ("better_plain_vit.py", "90", 111_477),
        # 1,281,167 x 800 / 4096.
        ("mae.py", "B/16", 250_228),
    ],
)
def test_the_number_of_steps_of_a_recipe(name, arg, steps):
    config = load(name, arg)
    num_classes, num_examples = DATASETS[config.data.name]
    if config.data.train_split == "train[:99%]":
        num_examples = round(0.99 * num_examples)
    assert planned(config, num_classes, num_examples).total_steps == steps


@pytest.mark.parametrize(
    ("arg", "name", "representation_size", "learning_rate", "epochs"),
    [
        ("B/16", "ViT-B/16", 768, 8e-4, 7),
        ("R50+B/32", "R50+ViT-B/32", 768, 8e-4, 7),
        ("R50+L/16", "R50+ViT-L/16", 1024, 4e-4, 14),
        ("R50+L/32", "R50+ViT-L/32", 1024, 2e-4, 7),
        ("R50x2", "BiT-R50x2", None, 1e-3, 7),
        ("R101x1", "BiT-R101x1", None, 8e-4, 7),
        ("R152x1", "BiT-R152x1", None, 6e-4, 7),
    ],
)
def test_recipes_follow_table_3(arg, name, representation_size, learning_rate, epochs):
    config = load("pretrain.py", f"jft,{arg}")
    assert (config.model.name, config.model.representation_size) == (name, representation_size)
    assert config.model.head_bias_init == -10
    assert (config.optimizer.learning_rate, config.train_epochs) == (learning_rate, epochs)


@pytest.mark.parametrize(
    ("arg", "model", "epochs"),
    [("B/16", "ViT-B/16", 800), ("L/16,1600", "ViT-L/16", 1600), ("H/14", "ViT-H/14", 800)],
)
def test_mae_follows_its_table_8(arg, model, epochs):
    config = load("mae.py", arg)
    assert (config.model.name, config.train_epochs) == (model, epochs)
    assert config.optimizer.learning_rate == pytest.approx(2.4e-3)
    assert config.optimizer.options == {"b2": 0.95}
    assert (config.task.decoder_width, config.task.decoder_depth) == (512, 8)
    tuned = load("mae.py", f"{arg.split(',')[0]},finetune")
    assert tuned.optimizer.layer_decay == (0.65 if model == "ViT-B/16" else 0.75)
    assert tuned.optimizer.learning_rate == pytest.approx(2e-3 if model == "ViT-B/16" else 4e-3)


def settings(config, *keys):
    """Returns the values of dotted keys."""
    return [functools.reduce(getattr, key.split("."), config) for key in keys]


# Recipe -> decay of a step at the peak rate in the authors' code, and the parameters it decays.
KERNELS = ".*/kernel"
NOT_VECTORS = r"(?!.*(bias|scale)$).*"
DECAY = {
    "pretrain.py:imagenet21k,B/16": (3e-5, KERNELS),
    "augreg.py:B/16,imagenet21k,medium1,0.1": (1e-4, KERNELS),
    "better_plain_vit.py:90": (1e-4, KERNELS),
    "muon.py:90": (1e-4, KERNELS),
    "siglip.py:B/16": (1e-4, KERNELS),
    "siglip.py:lit": (1e-2, KERNELS),
    "lit.py:B/16": (1e-2, KERNELS),
    "lit.py:L/16,coco": (1e-2, KERNELS),
    "flexivit.py:supervised": (1e-4, KERNELS),
    "flexivit.py:imagenet21k": (1e-5, KERNELS),
    "flexivit.py:imagenet2012,S": (1e-5, KERNELS),
    "distillation.py:patient": (3e-4, KERNELS),
    "distillation.py:deit": (5e-5, rf"{KERNELS}|registers"),
    "deit3.py:B/16": (6e-5, KERNELS),
    "deit3.py:B/16,800": (1.5e-4, KERNELS),
    "deit3.py:B/16,finetune": (1e-6, KERNELS),
    "clip.py:B/32": (1e-4, r"(?!.*(bias|scale|class_token)$|log_temperature).*"),
    "mae.py:B/16": (1.2e-4, NOT_VECTORS),
    "dino.py:B/16": (1.2e-4, NOT_VECTORS),
}
# Decayed by one of the patterns above and not by another.
NAMES = (
    "class_token", "position_embedding/table", "registers", "norm/scale", "head/linear/bias",
    "patch_embedding/kernel", "log_temperature", "text/token_embedding", "mask_token",
    "attention_pooling/probe", "encoder/blocks/attention/qkv/kernel",
)  # fmt: skip


@pytest.mark.parametrize("spec", DECAY)
def test_a_step_at_the_peak_rate_decays_as_in_the_authors_code(spec):
    decay, pattern = DECAY[spec]
    has_teacher = re.match("distillation|flexivit.py:imagenet", spec)
    optimizer = load_config(f"{CONFIGS / spec}", TEACHER if has_teacher else []).optimizer
    assert optimizer.decay_per_step == pytest.approx(decay)
    mask = weight_decay_mask(optimizer, dict.fromkeys(NAMES, 0))
    assert {n for n in NAMES if mask[n]} == {n for n in NAMES if re.fullmatch(pattern, n)}


def test_the_patient_student_follows_the_authors_config():
    """big_vision's proj/distill/bit_i1k.py; theirs decays by 3e-4, not times the rate of 0.03."""
    spec = f"{CONFIGS / 'distillation.py'}:patient"
    config = load_config(spec, TEACHER)
    wanted = {
        "optimizer.name": "adamw", "optimizer.learning_rate": 0.03,
        "optimizer.clip_global_norm": 1.0, "optimizer.schedule.warmup_steps": 5000,
        "optimizer.schedule.decay": "cosine", "model.name": "BiT-R50x1", "train_epochs": 1200,
        "data.global_batch_size": 4096, "data.image_size": 224, "data.train_split": "train[:98%]",
        "data.augment.crop.name": "inception", "data.augment.flip": Flip(),
        "data.augment.erasing": None, "data.augment.mix": Mix(mixup_alpha=1.0),
        "task.targets": "soft",
        "task.temperature": 1.0, "task.alpha": 1.0, "task.token": False,
    }  # fmt: skip
    assert settings(config, *wanted) == list(wanted.values())


_TIMM = (2, 9.0, "timm")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Filter, antialiasing, evaluation crop and its share, copies, RandAugment.
        ("mae.py:B/16", ("bicubic", True, "central", 0.875, 1, None)),
        ("mae.py:B/16,finetune", ("bicubic", True, "central", 0.875, 1, _TIMM)),
        ("dino.py:S/16", ("bicubic", True, "central", 0.875, 1, None)),
        ("distillation.py:deit", ("bicubic", True, "central", 0.875, 3, _TIMM)),
        ("deit3.py:B/16", ("bicubic", True, "central", 1.0, 3, None)),
        ("deit3.py:B/16,finetune", ("bicubic", True, "central", 1.0, 1, _TIMM)),
        ("distillation.py:patient", ("bilinear", False, "central", 0.875, 1, None)),
        ("better_plain_vit.py", ("bilinear", False, "central", 0.875, 1, (2, 10.0, "paper"))),
        ("augreg.py:B/16,light1", ("bilinear", False, "central", 0.875, 1, (2, 0.0, "paper"))),
        ("pretrain.py", ("bilinear", False, "central", 0.875, 1, None)),
        ("transfer.py:vtab_dmlab", ("bilinear", False, "resize", 0.875, 1, None)),
        ("flexivit.py", ("bilinear", False, "squash_central", 240 / 272, 1, None)),
        ("flexivit.py:supervised", ("bilinear", False, "central", 0.875, 1, (2, 10.0, "paper"))),
        ("siglip.py", ("bilinear", False, "squash_central", 0.875, 1, None)),
        ("siglip.py:lit", ("bilinear", False, "resize", 0.875, 1, (2, 10.0, "paper"))),
        ("lit.py", ("bilinear", False, "squash_central", 0.875, 1, None)),
        ("lit.py:coco", ("bilinear", False, "resize", 0.875, 1, (2, 10.0, "paper"))),
        ("muon.py", ("bilinear", False, "central", 0.875, 1, (2, 10.0, "paper"))),
    ],
)
def test_images_are_cropped_and_resized_as_in_the_authors_code(spec, expected):
    name = spec.partition(":")[0]
    needs_teacher = name == "distillation.py" or spec == "flexivit.py"
    config = load_config(str(CONFIGS / spec), TEACHER if needs_teacher else WEIGHTS.get(name, []))
    data = config.data
    randaugment = data.augment.to_mapping().get("randaugment")
    found = (data.interpolation, data.antialias, data.eval_crop, data.central_fraction)
    named = randaugment and tuple(randaugment[k] for k in ("layers", "magnitude", "flavour"))
    assert (*found, data.repeats, named) == expected


@pytest.mark.parametrize("name", RECIPES)
def test_every_docstring_has_command_source_score_hardware_and_data(name):
    text = ast.get_docstring(ast.parse((CONFIGS / name).read_text()))
    for word in ("Command:", "Follows:", "Expected:", "Hardware:", "Data:"):
        assert f"\n{word}" in text, word
    assert f"--config=configs/{name}" in text


@pytest.mark.parametrize("arg", ["imagenet2012,H/14", "imagenet22k", "jft,B/8", "jft,R50+L/32,14"])
def test_a_row_that_the_paper_does_not_have_is_refused(arg):
    with pytest.raises(ConfigError):
        load("pretrain.py", arg)


@pytest.mark.parametrize("dataset", [*protocols.TASKS, "folder", "tfds"])
def test_every_preset_of_transfer_follows_its_protocol(dataset):
    task = protocols.TASKS.get(dataset)
    for recipe, stage in itertools.product(protocols.RECIPES, protocols.STAGES):
        config = load_config(
            f"{CONFIGS / 'transfer.py'}:{dataset},{recipe},{stage}", ["init_from=WEIGHTS"]
        )
        assert (config.model.name, config.optimizer.name) == ("auto", "sgd")
        assert config.optimizer.options == {"momentum": 0.9}
        assert (config.optimizer.weight_decay, config.data.global_batch_size) == (0, 512)
        assert ("flip" in config.data.augment.operations("uint8")) == (
            task is None or not task.group or (recipe == "bit" and task.flip)
        )
        decay, clip = ("step", None) if recipe == "bit" else ("cosine", 1.0)
        assert (config.optimizer.schedule.decay, config.optimizer.clip_global_norm) == (decay, clip)
        chosen = {
            "optimizer.learning_rate": config.optimizer.learning_rate,
            "train_steps": config.train_steps,
            "optimizer.schedule.warmup_steps": config.optimizer.schedule.warmup_steps,
        }
        assert chosen in protocols.search_space(dataset, recipe)
        small = task is not None and task.small_images and recipe == "bit"
        assert config.data.image_size == (128 if small else 384)
        assert list(config.evaluation.splits) == ["dev" if stage == "dev" else "test"]
        if task is not None:
            assert config.data.label_rule == task.label_rule
            assert config.data.label_key == task.label_key


@pytest.mark.parametrize(
    ("arg", "depth"),
    [("H/14,800", 0.6), ("H/14,800,finetune", 0.55), ("L/16,800,finetune", 0.45),
     ("B/16,800,finetune", 0.2), ("H/14,finetune", 0.5)],
)  # fmt: skip
def test_deit3_has_the_stochastic_depth_of_the_authors_commands(arg, depth):
    assert load("deit3.py", arg).model.stochastic_depth == depth


def test_clip_neither_squashes_nor_enlarges_an_image_whose_short_side_fits():
    data = load("clip.py", "").data
    pixels = noise(90, 60)
    crop = make_train_transform(60, data)
    rng = np.random.default_rng(0)
    found = {crop(encode(pixels), rng).tobytes() for _ in range(400)}
    assert found == {pixels[top : top + 60].tobytes() for top in range(31)}
    middle = make_eval_transform(60, **data.eval_view)(encode(pixels), rng)
    np.testing.assert_array_equal(middle, pixels[15:75])


def test_the_options_of_transfer_set_their_config_keys():
    config = load("transfer.py", "pets,polyak,head,0.75,weighted,test")
    assert config.ema_decay == 0.9999
    assert config.optimizer.freeze == ("(?!head/).*",)
    assert config.optimizer.layer_decay == 0.75
    assert config.loss.class_weights == "balanced"
    assert config.evaluation.splits == {"test": "test"}
    small = load("transfer.py", "folder,small")
    assert (small.train_steps, small.data.augment.crop.min_area) == (300, 0.5)
    large = load("transfer.py", "cifar10,bit")
    assert large.data.augment.mix == Mix(mixup_alpha=0.1)
    assert large.data.augment.crop == SquashRandom(fraction=0.8)
    with pytest.raises(ConfigError, match="did you mean 'pets'"):
        load("transfer.py", "pet")
