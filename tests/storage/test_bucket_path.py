"""Paths in buckets behave like paths on a local disk, on both stores."""

import concurrent.futures
import multiprocessing
import pickle
from pathlib import Path, PurePath

import pytest

from vit_jax.storage.bucket_path import BucketPath
from vit_jax.storage.paths import user_path

SPAWN = multiprocessing.get_context("spawn")
NAMES = [
    "plain.txt",
    "with space",
    "#1",
    "50%",
    "%20",
    "is it?",
    "a&b=c;d",
    "plus+",
    "[abc]",
    "star*",
    "{braces}",
    "'quotes\"",
    "na\u00efve \u00fc",
    "\u5bfe\u8c61.json",
    "\U0001f600",
]


def outcome(root, operation):
    """Returns what an operation on a folder gives: a value, or the class of its error."""

    def plain(value):
        if isinstance(value, PurePath):
            return str(value).replace(str(root), "ROOT")
        if isinstance(value, str | bytes | bool | int | None):
            return value
        return [plain(inner) for inner in value]

    try:
        return plain(operation(root))
    except Exception as error:
        return type(error).__name__


def write(path, content):
    """Writes a file and the folders above it, as is usual on a disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def read_in_parts(path):
    with path.open("rb") as file:
        return [file.read(2), file.seek(1), file.read(1), file.seek(0, 2), file.read()]


def read_lines(path):
    with path.open(encoding="utf-8") as file:
        return list(file)


def write_lines(path):
    with path.open("w", newline="") as file:
        file.write("one\r\n")
        file.write("\u00fc\n")
    return path.read_bytes()


# Each is applied to the same folder, one after the other.
OPERATIONS = {
    "nothing is there": lambda r: [r.exists(), r.is_dir(), r.is_file(), [*r.glob("*")]],
    "list nothing": lambda r: [*(r / "a").iterdir()],
    "read nothing": lambda r: (r / "a.txt").read_text(),
    "open nothing": lambda r: (r / "a.txt").open(),
    "stat nothing": lambda r: (r / "a.txt").stat().st_size,
    "delete nothing": lambda r: (r / "a.txt").unlink(),
    "delete nothing, which is right": lambda r: (r / "a.txt").unlink(missing_ok=True),
    "make folders": lambda r: (r / "a" / "b").mkdir(parents=True, exist_ok=True),
    "write": lambda r: write(r / "a" / "b" / "one.txt", "\u00fcber\n"),
    "write another": lambda r: write(r / "a" / "b" / "two.json", "2"),
    "write above": lambda r: write(r / "a" / "three.txt", ""),
    "write hidden": lambda r: write(r / ".hidden", "h"),
    "read text": lambda r: (r / "a/b/one.txt").read_text(encoding="utf-8"),
    "read bytes": lambda r: (r / "a" / "b/one.txt").read_bytes(),
    "read latin": lambda r: (r / "a/b/one.txt").read_text("latin-1"),
    "read empty": lambda r: (r / "a/three.txt").read_bytes(),
    "read in parts": lambda r: read_in_parts(r / "a/b/one.txt"),
    "read lines": lambda r: read_lines(r / "a/b/one.txt"),
    "exists": lambda r: [(r / p).exists() for p in ("a", "a/b", "a/b/one.txt", "a/bo", "b")],
    "is_file": lambda r: [(r / p).is_file() for p in ("a", "a/b", "a/b/one.txt", "a/bo", "b")],
    "is_dir": lambda r: [(r / p).is_dir() for p in ("a", "a/b", "a/b/one.txt", "a/bo", "b")],
    "is_symlink": lambda r: (r / "a").is_symlink(),
    "size": lambda r: [(r / p).stat().st_size for p in ("a/b/one.txt", "a/three.txt")],
    "iterdir": lambda r: [sorted(r.iterdir()), sorted((r / "a").iterdir())],
    "iterdir of a file": lambda r: [*(r / "a/three.txt").iterdir()],
    "glob": lambda r: [sorted(r.glob(p)) for p in ("*", "a", "a/*", "*/*.txt", "*/b/*", "*.x")],
    "glob classes": lambda r: [sorted((r / "a/b").glob(p)) for p in ("[ot]*", "???.txt", "[!o]*")],
    "glob of nothing": lambda r: [*(r / "nothing").glob("*")],
    "glob at any depth": lambda r: [sorted(r.glob(p)) for p in ("**/*.txt", "a/**/*.json", "**/b")],
    "rglob": lambda r: [sorted(r.rglob(p)) for p in ("*", "*.txt", "b", "b/*")],
    "find by match": lambda r: [p for p in sorted(r.rglob("*")) if p.match("b/*.json")],
    "mkdir of a folder": lambda r: (r / "a").mkdir(),
    "rmdir of a full folder": lambda r: (r / "a").rmdir(),
    "rename": lambda r: (r / "a/b/two.json").rename(r / "a/two.json"),
    "rename onto": lambda r: (r / "a/two.json").replace(r / "a/three.txt"),
    "rename onto itself": lambda r: (r / "a/three.txt").replace(r / "a/three.txt"),
    "rename nothing": lambda r: (r / "a/two.json").rename(r / "a/four"),
    "renamed": lambda r: [sorted(r.rglob("*")), (r / "a/three.txt").read_text()],
    "write lines": lambda r: write_lines(r / "a/three.txt"),
    "overwrite": lambda r: [(r / "a/new.txt").write_bytes(b"new"), (r / "a/new.txt").read_text()],
    "touch": lambda r: [(r / "a/three.txt").touch(), (r / "a/three.txt").read_text()],
    "touch again": lambda r: (r / "a/three.txt").touch(exist_ok=False),
    "touch new": lambda r: [(r / "a/new").touch(), (r / "a/new").read_text()],
    "unlink": lambda r: [(r / "a/new").unlink(), (r / "a/new").exists(), (r / "a").exists()],
    "same file": lambda r: (r / "a/three.txt").samefile(r / "a" / ".." / "a/three.txt"),
    "resolve": lambda r: (r / "a" / ".." / "a/three.txt").resolve(),
    "absolute": lambda r: [(r / "a").absolute(), (r / "a").expanduser(), r.is_absolute()],
    "join": lambda r: [r / "a" / "b", r.joinpath("a", "b/c"), r / PurePath("a/b"), r / "a//b/./c"],
    "join absolute": lambda r: [r / "/etc/hosts", r / Path("/etc"), r / r, Path("a") / r],
    "parts": lambda r: [(r / "a/b.tar.gz").name, (r / "a/b.gz").stem, (r / "b.gz").suffix],
    "other names": lambda r: [(r / "a/b").with_name("c"), (r / "a/b.x").with_suffix(".y"),
                              (r / "a/b.x").with_stem("c")],
    "parents": lambda r: [(r / "a/b").parent, [*(r / "a/b").parents[:2]], (r / "a/b").parents[1]],
    "relative": lambda r: [(r / "a/b").relative_to(r), (r / "a").is_relative_to(r),
                           r.is_relative_to(r / "a"), (r / "a").is_relative_to("/other")],
    "not relative": lambda r: r.relative_to(r / "a"),
    "compare": lambda r: [r == r, r / "a" == r / "a/", r / "a" < r / "b", len({r / "a", r / "a"})],
    "match": lambda r: [(r / "a.txt").match(p) for p in ("*.txt", "b/*.txt", "a*")],
    "same": lambda r: pickle.loads(pickle.dumps(r / "a")),
}  # fmt: skip


def test_operations_give_the_same_as_on_a_local_disk(bucket, tmp_path):
    local, remote = tmp_path / "run", user_path(f"{bucket.url}/run")
    local.mkdir()
    found = {}
    for name, operation in OPERATIONS.items():
        expected = outcome(local, operation)
        found[name] = (outcome(remote, operation), expected)
        if name == "nothing is there":  # A folder on a disk can be empty.
            expected = [False, False, False, []]
            found[name] = (found[name][0], expected)
    assert {name: pair for name, pair in found.items() if pair[0] != pair[1]} == {}


def test_any_name_can_be_written_listed_copied_and_deleted(bucket, tmp_path):
    root = user_path(f"{bucket.url}/run [1]?*")
    beside = user_path(f"{bucket.url}/run 1xy")
    (beside / "kept").write_text("kept")
    for name in NAMES:
        (root / name / name).write_text(name)
    assert sorted(path.name for path in root.iterdir()) == sorted(NAMES)
    for name in NAMES:
        path = root / name / name
        assert path.read_text() == name
        assert path.stat().st_size == len(name.encode())
        assert [*(root / name).iterdir()] == [*(root / name).glob("*")] == [path]
        with path.open("rb") as file:
            assert file.read() == name.encode()
    assert [path for path, _ in root.find()] == sorted(root / name / name for name in NAMES)
    root.download(tmp_path / "copy")
    again = user_path(f"{bucket.url}/again?")
    again.upload(tmp_path / "copy")
    assert {path.name: path.read_text() for path, _ in again.find()} == {n: n for n in NAMES}
    path = (root / NAMES[2] / NAMES[2]).replace(root / "%2F" / "?")
    assert path.read_text() == NAMES[2]
    root.remove_tree()
    assert not root.exists()
    assert (beside / "kept").read_text() == "kept"


def test_a_folder_is_not_one_whose_name_it_begins(bucket):
    root = user_path(bucket.url)
    (root / "run10" / "a").write_text("")
    assert not (root / "run1").exists()
    assert (root / "run1").find() == []
    (root / "run1").remove_tree()
    assert (root / "run10" / "a").exists()


def test_the_bucket_itself(bucket):
    root = user_path(bucket.url)
    assert root.is_dir()
    assert [*root.iterdir()] == [*root.glob("*")] == []
    assert (root.parent, root.parents, (root / "a").parents) == (root, (), (root,))
    nowhere = user_path(f"{bucket.url}-nowhere")
    assert not nowhere.exists()
    with pytest.raises(FileNotFoundError, match="-nowhere"):
        (nowhere / "a").write_text("")


def test_of_many_that_create_an_object_one_does(bucket):
    path = user_path(f"{bucket.url}/lease")

    def create(number):
        try:
            path.create(str(number).encode())
        except FileExistsError:
            return None
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        made = [number for number in pool.map(create, range(8)) if number is not None]
    assert path.read_text() == str(*made)
    with pytest.raises(FileExistsError, match=f"Object exists: '{path}'"):
        path.create(b"")


def test_a_listing_shows_what_another_process_has_just_written(bucket):
    root = user_path(f"{bucket.url}/run")
    (root / "one").write_text("")
    assert [path.name for path in root.iterdir()] == ["one"]
    with concurrent.futures.ProcessPoolExecutor(1, SPAWN) as pool:
        pool.submit(BucketPath.write_text, root / "two", "").result()
    assert [path.name for path in root.iterdir()] == ["one", "two"]


def test_ranges_are_read_and_large_objects_are_written_and_copied(bucket, tmp_path):
    content = bytes(range(256)) * (3 << 12)
    (tmp_path / "large").write_bytes(content)
    path = user_path(f"{bucket.url}/large")
    path.upload(tmp_path / "large")
    assert path.read_range(255, 258) == content[255:258]
    assert path.rename(path.with_name("moved")).read_bytes() == content
    path.with_name("moved").download(tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content


@pytest.mark.parametrize("operation", ["read_bytes", "stat", "unlink", "open", "iterdir"])
def test_errors_name_the_object(bucket, operation):
    path = user_path(f"{bucket.url}/run/a file")
    with pytest.raises(FileNotFoundError) as caught:
        next(getattr(path, operation)())
    assert str(caught.value) == f"[Errno 2] No such object: '{path}'"
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("mode", ["a", "r+", "w+", "ab", "x"])
def test_objects_cannot_be_changed(bucket, mode):
    path = user_path(f"{bucket.url}/a")
    path.write_text("")
    with pytest.raises(NotImplementedError, match="objects cannot be opened with mode"):
        path.open(mode)


def test_what_objects_do_not_have_is_refused():
    path = BucketPath("gs://bucket/a")
    for name in ("symlink_to", "chmod", "readlink", "owner", "hardlink_to", "lstat"):
        with pytest.raises(NotImplementedError, match=f"objects in a bucket have no {name}"):
            getattr(path, name)()
