"""The config of a run: its sections, and reading them from files and the command line."""
