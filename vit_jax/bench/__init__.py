"""Benchmarks. Each command measures the alternatives in one run and interleaves them."""
