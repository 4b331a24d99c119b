"""At full scale, the sweeps have the models and settings of arXiv:2010.11929.

test_snapshot.py compares every setting of every job; these are the ones that the paper states.
"""

from collections import Counter

import pytest

from vit_jax.models.flops import forward_macs

# Experiment -> jobs of each stage.
STAGES = {
    # Three initial weights (two pretrained, one trained to the end), four rates (Table 4).
    "masked_patches": {None: 3, "search": 3 * 4, "final": 3 * 3},
    # Table 5: four models, five datasets, four rates (Table 4).
    "transfer": {None: 4, "search": 4 * 5 * 4, "final": 4 * 5 * 3},
    # Table 6: 18 rows, 11 of ViTs and hybrids; ResNets try BiT's recipe as a fifth candidate.
    "compute": {None: 18, "search": 55 * 4 + 35 * 5, "final": 18 * 5 * 3},
    # Figure 4: six models on four subsets of JFT.
    "data_size": {"final": 6 * 4},
}
# (Experiment, job) -> settings.
SETTINGS = {
    # Section B.1.2.
    ("masked_patches", "pretrain/masked"): {
        "task.name": "masked_patches", "model.name": "ViT-B/16", "data.name": "jft",
        "train_steps": 1_000_000, "data.global_batch_size": 4096, "optimizer.learning_rate": 2e-4,
        "optimizer.schedule.warmup_steps": 10_000, "optimizer.schedule.decay": "cosine",
        "task.corrupt": 0.5, "task.mask": 0.8, "task.random": 0.1,
        "task.num_colours": 512,
    },
    ("masked_patches", "final/imagenet2012/masked/seed0"): {
        "task.name": "classification", "data.image_size": 384,
        "evaluation.splits": {"test": "validation"},
    },
    ("transfer", "pretrain/L-16"): {"data.name": "imagenet21k"},
    ("transfer", "final/pets/L-16/seed0"): {
        "train_steps": 500, "data.global_batch_size": 512, "data.image_size": 384,
        "optimizer.name": "sgd", "optimizer.weight_decay": 0,
    },
    # Seven epochs of all of JFT (Table 3), whatever the size.
    ("data_size", "pretrain/jft_9m/ViT-L-16"): {
        "train_examples": 7 * 303_000_000, "data.subset.preset": "jft_9m",
        "optimizer.learning_rate": 4e-4, "optimizer.weight_decay": 0.1, "fewshot.shots": (5,),
        "early_stopping.metric": "eval/dev/accuracy_top1", "evaluation.splits.dev": "validation",
    },
    ("data_size", "pretrain/jft_30m/ViT-b-32"): {
        "model.name": "ViT-B/32", "model.width": 384, "model.mlp_dim": 1536, "model.depth": None,
    },
    ("data_size", "pretrain/jft_303m/BiT-R152x2"): {"optimizer.learning_rate": 6e-4},
    # Rows that Table 3 lacks have the settings of another row.
    ("compute", "pretrain/R200x3-14"): {
        "model.name": "BiT-R200x3", "train_epochs": 14, "optimizer.learning_rate": 6e-4,
        "optimizer.weight_decay": 0.1,
    },
    ("position_embeddings", "1-D/stem"): {
        "model.name": "ViT-B/16", "data.name": "jft", "train_epochs": 7, "fewshot.shots": (5,),
        "optimizer.learning_rate": 8e-4, "fewshot.datasets.imagenet.test_split": "validation",
    },
    # Figure 9.
    ("head_norm_shape", "GAP/pre-norm/0.0003"): {
        "model.name": "ViT-B/16", "model.pooling": "gap", "model.norm_placement": "pre",
        "optimizer.learning_rate": 3e-4, "fewshot.interval_epochs": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("experiment", STAGES)
def test_the_jobs_are_counted_as_in_the_tables(plan_of, experiment):
    jobs = plan_of(experiment, "paper").jobs.values()
    assert Counter(job.job.stage for job in jobs) == STAGES[experiment]


@pytest.mark.parametrize(("experiment", "job"), SETTINGS)
def test_settings_are_those_of_the_paper(plan_of, experiment, job):
    for key, wanted in SETTINGS[experiment, job].items():
        value = plan_of(experiment, "paper").jobs[job].config
        for part in key.split("."):
            value = value[part] if isinstance(value, dict) else getattr(value, part)
        assert value == wanted, key


def test_the_cells_of_table_8_are_position_and_placement(plan_of):
    labels = [job.job.labels for job in plan_of("position_embeddings", "paper").jobs.values()]
    assert [(each["position"], each["placement"]) for each in labels] == [
        ("none", "stem"), ("1-D", "stem"), ("1-D", "every layer"), ("1-D", "shared"),
        ("2-D", "stem"), ("2-D", "every layer"), ("2-D", "shared"), ("relative", "stem"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("experiment", "stage", "length", "least", "most"),
    [
        ("data_size", "search", lambda config: 1, 1, 1.25),  # Models of equal cost.
        ("compute", "final", lambda config: config.train_examples, 15, 100),
        ("head_norm_shape", "final", lambda config: 1, 15, 1000),
    ],
)
def test_small_models_span_the_compute_that_is_compared(
    plan_of, experiment, stage, length, least, most
):
    jobs = [job for job in plan_of(experiment, "small").jobs.values() if job.job.stage == stage]
    costs = [
        forward_macs(job.config.model, num_classes=10, image_size=(32, 32)) * length(job.config)
        for job in jobs
    ]
    assert least * min(costs) <= max(costs) <= most * min(costs)
