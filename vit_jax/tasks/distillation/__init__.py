"""Distillation: classification that also learns from the predictions of a frozen teacher."""
