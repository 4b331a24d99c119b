"""Which gamma of the focal loss? Chosen on a part of train, reported on test with three seeds."""

from vit_jax.sweep import Selection, vary

DEV = {"data.train_split": "train[:80%]", "evaluation.splits": {"dev": "train[80%:]"}}
TEST = {"data.train_split": "train", "evaluation.splits": {"test": "test"}}


def get_sweep():
    """Returns the runs."""
    gammas = [("recipe.py", {**DEV, **gamma}) for gamma in vary("loss.gamma", [0.0, 2.0])]
    yield Selection("gamma", gammas, "eval/dev/worst_class", seeds=(0, 1, 2), final_overrides=TEST)
