"""When a run's checkpoints are written: at the best return, now and then, at the end, if asked.

The best is the agent after whose rollout the mean return of the last 100 episodes was highest, as
it was in that rollout. Until so many have ended no mean counts, and the newest agent is the best.
"""

import math
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.checkpoint import BEST, LAST, PREVIOUS, save_checkpoint
from trainers.interruption import Interruption
from trainers.run_state import agent_state, run_state
from utils.errors import Interrupted
from utils.metrics import MetricsWriter
from utils.run_folder import resume_command

if TYPE_CHECKING:
    from trainers.ppo import PPOTrainer


class Keeper:
    """Writes a run's checkpoints.

    Args:
        trainer: Whose run it is.
        folder: The run's.
        writer: What must be on the disk before a checkpoint that counts on it; None on a rank that
            writes nothing.
        interruption: Where signals are noted.
    """

    def __init__(
        self,
        trainer: "PPOTrainer",
        folder: Path,
        writer: MetricsWriter | None,
        interruption: Interruption,
    ) -> None:
        self.trainer, self.folder = trainer, folder
        self.writer, self.interruption = writer, interruption
        self._last_saved = -math.inf

    def before_update(self) -> None:
        """Write the best checkpoint if no agent was better than the one that has just acted."""
        trainer = self.trainer
        if len(trainer.episodes) == trainer.episodes.maxlen:
            if trainer.mean_return < trainer.best_return:
                return
            trainer.best_return = trainer.mean_return
        if trainer.config.save_ckpt and self.writer is not None:
            save_checkpoint(self.folder / BEST, agent_state(trainer))

    def after_update(self) -> None:
        """Write the last checkpoint when it is due, and do what signals have asked for."""
        trainer, config = self.trainer, self.trainer.config
        is_last = trainer.env_steps >= config.n_steps
        is_time = time.perf_counter() - self._last_saved >= 60 * config.checkpoint_minutes
        if any(trainer.ranks.most(is_last or is_time)):
            self._save()
        if not is_last:
            self.after_step()

    def after_step(self) -> None:
        """Do what signals have asked any rank for.

        Raises:
            Interrupted: to end the run.
        """
        stop, save = self.trainer.ranks.most(self.interruption.stop or 0, self.interruption.save)
        if not (stop or save):
            return
        self._save()
        if not stop:
            return
        saved = "Nothing is saved (save_ckpt is false)"
        if self.trainer.config.save_ckpt:
            saved = f"Go on with: {resume_command(self.folder)}"
        steps = f"{self.trainer.env_steps:,} steps"
        raise Interrupted(f"interrupted after {steps}. {saved}", signal.Signals(stop))

    def _save(self) -> None:
        """Write the last checkpoint, keeping the one before."""
        if self.trainer.config.save_ckpt:
            state = run_state(self.trainer)
            if self.writer is not None:
                self.writer.sync()
                save_checkpoint(self.folder / LAST, state, self.folder / PREVIOUS)
        self.interruption.save = False
        self._last_saved = time.perf_counter()
