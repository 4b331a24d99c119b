"""TFDS-prepared datasets with random access, without TensorFlow."""

import contextlib
import hashlib
import importlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.data.builders import BUNDLED
from vit_jax.data.records import label_of
from vit_jax.data.sources.array_record import BucketRecords, Shard
from vit_jax.data.sources.base import (
    LABEL_ONLY,
    Example,
    Source,
    bucket_error,
    check_features,
    hash_of,
    pick_feature,
    without_label,
)
from vit_jax.data.sources.label_rules import RULES, scale_pixels
from vit_jax.data.sources.labels import cached_labels
from vit_jax.data.sources.splits import expand_presets, read_split
from vit_jax.errors import DataError, nearest
from vit_jax.storage.block_cache import BlockCache, block_cache
from vit_jax.storage.bucket_path import BucketPath, StoredObject
from vit_jax.storage.files import copy_file
from vit_jax.storage.lock import locked
from vit_jax.storage.paths import is_bucket, user_path

CHECKSUMS = "checksums.sha256"
"""Optional file next to the shards, in the format of `sha256sum`; part of the fingerprint."""
RANDOM_ACCESS = ("array_record", "parquet")
"""Formats that training can read."""
_CLASS_KEYS = ("pythonClassName", "python_class_name")
# All labels of a local dataset of this size are read in about a second.
_FEW_EXAMPLES = 5000


class TfdsSource(Source):
    """A split of a TFDS-prepared dataset in a random-access format (ArrayRecord, Parquet).

    The fingerprint is the same in a bucket as on a disk.

    Args:
        name: TFDS name with optional config and version, or the name of a bundled dataset, which is
            prepared on first use.
        split: TFDS split string, e.g. "train[:98%]", or a preset of `data.sources.splits`.
        data_dir: also in a bucket; by default `default_data_dir`.
        image_key: by default "image", or the only image feature.
        label_key: by default "label", or the only class feature.
        label_rule: name in `label_rules.RULES`; computes the class from other features.
        features: features to read with the image: "label", and other feature names of the dataset.
        cache: for data in a bucket; None: a cache of the default size in the default folder.
    """

    def __init__(
        self,
        name: str,
        split: str,
        data_dir: str | None = None,
        *,
        image_key: str | None = None,
        label_key: str | None = None,
        label_rule: str | None = None,
        features: Sequence[str] = LABEL_ONLY,
        cache: BlockCache | None = None,
    ):
        import tensorflow_datasets as tfds

        builder = open_builder(name, data_dir)
        self.remote = isinstance(user_path(str(builder.data_path)), BucketPath)
        self._cache = (cache or block_cache()) if self.remote else None
        info = builder.info
        self._rule = None if label_rule is None else RULES[label_rule]
        self._image, self._label = _feature_names(info, image_key, label_key, label_rule, features)
        self._others = without_label(features)
        shards = {name: list(s.shard_lengths) for name, s in info.splits.items()}
        sizes = {name: sum(lengths) for name, lengths in shards.items()}
        expanded = expand_presets(split, sizes, builder.name)
        self.spans = read_split(expanded, shards, info.full_name)
        images = [n for n, f in info.features.items() if isinstance(f, tfds.features.Image)]
        read = {self._image, *self._others} & set(images)
        skip = {name: tfds.decode.SkipDecoding() for name in read}
        self._source = _open_split(builder, expanded, self._cache, decoders=skip)
        self._builder, self._split = builder, expanded
        self.name = f"{info.full_name} {split}"
        is_small = len(self) <= _FEW_EXAMPLES and not self.remote
        self.quick_labels = is_small and self._rule is None and self._label is not None
        if self._rule is not None:
            self.class_names = self._rule.class_names
        else:
            self.class_names = tuple(info.features[self._label].names) if self._label else ()
        described = [info.full_name, expanded, len(self), self.class_names]
        described += [[name, lengths] for name, lengths in shards.items()]
        names = (self._image, self._label, *self._others)
        described += [] if names == ("image", "label") else [names]
        described += _checksums(builder)
        self.fingerprint = hash_of(*described)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices: Sequence[int]) -> list[Example]:
        records = self._read_records(self._source, indices)
        return [self._make_example(i, record) for i, record in zip(indices, records, strict=True)]

    def read_ahead(self, indices: Sequence[int]) -> None:
        if self.remote:
            with _errors_of_buckets():
                self._source.data_source.read_ahead(indices)

    def labels(self) -> np.ndarray:
        """Returns all labels, u[N]; read once and then cached in the user's cache folder."""
        splits = {span.split for span in self.spans}
        files = [path for s in sorted(splits) for path in self._builder.info.splits[s].filepaths]
        if self.remote:
            known = _objects(self._builder)
            stats = [(path.name, known[path.name].key) for path in files]
        else:
            with self._errors_of_files():
                stats = [(path.name, (s := path.stat()).length, s.mtime) for path in files]
        key = hash_of(self.fingerprint, stats)
        return cached_labels(key, self.name, len(self), self._raw_labels())

    def _raw_labels(self) -> Any:
        """Returns the function indices -> labels. It does not decode images."""
        import tensorflow_datasets as tfds

        array_record = self._builder.info.file_format == tfds.core.FileFormat.ARRAY_RECORD
        label = self._label
        if self._rule is not None or label is None or not array_record:
            return lambda indices: [example.label for example in self.read(indices)]
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        source = _open_split(self._builder, self._split, self._cache, deserialize_method=raw)
        return lambda indices: [
            label_of(record, label) for record in self._read_records(source, indices)
        ]

    def _read_records(self, source: Any, indices: Sequence[int]) -> Sequence[Any]:
        with self._errors_of_files(), _errors_of_buckets() if self.remote else nullcontext():
            return source.__getitems__(list(indices))

    @contextlib.contextmanager
    def _errors_of_files(self) -> Iterator[None]:
        """Converts errors about missing or damaged files to DataErrors."""
        try:
            yield
        except (OSError, RuntimeError) as error:  # ArrayRecord's own errors are RuntimeErrors.
            raise DataError(
                f"cannot read {self.name}: {(str(error).splitlines() or [''])[0]}",
                "intact files of a prepared dataset",
                "restore them or prepare the dataset again",
            ) from None

    def _make_example(self, index: int, record: dict[str, Any]) -> Example:
        named = record.get("id", record.get("file_name", b""))
        named = named.decode(errors="replace") if isinstance(named, bytes) else str(named)
        shown = f"{index} ({named})" if named else str(index)
        image, label = bytes(record[self._image]), -1
        if self._rule is not None:
            label = self._rule.label(record)
            if self._rule.image_scale != 1:
                image = scale_pixels(image, self._rule.image_scale)
        elif self._label is not None:
            label = int(record[self._label])
        return Example(image, label, shown, {name: record[name] for name in self._others})


def default_data_dir() -> Path:
    """Returns the folder of datasets for configs without `data.data_dir`."""
    return user_path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets")


def open_builder(name: str, data_dir: str | None) -> Any:
    """Returns the TFDS builder of prepared data, preparing bundled datasets first."""
    import tensorflow_datasets as tfds

    folder = user_path(data_dir) if data_dir else default_data_dir()
    base = name.split("/")[0].split(":")[0]
    if base in BUNDLED:
        return _prepare_bundled(name, folder)
    if not folder.is_dir():
        raise DataError(
            f"no folder {folder}", "a folder of TFDS-prepared datasets", _hint(base, folder)
        )
    if name.startswith(("/", "./", "../", "~")) or "://" in name:
        raise DataError(
            f"dataset name {name!r} is a path",
            "NAME, NAME:VERSION or NAME/CONFIG:VERSION",
            "to train on a folder of images, set data.source=folder and data_dir",
        )
    namespace = re.fullmatch(r"(\w+):[A-Za-z_]\S*", name)
    if namespace:
        raise DataError(
            f"dataset name {name!r} has the namespace {namespace[1]!r}, whose code TFDS would run",
            "NAME, NAME:VERSION or NAME/CONFIG:VERSION",
            "for a Hugging Face dataset, save its images as a folder and set data.source=folder",
        )
    _check_features(folder / base)
    try:
        with _errors_of_metadata(name, folder), contextlib.redirect_stdout(io.StringIO()):
            # The redirection hides TFDS's banner about TensorFlow.
            builder = tfds.builder(name, data_dir=str(folder), try_gcs=False)
    except tfds.core.DatasetNotFoundError:
        raise DataError(
            f"no dataset {name!r} in {folder}", "a TFDS-prepared dataset", _hint(base, folder)
        ) from None
    except ImportError as error:
        raise DataError(
            f"dataset {name!r} cannot be opened: {(str(error).splitlines() or [''])[-1]}",
            "the packages that its builder imports",
            "install them (TensorFlow: pip install tensorflow), or use another dataset",
        ) from None
    except ValueError as error:
        raise DataError(
            f"dataset name {name!r}: {(str(error).splitlines() or [''])[0].rstrip('.')}",
            "NAME, NAME:VERSION or NAME/CONFIG:VERSION",
            _hint(base, folder),
        ) from None
    if not builder.is_prepared():
        raise DataError(
            f"dataset {name!r} is not prepared in {folder}",
            f"{builder.data_path} with dataset_info.json",
            f"run: tfds build {name} --data_dir={folder} --file_format=array_record"
            f" (needs TensorFlow), or set data_dir",
        )
    return builder


@contextlib.contextmanager
def _errors_of_metadata(name: str, folder: Path) -> Iterator[None]:
    """Converts errors of TFDS about damaged JSON files of a dataset to a DataError."""
    from google.protobuf import json_format

    try:
        yield
    except (json_format.ParseError, UnicodeDecodeError, json.JSONDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(
            f"dataset {name!r} in {folder} has damaged metadata: {reason[:200]}",
            "intact dataset_info.json and features.json",
            "restore them, or prepare the dataset again",
        ) from None


def _check_features(folder: Path) -> None:
    """Raises DataError if opening the dataset in a folder would import modules that it names."""
    for depth in ("*", "*/*"):
        for path in folder.glob(f"{depth}/features.json"):
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError, RecursionError):
                continue  # TFDS says what is wrong.
            for name in _feature_classes(content):
                if not name.startswith("tensorflow_datasets."):
                    raise DataError(
                        f"{path} names the class {name!r}, and opening the dataset would import it",
                        "features of tensorflow_datasets",
                        "prepare the dataset with features that TFDS has",
                    )


def _feature_classes(content: Any) -> Iterator[str]:
    """Yields the names of the classes in a features.json, also of earlier versions of TFDS."""
    if isinstance(content, dict):
        for key, value in content.items():
            if not isinstance(value, str):
                yield from _feature_classes(value)
            elif key in _CLASS_KEYS or (key == "type" and "content" in content):
                yield value
            elif key == "content":  # JSON as text.
                with contextlib.suppress(ValueError, RecursionError):
                    yield from _feature_classes(json.loads(value))
    elif isinstance(content, list):
        for value in content:
            yield from _feature_classes(value)


def _prepared_folders(data_dir: Path) -> list[Path]:
    """Returns the folders NAME/VERSION and NAME/CONFIG/VERSION of prepared datasets."""
    depths = ("*/*", "*/*/*")
    return [p.parent for depth in depths for p in data_dir.glob(f"{depth}/dataset_info.json")]


def _hint(base: str, folder: Path) -> str:
    """Returns what to do when a dataset is not in a folder."""
    known = sorted({p.relative_to(folder).parts[0] for p in _prepared_folders(folder)} | {*BUNDLED})
    if base in known:
        return f"see {folder / base} for its versions; prepare it again if files are missing"
    hint = f"set data_dir to the folder that contains it (found here: {', '.join(known[:20])})"
    return f"did you mean {nearest(base, known)!r}? Or {hint}" if folder.is_dir() else hint


def _prepare_bundled(name: str, folder: Path) -> Any:
    import tensorflow_datasets as tfds

    base = name.split("/")[0].split(":")[0]
    module, _, cls = BUNDLED[base].partition(":")
    builder_class = getattr(importlib.import_module(module), cls)
    if name not in (base, full := f"{base}:{builder_class.VERSION}"):
        raise DataError(f"no dataset {name!r}", f"{base} or {full}", f"set data.name={base}")
    tfds.disable_progress_bar()

    def open_in(place: Path | str) -> Any:
        with _errors_of_metadata(name, folder):
            return builder_class(data_dir=str(place), file_format="array_record")

    builder = open_in(folder)
    if not builder.is_prepared():
        try:
            # Of runs that start at the same time, one prepares the dataset and the others wait.
            with locked(folder / f".{base}.lock", timeout_s=None):
                if not open_in(folder).is_prepared():
                    with (
                        tempfile.TemporaryDirectory() as local,
                        contextlib.redirect_stdout(io.StringIO()),
                    ):
                        open_in(local if is_bucket(folder) else folder).download_and_prepare()
                        if is_bucket(folder):
                            _copy_dataset(Path(local), folder)
                builder = open_in(folder)
        except OSError as error:
            raise DataError(
                f"cannot write {base} to {folder}: {error.strerror or error}",
                "a writable folder with free space",
                "set data_dir or TFDS_DATA_DIR",
            ) from None
    described = user_path(str(builder.data_path)) / "dataset_info.json"
    if not described.is_file():  # TFDS asks only for the folder.
        raise DataError(
            f"no file {described}",
            "all files of a prepared dataset",
            f"remove the folder {described.parent}, and {base} is prepared again",
        )
    return builder


def _copy_dataset(local: Path, folder: Path) -> None:
    """Copies prepared files; dataset_info.json, which makes the dataset complete, is the last."""
    files = [path for path in local.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: path.name == "dataset_info.json"):
        copy_file(path, folder / path.relative_to(local))


def _feature_names(
    info: Any,
    image_key: str | None,
    label_key: str | None,
    label_rule: str | None,
    wanted: Sequence[str],
) -> tuple[str, str | None]:
    """Returns the names of the image and the label feature; for a label rule, the rule's name."""
    import tensorflow_datasets as tfds

    features = dict(info.features or {})
    described = f"dataset {info.full_name} with features {', '.join(sorted(features))}"
    images = [n for n, f in features.items() if isinstance(f, tfds.features.Image)]
    classes = [n for n, f in features.items() if isinstance(f, tfds.features.ClassLabel)]
    image = pick_feature(image_key, "image", images, described)
    check_features(without_label(wanted), list(features), described)
    if label_rule is not None:
        missing = [name for name in RULES[label_rule].features if name not in features]
        if missing:
            raise DataError(
                described,
                f"feature {missing[0]}, which data.label_rule={label_rule} reads",
                "leave data.label_rule out, or choose its dataset",
            )
        return image, label_rule
    if "label" not in wanted:
        return image, None
    return image, pick_feature(label_key, "label", classes, described)


def _open_split(builder: Any, split: str, cache: BlockCache | None, **options: Any) -> Any:
    """Returns the data source of TFDS; in a bucket, it reads through the cache."""
    try:
        source = builder.as_data_source(split=split, **options)
    except NotImplementedError:
        info = builder.info
        raise DataError(
            f"dataset {info.full_name} is stored as {info.file_format.value}",
            "array_record, which can be read at random",
            f"run: {convert_command(builder.data_path)}",
        ) from None
    if cache is not None:
        source.data_source = _records_in_bucket(builder, split, cache)
    return source


def convert_command(path: Any) -> str:
    """Returns the command of TFDS that writes a TFRecord dataset as ArrayRecord, beside it."""
    return f"tfds convert_format --dataset_version_dir={path} --out_file_format=array_record"


def _records_in_bucket(builder: Any, split: str, cache: BlockCache) -> BucketRecords:
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.data_sources.base import file_instructions

    info = builder.info
    if info.file_format != tfds.core.FileFormat.ARRAY_RECORD:
        raise DataError(
            f"{builder.data_path} is stored as {info.file_format.value}",
            "array_record, the format that is read from buckets",
            "copy the dataset to a local disk, or prepare it again",
        )
    known = _objects(builder)
    shards = []
    for part in file_instructions(info, tfds.Split(split)):
        name = Path(part.filename).name
        if name not in known:
            raise DataError(
                f"no object {part.filename}",
                "all files of the prepared dataset",
                "upload it, or prepare the dataset again",
            )
        shards.append(Shard(known[name], part.skip, part.skip + part.take))
    total = sum(found.size for name, found in known.items() if ".array_record-" in name)
    cache.add_data(str(builder.data_path), total)
    return BucketRecords(shards, cache)


def _objects(builder: Any) -> dict[str, StoredObject]:
    """Returns name -> object of the files of a dataset in a bucket."""
    folder = user_path(str(builder.data_path))
    assert isinstance(folder, BucketPath)
    with _errors_of_buckets():
        return {found.path.name: found for found in folder.list_objects()}


@contextlib.contextmanager
def _errors_of_buckets() -> Iterator[None]:
    """Converts errors of reading from a bucket to DataErrors that name the object."""
    try:
        yield
    except OSError as error:
        raise bucket_error(error) from None


def _checksums(builder: Any) -> list[str]:
    """Returns a hash of the checksum file next to the data, if there is one."""
    path = user_path(str(builder.data_path)) / CHECKSUMS
    return [hashlib.sha256(path.read_bytes()).hexdigest()] if path.is_file() else []
