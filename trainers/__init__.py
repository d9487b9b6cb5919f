"""Training and evaluation of any agent on any environment."""
