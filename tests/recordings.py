"""Recordings in detail without a simulator or a language model."""

import numpy as np

from trainers.evaluation import FinishedEpisode, Recording, narrated

ACTIONS = ["left", "right", "forward"]
VOCABULARY = np.array(["key", "door", "<wall>", "ball"])
KEY_STEP = 2  # the step that the last head of the last layer always looks at


def recording(length, seed=0, n_words=2, n_layers=2, n_heads=3):
    """Return an episode of random steps; n_words=0 is an agent without words, n_layers=0 without
    a language model."""
    generator = np.random.default_rng(seed)
    rewards = np.zeros(length)
    rewards[-1] = 0.5
    steps = {
        "observations": generator.integers(2, size=(length, 3, 7, 7), dtype=np.uint8) * 200,
        "actions": generator.integers(len(ACTIONS), size=length),
        "rewards": rewards,
        "values": generator.normal(size=length),
    }
    steps["observations"] = steps["observations"].repeat(8, axis=2).repeat(8, axis=3)
    details = {
        "probabilities": generator.dirichlet(np.ones(len(ACTIONS)), size=length),
        "overviews": generator.integers(256, size=(length, 1, 1, 3), dtype=np.uint8)
        * np.ones((16, 16, 1), np.uint8),
    }
    if n_words:
        steps["words"] = VOCABULARY[(np.arange(length)[:, None] + np.arange(n_words)) % 4]
        steps["similarities"] = 0.5 - np.arange(n_words) / 10 * np.ones((length, 1))
    if n_words == 1:
        details["entropy"] = np.full(length, np.log(10.0))
    if n_layers:
        details["attention"] = attention(length, n_layers, n_heads, generator)
    return Recording(FinishedEpisode(0.5, length), steps, details)


def saliency(length):
    """Return the shares [T, T] of values that depend, from step KEY_STEP on, on that step alone."""
    return np.eye(length)[np.minimum(np.arange(length), KEY_STEP)]


def of_vectors(length, seed=0, has_overviews=True, n_numbers_given=0):
    """Return an episode of an agent that is told three numbers and chooses by action values.

    Or it gives some numbers from -1 to 1.
    """
    one = recording(length, seed, n_words=0, n_layers=1, n_heads=1)
    generator = np.random.default_rng(seed)
    one.steps["observations"] = generator.normal(size=(length, 3)).astype(np.float32)
    del one.details["probabilities"]
    one.details["action_values"] = generator.normal(size=(length, len(ACTIONS)))
    one.steps["actions"] = one.details["action_values"].argmax(1)
    if n_numbers_given:
        one.steps["actions"] = generator.uniform(-1, 1, (length, n_numbers_given)).astype("f")
        del one.details["action_values"]
    if not has_overviews:
        del one.details["overviews"], one.steps["values"]
    return one


def of_words(length, seed=0):
    """Return an episode of an agent that is told a vector and two sentences beside its images."""
    one = recording(length, seed, n_words=0, n_layers=0)
    one.steps["vectors"] = np.arange(2.0 * length, dtype=np.float32).reshape(length, 2)
    changing = np.where(np.arange(length) < length // 2, "go to the <red> ball", "open a door")
    one.steps["text"] = np.stack((changing, np.full(length, "hurry")), axis=1)
    return one


def attention(length, n_layers, n_heads, generator):
    """Return random attention to all steps so far.  [T, L, H, T]"""
    looks = np.zeros((length, n_layers, n_heads, length))
    for t in range(length):
        shares = generator.dirichlet(np.ones(t + 1), size=(n_layers, n_heads))
        looks[t, :, :, length - 1 - t :] = shares
        if t > KEY_STEP:
            looks[t, -1, -1] = 0
            looks[t, -1, -1, length - 1 - t + KEY_STEP] = 1
    return looks


GOALS_REACHED = {3: "chop <tree>", 7: "drink water"}
UNLOCKED = {3: ("collect_wood",), 9: ("a", "b")}


def of_goals(length, seed=0):
    """Return an episode with two goals at each step, some of them reached, and achievements."""
    one = recording(length, seed, n_words=0, n_layers=0)
    steps = [
        {
            "caption": "you see grass." if t < length // 2 else "you see water.",
            "suggestions": ("chop <tree>", "drink water")[: 1 + (t > 2)],
            "phrase": "chop <tree>" if t == 3 else "do nothing",
            "matched": GOALS_REACHED.get(t, ""),
            "goal_success": t == 3,
            "goal_rewards": float(t in GOALS_REACHED),
            "unlocked": UNLOCKED.get(t, ()),
        }
        for t in range(length)
    ]
    words = narrated(steps) | {"text": np.full((length, 1), "hurry")}
    return one._replace(steps=one.steps | words)


def of_many_actions(length, n_actions=30, seed=0):
    """Return an episode of an agent that chooses among many actions, once the worst."""
    one = recording(length, seed, n_words=0, n_layers=0)
    generator = np.random.default_rng(seed)
    one.details["probabilities"] = generator.dirichlet(np.ones(n_actions), size=length)
    one.steps["actions"] = one.details["probabilities"].argmax(1)
    one.steps["actions"][1] = one.details["probabilities"][1].argmin()
    return one
