"""experiments/masked_patches: the runs on its page."""

import functools

import pytest


@pytest.fixture
def plan(plan_of):
    return functools.partial(plan_of, "masked_patches")


def test_at_full_scale_the_sweep_is_section_4_6(plan):
    """B.1.2: B/16, 1M steps of 4096, 2e-4, 10k warmup; Table 4 has four rates for ImageNet."""
    paper = plan("paper").jobs
    stages = [job.job.stage for job in paper.values()]
    assert [stages.count(s) for s in (None, "search", "final")] == [3, 3 * 4, 3 * 3]
    masked = paper["pretrain/masked"].config
    assert (masked.task, masked.model.name, masked.data.name) == (
        "masked_patches",
        "ViT-B/16",
        "jft",
    )
    assert (masked.train_steps, masked.data.global_batch_size) == (1_000_000, 4096)
    # 1M steps of 4096 of 303 million images: "ca. 14 epochs".
    assert masked.train_steps * 4096 / 303e6 == pytest.approx(13.5, abs=0.05)
    schedule = masked.optimizer.schedule
    assert (masked.optimizer.learning_rate, schedule.warmup_steps, schedule.decay) == (
        2e-4,
        10_000,
        "cosine",
    )
    section = masked.masked_patches
    assert (section.corrupt, section.mask, section.random) == (0.5, 0.8, 0.1)
    assert section.num_colours == 512
    final = paper["final/imagenet2012/masked/seed0"]
    assert final.config.task == "classification"
    assert final.config.data.image_size == 384
    assert final.config.evaluation.splits == {"test": "validation"}
    assert paper["pretrain/imagenet"].config.train_epochs == 300


def test_small_runs_differ_only_in_their_initial_weights(plan):
    small = plan("small").jobs
    tuned = [job for job in small.values() if job.job.stage == "final"]
    assert len(small) - len(tuned) == 2
    assert len(tuned) == (3 + 4) * 3
    masked, labels = (small[f"pretrain/{name}"].config for name in ("masked", "supervised"))
    assert (masked.task, labels.task) == ("masked_patches", "classification")
    assert (masked.train_epochs, masked.optimizer) == (labels.train_epochs, labels.optimizer)
    start = small["finetune/cifar10/masked/seed1"]
    none = small["finetune/cifar10/none/seed1"]
    assert start.needs == ("pretrain/masked",)
    assert none.needs == ()
    assert (none.config.model.name, none.config.init_from) == ("ViT-Micro/4", None)
    for part in ("seed", "data", "optimizer", "train_steps"):
        assert getattr(start.config, part) == getattr(none.config, part)
    assert none.config.data.train_split == "train[:10%]"
    assert none.config.evaluation.splits == {"test": "test"}


def test_the_control_of_equal_images_sees_as_many_as_pretraining_and_fine_tuning(plan):
    small = plan("small").jobs
    pretrained = small["pretrain/masked"].config
    control = small["finetune/cifar10/equal-images/seed0"].config
    tuned = small["finetune/cifar10/masked/seed0"].config
    seen = pretrained.train_epochs * 50_000 + tuned.train_steps * tuned.data.global_batch_size
    assert control.train_steps * control.data.global_batch_size == pytest.approx(seen, rel=1e-3)
    assert control.init_from is None
