"""What an environment may not take from the agent whose process it shares.

The agent explores by torch's random stream. Environments that draw from it, or seed it, have one of
their own here. Torch's settings are put back. NumPy's and Python's global streams decide nothing of
an agent: that they move is said.
"""

import os
import random
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import torch

from envs.notices import say_once
from utils.errors import EnvFault
from utils.seeding import derived_seed

EVERY = 64  # calls between two looks at the global streams; a look at NumPy's takes 0.1 ms
INSTEAD = (
    "Nobody can then play its episodes again, as a resumed run does. Let it draw from "
    "self.np_random"
)


class ProcessSettings(NamedTuple):
    """Torch's settings, and the working directory, in which runs are written."""

    dtype: torch.dtype
    device: torch.device
    gradients: bool
    threads: int
    folder: str

    @classmethod
    def now(cls) -> "ProcessSettings":
        made = torch.empty(0)  # asking torch for its default device takes ten times as long
        threads = torch.get_num_threads()
        return cls(made.dtype, made.device, torch.is_grad_enabled(), threads, os.getcwd())

    def put_back(self) -> str | None:
        """Return which of these settings has changed, and how, in words; None if none has."""
        now = ProcessSettings.now()
        if now == self:
            return None
        os.chdir(self.folder)
        torch.set_default_dtype(self.dtype)
        torch.set_default_device(None if self.device.type == "cpu" else self.device)
        torch.set_grad_enabled(self.gradients)
        torch.set_num_threads(self.threads)
        torchs = (f"torch's {name}" for name in ("default dtype", "default device", "gradients"))
        names = (*torchs, "torch's threads", "the working directory")
        what, new = next(
            (name, value)
            for name, value, ours in zip(names, now, self, strict=True)
            if value != ours
        )
        if new == now.folder:
            return f"sets {what} to {new}, and runs would be written there. Let it go back"
        return (
            f"sets {what} to {new}, and networks would take it. Let it change its own tensors alone"
        )


class Streams:
    """Around each call of an environment, `with streams:`.

    Raises:
        EnvFault: in the end, if the environment has set something of the process.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._own = {0: torch.Generator().get_state()}  # the environment's; 0 is the CPU's
        self._n_calls, self._is_alone = 0, False
        self._seen: dict[str, object] | None = None

    def anew(self, seed: int | None = None, number: int = 0) -> Self:
        """Return these around a call that begins episodes, with a seed the first of a run.

        Before and after it others may move the global streams, too. `number` is that of the first
        environment within the run.
        """
        if seed is not None:
            # The same for all runs of a seed, whatever the agent has drawn by then.
            generator = torch.Generator().manual_seed(derived_seed(seed, number))
            self._own[0] = generator.get_state()
        self._n_calls, self._is_alone, self._seen = 0, True, None
        return self

    def __enter__(self) -> None:
        if self._seen is None:
            self._seen = self._streams()
        # At each call: the learner itself may change them between two steps.
        self._settings = ProcessSettings.now()
        self._agents = [generator.get_state() for generator in _generators()]
        # From here on the environment draws from its own stream, not from the agent's.
        torch.default_generator.set_state(self._own[0])
        for place in self._own.keys() - {0}:
            _generators()[place].set_state(self._own[place])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        generators = zip(_generators(), self._agents, strict=False)  # CUDA may have begun within
        for place, (generator, agents) in enumerate(generators):
            after = generator.get_state()
            # A GPU's stream is written where an environment has moved it: hardly ever.
            if place in self._own or not torch.equal(after, agents):
                self._own[place] = after
                generator.set_state(agents)
        self._n_calls += 1
        # After 1, 2, 4, ... calls, so that a mistake is told soon; then seldom, as a look is slow.
        if self._n_calls & (self._n_calls - 1) == 0 or self._n_calls % EVERY == 0:
            self._look()
        if self._is_alone:
            self._is_alone, self._seen = False, None
        changed = self._settings.put_back()
        if changed and error is None:
            raise EnvFault(changed)

    def _streams(self) -> dict[str, object]:
        numpys = np.random.get_state(legacy=False)["state"]
        own = {place: state.numpy().tobytes() for place, state in self._own.items()}
        return {
            "torch's": own,
            "NumPy's": (numpys["key"].tobytes(), numpys["pos"]),
            "Python's": random.getstate(),
        }

    def _look(self) -> None:
        before, self._seen = self._seen, self._streams()
        for whose, state in self._seen.items():
            if before is not None and state != before[whose]:
                has = "It has one of its own, apart from the agent's. " * (whose == "torch's")
                subject = f"env: '{self._name}': {whose} global random stream"
                say_once(subject, f" moves: it is seeded or drawn from. {has}{INSTEAD}")


def _generators() -> list[torch.Generator]:
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [torch.default_generator, *cuda]
