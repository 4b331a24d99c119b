"""experiments/transfer: the runs on its page."""

import functools

import pytest


@pytest.fixture
def plan(plan_of):
    return functools.partial(plan_of, "transfer")


def counted(plan):
    stages = [job.job.stage for job in plan.jobs.values()]
    return {stage: stages.count(stage) for stage in ("search", "final", None)}


def test_three_models_are_pretrained_each_at_its_own_rate(plan):
    pretrain = plan("pretrain")
    assert counted(pretrain) == {"search": 3 * 3, "final": 3, None: 0}
    long = pretrain.jobs["final/ViT-Micro-4/seed0"].config
    assert (long.train_examples, long.data.train_split) == (768_000, "train[:96%]")


def test_three_models_are_transferred_to_two_datasets(plan):
    small = plan("small")
    assert counted(small) == {"search": 3 * 2 * 3, "final": 3 * 2 * (3 + 1), None: 0}
    search = small.jobs["search/clothing_small/ViT-Micro-4/learning_rate=0.03"]
    assert search.config.init_from == "experiments/transfer/checkpoints/ViT-Micro-4"
    assert search.config.train_steps == 100
    assert search.config.evaluation.splits == {"dev": "train[90%:]"}
    assert search.config.data.train_split == "train[:90%]"
    assert search.config.data.image_size == 64
    final = small.jobs["final/clothing_small/ViT-Micro-4/seed2"]
    assert final.config.evaluation.splits == {"test": "test"}
    assert final.config.data.train_split == "train"
    assert (final.config.seed, final.config.train_steps) == (2, 300)


def test_at_full_scale_the_sweep_is_table_5(plan):
    """Four models; Table 4 has four learning rates for each of the five datasets."""
    paper = plan("paper")
    assert counted(paper) == {"search": 4 * 5 * 4, "final": 4 * 5 * 3, None: 4}
    pets = paper.jobs["final/pets/L-16/seed0"].config
    assert (pets.train_steps, pets.data.global_batch_size, pets.data.image_size) == (500, 512, 384)
    assert (pets.optimizer.name, pets.optimizer.weight_decay) == ("sgd", 0)
    assert paper.jobs["pretrain/L-16"].config.data.name == "imagenet21k"
