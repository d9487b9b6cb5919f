"""Evaluated episodes as something to look at: a page in one file, and movies."""
