"""Config sections of evaluation on frozen features: few-shot least squares, kNN, linear probe."""

from collections.abc import Sequence
from typing import Any, Literal

from vit_jax.config.data import SourceKind
from vit_jax.config.durations import check_duration
from vit_jax.config.mesh import MeshConfig
from vit_jax.config.split_overlap import shares
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section

Method = Literal["least_squares", "knn", "linear_probe"]


class FewshotDatasetConfig(Section):
    """One dataset; the fields that say where it is are those of `DataConfig`."""

    name: str = option()
    source: SourceKind = option("tfds")
    data_dir: str | None = option(None, changes_result=False)
    """None: as `data.data_dir`."""
    train_split: str = option("train")
    """Shots are drawn from the first, accuracies are those on the second."""
    test_split: str = option("test")
    held_out_split: str | None = option(None)
    """What l2, k and C are chosen on; None: a part of the training split that is held out."""
    image_key: str | None = option(None)
    label_key: str | None = option(None)
    image_size: int | None = option(None, at_least=1)
    """Height and width in pixels that the model sees; None: its own. Positions are resampled."""
    crop: Literal["squash_central", "central", "resize"] = option("squash_central")
    """squash_central: squashed to a square, of which the middle is taken, as big_vision does;
    its 224 of 256 pixels are a central_fraction of 0.875. Others: as `data.eval_crop`.
    """
    central_fraction: float = option(0.875, above=0, at_most=1)
    antialias: bool = option(True)

    def check(self) -> None:
        test, train, held_out = self.test_split, self.train_split, self.held_out_split
        for key, split in {"train_split": train, "held_out_split": held_out}.items():
            if split == test:
                raise ConfigError(
                    f"is {split!r}, and so is test_split",
                    "a test split that nothing is learned from or chosen on",
                    f"change '{key}'",
                    key=key,
                )
            if split is not None and shares(split, test):
                raise ConfigError(
                    f"{split!r} has examples of test_split {test!r}",
                    "a test split that nothing is learned from or chosen on",
                    f"change '{key}'",
                    key=key,
                )
        if held_out is not None and shares(train, held_out):
            raise ConfigError(
                f"{held_out!r} has examples of train_split {train!r}",
                "examples that nothing is learned from, to choose on",
                "take them out of train_split, or leave held_out_split out",
                key="held_out_split",
            )


class FewshotConfig(Section):
    """What is measured on frozen features, when. With datasets, the end of training always is.

    Source: arXiv:2010.11929, section 4.1; the protocol's numbers are those of big_vision.
    """

    datasets: dict[str, FewshotDatasetConfig] = option({})
    """Name in the metrics -> dataset, e.g. {"pets": {"name": "oxford_iiit_pet"}}."""
    methods: tuple[Method, ...] = option(("least_squares",))
    features: Literal["pre_logits", "pooled"] = option("pre_logits")
    """What the head's linear layer sees, or before a tanh layer, where the head has one."""
    interval_steps: int | None = option(None, at_least=1)
    interval_epochs: float | None = option(None, above=0)
    interval_examples: int | None = option(None, at_least=1)
    batch_size: int | None = option(None, at_least=1)
    """Images at a time, over all hosts; None: as in evaluation."""
    shots: tuple[int, ...] = option((1, 5, 10, 25))
    """Least squares. Examples of each class, drawn once a seed; more shots contain the fewer."""
    seeds: tuple[int, ...] = option((0, 1, 2))
    whiten: bool = option(True)
    """Features minus their mean over the shots, divided by their standard deviation + 1e-5."""
    bias: float | None = option(100.0, above=0)
    """Value of a constant feature, which is regularised like all; None: there is none."""
    l2: float | None = option(None, above=0)
    """Strength of the regularisation, e.g. 1024 as in big_vision; None: the best of the grid on
    held-out examples, for each number of shots, by the mean accuracy over the seeds.
    """
    l2_grid: tuple[float, ...] = option(tuple(2.0**i for i in range(-10, 21, 2)))
    held_out_per_class: int = option(20, at_least=1)
    """Without a held_out_split: examples of each class that choose l2, drawn from the training
    split behind those of the most shots; so 1 shot has some as well.
    """
    dtype: Literal["float32", "float64"] = option("float32")
    held_out_fraction: float = option(0.1, above=0, at_most=0.5)
    """kNN and linear probe, which see the whole training split. Share of each class that k and
    C are chosen on, without a held_out_split.
    """
    knn_neighbours: tuple[int, ...] = option((1, 5, 10, 20, 50, 100, 200))
    """Neighbours by cosine similarity; each votes with exp(similarity / temperature), or with
    1. Source of vote, temperature and numbers: arXiv:2104.14294, section 4.1 and its code.
    """
    knn_vote: Literal["weighted", "majority"] = option("weighted")
    knn_temperature: float = option(0.07, above=0)
    probe_c: tuple[float, ...] = option((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0))
    """Inverse strengths of the regularisation, C of scikit-learn's LogisticRegression."""
    probe_memory_mb: int = option(2048, at_least=0)
    """Beyond so many megabytes of features, the probe is trained by minibatch gradients instead."""
    probe_epochs: int = option(50, at_least=1)

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
                raise ConfigError(f"is {values}", "one or more different", "correct it", key=key)
        self._check_least("shots", 1)
        self._check_least("seeds", 0)
        self._check_least("knn_neighbours", 1)
        for key in ("l2_grid", "probe_c"):
            if min(getattr(self, key)) <= 0:
                raise ConfigError(f"is {getattr(self, key)}", "numbers above 0", "fix it", key=key)
        if max(self.seeds) >= 2**32:
            raise ConfigError(f"is {self.seeds}", "numbers below 2**32", "correct it", key="seeds")

    def _check_least(self, key: str, least: int) -> None:
        values: Sequence[int] = getattr(self, key)
        if min(values) < least:
            raise ConfigError(f"is {values}", f"numbers of at least {least}", "correct it", key=key)


class FewshotRunConfig(Section):
    """One run of `python -m vit_jax fewshot`: the config.json of its folder."""

    command: Literal["fewshot"] = option("fewshot")
    checkpoint: str = option()
    """Anything that `load_pretrained` reads."""
    load: dict[str, Any] = option({})
    """Arguments of `load_pretrained` that differ from their defaults."""
    fewshot: FewshotConfig = section(FewshotConfig)
    mesh: MeshConfig = section(MeshConfig, changes_result=False)
