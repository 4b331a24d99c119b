import json
import shutil

import pytest
from image_files import encoded, write_folder

from vit_jax.__main__ import main
from vit_jax.data.prepare import pack as pack_module


@pytest.fixture
def photos(tmp_path):
    return write_folder(tmp_path / "My Photos")


def run(capsys, *arguments) -> str:
    assert main(["data", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def fail(capsys, *arguments) -> tuple[str, str]:
    """Returns the output and the one line of the error."""
    assert main(["data", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    return captured.out, line.removeprefix("error: ")


def test_info_describes_a_prepared_dataset(capsys, digits_dir):
    message = json.loads(run(capsys, "info", "digits", f"--data_dir={digits_dir}", "--json"))
    assert message["name"] == "digits/1.0.0"
    assert message["features"] == {"id": "Text", "image": "Image", "label": "ClassLabel"}
    assert message["format"] == "array_record"
    assert message["class_names"] == list("0123456789")
    train = {"examples": 1437, "fingerprint": "e57bc5db0234c1dc"}
    assert message["splits"]["train"] == train
    out = run(capsys, "info", "digits", f"--data_dir={digits_dir}")
    assert "1,437 examples, fingerprint e57bc5db0234c1dc" in out


def test_info_shows_and_names_splits_without_examples(capsys, digits_dir, tmp_path, caplog):
    shutil.copytree(digits_dir, tmp_path / "data")
    path = tmp_path / "data" / "digits" / "1.0.0" / "dataset_info.json"
    about = json.loads(path.read_text())
    (test,) = [split for split in about["splits"] if split["name"] == "test"]
    test["shardLengths"] = ["0"]
    path.write_text(json.dumps(about))
    found = json.loads(run(capsys, "info", "digits", f"--data_dir={tmp_path / 'data'}", "--json"))
    assert [found["splits"][split]["examples"] for split in ("train", "test")] == [1437, 0]
    assert caplog.messages[-1] == "digits has no examples in: test"


def test_info_describes_a_folder_and_a_csv_file(capsys, photos, tmp_path):
    (photos / "ant" / "notes.txt").write_text("")
    message = json.loads(run(capsys, "info", photos, "--json"))
    assert (message["source"], message["classes"], message["files_skipped"]) == ("folder", 3, 1)
    assert message["splits"]["train"]["examples"] == 20
    (tmp_path / "list.csv").write_text("path,label\nMy Photos/ant/000.png,x\n")
    assert json.loads(run(capsys, "info", tmp_path / "list.csv", "--json"))["source"] == "csv"


@pytest.mark.parametrize("key", ["image_key", "label_key"])
def test_keys_of_features_are_refused_where_nothing_reads_them(capsys, photos, key):
    _, line = fail(capsys, "check", photos, f"--{key}=kind")
    assert f"--{key}=kind for {photos}, which is read as folder; expected a TFDS dataset" in line


def test_check_counts_every_class_of_a_good_folder(capsys, photos):
    out = run(capsys, "check", photos)
    for line in ("ant 10", "bee 6", "cat 4"):
        assert line.split() in [line.split() for line in out.splitlines()]
    assert "PNG 20" in out


def test_check_warns_of_a_folder_with_one_class(capsys, tmp_path):
    photos = write_folder(tmp_path / "p", {"ant": 3}, size=(4, 4))
    told = "all 3 examples of split 'train' have class 'ant'"
    assert f"warning: {told}" in run(capsys, "check", photos)
    first, second = json.loads(run(capsys, "check", photos, "--json"))["warnings"]
    assert first.startswith(told)
    assert second.startswith("3 of 3 images of split 'train' are of one colour")


def test_check_lists_bad_files_with_reasons_and_exits_with_2(capsys, photos):
    (photos / "ant" / "003.png").write_bytes(b"")
    (photos / "cat" / "018.png").write_bytes(encoded(18)[:45])
    out, line = fail(capsys, "check", photos)
    assert "ant/003.png: unreadable image of 0 bytes" in out
    assert "cat/018.png: unreadable image of 45 bytes" in out
    assert line.startswith(f"2 of 20 examples are bad in {photos}; expected ")
    out, _ = fail(capsys, "check", photos, "--json")
    message = json.loads(out)["splits"]["train"]
    assert set(message["bad"]) == {"ant/003.png", "cat/018.png"}
    assert (message["examples"], message["per_class"]) == (18, [9, 6, 3])


def test_a_prepared_dataset_can_be_checked_and_described(capsys, photos, tmp_path):
    data = f"--data_dir={tmp_path / 'data'}"
    out = run(capsys, "prepare", photos, data, "--val_fraction=0.5")
    assert "is written: train 10, validation 10 examples of 3 classes" in out
    assert f"--config.data.name=my_photos --config.data.data_dir={tmp_path / 'data'}" in out
    assert "was complete already" in run(capsys, "prepare", photos, data, "--val_fraction=0.5")
    assert "validation" in run(capsys, "check", "my_photos", data)
    (shard,) = (tmp_path / "data" / "my_photos" / "1.0.0").glob("*train.array_record*")
    shard.write_bytes(shard.read_bytes() + b"x")
    out, line = fail(capsys, "check", "my_photos", data)
    assert f"{shard.name}: wrong checksum" in out
    assert "1 damaged files" in line


def test_a_name_that_tfds_uses_for_another_dataset_is_shown_with_its_version(
    capsys, photos, tmp_path
):
    data = f"--data_dir={tmp_path / 'data'}"
    out = run(capsys, "prepare", photos, data, "--name=cifar10")
    assert "--config.data.name=cifar10:1.0.0 " in out
    assert "20 examples" in run(capsys, "info", "cifar10:1.0.0", data)


def test_prepare_takes_a_csv_file(capsys, photos, tmp_path):
    (tmp_path / "two.csv").write_text(
        "path,label,split\nMy Photos/ant/000.png,x,train\nMy Photos/ant/001.png,y,test\n"
    )
    out = run(capsys, "prepare", tmp_path / "two.csv", f"--data_dir={tmp_path / 'data'}")
    assert "data/two/1.0.0 is written: train 1, test 1 examples of 2 classes" in out


def test_prepare_reports_skipped_images(capsys, photos, tmp_path):
    (photos / "ant" / "003.png").write_bytes(b"")
    data = f"--data_dir={tmp_path / 'data'}"
    assert "unreadable image" in fail(capsys, "prepare", photos, data, "--name=p")[1]
    out = run(capsys, "prepare", photos, data, "--name=q", "--on_bad_example=skip")
    assert "unreadable images skipped: 1" in out


def test_an_interrupted_prepare_exits_with_75_and_resumes(capsys, photos, tmp_path, monkeypatch):
    def stop(*args):
        raise KeyboardInterrupt

    arguments = ["data", "prepare", str(photos), f"--data_dir={tmp_path / 'data'}", "--name=p"]
    with monkeypatch.context() as patch:
        patch.setattr(pack_module, "encode_record", stop)
        assert main(arguments) == 75
    assert main(arguments) == 0
    assert "is written: train 20" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "WHAT"),
        (["lost"], "WHAT: 'lost'; expected one of info, check, "),
        (["info"], "NAME"),
        (["check", "x", "--threads=0"], "'0' is not a positive whole number"),
        (["prepare", "x", "--val_fraction=1"], "'1' is not a fraction between 0 and 1"),
        (["info", "x", "--config.seed=1"], "--config.seed=1"),
        (["info", "nothing", "--data_dir={here}"], "no dataset 'nothing'"),
        (["check", "{here}/gone", "--source=folder"], "no folder {here}/gone"),
    ],
)
def test_user_errors_are_one_line(capsys, tmp_path, arguments, part):
    arguments = [argument.format(here=tmp_path) for argument in arguments]
    assert part.format(here=tmp_path) in fail(capsys, *arguments)[1]
