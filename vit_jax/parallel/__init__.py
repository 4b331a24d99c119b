"""The device mesh, and where arrays live on it."""
