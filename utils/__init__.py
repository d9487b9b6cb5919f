"""Settings, run folders, logs, files and errors; imports no other package of ours."""
