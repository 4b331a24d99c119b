"""What a run is: the sections of a config, and reading them from files and the command line."""
