"""Intrinsic rewards by name, or by module:Class for the user's own."""

from dataclasses import dataclass

from utils.settings import OwnRegistry, Part, setting


class Curiosities(OwnRegistry):
    base = "rewards.curiosity:Curiosity"


CURIOSITIES = Curiosities(
    "curiosity",
    {
        "RND": "rewards.curiosity:RandomNetworkDistillation",
        "NovelD": "rewards.curiosity:NovelD",
        "APT": "rewards.curiosity:ActivePretraining",
    },
    "intrinsic reward",
)


@dataclass(frozen=True)
class CuriositySettings(Part):
    title = "curiosity"

    curiosity: str | None = setting(
        "intrinsic reward: RND, NovelD, APT, or module:Class, one of your own; null: the task's "
        "alone",
        default=None,
    )
