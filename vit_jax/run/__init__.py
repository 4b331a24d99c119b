"""Where a run lives: its folder, checkpoints and metrics."""
