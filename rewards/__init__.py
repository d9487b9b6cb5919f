"""Rewards beyond those of the environment, and the scaling of rewards."""
