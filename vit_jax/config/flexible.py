"""Config section of models for several patch sizes or sequence lengths, and the config of each.

A variant of a run is the run at one size. All variants train the same parameters. A variant
is itself a config, so that everything that depends on the size (model, costs, compiled step) comes
from the same code as in a run with one size.
"""

from typing import Any

from vit_jax.config.task import check_values
from vit_jax.errors import ConfigError
from vit_jax.models.options import AUTO, ModelConfig, with_patch_size
from vit_jax.schema import Section, check_at_most_one, option

# Fewest patches of a sequence: a grid of 2 x 2.
_SHORTEST = 4


class FlexibleConfig(Section):
    """Trains and evaluates one model at several sizes; each step draws one of them.

    Source: arXiv:2212.08013 (FlexiViT); arXiv:2502.14786 (NaFlex).
    """

    patch_sizes: tuple[int, ...] = option(())
    """In pixels; (): only the model's own patch size. Splits are evaluated at each of them, as
    eval/SPLIT@pSIZE/METRIC, and at the model's own, as eval/SPLIT/METRIC.
    """
    sequence_lengths: tuple[int, ...] = option(())
    """In patches, at most `data.sequence_length`; (): only that. Splits are also evaluated at each
    of them, as eval/SPLIT@nLENGTH/METRIC.
    """
    probabilities: tuple[float, ...] = option(())
    """Relative probability of drawing each size; (): all equal. 0: only evaluate at it."""

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.patch_sizes or self.sequence_lengths

    @property
    def shares(self) -> tuple[float, ...]:
        """The probability of each size; they sum to 1."""
        weights = self.probabilities or (1.0,) * len(self.sizes)
        return tuple(weight / sum(weights) for weight in weights)

    def check(self) -> None:
        sizes, weights = self.sizes, self.probabilities
        check_at_most_one(self, "patch_sizes", "sequence_lengths")
        for key, least in (("patch_sizes", 1), ("sequence_lengths", _SHORTEST)):
            given = getattr(self, key)
            if len(set(given)) < len(given) or any(size < least for size in given):
                raise ConfigError(
                    f"is {list(given)}",
                    f"different sizes of at least {least}",
                    "correct it",
                    key=key,
                )
        if weights and len(weights) != len(sizes):
            raise ConfigError(
                f"has {len(weights)} values for {len(sizes)} sizes",
                "one for each patch size or sequence length",
                "give as many, or leave it out",
                key="probabilities",
            )
        if weights and (min(weights) < 0 or sum(weights) == 0):
            raise ConfigError(
                f"is {list(weights)}",
                "values of at least 0, and one above 0",
                "correct it",
                key="probabilities",
            )


def check_flexible(config: Any) -> None:
    """Raises ConfigError if the model of a root config cannot have all patch sizes."""
    if config.data.sequence_length is not None or config.flexible.sequence_lengths:
        _check_sequences(config)
    model, side = config.model, config.data.image_size
    sizes = config.flexible.patch_sizes
    if not sizes or model.name == AUTO:
        return
    _check_is_plain_vit(model, "flexible.patch_sizes")
    for size in sizes:
        if side % size:
            divisors = [n for n in range(1, side + 1) if side % n == 0]
            near = min(divisors, key=lambda n: abs(n - size))
            raise ConfigError(
                f"has {size}, which does not divide data.image_size = {side}",
                f"divisors of {side}, such as {near}",
                "change one of the two; 240 pixels have many divisors",
                key="flexible.patch_sizes",
            )
    tables = {"position_grid": 7} if model.position_embedding == "learned_1d" else {}
    for key, usual in {"patch_kernel_size": 32, **tables}.items():
        if getattr(model, key) is None:
            raise ConfigError(
                "is not set with flexible.patch_sizes",
                "a size of the stored parameters, which each patch size resizes",
                f"set it, e.g. model.{key}={usual}",
                key=f"model.{key}",
            )


def _check_is_plain_vit(model: ModelConfig, key: str) -> None:
    if not hasattr(model, "patch_kernel_size") or with_patch_size(model.name, 1) is None:
        raise ConfigError(
            f"is given with {model.name}, {model.kind}",
            "a ViT without a stem, such as ViT-B/16",
            "set model.name, or leave it out",
            key=key,
        )


def _check_sequences(config: Any) -> None:
    """Raises ConfigError if a run cannot have sequences of patches."""
    model, longest = config.model, config.data.sequence_length
    too_long = [n for n in config.flexible.sequence_lengths if longest is None or n > longest]
    if too_long:
        raise ConfigError(
            f"has {too_long[0]} with data.sequence_length = {longest}",
            "lengths up to data.sequence_length",
            f"set data.sequence_length={max(too_long)}",
            key="flexible.sequence_lengths",
        )
    if model.name == AUTO:
        return
    _check_is_plain_vit(model, "data.sequence_length")
    allowed = {
        "task.name": ("classification",),
        "model.position_embedding": ("learned_1d", "none"),
        "model.position_placement": ("stem",),
        "model.pooling": ("token", "gap", "map"),
        "model.register_head": (False,),
        "data.eval_crop": ("resize",),
    }
    check_values(config, allowed, "data.sequence_length")
    if model.position_embedding == "learned_1d" and model.position_grid is None:
        raise ConfigError(
            "is not set with data.sequence_length",
            "the size of a stored table, which is interpolated to the grid of each image",
            "set it, e.g. model.position_grid=16",
            key="model.position_grid",
        )


def trained_variants(config: Any) -> dict[str, tuple[float, Any]]:
    """Returns the variants that training draws: name -> (probability, config)."""
    named = zip(config.flexible.shares, variants(config).items(), strict=True)
    return {name: (share, variant) for share, (name, variant) in named if share}


def variants(config: Any) -> dict[str, Any]:
    """Returns the variants of a root config, each a config of one size only.

    Their names are "p" and the patch size, or "n" and the sequence length. A run with one size has
    none.
    """
    found = {}
    for size in config.flexible.patch_sizes:
        model = config.model.replace(name=with_patch_size(config.model.name, size))
        found[f"p{size}"] = config.replace(model=model, flexible=FlexibleConfig())
    for length in config.flexible.sequence_lengths:
        data = config.data.replace(sequence_length=length)
        found[f"n{length}"] = config.replace(data=data, flexible=FlexibleConfig())
    return found
