"""The tasks that a run can learn. Each is a folder of this package:

config.py     its config sections, and options that it does not support
task.py       `build_task`: example, augmentation on the device, loss, metrics, evaluation
pictures.py   optional: pictures of the predictions of a trained model

To add a task, write its folder and add its name here.
"""

from importlib.util import find_spec

TASKS = ("classification", "masked_patches", "distillation", "mae", "dino", "image_text")


def tasks_with_pictures() -> list[str]:
    """Returns the tasks that have a `pictures.py`."""
    return [name for name in TASKS if find_spec(f"{__name__}.{name}.pictures")]
