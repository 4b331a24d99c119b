"""Small datasets for tests of data: tar files, folders, labels without images."""

import io
import tarfile

import numpy as np

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
