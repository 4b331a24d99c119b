"""Writes TFDS-format ArrayRecord shards from images."""
