"""Models: one small file per idea; `registry` makes a model from a name."""
