"""The tasks that a run can learn. Each is a folder of this package:

config.py     its config section, a subclass of `TaskConfig`, and options that it does not support
task.py       its class: model, augmentation on the device, loss, evaluation

To add a task, write its folder and register both: `TASKS.register` and `TASK_CLASSES.register`.
"""
