"""Error messages about settings of tasks: task, changes of its config, words of the message."""

import pytest
from shared_programs import shared_program
from tasks import test_dino, test_image_text, test_mae, test_masked_patches

from vit_jax.config.run import Config
from vit_jax.errors import ConfigError, ModelError
from vit_jax.parallel.mesh import make_mesh

TASKS = {
    "dino": test_dino,
    "image_text": test_image_text,
    "mae": test_mae,
    "masked_patches": test_masked_patches,
}
WITHOUT_LABELS = ("dino", "mae", "masked_patches")
SMALL = {"name": "none", "image_size": 4, "global_batch_size": 8}


def model(task, **options):
    return {"model": {**TASKS[task].MODEL, **options}}


def task(options):
    """Changes of the section of the task."""
    return {"task": options}


def augment(**options):
    data = test_dino.mapping()["data"]
    return {"data": {**data, "augment": options}}


CASES = [
    *((task, {"evaluation": {"by_class": True}}, "'evaluation.by_class' is True")
      for task in ("image_text", "mae", "masked_patches")),
    *((task, {"model": {"name": "BiT-R-Micro"}}, "'model.name' is 'BiT-R-Micro', a ResNet")
      for task in WITHOUT_LABELS),
    *((task, model(task, pooling="map"), "'model.pooling' is 'map'") for task in WITHOUT_LABELS),
    ("dino", task({"temperature_warmup_steps": 4, "temperature_warmup_epochs": 1.0}),
     "'task.temperature_warmup_steps' is given and so is 'temperature_warmup_epochs'"),
    ("dino", task({"local_size": 32}),
     "'task.local_size' is 32, larger than the global crops"),
    ("dino", task({"local_size": 10}), "'task.local_size' is 10 with patches of 4 pixels"),
    ("dino", task({"local_min_area": 0.5}), "is 0.5 and 'local_max_area'"),
    ("dino", model("dino", position_embedding="sincos_2d"), "is 'sincos_2d' with local"),
    ("dino", {"ema_decay": 0.99}, "'ema_decay' is 0.99 with task dino, whose teacher"),
    ("dino", {"optimizer": {"name": "schedule_free_adamw", "learning_rate": 1e-3}},
     "'optimizer.name' is 'schedule_free_adamw' with task dino"),
    ("dino", augment(crop={"name": "resize"}), "'data.augment.crop' is {'name': 'resize'}"),
    ("dino", augment(crop={"min_area": 0.5}), "only its flavour"),
    ("image_text", {"model": {"name": "ViT-Ti/4"}}, "'model.name' is 'ViT-Ti/4'"),
    ("image_text", model("image_text", bias_init=-10.0), "'model.bias_init' is -10"),
    ("image_text", task({"max_temperature": 5.0}), "'model.temperature_init' is 10"),
    ("image_text", {"data": SMALL}, "'data.captions.tokenizer' is None"),
    ("image_text", {**task({"name": "classification"}), "model": test_image_text.IMAGE},
     "'data.captions.tokenizer' is 'none'"),
    ("mae", model("mae", position_embedding="relative"), "is 'relative' with task mae"),
    ("mae", model("mae", position_placement="shared"), "'model.position_placement'"),
    ("mae", task({"mask_ratio": 1.0}), "'task.mask_ratio' is 1"),
    ("mae", task({"mask_ratio": 0.0}), "'task.mask_ratio' is 0"),
    ("mae", task({"decoder_width": 20}), "'task.decoder_width' is 20 with 16 heads"),
    # Known only with the model, before the first step.
    ("mae", task({**test_mae.SECTION, "mask_ratio": 0.95}),
     "leaves none visible of 16 patches"),
    ("mae", {"data": SMALL}, "visible of 1 patch"),
    ("mae", {"model": {"name": "R+ViT-Nano/4"}}, "expected a ViT without a ResNet stem"),
    ("masked_patches", model("masked_patches", representation_size=8),
     "'model.representation_size' is 8"),
    ("masked_patches", model("masked_patches", num_registers=1, register_head=True),
     "register_head' is True"),
    ("masked_patches", task({"mask": 0.95}),
     "'task.mask' is 0.95 and 'random' 0.1"),
    ("masked_patches", task({"corrupt": 0}), "'task.corrupt' is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("task", "changes", "message"), CASES)
def test_settings_that_do_not_fit_are_refused(task, changes, message):
    if "task" in changes:
        changes = {**changes, "task": {"name": task, **changes["task"]}}

    def build():
        config = Config.from_mapping(TASKS[task].mapping(**changes))
        shared_program(config, make_mesh(config.mesh), num_classes=10, num_examples=100)

    with pytest.raises((ConfigError, ModelError)) as caught:
        build()
    assert message in str(caught.value)
