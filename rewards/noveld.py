"""NovelD (Zhang et al. 2021, NeurIPS; first as BeBold, arXiv:2012.08621), as ELLM computes it.

Without the restriction to the first visit in an episode, which ELLM leaves out.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rewards.curiosity import Experience
from rewards.rnd import RandomNetworkDistillation, RndSettings
from settings import setting


@dataclass(frozen=True)
class NovelDSettings(RndSettings):
    """What NovelD reads."""

    noveld_alpha: float = setting(
        "share of the novelty before a step that is taken off that after it",
        low=0,
        high=1e6,
        default=1.0,
    )


class NovelD(RandomNetworkDistillation):
    """What a step leads to is more novel than where it began: the boundary of what is known.

    n_kind = max(e(after) - alpha e(before), 0)
    """

    reads = (NovelDSettings,)
    config: NovelDSettings

    def novelty(self, experience: Experience) -> dict[str, Tensor]:
        """Return what each kind says of every step.  [B] each"""
        before, after = self.errors(experience.seen), self.errors(experience.following)
        alpha = self.config.noveld_alpha
        return {kind: F.relu(after[kind] - alpha * before[kind]) for kind in before}
