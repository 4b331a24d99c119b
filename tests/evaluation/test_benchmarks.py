"""ImageNet's other test sets: several labels, subsets of classes, images that do not count."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from imagenet_stand_ins import objectnet, picture, prepare
from processes import user_error
from weight_files import random_loaded

from vit_jax.__main__ import main
from vit_jax.config.data import DataConfig
from vit_jax.data.benchmarks import (
    BENCHMARKS,
    benchmark_images,
    find_benchmark,
    imagenet_classes,
    objectnet_classes,
    open_benchmark,
)
from vit_jax.data.preprocess import preprocess_of
from vit_jax.errors import DataError
from vit_jax.evaluation.classification import (
    benchmark_predictions,
    example_outputs,
    prediction_metrics,
    predictions_of,
)
from vit_jax.interop.save import save
from vit_jax.losses.softmax_cross_entropy import SoftmaxCrossEntropy

# The labels of the stand-ins.
SINGLE = [3, 999, 6, 11]
REAL = [[3, 5], [], [999], [6, 7, 8]]


def test_accuracy_with_several_labels_by_hand():
    logits = jnp.asarray([[5, 4, 3, 2, 1, 0, -1.0]] * 5, jnp.float32)
    sets = [{0}, {1, 6}, {5, 6}, set(), {0, 1, 2, 3, 4, 5, 6}]
    right = jnp.asarray([[c in s for c in range(7)] for s in sets])
    mask = jnp.asarray([True] * 4 + [False])
    predictions = benchmark_predictions(logits, right, jnp.ones((5, 7), bool), mask)
    found = example_outputs(predictions, prediction_metrics(7))
    # The fourth image has no label and the fifth is padding: neither counts.
    sums = [found[f"accuracy_top{k}"]["sum"] for k in (1, 5)]
    assert (found["examples"], sums) == (3, [1, 2])
    assert found["correct"].tolist()[:3] == [True, False, False]
    assert found["mask"].tolist() == [True, True, True, False, False]
    p = np.asarray(jax.nn.softmax(logits[0]))
    want = -np.log([p[0], p[1] + p[6], p[5] + p[6]]).sum()
    assert float(found["loss"]["sum"]) == pytest.approx(want, rel=1e-5)


def test_one_label_is_ordinary_classification():
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.standard_normal((20, 8)), jnp.float32)
    labels = jnp.asarray(rng.integers(0, 8, 20), jnp.int32)
    mask = jnp.asarray(rng.random(20) < 0.7)
    right = labels[:, None] == jnp.arange(8)[None]
    found = benchmark_predictions(logits, right, jnp.ones((20, 8), bool), mask)
    want = predictions_of(logits, labels, mask, SoftmaxCrossEntropy())
    for name, value in vars(want).items():
        np.testing.assert_allclose(getattr(found, name), value, rtol=1e-5)


def test_the_lists_of_classes_are_the_published_ones():
    classes = imagenet_classes()
    assert len(set(classes["wnid"])) == 1000
    assert sorted(classes["wnid"]) == classes["wnid"].tolist()  # TFDS's order.
    assert (classes["imagenet_a"].sum(), classes["imagenet_r"].sum()) == (200, 200)
    # The first class of each list: stingray is class 6, goldfish class 1.
    assert classes["wnid"][classes["imagenet_a"]][0] == "n01498041" == classes["wnid"][6]
    assert classes["wnid"][classes["imagenet_r"]][0] == "n01443537" == classes["wnid"][1]


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("imagenets")
    prepare(folder, "imagenet2012", "validation", SINGLE, version="5.1.0")
    prepare(folder, "imagenet2012_real", "validation", REAL, several=True)
    prepare(folder, "imagenet_a", "test", SINGLE, version="0.1.0")
    prepare(folder, "imagenet_v2", "test", SINGLE, config="matched-frequency", version="3.0.0")
    objectnet(folder)
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "there"
    loaded = random_loaded(num_classes=1000, image_size=(16, 16))
    save(loaded, path, "orbax")
    return path, loaded.model


def _data(folder):
    return DataConfig(name="", data_dir=str(folder), global_batch_size=1)


def _run(arguments, capsys):
    assert main(["eval", *map(str, arguments), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["presets"]
    return {row["title"]: row for row in rows}


def test_presets_of_any_weights_equal_counting_by_hand(stand_ins, weights, capsys):
    path, model = weights
    names = "imagenet,imagenet_real,imagenet_a,imagenet_v2,objectnet,imagenet[:50%]"
    rows = _run([path, f"--preset={names}", f"--data_dir={stand_ins}"], capsys)
    preprocess = preprocess_of(model)

    def logits(count, first=0):
        pixels = [preprocess.pixels(picture(first + i)) for i in range(count)]
        return np.asarray(model(np.stack(pixels).astype(np.float32) / np.float32(127.5) - 1))

    scores, own = logits(4), np.asarray(SINGLE)
    plain = (scores.argmax(1) == own).mean()
    assert rows["ImageNet"]["accuracy"] == rows["ImageNet V2"]["accuracy"] == plain
    assert rows["ImageNet[:50%]"]["examples"] == 2
    real = [scores[i].argmax() in labels for i, labels in enumerate(REAL) if labels]
    assert rows["ImageNet ReaL"]["examples"] == 3
    assert rows["ImageNet ReaL"]["accuracy"] == pytest.approx(np.mean(real))
    within = imagenet_classes()["imagenet_a"]
    counted = [i for i, label in enumerate(SINGLE) if within[label]]
    assert counted == [2, 3]  # Classes 3 and 999 are not in ImageNet-A.
    subset = np.where(within, scores, -np.inf).argmax(1)
    assert rows["ImageNet-A"]["examples"] == 2
    assert rows["ImageNet-A"]["accuracy"] == (subset[counted] == own[counted]).mean()
    # ObjectNet: three chairs of two classes and three bananas; the puzzles do not count.
    right = [x.argmax() in (423, 559) for x in logits(3)] + [
        x.argmax() == 954 for x in logits(3, 10)
    ]
    assert rows["ObjectNet"]["examples"] == 6
    assert rows["ObjectNet"]["accuracy"] == pytest.approx(np.mean(right))


def test_the_border_of_objectnet_is_cut_off(stand_ins):
    opened = open_benchmark("objectnet", _data(stand_ins))
    seen = []
    rows = benchmark_images(
        opened, lambda image, rng: seen.append(image) or np.zeros((16, 16, 3), np.uint8), 16
    )
    row = rows.make_row(opened.source[0], np.random.default_rng())
    assert seen[0].shape == (16, 16, 3)
    assert set(np.flatnonzero(row["right"])) in ({423, 559}, {954})


def test_table_2_names_what_needs_fine_tuning_and_what_is_missing(stand_ins, weights, capsys):
    path, _ = weights
    rows = _run([path, "--preset=table2", f"--data_dir={stand_ins}"], capsys)
    assert list(rows) == [
        "ImageNet", "ImageNet ReaL", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets",
        "Oxford Flowers-102", "VTAB (19 tasks)",
    ]  # fmt: skip
    assert rows["ImageNet ReaL"]["examples"] == 3
    assert f"transfer.py:pets,test --config.init_from={path}" in rows["Oxford-IIIT Pets"]["note"]
    assert main(["eval", str(path), "--preset=all", f"--data_dir={stand_ins}"]) == 0
    shown = capsys.readouterr().out
    assert "ImageNet-R: dataset 'imagenet_r' is not prepared" in shown.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--preset=imagenet_r"], "imagenet_r"),
        (["--preset=imagenet_x"], "unknown preset 'imagenet_x'"),
        ([], "use eval --workdir="),
        (["--preset=imagenet", "--config.data.name=x"], "leave it out"),
        (["--preset=imagenet_v2", "OURS"], "imagenet_v2 for a model of 5 classes"),
    ],
)
def test_bad_input_is_one_line(stand_ins, weights, ours_path, capsys, arguments, message):
    path = ours_path if arguments[-1:] == ["OURS"] else weights[0]
    arguments = [word for word in arguments if word != "OURS"]
    command = ["eval", str(path), *arguments, f"--data_dir={stand_ins}"]
    assert message in user_error(capsys, command)


def test_a_class_map_that_is_damaged_is_named(tmp_path, stand_ins):
    found = objectnet_classes(stand_ins / "objectnet-1.0" / "mappings")
    assert found == {"chair": (423, 559), "banana": (954,)}
    with pytest.raises(DataError, match=r"no folder .*objectnet-1\.0"):
        open_benchmark("objectnet", _data(tmp_path))
    objectnet(tmp_path)
    (tmp_path / "objectnet-1.0/mappings/imagenet_to_label_2012_v2").write_text("one line\n")
    with pytest.raises(DataError, match=r"the class map in .* cannot be read"):
        open_benchmark("objectnet", _data(tmp_path))


def test_presets_are_told_from_splits():
    assert all(find_benchmark(name) == (name, "") for name in BENCHMARKS)
    assert find_benchmark("validation[:10%]") is None
    assert find_benchmark("imagenet_real[10%:]") == ("imagenet_real", "[10%:]")
