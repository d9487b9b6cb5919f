"""The papers' analyses, one file each: python -m analysis --help."""
