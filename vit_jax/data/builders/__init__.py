"""TFDS builders of the datasets that come with an installed package and need no download."""

BUNDLED = {"digits": "vit_jax.data.builders.digits:Digits"}
