"""Code of a repository of its own; importing it registers what it defines."""

from mylab import augmentations, bag, losses

__all__ = ["augmentations", "bag", "losses"]
