"""Lines about an environment that are said once, however many copies of it there are."""

import logging

import gymnasium
from gymnasium.vector import SyncVectorEnv, VectorEnv

log = logging.getLogger(__name__)
_said: set[str] = set()  # in the run of this process


def say_once(subject: str, rest: str, level: int = logging.WARNING) -> None:
    """Log one line, subject and rest, unless a line of this subject has been said."""
    if subject not in _said:
        _said.add(subject)
        log.log(level, "%s%s", subject, rest)


def forget() -> None:
    _said.clear()


def said_so_far() -> frozenset[str]:
    return frozenset(_said)


def do_not_say(subjects: frozenset[str]) -> None:
    """Take over another process's notices."""
    _said.update(subjects)


def name_of(env: gymnasium.Env | VectorEnv) -> str:
    """Return an environment's name in messages: its id, or else its class."""
    inner = env.unwrapped
    if isinstance(inner, SyncVectorEnv):
        inner = inner.envs[0].unwrapped
    return type(inner).__name__ if inner.spec is None else inner.spec.id
