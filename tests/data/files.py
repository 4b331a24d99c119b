"""Small datasets for tests of data: tar files, folders, labels without images."""

import io
import tarfile

import numpy as np

from vit_jax.data.sources import Example, Source
from vit_jax.data.sources.folder import FolderSource
from vit_jax.data.sources.listing import list_images
from vit_jax.errors import DataError
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


class InMemory(Source):
    """A source of these examples; it counts how often each is read, and some cannot be read."""

    fingerprint = "0"

    def __init__(self, examples, class_names, name="memory", unreadable=()):
        self.examples, self.class_names, self.name = list(examples), tuple(class_names), name
        self.reads, self._unreadable = np.zeros(len(self.examples), int), unreadable

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices):
        self.reads[list(indices)] += 1
        if any(i in self._unreadable for i in indices):
            raise DataError("a damaged file", "a whole one", "restore it")
        return [self.examples[i] for i in indices]


class Labelled(InMemory):
    """Examples with these labels and one image."""

    def __init__(self, labels, class_names, image=b"", **options):
        examples = [Example(image, int(label), str(i)) for i, label in enumerate(labels)]
        super().__init__(examples, class_names, "labelled", **options)

    def labels(self) -> np.ndarray:  # Not counted as reading.
        return np.array([example.label for example in self.examples])


def upload(folder, url):
    """Copies a local folder to an address."""
    for path in folder.rglob("*"):
        if path.is_file():
            copy_file(path, user_path(url) / path.relative_to(folder))
    return url


def assert_same_batches(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
            assert a[name].dtype == b[name].dtype
