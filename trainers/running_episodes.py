"""The episodes that environments are in, kept until they end and become part of the replay."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from models.agent import Running
from models.observations import Observations, Percept
from trainers.replay import EpisodeSteps
from utils.saved_state import check_like, check_steps


class RunningEpisodes:
    """The steps of N running episodes, as many as the longest of them has had.

    Attributes:
        lengths: Steps of each running episode so far.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._steps: deque[dict[str, Tensor]] = deque()

    def begin(self, n_envs: int) -> None:
        """Note that episodes begin everywhere; what was there is forgotten."""
        self.lengths = [0] * n_envs
        self._steps.clear()

    def add(self, step: dict[str, Tensor]) -> None:
        """Keep one more step of all, as `step_tensors` returns it."""
        if not self.lengths:
            self.begin(len(step["actions"]))
        self._steps.append(step)
        self.lengths = [n_steps + 1 for n_steps in self.lengths]

    def end(self, env: int, last: Observations, context: Tensor) -> EpisodeSteps:
        """Return the episode that has ended in an environment; another one begins there.

        Args:
            env: Its number.
            last: What was seen in the end, in all environments.  [N, ...] of each kind
            context: The context of that.  [N, ...]
        """
        steps = list(self._steps)[-self.lengths[env] :]
        own = {name: torch.stack([step[name][env] for step in steps]) for name in steps[0]}

        def with_last(kind: Tensor, at_end: Tensor) -> Tensor:
            return torch.cat((kind, at_end[env : env + 1])).cpu()

        self._forget(env)
        return EpisodeSteps(
            _observations(own).map(with_last, last),
            with_last(own["context"], context),
            *(own[name].cpu() for name in ("actions", "rewards", "terminated")),
        )

    def past(self, n_context: int) -> tuple[Observations, Running]:
        """Return what was seen and done in the last P <= n_context steps.  [P, N, ...]"""
        steps = list(self._steps)[-n_context:]
        stacked = _stacked(steps)
        n_steps, device = len(steps), stacked["starts"].device
        lengths = torch.tensor(self.lengths, device=device)
        before = torch.arange(n_steps, device=device)[:, None] < n_steps - lengths
        starts = stacked["starts"] | before
        running = Running(starts, stacked["last_actions"], (lengths - n_steps).clamp(min=0))
        return _observations(stacked), running

    def state_dict(self) -> dict[str, Any] | None:
        """Return the steps, [P, N, ...] each; None where there are none."""
        if not self._steps:
            return None
        return {"lengths": list(self.lengths), "steps": _stacked(self._steps)}

    def load_state_dict(self, state: dict[str, Any], like: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned, given a step of the same kind.

        Raises:
            Exception: of several kinds; it is not a state of these environments.
        """
        steps, lengths = state["steps"], state["lengths"]
        n_steps, device = len(steps["actions"]), like["actions"].device
        check_like(lengths, [0] * len(like["actions"]), "lengths")
        if not 0 < max(lengths) <= n_steps or min(lengths) < 0:
            raise ValueError("lengths: not as many steps as the running episodes have had")
        check_steps(steps, like, "steps")
        self.lengths = lengths
        for t in range(n_steps):
            self._steps.append({name: kind[t].to(device) for name, kind in steps.items()})

    def _forget(self, env: int) -> None:
        """Begin anew in an environment; steps that no episode needs any more leave."""
        self.lengths[env] = 0
        longest = max(self.lengths)
        while len(self._steps) > longest:
            self._steps.popleft()


def step_tensors(
    percept: Percept, context: Tensor, actions: Tensor, rewards: Tensor, terminated: Tensor
) -> dict[str, Tensor]:
    """Return a step of N environments as replay will need it, by name.

    Args:
        percept: What the agent was told.
        context: `Step.context`.  [N, ...]
        actions: What was done.  [N] int64
        rewards: What was paid for it.  [N] float32
        terminated: Whether the episode ended of itself.  [N] bool
    """
    return percept.observations.tensors() | {
        "starts": percept.starts,
        "last_actions": percept.last_actions,
        "context": context,
        "actions": actions,
        "rewards": rewards,
        "terminated": terminated,
    }


def _stacked(steps: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return P steps as one dictionary.  [P, N, ...] each"""
    rows = list(steps)
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def _observations(steps: Mapping[str, Tensor]) -> Observations:
    return Observations(*(steps.get(name) for name in Observations._fields))
