"""What an agent is rewarded for beyond what the environment pays, and how rewards are scaled."""

from settings import Registry

CURIOSITIES = Registry(
    "curiosity",
    {
        "RND": "rewards.curiosity:RandomNetworkDistillation",
        "NovelD": "rewards.curiosity:NovelD",
        "APT": "rewards.curiosity:ActivePretraining",
    },
    "intrinsic reward",
)
