"""Distillation: losses by hand, a frozen teacher, the distillation token, and a run."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from numpy_reference import softmax
from processes import ROOT
from task_runs import assert_resumes, program_of, run_mapping
from weight_files import parameters, random_weights

from vit_jax.config.file import load_config
from vit_jax.config.run import Config
from vit_jax.data.sources import Example, TfdsSource
from vit_jax.data.transforms import make_eval_transform, make_train_transform
from vit_jax.errors import ConfigError, WeightsError
from vit_jax.interop.load import load
from vit_jax.interop.report import Status
from vit_jax.interop.save import save
from vit_jax.named_tree import named_leaves
from vit_jax.parallel.mesh import make_mesh
from vit_jax.tasks.distillation import task as distillation_task
from vit_jax.tasks.distillation.task import hard_loss, soft_loss
from vit_jax.train.init_from import start_from_weights
from vit_jax.train.loop import train
from vit_jax.train.program import build_program
from vit_jax.train.signals import StopSignals

pytestmark = pytest.mark.filterwarnings("ignore:Sharding info not provided")  # One device here.
STUDENT = jnp.array([[1.0, 0.0, -1.0], [0.5, 2.0, 0.0]])
TEACHER = jnp.array([[3.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
TINY = {"name": "ViT-Ti/4", "width": 16, "depth": 1, "mlp_dim": 32, "num_heads": 2}
OWN_SIZE = {"teacher_image_size": 16, "alpha": 1.0}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A teacher of the digits for images of 16 pixels."""
    folder = tmp_path_factory.mktemp("teacher") / "model"
    names = tuple("0123456789")
    random_weights(folder, num_classes=10, class_names=names, image_size=(16, 16))
    return folder


def config_of(teacher, **changes):
    task = {"name": "distillation", "teacher": str(teacher), **changes.pop("task", {})}
    content = run_mapping(6, size=8, task=task, model=TINY)
    return Config.from_mapping(content | changes)


def augment(**options):
    options = {"crop": {"name": "resize"}, **options}
    return {"data": {**run_mapping(6, size=8)["data"], "augment": options}}


def with_data(config, folder):
    return config.replace(data=config.data.replace(data_dir=str(folder)))


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_soft_loss_by_hand(temperature):
    p, q = softmax(TEACHER / temperature), softmax(STUDENT / temperature)
    want = temperature**2 * (p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(soft_loss(STUDENT, TEACHER, temperature), want, rtol=1e-5)
    np.testing.assert_allclose(soft_loss(TEACHER, TEACHER, temperature), [0, 0], atol=1e-6)


def test_the_hard_loss_by_hand():
    want = [-np.log(softmax(STUDENT)[0, 0]), -np.log(softmax(STUDENT)[1, 2])]
    np.testing.assert_allclose(hard_loss(STUDENT, TEACHER), want, rtol=1e-5)


@pytest.mark.parametrize("targets", [slow("soft"), "hard"])
def test_the_loss_of_a_batch_with_a_token_by_hand(teacher, targets):
    """Images are mixed, and the teacher sees the mixed images, resized to 16 pixels."""
    section = {"targets": targets, "token": True, "alpha": 0.3}
    config = config_of(
        teacher,
        task=section,
        **augment(flip=True, mix={"mixup_alpha": 0.2}),
    )
    program = program_of(config)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda p: p + np.float32(0.1 * rng.standard_normal(p.shape)), program.init().params
    )
    batch = program.example_batch()
    ready = jax.jit(program.task.prepare)(batch, jnp.int32(2))
    frozen = program.load_frozen()
    key = jax.random.key(0)  # The model has no dropout.
    loss, metrics = jax.jit(program.task.batch_loss)(params, ready, key, *frozen)

    @jax.jit
    def encode(params, images):
        model = program.task.model(params)
        return model(images, return_intermediates=("encoded",))[1]["encoded"]

    encoded = encode(params, ready["image"])
    logits = encoded[:, 0] @ params["head"]["linear"]["kernel"]
    logits += params["head"]["linear"]["bias"][None]
    # Class token, distillation token, four patches.
    assert encoded.shape == (16, 6, 16)
    head = params["register_head"]["linear"]
    student = encoded[:, 1] @ head["kernel"] + head["bias"][None]
    resized = jax.image.resize(ready["image"], (16, 16, 16, 3), "bilinear")
    theirs = jax.jit(load(teacher).model)(resized)
    log_softmax = jax.nn.log_softmax(logits)
    label_loss = -np.mean(np.sum(ready["label"] * log_softmax, axis=1))
    is_soft = targets == "soft"
    losses = soft_loss(student, theirs, 1.0) if is_soft else hard_loss(student, theirs)
    teacher_loss = losses.mean()
    assert float(metrics["label_loss"]) == pytest.approx(float(label_loss), rel=1e-4)
    assert float(metrics["teacher_loss"]) == pytest.approx(float(teacher_loss), rel=1e-4)
    assert float(loss) == pytest.approx(float(0.7 * label_loss + 0.3 * teacher_loss), rel=1e-4)


def test_the_accuracy_of_each_class_is_measured_beside_the_agreement(teacher):
    config = config_of(teacher, evaluation={**run_mapping(6)["evaluation"], "by_class": True})
    program = program_of(config)
    batch = program.example_batch()
    batch |= {"label": np.arange(16) % 10, "mask": np.ones(16, bool)}
    totals = program.task.totals([])
    outputs = program.eval_step(program.init().params, batch, *program.load_frozen())
    totals.add(jax.device_get(outputs))
    found = totals.metrics()
    assert {
        "teacher_agreement",
        "accuracy_per_class_mean",
        "accuracy_class/class 3",
    } <= found.keys()


def test_the_teacher_has_xlas_attention_where_the_student_has_it(teacher, monkeypatch):
    built = {}
    build = distillation_task.build_model

    def noting(options, *, image_size, **others):
        built[image_size] = options.attention_implementation
        return build(options, image_size=image_size, **others)

    monkeypatch.setattr(distillation_task, "build_model", noting)
    for implementation, expected in (("auto", "auto"), ("xla", "xla")):
        built.clear()
        config = config_of(teacher)
        model = config.model.replace(attention_implementation=implementation)
        build_program(
            config.replace(model=model), make_mesh(config.mesh), num_classes=10, num_examples=80
        )
        # The teacher is for 16 pixels.
        assert built.get((16, 16)) == expected


def test_the_teacher_is_an_argument_of_the_step_and_not_a_constant(teacher):
    program = program_of(config_of(teacher))
    teacher_size = sum(leaf.size for leaf in jax.tree.leaves(program.abstract_frozen))
    arguments = (program.abstract, program.batch_shapes(), *program.abstract_frozen)
    traced = jax.make_jaxpr(program.step_fn)(*arguments)
    assert max((np.size(c) for c in traced.consts), default=0) < 1000 < teacher_size
    own = sum(leaf.size for leaf in jax.tree.leaves(program.abstract.params))
    assert program.num_parameters() == own


@pytest.fixture(scope="module")
def finished(teacher, digits_dir, tmp_path_factory):
    """A finished run with a distillation token, its config and its result."""
    folder = tmp_path_factory.mktemp("distillation") / "run"
    section = {"token": True, "targets": "hard"}
    config = with_data(config_of(teacher, task=section), digits_dir)
    return folder, config, train(config, folder, StopSignals())


@pytest.mark.slow
def test_a_stopped_run_resumes_bit_for_bit(finished, tmp_path, monkeypatch):
    folder, config, want = finished
    assert_resumes(config, folder, want, tmp_path, monkeypatch)
    assert 0 <= want["eval/test/teacher_agreement"] <= 1


def test_the_teacher_sees_the_students_crop_of_the_original_at_its_own_size(teacher):
    changes = augment(crop={"name": "inception", "min_area": 0.2})
    config = config_of(teacher, task=OWN_SIZE, **changes)
    preprocessing = program_of(config).task.train_preprocessing
    pixels = np.random.default_rng(1).integers(256, size=(40, 60, 3), dtype=np.uint8)
    example = Example(pixels, 3, "0")
    for seed in range(5):
        row = preprocessing.make_row(example, np.random.default_rng(seed))
        for name, size in (("image", 8), ("teacher_image", 16)):
            transform = make_train_transform(size, config.data)
            expected = transform(example.image, np.random.default_rng(seed))
            np.testing.assert_array_equal(row[name], expected)
        assert row["label"] == 3


def test_images_of_student_and_teacher_are_flipped_and_mixed_alike(teacher):
    mixed = config_of(
        teacher,
        task=OWN_SIZE,
        **augment(flip=True, mix={"mixup_alpha": 0.5}),
    )
    program = program_of(mixed)
    halves = np.random.default_rng(0).integers(256, size=(16, 1, 2, 3), dtype=np.uint8)
    batch = program.example_batch() | {
        "image": jnp.asarray(halves.repeat(8, axis=1).repeat(4, axis=2)),
        "teacher_image": jnp.asarray(halves.repeat(16, axis=1).repeat(8, axis=2)),
    }
    ready = jax.jit(program.task.prepare)(batch, jnp.int32(3))
    assert ready["teacher_image"].shape == (16, 16, 16, 3)
    np.testing.assert_array_equal(ready["teacher_image"][:, ::2, ::2], ready["image"])
    # The loss is that of the student's pixels resized, if these are what the teacher gets.
    params, frozen = program.init().params, program.load_frozen()
    loss = jax.jit(program.task.batch_loss)
    key = jax.random.key(0)
    resized = jax.image.resize(ready["image"], (16, 16, 16, 3), "bilinear")
    found, _ = loss(params, ready | {"teacher_image": resized}, key, *frozen)
    without = {name: ready[name] for name in ("image", "label")}
    np.testing.assert_allclose(found, loss(params, without, key, *frozen)[0], rtol=1e-6)
    other, _ = loss(params, ready | {"teacher_image": -resized}, key, *frozen)
    assert abs(found - other) > 1e-4


@pytest.mark.slow
def test_a_checkpoint_has_the_student_and_not_the_teacher(finished):
    folder, config, _ = finished
    loaded = load(folder)
    names = set(named_leaves(nnx.to_pure_dict(nnx.state(loaded.model))))
    assert names == set(named_leaves(program_of(config).abstract.params))
    about = json.loads((folder / "checkpoints" / "6" / "about" / "metadata").read_text())
    assert set(about["arrays"]["params"]) == names
    assert loaded.options.to_mapping()["num_registers"] == 1
    assert loaded.num_classes == 10


@pytest.mark.slow
def test_predictions_of_a_trained_student_are_those_of_its_evaluation(finished, digits_dir):
    """eval, predict and converted weights all average the logits of both heads."""
    folder, _, result = finished
    source = TfdsSource("digits", "test", str(digits_dir))
    examples = source.read(range(len(source)))
    transform = make_eval_transform(8, "resize")
    pixels = [transform(example.image, np.random.default_rng()) for example in examples]
    images = np.stack(pixels) / np.float32(127.5) - 1
    labels = np.array([example.label for example in examples])

    def accuracy(model):
        return np.mean(np.argmax(jax.jit(model)(images), axis=1) == labels)

    loaded = load(folder)
    assert accuracy(loaded.model) == pytest.approx(result["eval/test/accuracy_top1"])
    _, found = loaded.model(images[:4], return_intermediates=("head_logits",))
    assert np.abs(found["head_logits"][0] - found["head_logits"][1]).max() > 1e-3
    want = loaded.model(images[:4])
    np.testing.assert_allclose(want, found["head_logits"].mean(0), rtol=1e-6, atol=1e-6)

    save(loaded, folder.parent / "ours", "orbax")
    np.testing.assert_array_equal(load(folder.parent / "ours").model(images[:4]), want)


@pytest.mark.slow
def test_a_format_without_the_second_head_is_refused_unless_it_is_left_out(finished):
    folder, _, _ = finished
    with pytest.raises(WeightsError, match=r"model.register_head = True in format timm.*=False"):
        save(load(folder), folder.parent / "refused", "timm")
    without = load(folder, register_head=False)
    left_out = without.report.names(Status.LEFT_OUT)
    assert left_out == ["register_head/linear/bias", "register_head/linear/kernel"]
    save(without, folder.parent / "timm", "timm")
    images = np.random.default_rng(0).uniform(-1, 1, (2, 8, 8, 3)).astype(np.float32)
    found = load(folder.parent / "timm").model(images)
    np.testing.assert_allclose(found, without.model(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_new_classes_replace_both_heads(finished):
    loaded = load(finished[0], num_classes=3)
    options = loaded.options.to_mapping()
    assert (options["num_registers"], options["register_head"]) == (1, False)
    assert loaded.report.names(Status.MISSING) == []


@pytest.mark.parametrize(
    ("arg", "classes"),
    [("deit", 1000), slow("patient", 1000), slow("small", 10)],
)
def test_the_step_of_the_recipe_can_be_traced(tmp_path, arg, classes):
    random_weights(tmp_path / "weights", num_classes=classes, image_size=(16, 16))
    overrides = [f"task.teacher={tmp_path / 'weights'}"]
    if arg != "small":
        overrides += ["model.name=ViT-Ti/16", "data.image_size=32", "data.global_batch_size=8"]
    config = load_config(f"{ROOT}/configs/distillation.py:{arg}", overrides)
    facts = {"num_classes": classes, "num_examples": 100_000}
    program = build_program(config, make_mesh(config.mesh), **facts)
    batch = program.batch_shapes()
    _, metrics = jax.eval_shape(program.step_fn, program.abstract, batch, *program.abstract_frozen)
    assert {"train/label_loss", "train/teacher_loss"} < set(metrics)


def test_a_teacher_with_other_classes_is_refused(tmp_path):
    random_weights(tmp_path / "other", num_classes=5, image_size=(16, 16))
    with pytest.raises(WeightsError, match="a teacher with 5 classes"):
        program_of(config_of(tmp_path / "other"))


def test_a_teacher_that_is_not_there_is_reported_under_its_key(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_config(f"{ROOT}/configs/distillation.py:small", [])
    assert "'task.teacher' is not set with task distillation" in str(caught.value)
    assert "add --config.task.teacher=PATH" in str(caught.value)
    with pytest.raises(WeightsError, match=r"task.teacher: .*/gone does not exist"):
        program_of(config_of(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("section", "changes", "message"),
    [
        (
            {"targets": "hard", "temperature": 2.0},
            {},
            "'task.temperature' is 2.0, but targets=hard",
        ),
        ({"alpha": 1.5}, {}, "'task.alpha' is 1.5"),
        # Augmentations that depend on the image size.
        (OWN_SIZE, augment(crop={"name": "pad"}), "data.augment.crop.name"),
        (OWN_SIZE, augment(mix={"cutmix_alpha": 1.0}), "'data.augment.mix' is on with task.teach"),
    ],
)
def test_impossible_distillation_sections_are_config_errors(section, changes, message):
    with pytest.raises(ConfigError, match=message):
        config_of("teacher", task=section, **changes)


@pytest.mark.slow
def test_a_student_starts_from_a_student_with_its_token_and_both_heads(finished):
    folder, config, _ = finished
    usual = config.to_mapping()

    def start(**kept):
        init = {**usual["init"], "keep_head": "register_head" in kept}
        changes = {"init_from": str(folder), "init": init, "model": {**TINY, **kept}}
        return start_from_weights(program_of(Config.from_mapping(usual | changes)))

    state, report = start(num_registers=1, register_head=True)
    want = parameters(load(folder))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params), want)
    assert report.names(Status.REINITIALISED) == []
    with pytest.raises(WeightsError, match=r"'registers' of shape \(1, 1, 16\).*\(1, 2, 16\)"):
        start(num_registers=1)
