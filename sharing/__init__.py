"""Runs that go to others and come from them: what is published, its card, and what is fetched."""
