"""Masked patch prediction (arXiv:2010.11929, B.1.2): predict mean colours of corrupted patches."""
