"""Which epsilon of the Poly-1 loss? Chosen on a part of train, reported on test, three seeds."""

from vit_jax.sweep import Selection, vary

DEV = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
TEST = {"data.train_split": "train", "evaluation.splits": {"test": "test"}}


def get_sweep():
    """Returns the runs."""
    runs = [("recipe.py", {**DEV, **epsilon}) for epsilon in vary("loss.epsilon", [0.0, 2.0])]
    yield Selection("epsilon", runs, "eval/dev/worst_class", seeds=(0, 1, 2), final_overrides=TEST)
