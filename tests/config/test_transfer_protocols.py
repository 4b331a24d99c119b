"""The tables agree with the papers."""

import pytest

from vit_jax.config import transfer_protocols as protocols
from vit_jax.config.transfer_protocols import TASKS, VTAB, Schedule
from vit_jax.data.sources.label_rules import RULES
from vit_jax.data.sources.splits import expand_presets

# Source: arXiv:2010.11929, Table 4: steps, learning rates, dev part of "train".
TABLE_4 = {
    "imagenet2012": (20_000, (0.003, 0.01, 0.03, 0.06), "train[99%:]"),
    "cifar100": (10_000, (0.001, 0.003, 0.01, 0.03), "train[98%:]"),
    "cifar10": (10_000, (0.001, 0.003, 0.01, 0.03), "train[98%:]"),
    "pets": (500, (0.001, 0.003, 0.01, 0.03), "train[90%:]"),
    "flowers": (500, (0.001, 0.003, 0.01, 0.03), "train[90%:]"),
}


@pytest.mark.parametrize("name", TABLE_4)
def test_protocols_follow_table_4(name):
    task, (steps, rates, dev) = TASKS[name], TABLE_4[name]
    assert (task.steps, task.learning_rates) == (steps, rates)
    train, scored, split = task.splits["dev"]
    sizes = {"train": task.train_examples, "test": 10}
    assert expand_presets(split, sizes, task.data) == dev
    assert expand_presets(train, sizes, task.data) == f"train[:{dev[6:8]}%]"
    assert (scored, task.splits["test"][0]) == ("dev", "train")
    assert task.splits["test"][2] == ("validation" if name == "imagenet2012" else "test")


def test_vtab_is_19_tasks_in_three_groups_with_the_rate_of_table_4():
    groups = [task.group for task in VTAB.values()]
    assert [groups.count(g) for g in ("natural", "specialized", "structured")] == [7, 4, 8]
    for task in VTAB.values():
        assert (task.steps, task.learning_rates, task.train_examples) == (2500, (0.01,), 1000)
        assert task.splits["dev"] == ("train800", "dev", "val200")
        assert task.splits["test"] == ("train800val200", "test", "vtab_test")


# Source: arXiv:1910.04867, Table 2 (classes).
VTAB_CLASSES = {
    "caltech101": 102, "cifar100": 100, "dtd": 47, "flowers": 102, "pets": 37, "sun397": 397,
    "svhn": 10, "camelyon": 2, "eurosat": 10, "resisc45": 45, "retinopathy": 5,
    "clevr_count": 8, "clevr_distance": 6, "dmlab": 6, "dsprites_location": 16,
    "dsprites_orientation": 16, "kitti_distance": 4, "smallnorb_azimuth": 18,
    "smallnorb_elevation": 9,
}  # fmt: skip


def test_vtab_has_the_published_numbers_of_classes():
    assert {name.removeprefix("vtab_"): t.num_classes for name, t in VTAB.items()} == VTAB_CLASSES
    for task in VTAB.values():
        if task.label_rule:
            assert len(RULES[task.label_rule].class_names) == task.num_classes


@pytest.mark.parametrize(
    ("examples", "steps", "warmup", "mixup"),
    [(1_000, 500, 100, 0.0), (19_999, 500, 100, 0.0), (20_000, 10_000, 500, 0.1),
     (499_999, 10_000, 500, 0.1), (500_000, 20_000, 500, 0.1)],
)  # fmt: skip
def test_bit_hyper_rule_depends_on_the_number_of_examples(examples, steps, warmup, mixup):
    assert protocols.bit_rule(examples) == (Schedule(steps, warmup), mixup)


@pytest.mark.parametrize(
    ("name", "recipe", "count", "first"),
    [
        ("imagenet2012", "paper", 4, (0.003, 20_000, 500)),
        ("vtab_dmlab", "paper", 1, (0.01, 2_500, 200)),
        ("pets", "augreg", 6, (0.001, 500, 100)),
        ("cifar100", "augreg", 6, (0.001, 2_500, 200)),
        ("imagenet2012", "augreg", 2, (0.01, 20_000, 500)),
        ("vtab_dmlab", "augreg", 8, (0.001, 500, 100)),
        ("cifar10", "bit", 1, (0.003, 10_000, 500)),
        ("clothing_small", "paper", 4, (0.001, 500, 100)),
    ],
)
def test_a_recipes_grid_is_the_published_one(name, recipe, count, first):
    space = protocols.search_space(name, recipe)
    assert len(space) == count
    assert len({tuple(s.items()) for s in space}) == count
    keys = ("optimizer.learning_rate", "train_steps", "optimizer.schedule.warmup_steps")
    assert tuple(space[0][key] for key in keys) == first
