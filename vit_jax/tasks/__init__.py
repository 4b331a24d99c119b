"""The tasks that a run can learn. Each is a folder of this package:

config.py     its config sections, and options that it does not support
task.py       its class: model, augmentation on the device, loss, evaluation

To add a task, write its folder and add its name and class here.
"""

TASKS = {
    "classification": "Classification",
    "masked_patches": "MaskedPatches",
    "distillation": "Distillation",
    "mae": "MaskedAutoencoding",
    "dino": "SelfDistillation",
    "image_text": "ImageText",
}
