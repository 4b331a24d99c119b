"""The schema of a run: every key a config may have, its type, range, default and meaning.

Sections are frozen and check themselves (`vit_jax.schema`); `vit_jax.config_file` reads them from
files and the command line. Nothing downstream reads a raw dictionary.
"""

import dataclasses
from typing import Literal

from vit_jax.config_data import LabelRule, MemberConfig, SourceKind, SubsetConfig
from vit_jax.config_fewshot import FewshotConfig
from vit_jax.config_init import AUTO, InitConfig
from vit_jax.config_mesh import MeshConfig
from vit_jax.config_optimizer import OptimizerConfig
from vit_jax.config_stopping import EarlyStoppingConfig
from vit_jax.config_task import MaskedPatchesConfig, TaskName, check_task
from vit_jax.durations import check_duration
from vit_jax.errors import ConfigError
from vit_jax.schema import Section, option, section
from vit_jax.split_overlap import shares

# Metrics of an evaluated split of which more is better.
_SHARES = ("accuracy_top1", "accuracy_top5")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig(Section):
    """What `create_model` builds.

    Source: arXiv:2010.11929, sections 3.1 and D; later options cite their own.
    """

    # The paper's name: `ViT-{Ti,S,M,B,L,H,g,G}/{patch}`, `R50+ViT-B/16`, `BiT-R50x1`, ...; or
    # `auto`: what `init_from` holds, with the options set here on top.
    name: str = option()
    # Overrides of the named variant's table row (None: as named).
    width: int | None = option(None, at_least=1)
    depth: int | None = option(None, at_least=1)
    mlp_dim: int | None = option(None, at_least=1)
    num_heads: int | None = option(None, at_least=1)
    # How tokens become one feature vector: class token, mean, attention pooling, all of them.
    pooling: Literal["token", "gap", "map", "flatten"] = option("token")
    # Whether there is a class token; None: where pooling is "token".
    class_token: bool | None = option(None)
    position_embedding: Literal[
        "none", "learned_1d", "learned_2d", "sincos_2d", "relative", "rope_2d"
    ] = option("learned_1d")
    # Where the table is added: after the patch embedding, or to the input of every block, each with
    # a table of its own or all with the same (D.4).
    position_placement: Literal["stem", "every_layer", "shared"] = option("stem")
    norm_placement: Literal["pre", "post"] = option("pre")
    norm_epsilon: float = option(1e-6, above=0)
    # Extra learned tokens without a position (arXiv:2309.16588).
    num_registers: int = option(0, at_least=0)
    # Initial value of the per-channel residual scale (arXiv:2103.17239); None: no such scale.
    layer_scale: float | None = option(None, above=0)
    # LayerNorm on queries and keys (arXiv:2302.05442).
    qk_norm: bool = option(False)
    qkv_bias: bool = option(True)
    mlp: Literal["gelu", "swiglu"] = option("gelu")
    # True: the tanh form that the paper's code uses; False: the exact erf form.
    gelu_approximate: bool = option(True)
    # Width of the tanh layer before the head during pretraining; None: no such layer.
    representation_size: int | None = option(None, at_least=1)
    head_bias_init: float = option(0.0)
    # After every dense layer except qkv, and after the position embedding (Table 3).
    dropout: float = option(0.0, at_least=0, below=1)
    # Rate of the last block; grows linearly from 0 with depth (arXiv:1603.09382).
    stochastic_depth: float = option(0.0, at_least=0, below=1)
    # Type of activations and matmuls; parameters, softmax, LayerNorm and loss stay float32.
    dtype: Literal["float32", "bfloat16"] = option("float32")
    # What a block keeps for its backward pass: everything, matmul results, or only its input.
    remat: Literal["none", "dots", "full"] = option("none", changes_result=False)
    # True: one compiled block looped over depth; False: the same blocks written out one by one.
    scan: bool = option(True, changes_result=False)
    attention_implementation: Literal["auto", "xla", "cudnn", "einsum"] = option(
        "auto", changes_result=False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AugmentConfig(Section):
    """What happens to one training image: on the host in this order, then on the device."""

    # inception: random area and aspect ratio; random: a random part of fixed size; central: as in
    # evaluation; pad: shift by `pad_pixels`; resize: squash only.
    crop: Literal["inception", "random", "central", "pad", "resize"] = option("inception")
    # Width and height of a random crop, of the image's: 0.8 is 128 out of 160 (arXiv:1912.11370).
    random_fraction: float = option(0.875, above=0, at_most=1)
    # How an inception crop is drawn, see `data.crops`; with torchvision, min_area is usually 0.08.
    crop_flavour: Literal["paper", "torchvision"] = option("paper")
    min_area: float = option(0.05, above=0, at_most=1)
    max_area: float = option(1.0, above=0, at_most=1)
    # Side of a central crop, of the short side: 0.875 is the middle 224 of 256. Evaluation too.
    central_fraction: float = option(0.875, above=0, at_most=1)
    pad_pixels: int = option(4, at_least=0)
    # Whether shrinking an image averages over all its pixels, see `data.resize`. Evaluation too.
    antialias: bool = option(True)
    # RandAugment(l, m) of arXiv:1909.13719; 0 layers: off. The scale of magnitudes ends at 10 in
    # the paper's flavour, larger ones extrapolate, and at 30 in torchvision's.
    randaugment_layers: int = option(0, at_least=0)
    randaugment_magnitude: float = option(10.0, at_least=0, at_most=30)
    randaugment_flavour: Literal["paper", "torchvision"] = option("paper")
    # Gray, solarized or blurred, one of the three (arXiv:2204.07118, with color_jitter 0.3).
    three_augment: bool = option(False)
    # Brightness, contrast and saturation each times 1 +- up to this, in random order; 0: off.
    color_jitter: float = option(0.0, at_least=0, at_most=1)
    # Device: left to right with probability 1/2.
    flip: bool = option(True)
    # Device: share of images of which a rectangle is erased (arXiv:1708.04896), and what it gets.
    erasing_probability: float = option(0.0, at_least=0, at_most=1)
    erasing_fill: Literal["noise", "gray"] = option("noise")

    def check(self) -> None:
        if self.min_area > self.max_area:
            raise ConfigError(
                f"'min_area' is {self.min_area:g} and 'max_area' {self.max_area:g}",
                "min_area <= max_area",
                "swap them or set only min_area",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig(Section):
    """What is trained on, and how it is read."""

    # Where examples come from: TFDS-prepared data, a folder of images (a subfolder or a tar file a
    # class), a CSV file of path,label, or the `datasets` package.
    source: SourceKind = option("tfds")
    # TFDS name, e.g. "cifar10", "imagenet2012:5.1.0", or a bundled one ("digits"); Hugging Face
    # name, e.g. "uoft-cs/cifar10"; for folder, csv and mixture a name of your own.
    name: str = option()
    # Folder of TFDS-prepared data (None: TFDS_DATA_DIR or ~/tensorflow_datasets), the folder of
    # images, the CSV file, or a folder that `datasets` saved (None: by name).
    data_dir: str | None = option(None, changes_result=False)
    # TFDS split string or a preset, see `data.sources.splits`.
    train_split: str = option("train")
    subset: SubsetConfig = section(SubsetConfig)
    # Name -> dataset; instead of the one dataset above. Evaluation splits name a member as in
    # "NAME:test"; "test" alone is that of all members.
    mixture: dict[str, MemberConfig] = option({})
    # Features that hold image and class; None: "image" and "label", or the only ones of their kind.
    image_key: str | None = option(None)
    label_key: str | None = option(None)
    # How the class of an example is made of other features, see `data.sources.derived`.
    label_rule: LabelRule | None = option(None)
    # uniform: every example once an epoch; balanced: every class equally often, the examples of
    # each in turn. Of an epoch only the number of examples stays.
    sampling: Literal["uniform", "balanced"] = option("uniform")
    # What becomes of an image that cannot be read or decoded, or whose label is out of range.
    on_bad_example: Literal["error", "skip"] = option("error")
    # Number of classes of the head; None: as the dataset says.
    num_classes: int | None = option(None, at_least=1)
    global_batch_size: int = option(at_least=1)
    # Height and width in pixels that the model sees.
    image_size: int = option(224, at_least=1)
    augment: AugmentConfig = section(AugmentConfig)
    # Evaluation: short side resized to image_size * 256/224, central crop (inception-style
    # evaluation); "resize" squashes to image_size.
    eval_crop: Literal["central", "resize"] = option("central")
    # Reader threads (None: one per core) of each reader process (None: none up to 8 cores).
    num_threads: int | None = option(None, at_least=0, changes_result=False)
    num_workers: int | None = option(None, at_least=0, changes_result=False)
    # Decoded images of a split stay in memory, of each process, if all fit into so many megabytes.
    # Kept or not, JPEGs that are shrunk while decoding differ by a few levels.
    cache_mb: int = option(512, at_least=0)
    prefetch_batches: int = option(4, at_least=1, changes_result=False)

    def check(self) -> None:
        if self.mixture and self.subset.rule is not None:
            raise ConfigError(
                "'subset' given with a 'mixture'",
                "one of the two",
                "give the members a train_split such as train[:10%]",
            )
        if self.label_rule is not None and (self.source != "tfds" or self.mixture):
            kind = "a mixture" if self.mixture else f"source {self.source}"
            raise ConfigError(
                f"'label_rule' is {self.label_rule!r} for {kind}", "one TFDS dataset",
                "leave it out",
            )  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixingConfig(Section):
    """Blending of pairs of images on the device; with both on, each batch draws one of the two."""

    # Beta(alpha, alpha) of mixup (arXiv:1710.09412) and CutMix (arXiv:1905.04899); 0: off.
    mixup_alpha: float = option(0.0, at_least=0)
    cutmix_alpha: float = option(0.0, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossConfig(Section):
    """What is minimised."""

    name: Literal["softmax_cross_entropy", "sigmoid_cross_entropy"] = option(
        "softmax_cross_entropy"
    )
    label_smoothing: float = option(0.0, at_least=0, below=1)
    # Factor of an example's loss, by the n training examples of its class among N of C classes:
    # balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). Both are 1 in the mean over examples.
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Section):
    """What is evaluated, when. The end of training always is. EMA weights are used where kept."""

    # Name in the metrics -> TFDS split, e.g. {"test": "test"}.
    splits: dict[str, str] = option({})
    # The same, but evaluated only at the end, of the weights that are the run's result.
    final_splits: dict[str, str] = option({})
    interval_steps: int | None = option(None, at_least=1)
    interval_epochs: float | None = option(None, above=0)
    interval_examples: int | None = option(None, at_least=1)
    # Global; None: the training batch size.
    batch_size: int | None = option(None, at_least=1)
    # Also by class: accuracy of each class and their mean, a confusion matrix in report/, and of
    # two classes the area under the ROC curve.
    by_class: bool = option(False)

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        for name in self.all_splits:
            if not name or "/" in name:
                raise ConfigError(
                    f"'splits' has the name {name!r}", "a name without '/'", "rename it"
                )
        both = sorted(self.splits.keys() & self.final_splits.keys())
        if both:
            raise ConfigError(
                f"'splits' and 'final_splits' both have {both[0]!r}", "each name once",
                "drop it from one of the two",
            )  # fmt: skip

    @property
    def all_splits(self) -> dict[str, str]:
        """Name -> split of all that is evaluated at the end."""
        return {**self.splits, **self.final_splits}

    @property
    def has_interval(self) -> bool:
        """Whether evaluations are made before the end."""
        given = (self.interval_steps, self.interval_epochs, self.interval_examples)
        return any(value is not None for value in given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Section):
    """When to save (if not said: every 1,000 steps) and what to keep. The end is always saved."""

    interval_steps: int | None = option(None, at_least=1)
    interval_epochs: float | None = option(None, above=0)
    interval_examples: int | None = option(None, at_least=1)
    keep_last: int = option(2, at_least=1)
    # Also keep this many of the best by `best_metric` (higher is better), which is then measured
    # before every save.
    keep_best: int = option(0, at_least=0)
    best_metric: str | None = option(None)

    def check(self) -> None:
        check_duration(self, "interval", required=False)
        if self.keep_best and self.best_metric is None:
            raise ConfigError(
                f"'keep_best' is {self.keep_best} without a 'best_metric'",
                "a metric of an evaluated split",
                "set best_metric, e.g. eval/test/accuracy_top1",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoggingConfig(Section):
    """Where numbers go, how often."""

    interval_steps: int = option(50, at_least=1)
    tensorboard: bool = option(True)
    # Weights & Biases project; None: not used.
    wandb_project: str | None = option(None)
    # Draw report/curves.png at the end.
    curves: bool = option(True)
    # How often to log the largest attention logit of every layer, on a few images of the batch.
    # Where it grows into the hundreds, training may diverge: see model.qk_norm (arXiv:2302.05442).
    attention_interval_steps: int | None = option(None, at_least=1)
    # Which examples each step was made of, in examples-HOST.jsonl: a "hash" of them, or "all".
    example_ids: Literal["none", "hash", "all"] = option("none")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DivergenceConfig(Section):
    """What to do when the loss, a gradient or an update is no longer finite."""

    # So many times, go back to the last checkpoint and leave out the batches since then and
    # `skip_steps` more, as in arXiv:2204.02311, section 5.1. Then, or with 0 at once, stop.
    rewinds: int = option(0, at_least=0)
    skip_steps: int = option(100, at_least=1)
    # Before stopping, run from the last checkpoint to that step again and name the first tensor
    # that is not finite.
    report: bool = option(True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Section):
    """One run."""

    seed: int = option(0, at_least=0, below=2**32)
    # What is learned: the classes of images; or, without labels, colours of patches (B.1.2).
    task: TaskName = option("classification")
    masked_patches: MaskedPatchesConfig = section(MaskedPatchesConfig)
    model: ModelConfig = section()
    data: DataConfig = section()
    mixing: MixingConfig = section(MixingConfig)
    loss: LossConfig = section(LossConfig)
    optimizer: OptimizerConfig = section()
    train_steps: int | None = option(None, at_least=1, below=2**31)
    train_epochs: float | None = option(None, above=0)
    train_examples: int | None = option(None, at_least=1)
    # Microbatches a step; their mean gradient equals that of the whole batch.
    accumulation_steps: int = option(1, at_least=1)
    # XLA options for the compiled step, e.g. {"xla_cpu_use_onednn": True}.
    compiler_options: dict[str, bool | int | str] = option({}, changes_result=False)
    # Exponential moving average of the parameters (Polyak); None: not kept.
    ema_decay: float | None = option(None, above=0, below=1)
    # Weights that training starts from: a run folder or checkpoint, a published npz, timm's or
    # Hugging Face's files; local, hf:// or gs://. `init` says how they are made to fit.
    init_from: str | None = option(None)
    init: InitConfig = section(InitConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)
    fewshot: FewshotConfig = section(FewshotConfig)
    early_stopping: EarlyStoppingConfig = section(EarlyStoppingConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig, changes_result=False)
    logging: LoggingConfig = section(LoggingConfig, changes_result=False)
    divergence: DivergenceConfig = section(DivergenceConfig, changes_result=False)
    mesh: MeshConfig = section(MeshConfig)

    def check(self) -> None:
        check_duration(self, "train", required=True)
        check_task(self)
        self._check_init()
        self._check_metric("checkpoint.best_metric", self.checkpoint.best_metric, _SHARES)
        self._check_metric("early_stopping.metric", self.early_stopping.metric, (*_SHARES, "loss"))
        self._check_early_stopping()
        if self.data.global_batch_size % self.accumulation_steps:
            raise ConfigError(
                f"'accumulation_steps' is {self.accumulation_steps}",
                f"a divisor of data.global_batch_size = {self.data.global_batch_size}",
                "change one of the two",
            )

    def _check_early_stopping(self) -> None:
        metric = self.early_stopping.metric
        if metric is None:
            return
        if not self.evaluation.has_interval:
            raise ConfigError(
                "'early_stopping.metric' given and evaluations only at the end",
                "an interval between evaluations", "set evaluation.interval_steps",
            )  # fmt: skip
        trained, scored = self.data.train_split, self.evaluation.splits[metric.split("/")[1]]
        if not self.data.mixture and shares(trained, scored):
            raise ConfigError(
                f"'early_stopping.metric' is {metric!r}, of {scored!r}, and {trained!r} is"
                " trained on",
                "held-out examples", "train on the rest, e.g. data.train_split=train[:98%]",
            )  # fmt: skip

    def _check_metric(self, key: str, metric: str | None, of: tuple[str, ...]) -> None:
        """Raises ConfigError unless a metric is one of those of the splits at an interval."""
        by_class = ("accuracy_per_class_mean",) if self.evaluation.by_class else ()
        known = {f"eval/{split}/{m}" for split in self.evaluation.splits for m in (*of, *by_class)}
        if metric is not None and metric not in known:
            raise ConfigError(
                f"'{key}' is {metric!r}",
                "one of " + (", ".join(sorted(known)) or "the metrics of evaluation.splits"),
                "evaluate that split or name another metric",
            )

    def _check_init(self) -> None:
        if self.init_from is not None:
            return
        if self.model.name == AUTO:
            raise ConfigError(
                "'model.name' is 'auto' and there is no 'init_from'",
                "weights that say which model it is",
                "add --config.init_from=PATH, or name the model",
            )
        if self.init != InitConfig():
            raise ConfigError(
                "'init' given without 'init_from'", "weights to start from",
                "add --config.init_from=PATH",
            )  # fmt: skip
