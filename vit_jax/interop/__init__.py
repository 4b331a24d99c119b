"""Reads and writes published weights. Each format has an explicit name table."""
