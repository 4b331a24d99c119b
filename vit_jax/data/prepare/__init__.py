"""Writes TFDS-format ArrayRecord shards from images or from TFRecord shards."""
