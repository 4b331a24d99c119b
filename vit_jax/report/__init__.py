"""Tables and pictures from run folders alone."""
