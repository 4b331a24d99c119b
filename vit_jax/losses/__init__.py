"""Losses between logits and labels, chosen by `loss.name`. Each is a file of this package.

To add a loss, write a file with a subclass of `LabelLoss` and register it: its fields are the keys
of the section `loss`, its method `per_example` is the loss.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from vit_jax.own_functions import FromFunction, own_function, owner_of, section_of_function
from vit_jax.registry import NameIn, Registry
from vit_jax.schema import Section, option

_NOT_EVALUATED = ("loss.name", "loss.label_smoothing", "loss.class_weights")
F = TypeVar("F", bound=Callable[..., Any])

LOSSES: Registry["type[LabelLoss]"] = Registry(__name__, "loss")
if TYPE_CHECKING:
    LossName = str
else:
    LossName = Annotated[str, NameIn(LOSSES)]


class LabelLoss(Section):
    """The loss between logits and labels."""

    name: LossName = option("softmax_cross_entropy")
    """Softmax: one class per image. Sigmoid: each class is a yes or no of its own, for images
    with several classes.
    """
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """Share of the label that is spread evenly over all classes (arXiv:1512.00567)."""
    class_weights: Literal["none", "balanced", "sqrt"] = option("none")
    """Weights the loss of an example by the frequency of its class: n of N training examples, with
    C classes. balanced: N / (C n); sqrt: proportional to 1 / sqrt(n). The mean over examples is 1.
    """

    @classmethod
    def named_classes(cls) -> Mapping[str, type[Section]]:
        return LOSSES

    def __call__(self, logits: Any, labels: Any) -> Any:
        """Returns the loss of each example f32[B].

        Args:
            logits: [B, C].
            labels: class indices i32[B], or the share of each class f32[B, C].
        """
        targets = as_distribution(labels, logits.shape[-1])
        if self.label_smoothing:  # Source: arXiv:1512.00567, section 7.
            targets = (1 - self.label_smoothing) * targets
            targets += self.label_smoothing / logits.shape[-1]
        return self.per_example(logits.astype("float32"), targets)

    def per_example(self, logits: Any, targets: Any) -> Any:
        """Returns the loss of each example f32[B].

        Args:
            logits: f32[B, C].
            targets: f32[B, C], the share of each class: one-hot, smoothed or mixed.
        """
        raise NotImplementedError


class _OwnLoss(FromFunction, LabelLoss):
    """A loss made of a registered function."""

    def per_example(self, logits: Any, targets: Any) -> Any:
        return self.own.checked(self.call(logits, targets), logits.shape[:1], "float32")


def register_loss(function: F) -> F:
    """Registers a loss between logits and labels; use it as a decorator.

    The function's name is a value of `loss.name`. Its keyword-only parameters are keys of the
    section `loss`: each has a default and a type (bool, int, float, str, None, Literal, or a tuple
    of them), and the docstring's "Args" says what it means.

    Args:
        function: (logits f32[B, C], targets f32[B, C], *, keys) -> loss of each example f32[B].
            Targets are the share of each class: one-hot, smoothed or mixed.

    Returns:
        The function, unchanged.

    Raises:
        PluginError: parameters that cannot be keys, or a name that another module has registered.

    >>> @register_loss  # doctest: +SKIP
    ... def poly(logits, targets, *, epsilon: float = 1.0):
    ...     p, log_p = jax.nn.softmax(logits), jax.nn.log_softmax(logits)
    ...     return (targets * (epsilon * (1 - p) - log_p)).sum(-1)
    """
    own = own_function("loss", function, ("logits", "targets"))
    section = section_of_function(own, _OwnLoss, name=(LossName, option(own.name)))
    LOSSES.add(own.name, section, owner_of(function))
    return function


loss_class = partial(LOSSES.class_of, LabelLoss)


def formula_of(config: Mapping[str, Any]) -> str:
    """Returns the task and the formula of the loss that its evaluations have; "": not known.

    Evaluations neither smooth labels nor weight classes.

    Args:
        config: the keys of a config, dotted, or those of its sections `task` and `loss`.
    """
    names = [n for n in map(config.get, ("task.name", "loss.name")) if isinstance(n, str)]
    keys = [key for key in config if key.startswith("loss.") and key not in _NOT_EVALUATED]
    # 0 is a value, False is not.
    given = [k for k in sorted(keys) if config[k] or type(config[k]) in (int, float)]
    options = [f"{key.removeprefix('loss.')}={config[key]}" for key in given]
    return ", ".join([" with ".join(names), *options])


def as_distribution(labels: Any, num_classes: int) -> Any:
    """Returns class indices [B] as one-hot rows f32[B, C], and distributions unchanged."""
    import jax  # Not above: the keys of the config are known without it.

    return jax.nn.one_hot(labels, num_classes) if labels.ndim == 1 else labels
