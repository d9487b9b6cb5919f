"""Chance and best scores of the scoreboard, derived from its tasks."""

import copy
import itertools

import gymnasium
import minigrid  # noqa: F401  registers its environments, as the next does
import numpy as np
import popgym  # noqa: F401
import pytest

from analysis.scoreboard import TASKS
from envs.random_maze import FREE, MAX_SIDE, MAX_STEPS, MIN_SIDE, MOVES, WALL, random_maze

pytestmark = pytest.mark.slow
BY_NAME = {task.name: task for task in TASKS}
AHEAD = (1, 0, -1, 0)  # cells along the corridor, by the direction of the agent


def fewest_steps(start, ways):
    """Return the fewest steps to each place that can be reached; ways(place) are the next."""
    found, queue = {start: 0}, [start]
    for here in queue:
        new = [there for there in dict.fromkeys(ways(here)) if there not in found]
        found |= dict.fromkeys(new, found[here] + 1)
        queue += new
    return found


@pytest.mark.parametrize("name", ["MemoryS7", "MemoryS11"])
def test_memory_is_as_good_as_the_shortest_way_with_and_without_a_look_at_the_cue(name):
    env = gymnasium.make(BY_NAME[name].env).unwrapped
    env.reset(seed=0)
    junction, direct, informed = env.size - 2, [], []

    def ways(pose):
        x, facing = pose
        poses = (x, (facing + 1) % 4), (x, (facing - 1) % 4), (x + AHEAD[facing], facing)
        return [each for each in poses if 1 <= each[0] <= junction]

    def sees_cue(pose):
        env.agent_pos, env.agent_dir = np.array((pose[0], env.size // 2)), pose[1]
        place = env.relative_coords(1, env.size // 2 - 1)
        return place is not None and bool(env.gen_obs_grid()[1][place])

    for start in range(1, junction):  # all equally likely; then it turns into an end, and steps
        n = fewest_steps((start, 0), ways)
        left = {pose: fewest_steps(pose, ways)[junction, 0] for pose in filter(sees_cue, n)}
        direct.append(n[junction, 0] + 2)
        informed.append(min(n[pose] + left[pose] + 2 for pose in left))
    chance, best = (np.mean(1 - 0.9 * np.array(n) / env.max_steps) for n in (direct, informed))
    expected = pytest.approx((chance / 2, best), abs=1e-4)
    assert (BY_NAME[name].chance, BY_NAME[name].best) == expected


def test_key_corridor_pays_the_shortest_way_in_the_mean_of_where_the_agent_first_looks():
    env, n_steps = gymnasium.make(BY_NAME["KeyCorridor"].env).unwrapped, []
    names = "agent_pos", "agent_dir", "grid", "carrying", "obj", "step_count"
    for direction in (1, 2, 1):  # up is the mirror image of down
        env.reset(seed=0)
        env.agent_dir = direction
        seen, queue = set(), [{name: vars(env)[name] for name in names}]
        for scene, action in ((scene, n) for scene in queue for n in range(env.actions.done)):
            vars(env).update(copy.deepcopy(scene))
            if env.step(action)[1] > 0:
                break
            told = str((env.agent_pos, env.agent_dir, env.carrying is None))
            told += str(env.grid.encode().tobytes())
            if told not in seen:
                queue.append({name: vars(env)[name] for name in names})
            seen.add(told)
        n_steps.append(env.step_count)
    best = 1 - 0.9 * np.mean(n_steps) / env.max_steps
    assert BY_NAME["KeyCorridor"].best == pytest.approx(best, abs=1e-4)


def assert_mean(returns, expected):
    assert np.mean(returns) == pytest.approx(
        expected, abs=4 * np.std(returns) / len(returns) ** 0.5
    )


def test_a_random_maze_pays_the_shortest_way_in_the_mean():
    generator, returns = np.random.default_rng(0), []
    for _ in range(150):
        maze = random_maze(int(generator.integers(MIN_SIDE, MAX_SIDE + 1)), generator)

        def ways(here, maze=maze):
            places = [tuple(map(int, place)) for place in MOVES + here]
            return [place for place in places if maze[place] != WALL]

        start = tuple(map(int, generator.choice(np.argwhere(maze == FREE))))
        n_steps = fewest_steps((len(maze) - 2, len(maze) - 2), ways)[start]
        returns.append(1 - 0.01 * (n_steps - 1) if n_steps <= MAX_STEPS else -1)
    assert_mean(returns, BY_NAME["RandomMaze"].best)
    assert BY_NAME["RandomMaze"].chance == -0.01 * MAX_STEPS


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


def test_an_agent_that_pushes_to_the_side_to_which_the_pole_leans_gets_chance():
    generator = np.random.default_rng(0)

    def push(observation):
        return int(generator.random() < 1 / (1 + np.exp(-30 * observation[1])))

    name = "PositionOnlyCartPole"
    assert_mean(play(name, push, 600), BY_NAME[name].chance)


def test_the_best_of_the_bandit_is_that_of_dynamic_programming():
    pulls, values = gymnasium.make(BY_NAME["Bandit"].env).unwrapped.pulls, {}
    for n in reversed(range(pulls)):
        for known in ((a, b, c, n - a - b - c) for a, b, c in np.ndindex((n + 1,) * 3)):
            if known[-1] < 0:
                continue
            arms = []
            for arm in 0, 2:  # pays and does not, so often each
                pays, more = (known[arm] + 1) / (known[arm] + known[arm + 1] + 2), []
                for k in arm, arm + 1:
                    later = tuple(value + (place == k) for place, value in enumerate(known))
                    more.append(values.get(later, 0.0))
                arms.append(pays * (1 + more[0]) + (1 - pays) * more[1])
            values[known] = max(arms)
    assert BY_NAME["Bandit"].best == pytest.approx(values[0, 0, 0, 0], abs=1e-4)
    assert BY_NAME["Bandit"].chance == pulls / 2


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
