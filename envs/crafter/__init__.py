"""Crafter: the unmodified game, and the game in words that ELLM plays."""
