"""Random-access sources of encoded examples. TFDS is the catalogue; TensorFlow is never needed."""

import contextlib
import dataclasses
import fcntl
import hashlib
import importlib
import io
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vit_jax.config import DataConfig
from vit_jax.data.builders import BUNDLED
from vit_jax.errors import DataError, nearest


@dataclasses.dataclass(frozen=True)
class Example:
    """One example as stored.

    Attributes:
        image: encoded bytes (PNG, JPEG, ...).
        label: class index.
        id: name that says which example of the source this is, for messages.
    """

    image: bytes
    label: int
    id: str


@runtime_checkable
class Source(Protocol):
    """What the loader needs of a dataset. Must be cheap to read at random and from many threads."""

    name: str
    class_names: tuple[str, ...]
    fingerprint: str

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; faster than one by one."""
        ...


class TfdsSource:
    """A split of a TFDS-prepared dataset in a random-access format (ArrayRecord, Parquet).

    Args:
        name: TFDS name with optional config and version, or the name of a bundled builder, whose
            data are prepared on first use.
        split: TFDS split string, e.g. "train[:98%]".
        data_dir: folder of prepared data; None: TFDS_DATA_DIR or ~/tensorflow_datasets.

    Attributes:
        name: full name with version and split.
        class_names: names of the classes, in label order.
        fingerprint: hash of everything that decides which examples these are.

    Raises:
        DataError: no such dataset or split, not prepared, not random-access, or without the
            features "image" and "label".
    """

    def __init__(self, name: str, split: str, data_dir: str | None = None):
        import tensorflow_datasets as tfds

        builder = _open_builder(name, data_dir)
        info = builder.info
        features = info.features
        missing = {"image", "label"} - set(features or ())
        if missing or not isinstance(features["label"], tfds.features.ClassLabel):
            raise DataError(
                f"dataset {info.full_name} with features {', '.join(sorted(features or ()))}",
                "an 'image' and a class 'label'",
                "use an image-classification dataset",
            )
        self._source = _open_split(builder, split)
        self.name = f"{info.full_name} {split}"
        self.class_names = tuple(features["label"].names)
        described = json.dumps(
            [info.full_name, split, len(self), self.class_names]
            + [[s.name, list(s.shard_lengths)] for s in info.splits.values()]
        )
        self.fingerprint = hashlib.sha256(described.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Example:
        return self.read([index])[0]

    def read(self, indices: Sequence[int]) -> list[Example]:
        """Returns several examples; faster than one by one.

        Raises:
            DataError: a file of the dataset is missing or damaged.
        """
        try:
            records = self._source.__getitems__(list(indices))
        except (OSError, RuntimeError) as error:  # ArrayRecord's own errors are RuntimeErrors.
            raise DataError(
                f"cannot read {self.name}: {(str(error).splitlines() or [''])[0]}",
                "the dataset's files as they were prepared",
                "restore them or prepare the dataset again",
            ) from None
        return [self._example(i, record) for i, record in zip(indices, records, strict=True)]

    def _example(self, index: int, record: dict[str, Any]) -> Example:
        named = record.get("id", record.get("file_name", b""))
        named = named.decode(errors="replace") if isinstance(named, bytes) else str(named)
        shown = f"{index} ({named})" if named else str(index)
        return Example(bytes(record["image"]), int(record["label"]), shown)


def open_source(data: DataConfig, split: str) -> Source:
    """Returns a split of a config's dataset.

    Raises:
        DataError: it is not there, or cannot be read at random.
    """
    return TfdsSource(data.name, split, data.data_dir)


def class_count(source: Source, wanted: int | None) -> int:
    """Returns the number of classes of the head: as wanted, else as the dataset says.

    Args:
        source: any split.
        wanted: `data.num_classes`.

    Raises:
        DataError: fewer are wanted than the dataset has.
    """
    if wanted is not None and wanted < len(source.class_names):
        raise DataError(
            f"data.num_classes is {wanted}, {source.name} has {len(source.class_names)} classes",
            "at least as many",
            "leave data.num_classes out",
        )
    return wanted or len(source.class_names)


def default_data_dir() -> Path:
    """Returns the folder that datasets are looked for in when a config names none."""
    return Path(os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")).expanduser()


def _open_builder(name: str, data_dir: str | None) -> Any:
    """Returns the TFDS builder of prepared data, preparing bundled datasets first."""
    import tensorflow_datasets as tfds

    folder = Path(data_dir).expanduser() if data_dir else default_data_dir()
    base = name.split("/")[0].split(":")[0]
    if base in BUNDLED:
        return _prepare_bundled(name, folder)
    prepared = [p for depth in ("*/*", "*/*/*") for p in folder.glob(f"{depth}/dataset_info.json")]
    known = sorted({p.relative_to(folder).parts[0] for p in prepared} | set(BUNDLED))
    hint = f"set data.data_dir to where it is (here: {', '.join(known[:20])})"
    if not folder.is_dir():
        raise DataError(f"no folder {folder}", "a folder of TFDS-prepared datasets", hint)
    close = f"did you mean {nearest(base, known)!r}? Or {hint}"
    try:
        builder = tfds.builder(name, data_dir=str(folder), try_gcs=False)
    except tfds.core.DatasetNotFoundError:
        raise DataError(
            f"no dataset {name!r} in {folder}", "a TFDS-prepared dataset", close
        ) from None
    except ValueError as error:
        raise DataError(
            f"dataset name {name!r}: {(str(error).splitlines() or [''])[0].rstrip('.')}",
            "NAME, NAME:VERSION or NAME/CONFIG:VERSION",
            close,
        ) from None
    if not builder.is_prepared():
        raise DataError(
            f"dataset {name!r} is not prepared in {folder}",
            f"{builder.data_path} with dataset_info.json",
            f"run: tfds build {name} --data_dir={folder} --file_format=array_record"
            f" (needs TensorFlow), or set data.data_dir",
        )
    return builder


def _prepare_bundled(name: str, folder: Path) -> Any:
    import tensorflow_datasets as tfds

    base = name.split("/")[0].split(":")[0]
    module, _, cls = BUNDLED[base].partition(":")
    builder_class = getattr(importlib.import_module(module), cls)
    if name not in (base, full := f"{base}:{builder_class.VERSION}"):
        raise DataError(f"no dataset {name!r}", f"{base} or {full}", f"set data.name={base}")
    tfds.disable_progress_bar()
    builder = builder_class(data_dir=str(folder), file_format="array_record")
    if not builder.is_prepared():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Runs that start together wait for the one that prepares.
            with (folder / f".{base}.lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                builder = builder_class(data_dir=str(folder), file_format="array_record")
                if not builder.is_prepared():
                    with contextlib.redirect_stdout(io.StringIO()):
                        builder.download_and_prepare()
        except OSError as error:
            raise DataError(
                f"cannot write {base} to {folder}: {error.strerror or error}",
                "a writable folder with free space",
                "set data.data_dir or TFDS_DATA_DIR",
            ) from None
    return builder


def _open_split(builder: Any, split: str) -> Any:
    import tensorflow_datasets as tfds

    try:
        decoders = {"image": tfds.decode.SkipDecoding()}
        if not builder.info.splits[split].num_examples:
            raise DataError(
                f"split {split!r} of {builder.info.full_name} is empty", "at least one example",
                "widen the split",
            )  # fmt: skip
        return builder.as_data_source(split=split, decoders=decoders)
    except NotImplementedError:
        raise DataError(
            f"dataset {builder.info.full_name} is stored as {builder.info.file_format.value}",
            "array_record, which can be read at random",
            "convert it: tfds convert_format --dataset_dir=DIR --out_file_format=array_record",
        ) from None
    except DataError:
        raise
    except ValueError as error:
        names = ", ".join(builder.info.splits)
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"split {split!r} of {builder.info.full_name}: {reason}",
            f"one of {names}, or a part such as {next(iter(builder.info.splits))}[:90%]",
            "check data.train_split and evaluation.splits",
        ) from None
