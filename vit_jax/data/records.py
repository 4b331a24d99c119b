"""TFDS records, serialized tf.train.Example messages, without TensorFlow."""

from typing import Any


def encode_record(image: bytes, label: int, key: str) -> bytes:
    """Returns the record of "id", "image" and "label". The encoding is deterministic."""
    example = _example_message()()
    feature = example.features.feature
    feature["id"].bytes_list.value.append(key.encode(errors="backslashreplace"))
    feature["image"].bytes_list.value.append(image)
    feature["label"].int64_list.value.append(label)
    return example.SerializeToString(deterministic=True)


def label_of(record: bytes, feature: str) -> int:
    """Returns an integer feature of a record."""
    return _example_message().FromString(record).features.feature[feature].int64_list.value[0]


def _example_message() -> Any:
    from tensorflow_datasets.proto import tf_example_pb2

    return tf_example_pb2.Example  # pyright: ignore[reportAttributeAccessIssue]
