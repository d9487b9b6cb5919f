"""The papers' analyses, python -m analysis --help; pages and movies of episodes."""
