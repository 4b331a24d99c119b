"""Config sections of evaluation on frozen features: few-shot least squares, kNN, linear probe."""

from typing import Any, Literal

from vit_jax.config.data import SourceKind
from vit_jax.config.durations import check_duration
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.split_overlap import overlap
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

UNTRAINED = "untrained:"
"""What a `checkpoint` begins with that is a new model: "untrained:ViT-B/16"."""

Method = Literal["least_squares", "knn", "linear_probe"]


class FewshotDatasetConfig(Section):
    """One dataset. Fields with the same name as in `DataConfig` have the same meaning."""

    name: str = option()
    """As `data.name`."""
    source: SourceKind = option("tfds")
    """As `data.source`."""
    data_dir: str | None = option(None, changes_result=False)
    """None: `data.data_dir` of the run."""
    train_split: str = option("train")
    """Shots are drawn from this split."""
    test_split: str = option("test")
    """Accuracies are measured on this split."""
    held_out_split: str | None = option(None)
    """l2, k and C are chosen on this split; None: on held-out examples of the training split."""
    image_key: str | None = option(None)
    """As `data.image_key`."""
    label_key: str | None = option(None)
    """As `data.label_key`."""
    image_size: int | None = option(None, at_least=1)
    """Height and width of the model's input in pixels, for which position embeddings are resampled;
    None: the model's own size.
    """
    crop: Literal["squash_central", "central", "resize"] = option("squash_central")
    """squash_central: resize to a square and crop its centre, as in big_vision (224 of 256 pixels
    is a central_fraction of 0.875). central, resize: as in `data.eval_crop`.
    """
    central_fraction: float = option(0.875, above=0, at_most=1)
    """As `data.augment.central_fraction`."""
    antialias: bool = option(True)
    """As `data.augment.antialias`."""

    def check(self) -> None:
        test, train, held_out = self.test_split, self.train_split, self.held_out_split
        for key, split in {"train_split": train, "held_out_split": held_out}.items():
            if split is not None and (split == test or overlap(split, test)):
                raise ConfigError(
                    f"is {split!r} and shares examples with test_split {test!r}",
                    "a test split that is used only for testing",
                    f"change '{key}'",
                    key=key,
                )
        if held_out is not None and overlap(train, held_out):
            raise ConfigError(
                f"is {held_out!r} and shares examples with train_split {train!r}",
                "held-out examples that are not trained on",
                "remove them from train_split, or leave held_out_split out",
                key="held_out_split",
            )


class FewshotConfig(Section):
    """Evaluation of frozen features: datasets, methods and interval. It always runs after training.

    Source: arXiv:2010.11929, section 4.1; the numbers of the protocol follow big_vision.
    """

    datasets: dict[str, FewshotDatasetConfig] = option({})
    """Name in the metrics -> dataset, e.g. {"pets": {"name": "oxford_iiit_pet"}}."""
    methods: tuple[Method, ...] = option(("least_squares",))
    """Classifiers on the frozen features: regression with an L2 penalty on a few examples of
    each class; nearest neighbours; logistic regression on all examples.
    """
    features: Literal["pre_logits", "pooled"] = option("pre_logits")
    """pre_logits: the input of the head's last linear layer. pooled: the input of the head, which
    differs if the head has a tanh layer (`model.representation_size`).
    """
    interval_steps: int | None = option(None, at_least=1)
    """How often to evaluate during training. None: only after it."""
    interval_epochs: float | None = option(None, above=0)
    """The same in epochs."""
    interval_examples: int | None = option(None, at_least=1)
    """The same in examples."""
    batch_size: int | None = option(None, at_least=1)
    """Images per batch over all hosts; None: the batch size of evaluation."""
    shots: tuple[int, ...] = option((1, 5, 10, 25))
    """For least squares: training examples per class. Larger draws contain smaller ones."""
    seeds: tuple[int, ...] = option((0, 1, 2))
    """For least squares: seeds for drawing the shots. Accuracies are averaged over them."""
    whiten: bool = option(True)
    """Subtract the mean of the shots' features and divide by their standard deviation + 1e-5."""
    bias: float | None = option(100.0, above=0)
    """Value of a constant feature, whose weight is regularised like the others; None: no bias."""
    l2: float | None = option(None, above=0)
    """L2 regularisation, e.g. 1024 as in big_vision; None: for each number of shots, the value of
    `l2_grid` with the best held-out accuracy, averaged over the seeds.
    """
    l2_grid: tuple[float, ...] = option(tuple(2.0**i for i in range(-10, 21, 2)))
    """Candidates for `l2`."""
    held_out_per_class: int = option(20, at_least=1)
    """Without a held_out_split: number of examples per class that are held out of the training
    split to choose l2. They are never used as shots.
    """
    dtype: Literal["float32", "float64"] = option("float32")
    """Type in which the regression is solved."""
    held_out_fraction: float = option(0.1, above=0, at_most=0.5)
    """For kNN and the linear probe, without a held_out_split: fraction of each class that is held
    out of the training split to choose k and C.
    """
    knn_neighbours: tuple[int, ...] = option((1, 5, 10, 20, 50, 100, 200))
    """Candidates for k. The defaults for k, vote and temperature follow arXiv:2104.14294, section
    4.1, and its code.
    """
    knn_vote: Literal["weighted", "majority"] = option("weighted")
    """weighted: a neighbour's vote has weight exp(cosine similarity / knn_temperature)
    (arXiv:2104.14294).
    """
    knn_temperature: float = option(0.07, above=0)
    """Temperature of the weighted vote; smaller: near neighbours count more
    (arXiv:2104.14294).
    """
    probe_c: tuple[float, ...] = option((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0))
    """Candidates for C of scikit-learn's LogisticRegression: inverse regularisation strength."""
    probe_memory_mb: int = option(2048, at_least=0)
    """If the features are larger than this, the probe is trained by minibatch gradients."""
    probe_epochs: int = option(50, at_least=1)
    """Passes over the features when the probe is trained by minibatch gradients."""

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        for name in self.datasets:
            if not name or "/" in name:
                raise ConfigError(
                    f"has the name {name!r}", "a name without '/'", "rename it", key="datasets"
                )
        for key in ("methods", "shots", "seeds", "l2_grid", "knn_neighbours", "probe_c"):
            values = getattr(self, key)
            if not values or len(set(values)) < len(values):
                raise ConfigError(
                    f"is {values}", "one or more different values", "correct it", key=key
                )
        for key, least in {"shots": 1, "seeds": 0, "knn_neighbours": 1}.items():
            if min(getattr(self, key)) < least:
                raise ConfigError(
                    f"is {getattr(self, key)}",
                    f"numbers of at least {least}",
                    "correct it",
                    key=key,
                )
        for key in ("l2_grid", "probe_c"):
            if min(getattr(self, key)) <= 0:
                raise ConfigError(
                    f"is {getattr(self, key)}", "numbers above 0", "correct it", key=key
                )
        if max(self.seeds) >= 2**32:
            raise ConfigError(f"is {self.seeds}", "numbers below 2**32", "correct it", key="seeds")


class FewshotRunConfig(Section):
    """One run of `python -m vit_jax fewshot`, saved as config.json in its folder."""

    command: Literal["fewshot"] = option("fewshot")
    """The command that made the folder."""
    checkpoint: str = option()
    """Any path that `load_pretrained` reads, or "untrained:NAME": a new model of that name."""
    load: dict[str, Any] = option({})
    """Arguments of `load_pretrained` that differ from their defaults."""
    fewshot: FewshotConfig = section(FewshotConfig)
    """What to evaluate."""
    mesh: MeshConfig = section(MeshConfig, changes_result=False)
    """The devices."""
