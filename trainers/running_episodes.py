"""The episodes that environments are in, kept until they end and become part of the replay."""

from collections import deque
from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.observations import Observations, Percept
from models.off_policy_agent import Running
from trainers.replay import EpisodeSteps
from trainers.saved_state import check_like


class SeenStep(NamedTuple):
    """One step of N environments, as replay will need it.

    Attributes:
        percept: What the agent was told.
        context: `Step.context`.  [N, ...]
        actions: What was done.  [N] int64
        rewards: What was paid for it.  [N] float32
        terminated: Whether the episode ended of itself.  [N] bool
    """

    percept: Percept
    context: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor


class RunningEpisodes:
    """The steps of N running episodes, as many as the longest of them has had.

    Attributes:
        lengths: Steps of each running episode so far.
    """

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self._steps: deque[SeenStep] = deque()

    def begin(self, n_envs: int) -> None:
        """Note that episodes begin everywhere; what was there is forgotten."""
        self.lengths = [0] * n_envs
        self._steps.clear()

    def add(self, step: SeenStep) -> None:
        """Keep one more step of all."""
        if not self.lengths:
            self.begin(step.percept.n_envs)
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
        shown = [step.percept.observations.map(lambda kind: kind[env]) for step in steps]
        shown.append(last.map(lambda kind: kind[env]))
        observations = shown[0].map(lambda *kinds: torch.stack(kinds).cpu(), *shown[1:])
        contexts = [*(step.context[env] for step in steps), context[env]]
        self._forget(env)
        return EpisodeSteps(
            observations,
            torch.stack(contexts).cpu(),
            torch.stack([step.actions[env] for step in steps]).cpu(),
            torch.stack([step.rewards[env] for step in steps]).cpu(),
            torch.stack([step.terminated[env] for step in steps]).cpu(),
        )

    def past(self, n_context: int) -> tuple[Observations, Running]:
        """Return what was seen and done in the last P <= n_context steps.  [P, N, ...]"""
        steps = list(self._steps)[-n_context:]
        n_steps, device = len(steps), steps[0].actions.device
        seen = [step.percept.observations for step in steps]
        lengths = torch.tensor(self.lengths, device=device)
        before = torch.arange(n_steps, device=device)[:, None] < n_steps - lengths
        starts = torch.stack([step.percept.starts for step in steps]) | before
        actions = torch.stack([step.percept.last_actions for step in steps])
        running = Running(starts, actions, (lengths - n_steps).clamp(min=0))
        return seen[0].map(lambda *kinds: torch.stack(kinds), *seen[1:]), running

    def state_dict(self) -> dict[str, Any] | None:
        """Return the steps, [P, N, ...] each; None where there are none."""
        if not self._steps:
            return None
        flat = [_flat(step) for step in self._steps]
        stacked = {name: torch.stack([step[name] for step in flat]) for name in flat[0]}
        return {"lengths": list(self.lengths), "steps": stacked}

    def load_state_dict(self, state: dict[str, Any], percept: Percept, context: Tensor) -> None:
        """Go on from saved steps.

        Args:
            state: What `state_dict` returned.
            percept: What the agent is told next, for the shapes.
            context: The context of such a step.

        Raises:
            Exception: of several kinds; it is not a state of these environments.
        """
        zeros = torch.zeros(percept.n_envs, device=context.device)
        example = _flat(SeenStep(percept, context, zeros.long(), zeros, zeros.bool()))
        steps, lengths = state["steps"], state["lengths"]
        n_steps = len(steps["actions"])
        check_like(lengths, [0] * percept.n_envs, "lengths")
        if not 0 < max(lengths) <= n_steps:
            raise ValueError("lengths: not as many steps as the running episodes have had")
        check_like(steps, {k: v.expand(n_steps, *v.shape) for k, v in example.items()}, "steps")
        self.begin(percept.n_envs)
        self.lengths = lengths
        for t in range(n_steps):
            self._steps.append(_unflat({k: v[t].to(context.device) for k, v in steps.items()}))

    def _forget(self, env: int) -> None:
        """Begin anew in an environment; steps that no episode needs any more leave."""
        self.lengths[env] = 0
        longest = max(self.lengths)
        while len(self._steps) > longest:
            self._steps.popleft()


def _flat(step: SeenStep) -> dict[str, Tensor]:
    """Return everything of a step by name."""
    percept = step.percept._asdict()
    observations = percept.pop("observations")._asdict()
    seen = {f"seen_{name}": kind for name, kind in observations.items() if kind is not None}
    return seen | percept | {name: getattr(step, name) for name in step._fields[1:]}


def _unflat(flat: dict[str, Tensor]) -> SeenStep:
    """Return the step that `_flat` took apart."""
    observations = Observations(**{name: flat.get(f"seen_{name}") for name in Observations._fields})
    others = {name: flat[name] for name in Percept._fields[1:]}
    percept = Percept(observations, **others)
    return SeenStep(percept, *(flat[name] for name in SeenStep._fields[1:]))
