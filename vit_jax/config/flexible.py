"""Config section of models for several patch sizes, and the configs of each size.

A variant of a run is the run at one patch size. All variants train the same parameters. A variant
is itself a config, so that everything that depends on the size (model, costs, compiled step) comes
from the same code as in a run with one size.
"""

from typing import Any

from vit_jax.errors import ConfigError
from vit_jax.models.options import AUTO, with_patch_size
from vit_jax.schema import Section, option


class FlexibleConfig(Section):
    """Trains and evaluates one model at several patch sizes; each step draws one of them.

    Source: arXiv:2212.08013 (FlexiViT).
    """

    patch_sizes: tuple[int, ...] = option(())
    """In pixels; (): only the model's own patch size. Splits are evaluated at each of them, as
    eval/SPLIT@pSIZE/METRIC, and at the model's own, as eval/SPLIT/METRIC.
    """
    probabilities: tuple[float, ...] = option(())
    """Relative probability of drawing each size; (): all equal. 0: only evaluate at it."""

    @property
    def shares(self) -> tuple[float, ...]:
        """The probability of each size; they sum to 1."""
        weights = self.probabilities or (1.0,) * len(self.patch_sizes)
        return tuple(weight / sum(weights) for weight in weights)

    def check(self) -> None:
        sizes, weights = self.patch_sizes, self.probabilities
        if len(set(sizes)) < len(sizes) or any(size < 1 for size in sizes):
            raise ConfigError(
                f"is {list(sizes)}", "different positive sizes", "correct it", key="patch_sizes"
            )
        if weights and len(weights) != len(sizes):
            raise ConfigError(
                f"has {len(weights)} values for {len(sizes)} patch sizes",
                "one for each size",
                "give as many as flexible.patch_sizes has, or leave it out",
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
    """Checks that the model of a root config can have all patch sizes.

    Raises:
        ConfigError: it is no ViT, a size does not divide the images, or its parameters have the
            shapes of one size.
    """
    model, side = config.model, config.data.image_size
    sizes = config.flexible.patch_sizes
    if not sizes or model.name == AUTO:
        return
    if not hasattr(model, "patch_kernel_size") or with_patch_size(model.name, 1) is None:
        raise ConfigError(
            f"is given with {model.name}, {model.kind}",
            "a ViT without a stem, such as ViT-B/16",
            "set model.name, or leave it out",
            key="flexible.patch_sizes",
        )
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


def trained_variants(config: Any) -> dict[str, tuple[float, Any]]:
    """Returns the variants that training draws: name -> (probability, config)."""
    named = zip(config.flexible.shares, variants(config).items(), strict=True)
    return {name: (share, variant) for share, (name, variant) in named if share}


def variants(config: Any) -> dict[str, Any]:
    """Returns the variants of a root config: "p" and the patch size -> config of that size only.

    A run with one size has none.
    """
    found = {}
    for size in config.flexible.patch_sizes:
        model = config.model.replace(name=with_patch_size(config.model.name, size))
        found[f"p{size}"] = config.replace(model=model, flexible=FlexibleConfig())
    return found
