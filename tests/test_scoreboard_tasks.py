"""Chance and best scores of tasks of which no run is published, derived from the tasks.

Those of the others decide the published table, which test_scoreboard.py makes again.
"""

import itertools

import gymnasium
import minigrid  # noqa: F401  registers its environments, as the next does
import numpy as np
import popgym  # noqa: F401
import pytest

from analysis.scoreboard import TASKS

pytestmark = pytest.mark.slow
BY_NAME = {task.name: task for task in TASKS}


def fewest_steps(start, ways):
    """Return the fewest steps to each place that can be reached; ways(place) are the next."""
    found, queue = {start: 0}, [start]
    for here in queue:
        new = [there for there in dict.fromkeys(ways(here)) if there not in found]
        found |= dict.fromkeys(new, found[here] + 1)
        queue += new
    return found


def assert_mean(returns, expected):
    assert np.mean(returns) == pytest.approx(
        expected, abs=4 * np.std(returns) / len(returns) ** 0.5
    )


def play(name, policy, n_episodes=150):
    """Return the returns of episodes; policy(observation) is an action."""
    env, returns = gymnasium.make(BY_NAME[name].env, disable_env_checker=True), []
    for seed in range(n_episodes):
        (observation, _), ended = env.reset(seed=seed), False
        returns.append(0.0)
        while not ended:
            observation, reward, terminated, truncated, _ = env.step(policy(observation))
            ended = terminated or truncated
            returns[-1] += reward
    return returns


def test_an_agent_that_names_another_suit_than_the_one_in_view_gets_chance_in_repeat_previous():
    generator = np.random.default_rng(0)
    returns = play("RepeatPrevious", lambda suit: (suit + 1 + generator.integers(3)) % 4)
    assert_mean(returns, BY_NAME["RepeatPrevious"].chance)


def test_an_agent_that_names_the_suit_in_view_gets_chance_in_repeat_first():
    assert_mean(play("RepeatFirst", lambda suit: suit), BY_NAME["RepeatFirst"].chance)


def test_an_agent_that_names_the_suit_in_view_gets_chance_in_autoencode():
    assert_mean(play("Autoencode", lambda shown: shown[1]), BY_NAME["Autoencode"].chance)


def test_the_likeliest_count_for_what_is_in_view_gets_chance_in_count_recall():
    """Numbers by the dealt and the queried colour; the first step is told by its flag."""
    n_seen = itertools.count()

    def name(shown):
        is_same, is_first = shown[0] == shown[1], next(n_seen) % 51 == 0
        return int(is_same) if is_first else 10

    assert_mean(play("CountRecall", name, 600), BY_NAME["CountRecall"].chance)


def test_red_blue_doors_pays_the_shortest_way_in_the_mean_of_doors_and_beginnings():
    env, n_steps = gymnasium.make(BY_NAME["RedBlueDoors"].env).unwrapped, []
    moves = (1, 0), (0, 1), (-1, 0), (0, -1)
    inside = range(1, env.size - 1)
    for red, blue in itertools.product(inside, repeat=2):

        def ways(here, doors=(red, blue)):
            x, y, facing, n_open = here
            if n_open == 2:
                return []
            ahead = x + moves[facing][0], y + moves[facing][1]
            opened = ahead == ((0, env.size - 1)[n_open], doors[n_open])
            walked = ahead[0] in inside and ahead[1] in inside
            turned = [(x, y, (facing + turn) % 4, n_open) for turn in (1, -1)]
            return [
                *turned,
                *[(*ahead, facing, n_open)] * walked,
                *[(x, y, facing, n_open + 1)] * opened,
            ]

        for start in itertools.product(inside, inside, range(4)):
            found = fewest_steps((*start, 0), ways)
            n_steps.append(min(n for place, n in found.items() if place[3] == 2))
    assert BY_NAME["RedBlueDoors"].best == pytest.approx(
        1 - 0.9 * np.mean(n_steps) / env.max_steps, abs=1e-4
    )
