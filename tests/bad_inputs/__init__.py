"""Bad inputs through the command lines: one line, status 2, nothing written, nothing run."""
