"""Small datasets for tests of data: tar files, folders, labels without images."""

import io
import json
import struct
import tarfile

import numpy as np
from array_record.python.array_record_module import ArrayRecordReader

from vit_jax.data.sources import Example
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.storage.files import copy_file
from vit_jax.storage.paths import user_path


def write_tar(path, members):
    """Writes a tar file of name -> bytes and returns its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path.parent


def write_list(folder, text, name="list.csv"):
    (folder / name).write_text(text)
    return folder / name


def open_folder(path, split="train", **options) -> FolderSource:
    return FolderSource(list_images(path), split, "photos", **options)


class Labelled:
    """Examples that are only labels."""

    name, fingerprint = "labelled", "0"

    def __init__(self, labels, class_names):
        self._labels, self.class_names = np.array(labels), tuple(class_names)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        return Example(b"", int(self._labels[index]), str(index))

    def read(self, indices):
        return [self[i] for i in indices]

    def labels(self) -> np.ndarray:
        return self._labels


def upload(folder, url):
    """Copies a local folder to an address."""
    for path in folder.rglob("*"):
        if path.is_file():
            copy_file(path, user_path(url) / path.relative_to(folder))
    return url


def records_of(path) -> list[bytes]:
    reader = ArrayRecordReader(str(path))
    return reader.read(list(range(reader.num_records())))


def slow_crc32c(data: bytes) -> int:
    """Bit by bit, from the definition (RFC 3720, reflected polynomial 0x82F63B78)."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    value = slow_crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord(records) -> bytes:
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, struct.pack("<I", masked(length))]
        parts += [record, struct.pack("<I", masked(record))]
    return b"".join(parts)


def write_tfrecords(folder, digits_dir):
    """Writes the dataset "pixels" as TFDS writes TFRecord: 110 test digits in three shards."""
    digits = digits_dir / "digits" / "1.0.0"
    records = records_of(digits / "digits-test.array_record-00000-of-00001")
    for number, part in enumerate([records[:100], records[100:101], records[101:110]]):
        (folder / f"pixels-test.tfrecord-{number:05d}-of-00003").write_bytes(tfrecord(part))
    info = json.loads((digits / "dataset_info.json").read_text())
    (split,) = (s for s in info["splits"] if s["name"] == "test")
    split |= {"shardLengths": ["100", "1", "9"], "numBytes": "0"}
    info |= {"name": "pixels", "moduleName": "gone", "fileFormat": "tfrecord", "splits": [split]}
    (folder / "features.json").write_bytes((digits / "features.json").read_bytes())
    (folder / "label.labels.txt").write_text("\n".join("abcdefghij"))
    (folder / "dataset_info.json").write_text(json.dumps(info))
