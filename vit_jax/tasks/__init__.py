"""The tasks that a run can learn. Each is a folder of this package:

config.py     its config sections, and options that it does not support
task.py       `build_task`: example, augmentation on the device, loss, metrics, evaluation

To add a task, write its folder and add its name here.
"""

TASKS = ("classification", "masked_patches", "distillation", "mae", "dino", "image_text")
