"""How many threads a run's operations use: the number with which they are fastest, by trying.

A small operation waits for the slowest of its threads, and where cores are shared with other work
one thread can be ten times as fast as one a core. So a run tries numbers at its start and now and
then. What it tries is its own acting and learning, on images of noise and a memory made for it:
no parameter, no random stream and no memory of the run changes. The number itself changes sums in
their last bits, which is why it is recorded, and why `deterministic` fixes it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from tqdm import tqdm

from runs.folder import note_threads, recorded_threads
from settings import Config
from trainers.ranks import Ranks
from utils.threads import number_is_given

MEASURED_SECONDS = 1.0
MINUTES_BETWEEN = 10
CLEARLY_FASTER = 0.85  # of the time with the present number; less is the clock's noise


class Threads:
    """The number of threads of a run, tried anew now and then unless it is given.

    Args:
        config: The settings of the run.
        folder: The run's; run.json says which number was used from which step on.
        work: Does what is to be fast and returns its seconds.
        ranks: The processes that train together; torchrun gives each its number.
    """

    def __init__(
        self, config: Config, folder: Path, work: Callable[[], float], ranks: Ranks
    ) -> None:
        self.folder, self.work, self.ranks = folder, work, ranks
        self.most = torch.get_num_threads()
        is_given = number_is_given() or ranks.size > 1 or config.device != "cpu"
        self.is_fixed = is_given or config.deterministic
        self._due = 0.0  # on the clock of time.perf_counter
        if not is_given and config.deterministic:
            torch.set_num_threads(1)

    def begin(self, env_steps: int) -> None:
        """Choose the number to begin with; a run that goes on begins with the one it had."""
        before = recorded_threads(self.folder)
        if not self.is_fixed and before is not None:
            self._due = time.perf_counter() + 60 * MINUTES_BETWEEN
            self._use(min(before, self.most), env_steps, "as before")
        elif self.is_fixed or self.most == 1:
            self._use(torch.get_num_threads(), env_steps, "as given")
        else:
            torch.set_num_threads(1)  # more must be clearly faster
            self.try_again(env_steps)

    def try_again(self, env_steps: int) -> None:
        """Change to a number that is clearly faster at this moment, if it is time to look for one.

        Args:
            env_steps: Environment steps of the run so far.
        """
        if self.is_fixed or self.most == 1 or time.perf_counter() < self._due:
            return
        is_first, present = self._due == 0, torch.get_num_threads()
        seconds = seconds_by_number(self.work, numbers_up_to(self.most))
        self._due = time.perf_counter() + 60 * MINUTES_BETWEEN
        chosen = clearly_fastest(seconds, present)
        if is_first or chosen != present:
            found = ", ".join(f"{value:.2g} s with {n}" for n, value in seconds.items())
            self._use(chosen, env_steps, f"a rollout and its update take {found}")

    def _use(self, n_threads: int, env_steps: int, why: str) -> None:
        torch.set_num_threads(n_threads)
        with tqdm.external_write_mode():  # beside the progress bar
            self.ranks.print(f"threads: {n_threads} of {self.most}, {why}")
        if self.ranks.first:
            note_threads(self.folder, env_steps, n_threads)


def numbers_up_to(most: int) -> list[int]:
    """Return the numbers of threads to try: powers of two, and the largest."""
    return [*(2**n for n in range((most - 1).bit_length())), most]


def seconds_by_number(work: Callable[[], float], numbers: Sequence[int]) -> dict[int, float]:
    """Return the mean seconds of work with each number of threads, the numbers taking turns."""
    before = torch.get_num_threads()
    totals = dict.fromkeys(numbers, 0.0)
    n_rounds = -1  # the first one also begins threads and fills caches
    begun = time.perf_counter()
    while n_rounds < 1 or time.perf_counter() - begun < MEASURED_SECONDS:
        n_rounds += 1
        for number in numbers:
            torch.set_num_threads(number)
            seconds = work()
            totals[number] += seconds if n_rounds else 0.0
    torch.set_num_threads(before)
    return {number: total / n_rounds for number, total in totals.items()}


def clearly_fastest(seconds: Mapping[int, float], present: int) -> int:
    """Return the fastest number of threads, the present one where none is clearly faster."""
    best = min(seconds, key=lambda number: seconds[number])
    return best if seconds[best] < CLEARLY_FASTER * seconds[present] else present
