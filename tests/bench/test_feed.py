import json

import pytest
from image_files import write_folder
from processes import user_error
from small_config import small_mapping

from vit_jax.__main__ import main
from vit_jax.bench import feed
from vit_jax.commands import bench_feed
from vit_jax.config.data import DataConfig
from vit_jax.config.run import Config

SHORT = ["--seconds=0.02", "--rounds=2", "--processes=0", "--config.data.image_size=8",
         "--config.data.global_batch_size=16"]  # fmt: skip


def data(folder, **changes):
    mapping = {"name": "digits", "data_dir": str(folder), "global_batch_size": 16, "image_size": 8}
    return DataConfig.from_mapping(mapping | changes)


@pytest.mark.slow
def test_the_command_prints_and_writes_its_figures(digits_dir, tmp_path, capsys):
    output = tmp_path / "feed.json"
    where = f"--config.data.data_dir={digits_dir}"
    assert main(["bench", "feed", where, f"--output={output}", *SHORT]) == 0
    found = json.loads(output.read_text())
    shown = capsys.readouterr().out
    assert "1 thread" in [row["name"] for row in found["feed"]]
    for row in found["feed"]:
        assert 0 < row["least"] <= row["images_per_second"] <= row["most"]
        assert f"{row['images_per_second']:,.0f}" in shown


@pytest.mark.slow
def test_the_source_may_be_a_dataset_or_a_folder_of_images(digits_dir, tmp_path, capsys):
    assert main(["bench", "feed", "--source=digits", f"--data_dir={digits_dir}", *SHORT]) == 0
    assert "feed: digits" in capsys.readouterr().out
    photos = write_folder(tmp_path / "photos", {"cat": 1, "dog": 1})
    assert main(["bench", "feed", f"--source={photos}", *SHORT]) == 0
    assert "feed: photos" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("feed_rate", "ending"),
    [
        (50.0, "the feed is the bottleneck, the device waits 50% of the time"),
        (300.0, "the feed is 3.0 times as fast as the device"),
    ],
)
def test_the_verdict_compares_feed_and_device(monkeypatch, feed_rate, ending):
    class Step:
        images_per_second = 100.0

    monkeypatch.setattr("vit_jax.bench.step.JaxStep", lambda config: None)
    monkeypatch.setattr("vit_jax.bench.step.measure_interleaved", lambda *_, **__: [Step()])
    config = Config.from_mapping(small_mapping())
    verdict = bench_feed.verdict(config, feed_rate, bench_feed.device_rate(config))
    assert verdict.startswith(f"the feed gives {feed_rate:,.0f} images/s, ViT-Ti/16 on 1 x cpu")
    assert verdict.endswith(f"needs 100: {ending}")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seconds=0"], "argument --seconds"),
        (["--rounds=none"], "argument --rounds"),
        (["--processes=-1"], "argument --processes"),
        (["--output=/nowhere/a.json"], "argument --output"),
        (["--source=photos", "--data_dir=DATA"], "leave --data_dir out"),
        (["--source=digitz", "--data_dir=photos"], "digitz"),
    ],
)
def test_wrong_arguments_are_one_line_errors(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    assert words in user_error(capsys, ["bench", "feed", *arguments])


def test_the_configured_subset_is_measured(digits_dir, monkeypatch, capsys):
    seen = []

    def measure(source, *_, **__):
        seen.append(len(source))
        return feed.Rate("1 thread", 1.0)

    monkeypatch.setattr(feed, "measure_feed", measure)
    where = f"--config.data.data_dir={digits_dir}"
    assert main(["bench", "feed", where, "--config.data.subset.examples=50", *SHORT]) == 0
    assert set(seen) == {50}
