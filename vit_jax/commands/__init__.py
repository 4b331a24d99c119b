"""The commands of `python -m vit_jax`, one module each: `add_arguments` and `run`."""
