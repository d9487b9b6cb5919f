"""What is kept of an episode, an environment's words about its steps too, without pickle."""

import numpy as np
import pytest

from tests.counting import CountingEnv
from tests.described import objects
from tests.test_evaluation import Silent
from trainers.evaluation import AFTER, evaluate, info_before, narrated, texts_in_info


class Saying(CountingEnv):
    """Says before each step its number, and after it the deed."""

    def reset(self, **given):
        observations, info = super().reset(**given)
        return observations, info | self.wanted(observations)

    def step(self, actions):
        counts = self.counts.copy()
        observations, rewards, terminated, truncated, info = super().step(actions)
        said = {"phrase": objects([f"step {n}" for n in counts])}
        said["matched"] = objects(["odd" if n % 2 else None for n in counts])
        said["unlocked"] = objects([("a",) * int(n == 1) for n in counts])
        said["goal_rewards"] = counts % 2 * 0.5
        return observations, rewards, terminated, truncated, info | said | self.wanted(observations)

    @staticmethod
    def wanted(observations):
        counts = observations[:, 0, 0, 0]
        return {
            "suggestions": objects([("even", "odd")[: 1 + n % 2] for n in counts.tolist()]),
            "scene": objects([f"number {n}." for n in counts]),
            "inventory": objects([""] * len(counts)),
            "status": objects(["tired."] * len(counts)),
        }


def test_every_episode_keeps_what_was_said_of_its_own_steps(tmp_path):
    for number, recording in enumerate(evaluate(Silent(), Saying(lengths=[2, 3]), n_episodes=4)):
        recording.save(tmp_path / f"{number}.npz")
        with np.load(tmp_path / f"{number}.npz", allow_pickle=False) as arrays:
            steps = range(recording.episode.length)
            expected = {
                "caption": [f"number {n}. tired." for n in steps],
                "suggestions": [["even", "odd" if n % 2 else ""] for n in steps],
                "phrase": [f"step {n}" for n in steps],
                "matched": ["odd" if n == 1 else "" for n in steps],
                "unlocked": [["a" if n == 1 else ""] for n in steps],
                "goal_rewards": [n % 2 * 0.5 for n in steps],
                "values": [*steps],
                "rewards": [n + 1 for n in steps],
                "words": [[str(n)] for n in steps],
            }
            assert arrays["observations"].shape == (len(steps), 3, 9, 9)
            assert arrays["observations"][:, 0, 0, 0].tolist() == [*steps]
            assert arrays["actions"].shape == (len(steps),)
            assert {name: arrays[name].tolist() for name in expected} == expected
            assert "goal_success" not in arrays


NUMBERS, OTHERS = np.array([1.5, 2.0]), objects([{"a": 1}, {"b": 2}])


@pytest.mark.parametrize("values", [NUMBERS, OTHERS, objects(["too few"]), "no array", None])
def test_what_only_goes_by_such_a_name_is_not_kept(values):
    info = {"phrase": values, "suggestions": values, "unlocked": values, "scene": values}
    assert info_before(info, 2) == [{}, {}]
    assert texts_in_info(info, AFTER, 2) == [{}, {}]


def test_what_is_said_now_and_then_is_empty_between():
    arrays = narrated([{}, {"phrase": "go", "unlocked": ("a", "b")}, {"unlocked": ("c",)}])
    assert arrays["phrase"].tolist() == ["", "go", ""]
    assert arrays["unlocked"].tolist() == [["", ""], ["a", "b"], ["c", ""]]
    assert set(arrays) == {"phrase", "unlocked"}
