"""Training: losses, optimizers, the state, the step, the loop."""
