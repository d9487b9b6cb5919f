"""What an environment has shown is as it was, whatever its arrays are used for later."""

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from torch.utils._pytree import tree_map

import helm
from envs import make_vector_env
from envs.any_gymnasium import checked_vector, vector_of
from tests import any_envs
from tests.any_envs import SPACES, Held, HeldVector, Masked, Sampled
from tests.runs import outcome, same
from tests.tiny_clip import tiny_settings
from utils.errors import UserError
from utils.given_settings import load_config

WORDS = spaces.Dict(words=spaces.Text(9), bits=spaces.MultiBinary(3))
KINDS = [*SPACES, "text", "mask"]


def one(kind, actions=None):
    if kind == "mask":
        return Masked()
    env = Sampled("vector" if kind == "text" else kind, actions)
    env.observation_space = WORDS if kind == "text" else env.observation_space
    return env


def made(form, kind, is_held, actions=None):
    """Return an environment, or a function that makes one, with arrays of its own or not."""
    single = functools.partial(one, kind, actions)
    held = (lambda: Held(single())) if is_held else single
    if form == "single":
        return held
    if form == "single ones in a vector":
        return any_envs.vector_of(held)
    return HeldVector(any_envs.vector_of(single)) if is_held else any_envs.vector_of(single)


FORMS = ("single", "single ones in a vector", "vector")


def played(env):
    """Return all that an environment has shown and paid in some steps, as it is after the last."""
    env.action_space.seed(0)
    shown, _ = env.reset(seed=0)
    found = [shown]
    for _ in range(24):
        mask = shown["action_mask"] if isinstance(shown, dict) and "action_mask" in shown else None
        actions = env.action_space.sample() if mask is None else mask.argmax(1)
        shown, *paid, info = env.step(actions)
        found.append([shown, *paid, list(info.get("final_obs", []))])
    return found


@pytest.mark.quick("vector-image, channels first", "vector-nested", "single-text")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", FORMS)
def test_what_was_shown_is_as_it_was(form, kind):
    found = []
    for is_held in (False, True):
        env = made(form, kind, is_held)
        env = vector_of(env, 2, 0) if form == "single" else checked_vector(env, "X")
        found.append(played(env))
    assert sum(len(step[4]) for step in found[0][1:]) >= 6  # last observations, and None
    tree_map(np.testing.assert_array_equal, *found)


TINY = {"device": "cpu", "n_envs": 2, "n_steps": 48, "showcase_minutes": None}
REPLAY = {"batch_size": 3, "warmup_episodes": 1, "replay_ratio": 0.5, "head_width": 8}
LEARNERS = {
    "PPO": {"n_rollout_steps": 8, "n_batches": 2, "n_epochs": 1, "bootstrap_truncated": True},
    "DQN": REPLAY | {"algorithm": "DQN"},
    "SAC": REPLAY | {"algorithm": "SAC"},
    "TD3": REPLAY | {"algorithm": "TD3"},
}
MEMORIES = {
    "CNN": {},
    "LSTM": {"memory_width": 8},
    "GPT": {"memory_width": 8, "memory_heads": 2, "mem_len": 8},
    "HELM": {},
}
SEEN = ("vector", "image, channels first", "grey image", "nested", "text", "several", "mask")
# Every learner with every kind of observation and every memory; HELM's retrieval reads images.
TABLE = [
    (learner, "LSTM" if memory == "HELM" and kind not in SEEN[1:4] else memory, kind)
    for i, learner in enumerate(LEARNERS)
    for j, kind in enumerate(SEEN)
    for memory in [[*MEMORIES][(i + j) % 4]]
    if (learner, kind) != ("TD3", "mask")
]
QUICK = (
    "PPO-LSTM-image, channels first",
    "SAC-GPT-vector",
)


@pytest.mark.quick(*QUICK)
@pytest.mark.parametrize(("learner", "memory", "kind"), TABLE, ids=["-".join(r) for r in TABLE])
def test_a_run_is_that_of_an_environment_that_copies(
    learner, memory, kind, encoder, in_empty_folder
):
    settings = TINY | LEARNERS[learner] | MEMORIES[memory] | tiny_settings(memory)
    settings |= {"model": memory} | ({"sentence_encoder": encoder} if kind == "text" else {})
    actions = spaces.Box(-1, 1, (2,)) if learner == "TD3" else None
    for form in FORMS:
        runs = [
            helm.train(
                settings, made(form, kind, is_held, actions), run_id=f"{FORMS.index(form)}{is_held}"
            )
            for is_held in (False, True)
        ]
        assert same(*map(outcome, runs))


OURS = (
    "RandomMaze-v0",
    "TMazeActive-v0",
    "VisualMatch-v0",
    "KeyToDoor-v0",
    "HousekeepText-v0",
    "ContinuousRecognition-v0",
    "MiniGrid-Empty-5x5-v0",
    "maze",
    "CrafterText-v0",
)


@pytest.mark.quick(*OURS[:7])
@pytest.mark.parametrize("name", OURS)
def test_an_environment_of_ours_returns_what_no_later_step_changes(name):
    env = make_vector_env(load_config(None, [f"env={name}", "model=CNN", "n_envs=2"]), 0)
    env.action_space.seed(0)
    kept = [env.reset(seed=0)[0]]
    snapshots = [tree_map(np.copy, kept[0])]
    for _ in range(150):
        shown, *paid, info = env.step(env.action_space.sample())
        kept.append([shown, *paid, list(info.get("final_obs", []))])
        snapshots.append(tree_map(np.copy, kept[-1]))
    tree_map(np.testing.assert_array_equal, kept, snapshots)
    env.close()


SHARED = Sampled()
GIVEN_AGAIN = {
    "an environment": lambda: SHARED,
    "one in another wrapper": lambda: gymnasium.wrappers.TimeLimit(SHARED, 5),
    "a vector": functools.partial(lambda env: env, any_envs.vector_of(Sampled)),
    "single ones of a vector": any_envs.vector_of(lambda: SHARED),
}


@pytest.mark.parametrize(
    ("kind", "n_envs"), [*((kind, 2) for kind in GIVEN_AGAIN), ("an environment", 1)]
)
def test_a_function_makes_a_new_environment_each_time(kind, n_envs, in_empty_folder):
    with pytest.raises(UserError, match=r"env: .*(again and again|are one Sampled).*lambda: MyEnv"):
        helm.train(TINY | {"model": "CNN", "n_envs": n_envs}, GIVEN_AGAIN[kind])
    assert list(in_empty_folder.iterdir()) == []


def test_a_registered_environment_is_made_anew_each_time():
    with pytest.raises(UserError, match="all environments are one Sampled"):
        vector_of(lambda: SHARED, 2, 0)
