"""Steps the environments with an agent, and keeps statistics of their episodes."""

import math
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor

from models.agent import Memory
from models.observations import AgentInput, Moments, Observations
from trainers.evaluation import FinishedEpisode
from trainers.learner import Learner, Transition
from trainers.ranks import Ranks
from utils.environments import Environments, Info, State
from utils.saved_state import check_like

EPISODES_AVERAGED = 100


class Collector:
    """N environments, the agent's memory of them, and statistics of their last episodes.

    Args:
        env: The environments of this rank, in SAME_STEP mode and with episode statistics. `reset`
            takes the option "first_env", the number of the first of them in the run. `state_dict`
            has the running episodes where its "resumable" is true.

    Attributes:
        percept: The agent's next input; None until episodes have begun.
        env_steps: Steps of all environments of all ranks.
        n_episodes: Episodes that have ended: on the first rank those of all, else of this one.
        episodes: The last of them.
    """

    def __init__(
        self,
        env: Environments,
        learner: Learner,
        ranks: Ranks | None = None,
    ) -> None:
        self.env, self.learner, self.scaling = env, learner, learner.scaling
        self._device = learner.agent.device  # asked once: it looks for a parameter
        self.ranks = ranks or Ranks()
        self.n_envs = env.num_envs * self.ranks.size  # of all ranks
        self.env_steps = self.n_episodes = 0
        self.episodes: deque[FinishedEpisode] = deque(maxlen=EPISODES_AVERAGED)
        # Not yet sent to the first rank, where this is another.
        self._untold: list[FinishedEpisode] = []
        self.percept: AgentInput | None = None
        self._memory: Memory | None = None
        self._normalizer = learner.agent.reader.normalizer
        self._uncounted: list[Tensor] = []  # numbers [N, F] seen since the last update

    def begin(self, seed: int) -> None:
        rank = self.ranks.rank
        # Numbers go over all ranks, so that no two environments play the same episodes.
        options = {"first_env": rank * self.env.num_envs} if rank else None
        observations, _ = self.env.reset(seed=seed, options=options)
        if self.scaling is not None:
            self.scaling.begin()
        agent = self.learner.agent
        self.percept = AgentInput.first(agent.read(observations), agent.reader.action_shape)
        self._memory = agent.initial_memory(self.env.num_envs)

    def step(self) -> Transition:
        percept, memory = self.percept, self._memory
        assert percept is not None, "begin() opens the episodes"
        assert memory is not None, "begin() makes the memory"
        step = self.learner.act(percept, memory)
        if self._normalizer is not None:
            # Counted when the weights change: until then all steps are normalised alike.
            self._uncounted.append(self._numbers_shown)
        observations, paid, terminated, truncated, info = self.env.step(step.actions.cpu().numpy())
        ended = terminated | truncated
        if self.scaling is not None:
            # Before the learner sees the step, so that its reward counts for its own scaling.
            self.scaling.update(paid, ended)
        shown = self.learner.agent.read(observations)
        # The agent is shown what was paid; scaled rewards are for learning alone.
        self.percept = AgentInput.after(shown, step.actions, paid, ended)
        transition = Transition(
            percept=percept,
            step=step,
            rewards=self._to_device(paid),
            terminated=self._to_device(terminated),
            truncated=self._to_device(truncated),
            following=self._following(step.actions, paid, ended, info),
            after=self.percept,
            memory=memory,
            info=info,
        )
        self.learner.observe(transition)
        self._note_episodes(ended, info)
        self.env_steps += self.n_envs
        return transition

    @property
    def is_blind(self) -> bool:
        """Whether the agent's normaliser has no moments yet, and shows it zeros."""
        return self._normalizer is not None and not self._normalizer.count

    def count_observations(self) -> None:
        """Give the normaliser the moments of all ranks' observations since the last time."""
        if self._normalizer is not None and self._uncounted:
            # Joined before they are merged: the ranks' normalisers stay equal.
            own = Moments.of(torch.cat(self._uncounted))
            self._normalizer.merge(self.ranks.joined(own))
            self._uncounted.clear()

    def tell_first(self) -> None:
        if self.ranks.size == 1:
            return
        # Plain tuples: what comes from another process is read without its classes.
        untold: list[Any] = [tuple(episode) for episode in self._untold]
        for ended in self.ranks.gather(untold):
            self._note([FinishedEpisode.of(*each) for each in ended])
        self._untold.clear()

    @property
    def mean_return(self) -> float:
        """Mean raw return of the last 100 episodes, or of those so far; NaN if none has ended."""
        if not self.episodes:
            return math.nan
        return float(np.mean([episode.episode_return for episode in self.episodes]))

    def metrics(self) -> dict[str, float]:
        returns = [episode.episode_return for episode in self.episodes]
        lengths = [episode.length for episode in self.episodes]
        # The published figure: zeros stand in for episodes until as many as N have ended.
        padded = float(np.sum(returns) / max(len(returns), self.n_envs))
        metrics = {
            "rollout/return_mean": self.mean_return,
            "rollout/return_mean_padded": padded,
            "rollout/length_mean": float(np.mean(lengths)) if lengths else math.nan,
            "rollout/n_episodes": self.n_episodes,
        }
        known = [each.success for each in self.episodes if each.success is not None]
        if self.env.has_success or known:
            metrics["rollout/success_mean"] = float(np.mean(known)) if known else math.nan
        return metrics | self.env.metrics()

    def state_dict(self) -> State:
        assert self.percept is not None, "episodes have begun"
        assert self._memory is not None, "episodes have begun"
        env = self.env.state_dict()
        # One rank that cannot play its episodes again lets all begin new ones.
        resumable = not any(self.ranks.all_reduce_max(not env["resumable"]))
        state: State = {
            "env_steps": self.env_steps,
            "n_episodes": self.n_episodes,
            "episodes": [tuple(episode) for episode in self.episodes],
            "resumable": resumable,
            "env": env,
            "sentences": self.learner.agent.reader.sentences.state_dict(),
            "percept": dict(zip(AgentInput._fields, self.percept[:4], strict=False))
            | {"observations": self.percept.observations.tensors()},
            "memory": self._memory.state_dict(),
        }
        if self.scaling is not None:
            state["scaling"] = self.scaling.state_dict()
        if self._normalizer is not None:
            # Even empty it has the shape of the numbers, which a resumed run compares.
            rows = self._uncounted or [self._numbers_shown]
            state["uncounted"] = torch.stack(rows)[: len(self._uncounted)]
        return state

    def load_state_dict(self, state: State, seed: int) -> tuple[AgentInput, Memory | None]:
        """Restore a saved state, before the agent's own; return its next input and its memory.

        Where the saved episodes cannot go on, new ones begin with a seed: the memory is None.
        """
        self.env_steps, self.n_episodes = state["env_steps"], state["n_episodes"]
        for saved in state["episodes"]:
            match saved:
                case (float(), int(), None | bool()):
                    self.episodes.append(FinishedEpisode.of(*saved))
                case _:
                    raise ValueError("episodes: one has no return, length and success")
        self._check_counts()
        self.learner.agent.reader.sentences.load_state_dict(state["sentences"])
        if self.scaling is not None:
            self.scaling.load_state_dict(state["scaling"])
        if self._normalizer is not None:
            uncounted, like = state["uncounted"], self._numbers_shown
            check_like(uncounted, like.new_zeros(len(uncounted), *like.shape), "uncounted")
            self._uncounted = list(uncounted.to(like.device))
        assert self._memory is not None, "episodes have begun"
        is_lost = not (self.env.load_state_dict(state["env"]) and state["resumable"])
        if any(self.ranks.all_reduce_max(is_lost)):  # all ranks go on, or none
            self.begin(seed)
            assert self.percept is not None, "episodes have begun"
            return self.percept, None
        # Here the episodes go on, and only with them the agent's memory.
        percept, device = state["percept"], self._device
        self._memory.load_state_dict(state["memory"])
        self.percept = AgentInput(
            Observations(**percept["observations"]).map(lambda kind: kind.to(device)),
            **{name: percept[name].to(device) for name in AgentInput._fields[1:4]},
        )
        return self.percept, self._memory

    def _check_counts(self) -> None:
        # A checkpoint that contradicts itself is another's, or somebody has changed it.
        kept = [(episode.episode_return, episode.length) for episode in self.episodes]
        returns, lengths = zip(*kept, strict=True) if kept else ((), ())
        if self.env_steps < 0 or self.env_steps % self.n_envs:
            raise ValueError(f"{self.env_steps} steps are no steps of {self.n_envs} environments")
        if not 0 <= self.n_episodes <= self.env_steps:
            raise ValueError("n_episodes: not as many as can have ended")
        if len(kept) != min(self.n_episodes, EPISODES_AVERAGED):
            raise ValueError("episodes: not as many as have ended")
        if any(length < 1 for length in lengths) or sum(lengths) > self.env_steps:
            raise ValueError("episodes: their lengths are not those of the steps so far")
        if not math.isfinite(sum(map(abs, returns))):
            raise ValueError("episodes: their returns have no mean")

    def _following(
        self, actions: Tensor, paid: np.ndarray, ended: np.ndarray, info: Info
    ) -> AgentInput:
        assert self.percept is not None, "a step has been taken"
        if not ended.any():
            return self.percept
        # Within an episode both inputs are one; where it ended only `final_obs` has the last.
        rows = self._to_device(ended)
        last = self.learner.agent.read(stacked(info["final_obs"][ended]))

        def with_last(kind: Tensor, final: Tensor) -> Tensor:
            # The next input keeps the first observations of new episodes.
            kind = kind.clone()
            kind[rows] = final
            return kind

        shown = self.percept.observations.map(with_last, last)
        # As if nothing had ended: so the last action and reward are in it.
        return AgentInput.after(shown, actions, paid, np.zeros_like(ended))

    def _note_episodes(self, ended: np.ndarray, info: Info) -> None:
        if not ended.any():
            return
        episodes = [FinishedEpisode.ended(info["episode"], n) for n in np.flatnonzero(ended)]
        if self.ranks.first:
            self._note(episodes)
        else:
            self._untold += episodes

    def _note(self, episodes: list[FinishedEpisode]) -> None:
        self.episodes.extend(episodes)
        self.n_episodes += len(episodes)

    @property
    def _numbers_shown(self) -> Tensor:
        assert self.percept is not None, "episodes have begun"
        assert self.percept.observations.vectors is not None, "without numbers it is refused"
        return self.percept.observations.vectors

    def _to_device(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self._device)


def stacked(observations: Any) -> Any:
    first = observations[0]
    if isinstance(first, dict):
        return {key: stacked([each[key] for each in observations]) for key in first}
    return np.stack(list(observations))
