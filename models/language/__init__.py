"""Frozen language models as memories, and as writers."""
