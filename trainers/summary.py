"""What a finished run comes to, on one screen."""

from pathlib import Path
from typing import NamedTuple


class Summary(NamedTuple):
    """The figures of a run.

    Attributes:
        env_steps: Environment steps, all environments together.
        seconds: What they took, earlier parts of a resumed run included.
        mean_return: Over the last episodes.
        best_mean_return: The best it ever was.
        n_episodes: Episodes that ended.
        n_averaged: Over how many episodes the means are taken.
    """

    env_steps: int
    seconds: float
    mean_return: float
    best_mean_return: float
    n_episodes: int
    n_averaged: int

    def report(self, folder: Path) -> str:
        """Return what a person wants to know at the end of a run, and what to type next."""
        minutes, seconds = divmod(round(self.seconds), 60)
        return "\n".join(
            (
                "",
                f"  mean return       {self.mean_return:.3f} (best {self.best_mean_return:.3f})"
                f" over the last {self.n_averaged} episodes",
                f"  episodes          {self.n_episodes:,}",
                f"  environment steps {self.env_steps:,}",
                f"  time              {minutes} min {seconds} s,"
                f" {self.env_steps / self.seconds:,.0f} steps/s",
                f"  run folder        {folder}",
                "",
                f"  play it           python eval.py --ckpt-path '{folder}'",
                f"  see the curves    tensorboard --logdir '{folder}'",
            )
        )
