"""What an agent is rewarded for beyond what the environment pays, and how rewards are scaled."""
