"""Updates of DQN and SAC beside the straightforward ones: 64 sequences, sizes as published.

What our updates save depends on what sequences have in common, so there are two kinds: episodes
of uniformly random actions, and those of a run whose policy is nearly settled.
The difference is that of the parameters after an update; with dropout there is none to tell.
"""

import copy
import dataclasses
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.comparing import Pair, Work
from benchmarks.plain_off_policy import PlainLearner, PlainSequences
from benchmarks.random_models import TINY, write_transformer_xl
from envs import make_vector_env
from envs.t_maze import DOWN, RIGHT, UP
from models import build_agent
from models.agent import Sequences
from models.observations import Observations, Percept
from models.off_policy_agent import OffPolicyAgent
from settings import load_config
from trainers.dqn import DQN, DqnSettings
from trainers.off_policy import OffPolicyLearner
from trainers.replay import EpisodeSteps, Replay
from trainers.sac import SAC, SacSettings
from utils.seeding import seed_everything

TMAZE, MATCH = "TMazePassive-v0", "VisualMatch-v0"
LEARNERS = {"DQN": (DQN, DqnSettings), "SAC": (SAC, SacSettings)}
# Widths of an embedded observation, an embedded action and the memory, as published.
WIDTHS = {
    ("LSTM", TMAZE): (32, 16, 128),
    ("GPT", TMAZE): (64, 64, 128),
    ("HELM", TMAZE): (64, 64, 128),
    ("LSTM", MATCH): (100, 0, 128),
    ("GPT", MATCH): (100, 0, 100),
}


class Case(NamedTuple):
    """What is learned by whom, and from what.

    Attributes:
        settled: Whether episodes are those of a policy that hardly explores any more.
        context_length: Steps of a sequence; -1: the whole episode.
        quick: Whether networks and batches are tiny.
    """

    model: str
    env: str
    length: int
    settled: bool
    dropout: float = 0.0
    context_length: int = -1
    quick: bool = False

    @property
    def algorithm(self) -> str:
        """Return what the published experiments learn with there."""
        return "DQN" if self.env == TMAZE else "SAC"

    @property
    def n_sequences(self) -> int:
        """Return B."""
        return 6 if self.quick else 64

    @property
    def n_steps(self) -> int:
        """Return T of whole episodes."""
        return self.length + (1 if self.env == TMAZE else 30)

    @property
    def name(self) -> str:
        """Return the row's name."""
        n_steps = self.n_steps if self.context_length == -1 else self.context_length
        dropout = ", dropout" if self.dropout else ""
        kind = "settled" if self.settled else "random"
        return f"{self.algorithm}-{self.model}, T={n_steps}{dropout}, {kind}"

    def settings(self, folder: Path) -> list[str]:
        """Return the settings that differ from the defaults."""
        observation, action, memory = WIDTHS[self.model, self.env]
        given = {
            "algorithm": self.algorithm,
            "model": self.model,
            "env": self.env,
            "length": self.length,
            "n_envs": self.n_sequences,
            "observation_embedding": observation,
            "action_embedding": action,
            "learning_rate": 3e-4,
            "batch_size": self.n_sequences,
            "context_length": self.context_length,
            **({"head_width": 16} if self.quick else {}),
        }
        if self.model != "LSTM":
            given["mem_len"] = self.n_steps + 1
        if self.model != "HELM":
            given["memory_width"] = memory
        if self.model == "GPT":
            given |= {"memory_heads": 1, "memory_dropout": self.dropout}
        tiny = write_transformer_xl(folder, TINY) if self.model == "HELM" and self.quick else []
        return [f"{name}={value}" for name, value in given.items()] + tiny


def cases(quick: bool) -> Iterator[Case]:
    """Yield what is compared."""
    for settled in (False, True):
        for length in (5,) if quick else (50, 250):
            yield Case("LSTM", TMAZE, length, settled, quick=quick)
            yield Case("GPT", TMAZE, length, settled, quick=quick)
            yield Case("GPT", TMAZE, length, settled, dropout=0.1, quick=quick)
        for context_length in (-1, 1):
            length = 5 if quick else 50
            yield Case("HELM", TMAZE, length, settled, 0.0, context_length, quick=quick)
    # No policy settles in Visual Match: random walks are all there is.
    for model, dropout in (("LSTM", 0.0), ("GPT", 0.0), ("GPT", 0.1)):
        yield Case(model, MATCH, 3 if quick else 60, False, dropout, quick=quick)


def pairs(quick: bool) -> Iterator[Pair]:
    """Compare all of them."""
    for case in cases(quick):
        yield Pair(
            case.name,
            partial(plain, case),
            partial(ours, case),
            rounds=1 if quick else 5,
            repeats=1 if quick else 3,
            note=f"{case.env}, {case.n_sequences} sequences",
        )


class Prepared(NamedTuple):
    """An agent, and a replay with the rows at which sequences of it start."""

    config: Any
    agent: OffPolicyAgent
    replay: Replay
    starts: Tensor

    def drawn(self) -> Sequences:
        """Return the sequences, drawn anew."""
        return self.replay.sequences(self.starts)


def prepare(case: Case, device: str = "cpu") -> Prepared:
    """Play B episodes on the CPU, always the same; learn from them on a device."""
    seed_everything(0)
    with tempfile.TemporaryDirectory() as folder:
        loaded = load_config(None, case.settings(Path(folder)))
        config = dataclasses.replace(loaded, device="cpu")
        env = make_vector_env(config, seed=0)
        agent = build_agent(config, env.single_observation_space, env.single_action_space)
    episodes = played(case, agent, env)
    n_rows = sum(e.length + 1 for e in episodes)
    replay = Replay(n_rows, case.context_length, episodes[0], device)
    for episode in episodes:
        replay.add(episode)
    starts = replay.starts
    if len(starts) != case.n_sequences:
        starts = starts[torch.randint(len(starts), (case.n_sequences,))]
    return Prepared(config, agent.to(device), replay, starts)


@torch.no_grad()
def played(case: Case, agent: OffPolicyAgent, env: Any) -> list[EpisodeSteps]:
    """Return an episode of each environment."""
    percept = Percept.first(agent.read(env.reset(seed=0)[0]))
    memory, n_envs = agent.initial_memory(percept.n_envs), percept.n_envs
    sides = percept.observations.any()[:, 1]  # of the goal, in a T-Maze
    shown, contexts, steps = [percept.observations], [], []
    for _ in range(case.n_steps):
        contexts.append(agent.body.step(percept, memory)[1])
        actions = torch.randint(agent.n_actions, (n_envs,))
        if case.settled:
            explores = torch.rand(n_envs) < 1 / case.n_steps
            actions = torch.where(explores, actions, _best(percept.observations, sides))
        seen, rewards, terminated, _, info = env.step(actions.numpy())
        if terminated.any():
            seen = np.stack(list(info["final_obs"]))
        following, paid = agent.read(seen), torch.as_tensor(rewards).float()
        percept = Percept.after(following, actions, rewards, np.zeros(n_envs, bool))
        shown.append(following)
        steps.append((actions, paid, torch.as_tensor(terminated)))
    contexts.append(agent.peek_context(percept, memory))
    columns = [torch.stack(column) for column in zip(*steps, strict=True)]
    seen_by_kind = shown[0].map(lambda *kinds: torch.stack(kinds), *shown[1:])
    context = torch.stack(contexts)
    return [
        EpisodeSteps(
            seen_by_kind.map(lambda kind, n=n: kind[:, n]),
            context[:, n],
            *(column[:, n] for column in columns),
        )
        for n in range(n_envs)
    ]


def ours(case: Case, device: str = "cpu") -> Iterator[Work]:
    """Update by the learner, drawing from replay included, each time the same agent."""
    prepared = prepare(case, device)
    config, agent = prepared.config, prepared.agent
    before = copy.deepcopy(agent.state_dict())

    def update(learner: OffPolicyLearner) -> Tensor | None:
        learner.learn(prepared.drawn())
        return None if case.dropout else _flat(agent)

    while True:
        agent.load_state_dict(before)
        kind, part = LEARNERS[case.algorithm]
        yield partial(update, kind(config.part(part), agent))


def plain(case: Case) -> Iterator[Work]:
    """Update the plain networks, each time the same ones by the same sequences."""
    prepared = prepare(case)
    sequences = prepared.drawn()

    def update(learner: PlainLearner) -> Tensor | None:
        learner.learn(PlainSequences.of(sequences, prepared.agent.n_actions))
        return None if case.dropout else _flat(learner.networks)

    while True:
        yield partial(update, PlainLearner(prepared.agent, prepared.config))


def _best(observations: Observations, sides: Tensor) -> Tensor:
    """Return the best actions in a T-Maze: to its end, then to the goal's side.  [N]"""
    at_end = observations.any()[:, 0] == 1
    return torch.where(at_end, torch.where(sides > 0, UP, DOWN), RIGHT)


def _flat(module: nn.Module) -> Tensor:
    """Return all trained parameters one after the other."""
    return torch.cat([p.detach().reshape(-1) for _, p in sorted(module.named_parameters())])
