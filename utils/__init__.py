"""What every other package uses; imports nothing of ours."""
