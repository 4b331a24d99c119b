"""Masked autoencoder (arXiv:2111.06377): predict the pixels of hidden patches."""
