"""Intrinsic rewards by name."""

from rewards.settings import CURIOSITY_READS
from utils.settings import OwnRegistry


class Curiosities(OwnRegistry):
    base = "rewards.curiosity:Curiosity"


CURIOSITIES = Curiosities(
    "curiosity",
    {
        "RND": "rewards.curiosity:RandomNetworkDistillation",
        "NovelD": "rewards.curiosity:NovelD",
        "APT": "rewards.curiosity:ActivePretraining",
        "E3B": "rewards.curiosity:E3B",
    },
    "intrinsic reward",
    CURIOSITY_READS,
)
