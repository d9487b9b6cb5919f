"""Tidying up: our own household in words, and the simulator of Housekeep."""
