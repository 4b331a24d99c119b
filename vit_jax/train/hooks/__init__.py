"""Hooks: actions after each training step. `train.loop` calls them in a fixed order."""
