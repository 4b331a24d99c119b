"""Code of a repository of its own; importing it registers what it defines."""

from mylab import augmentations, bag, losses, metrics, rotation, sources

__all__ = ["augmentations", "bag", "losses", "metrics", "rotation", "sources"]
