"""TFDS builders of bundled datasets: they come with an installed package, without a download."""

BUNDLED = {"digits": "vit_jax.data.builders.digits:Digits"}
