"""What a finished run comes to, on one screen."""

import shlex
from pathlib import Path
from typing import NamedTuple

from utils.starting import typed


class Summary(NamedTuple):
    """The figures of a run.

    Attributes:
        env_steps: Environment steps, all environments together.
        seconds: What they took, pauses and earlier parts of a resumed run included.
        mean_return: Over the last episodes; NaN where none has ended.
        best_return: The best it ever was over `n_averaged` episodes.
        n_episodes: Episodes that ended.
        n_averaged: Over how many episodes the means are taken, where so many have ended.
    """

    env_steps: int
    seconds: float
    mean_return: float
    best_return: float
    n_episodes: int
    n_averaged: int

    def report(self, folder: Path, by_name: bool = True) -> str:
        """Return what a person wants to know at the end of a run, and what to type next.

        Args:
            folder: The run's.
            by_name: Whether its environment has a name, by which eval.py can make it.
        """
        play = f"{shlex.join(typed('eval.py'))} --ckpt-path '{folder}'"
        if not by_name:
            play = f"helm.load('{folder}', env=...)"
        minutes, seconds = divmod(round(self.seconds), 60)
        return "\n".join(
            (
                "",
                f"  mean return       {self._returns()}",
                f"  episodes          {self.n_episodes:,}",
                f"  environment steps {self.env_steps:,}",
                f"  time              {minutes} min {seconds} s,"
                f" {self.env_steps / self.seconds:,.0f} steps/s",
                f"  run folder        {folder}",
                "",
                f"  play it           {play}",
                f"  see the curves    tensorboard --logdir '{folder}'",
            )
        )

    def _returns(self) -> str:
        if self.n_episodes == 0:
            return "none, no episode has ended"
        if self.n_episodes < self.n_averaged:
            return f"{self.mean_return:.3f} over all {self.n_episodes} episodes"
        best = f"{self.mean_return:.3f} (best {self.best_return:.3f})"
        return f"{best} over the last {self.n_averaged} episodes"
