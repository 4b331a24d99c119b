"""The commands of `python -m vit_jax`. Each module has `add_arguments` and `run`."""
