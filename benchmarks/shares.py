"""Where the time of a training run goes: a profile of parts, by wrapping methods of its objects."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from models.helm import LanguageMemoryAgent
from models.observation_cache import ObservationCache
from trainers.collector import Collector
from trainers.ppo import PPO

REST = "rest"
PARTS = (
    "environments",
    "observation → language",
    "language model",
    "encoder and heads, acting",
    "rollout storage",
    "update: forward",
    "update: backward",
    "update: clipping, optimiser",
    "update: losses, minibatches",
    REST,
)


class Clock:
    """Charges every moment to the innermost part that is running.

    Args:
        wait: Waits for what the device still has to do, where that is not done at once.
    """

    def __init__(self, wait: Callable[[], object] = lambda: None) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._wait = wait
        self._running = [REST]
        self._since = time.perf_counter()

    @contextmanager
    def running(self, part: str) -> Iterator[None]:
        """Charge what happens in the block to a part, but for parts within it."""
        self._charge()
        self._running.append(part)
        try:
            yield
        finally:
            self._charge()
            self._running.pop()

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Return the function, its time charged to a part."""

        def call(*arguments: Any, **options: Any) -> Any:
            with self.running(part):
                return function(*arguments, **options)

        return call

    def shares(self) -> dict[str, float]:
        """Return each part's share of the time since the clock was made; they sum to 1."""
        self._charge()
        total = sum(self.seconds.values())
        return {part: self.seconds[part] / total for part in PARTS}

    def _charge(self) -> None:
        self._wait()
        now = time.perf_counter()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now


@contextmanager
def profiled(learner: PPO, collector: Collector) -> Iterator[Clock]:
    """Time a run's parts while the block runs; afterwards its objects are as they were."""
    on_gpu = learner.agent.device.type == "cuda"
    clock = Clock(torch.cuda.synchronize) if on_gpu else Clock()
    with ExitStack() as patches:
        for owner, method, part in seams(learner, collector):
            timed = clock.timed(getattr(owner, method), part)
            patches.enter_context(patch.object(owner, method, timed))
        yield clock


def seams(learner: PPO, collector: Collector) -> Iterator[tuple[Any, str, str]]:
    """Yield which method of which object belongs to which part."""
    agent = learner.agent
    yield collector.env, "step", "environments"
    yield collector, "step", "rollout storage"
    yield learner, "update", "update: losses, minibatches"
    yield learner.optimizer, "step", "update: clipping, optimiser"
    yield torch.nn.utils, "clip_grad_norm_", "update: clipping, optimiser"
    yield torch.Tensor, "backward", "update: backward"
    yield agent, "evaluate", "update: forward"
    for method in ("act", "peek_values"):
        yield agent, method, "encoder and heads, acting"
    if isinstance(agent, LanguageMemoryAgent):
        yield agent.language.language_model, "step", "language model"
        yield ObservationCache, "__call__", "observation → language"
        for method in ("tokens", "observe"):
            yield agent.language.to_language, method, "observation → language"
