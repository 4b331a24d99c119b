"""Measurements that are commands: side by side, in turn, in one run."""
