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

    read_by = {
        "central_fraction": ("crop", ("central", "squash_central")),
        "image_key": ("source", ("tfds",)),
        "label_key": ("source", ("tfds",)),
    }

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
    """As `data.central_fraction`."""
    antialias: bool = option(True)
    """As `data.antialias`."""

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
    l2: float | None = option(None, above=0)
    """L2 regularisation, e.g. 1024 as in big_vision; None: for each number of shots, the power
    of 4 with the best held-out accuracy, averaged over the seeds.
    """
    probe_c: tuple[float, ...] = option((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0))
    """Candidates for C of scikit-learn's LogisticRegression: inverse regularisation strength."""

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        for name in self.datasets:
            if not name or "/" in name:
                raise ConfigError(
                    f"has the name {name!r}", "a name without '/'", "rename it", key="datasets"
                )
        for key in ("methods", "shots", "seeds", "probe_c"):
            values = getattr(self, key)
            if not values or len(set(values)) < len(values):
                raise ConfigError(
                    f"is {values}", "one or more different values", "correct it", key=key
                )
        for key, least in {"shots": 1, "seeds": 0}.items():
            if min(getattr(self, key)) < least:
                raise ConfigError(
                    f"is {getattr(self, key)}",
                    f"numbers of at least {least}",
                    "correct it",
                    key=key,
                )
        if min(self.probe_c) <= 0:
            raise ConfigError(f"is {self.probe_c}", "numbers above 0", "correct it", key="probe_c")
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
