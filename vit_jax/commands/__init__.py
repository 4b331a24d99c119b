"""The commands of `python -m vit_jax`, one module each: add_arguments(parser) and run(args, overrides)."""
