"""DINO (arXiv:2104.14294): self-distillation without labels, with iBOT as an option."""
