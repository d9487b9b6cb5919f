"""The ladder: its numbers follow from the tasks, and configs/Scoreboard trains its agents."""

import copy
from collections import deque

import gymnasium
import minigrid  # noqa: F401  (registers its environments with Gymnasium)
import numpy as np
import pytest

from analysis.scoreboard import AGENTS, TASKS
from envs.random_maze import FREE, MAX_SIDE, MAX_STEPS, MIN_SIDE, MOVES, WALL, random_maze
from sweeps.grid import make_grid
from utils.settings import CONFIGS

BY_NAME = {task.name: task for task in TASKS}
LADDER = sorted((CONFIGS / "Scoreboard").glob("*.json"))
DOWN, LEFT, UP = 1, 2, 3


@pytest.mark.parametrize(("name", "at_once"), [("MemoryS7", True), ("MemoryS11", False)])
def test_memory_is_as_good_as_the_shortest_way_with_and_without_a_look_at_the_cue(name, at_once):
    task = BY_NAME[name]
    env = gymnasium.make(task.env).unwrapped
    env.reset(seed=0)
    end, middle = env.size - 3, env.size // 2
    cue, *ends = (1, middle - 1), (end + 1, middle - 2), (end + 1, middle + 2)
    direct, informed = [], []
    for start in range(1, end + 1):  # where episodes begin, all equally likely
        ways = walked(start, end + 1)
        direct.append(ways[end + 1, 0] + 2)  # turns into the end, and steps
        looks = [pose for pose in ways if sees(env, pose, cue)]
        informed.append(
            min(ways[pose] + walked(pose[0], end + 1, pose[1])[end + 1, 0] + 2 for pose in looks)
        )
    best = np.mean(1 - 0.9 * np.array(informed) / env.max_steps)
    chance = np.mean(1 - 0.9 * np.array(direct) / env.max_steps) / 2
    assert (task.best, task.chance) == pytest.approx((best, chance), abs=1e-4)
    # Cue and ends are in view at once in the small task alone, from the junction.
    seen = [[sees(env, pose, thing) for thing in (cue, *ends)] for pose in ways]
    assert any(cue_seen and any(others) for cue_seen, *others in seen) == at_once
    assert all(sees(env, (end + 1, 2), thing) for thing in (cue, *ends)) == at_once


def fewest_steps(start, ways):
    """Return the fewest steps from a place to each that can be reached; ways(place) are next."""
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in ways(here):
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found


def walked(start, last, facing=0):
    """Return the fewest actions to each pose (x, direction) along the corridor."""

    def ways(pose):
        x, facing = pose
        ahead = x + {0: 1, 2: -1}.get(facing, 0)
        turns = [(x, (facing - 1) % 4), (x, (facing + 1) % 4)]
        return [*turns, (ahead, facing)] if 1 <= ahead <= last else turns

    return fewest_steps((start, facing), ways)


def sees(env, pose, cell):
    """Return whether a cell is in view from the middle row."""
    env.agent_pos, env.agent_dir = np.array((pose[0], env.size // 2)), pose[1]
    _, visible = env.gen_obs_grid()
    place = env.relative_coords(*cell)
    return place is not None and bool(visible[place])


@pytest.mark.slow
def test_key_corridor_is_solved_in_fourteen_or_fifteen_steps():
    env = gymnasium.make(BY_NAME["KeyCorridor"].env).unwrapped
    facing = set()
    for seed in range(20):
        env.reset(seed=seed)
        facing.add(int(env.agent_dir))
    assert facing == {DOWN, LEFT, UP}, "never the locked door"
    n_steps = {}
    for direction in (DOWN, LEFT):
        env.reset(seed=0)
        env.agent_dir = direction
        n_steps[direction] = fewest_actions(env)
    n_steps[UP] = n_steps[DOWN]  # its mirror image
    assert n_steps == {DOWN: 15, LEFT: 14, UP: 15}
    best = np.mean([1 - 0.9 * n / env.max_steps for n in n_steps.values()])
    assert BY_NAME["KeyCorridor"].best == pytest.approx(best, abs=1e-4)


def fewest_actions(env):
    """Return how many actions it takes from where an environment stands to a reward."""
    seen, queue = {told(env)}, deque([(scene(env), 0)])
    while queue:
        before, n_actions = queue.popleft()
        for action in range(6):  # all but "done"
            vars(env).update(copy.deepcopy(before), step_count=0)
            if env.step(action)[1] > 0:
                return n_actions + 1
            if told(env) not in seen:
                seen.add(told(env))
                queue.append((scene(env), n_actions + 1))
    raise AssertionError("it cannot be solved")


def scene(env):
    names = "agent_pos", "agent_dir", "grid", "carrying", "obj"  # obj: to be picked up
    return copy.deepcopy({name: vars(env)[name] for name in names})


def told(env):
    carried = env.carrying and env.carrying.type
    return *env.agent_pos, env.agent_dir, carried, env.grid.encode().tobytes()


def free_neighbours(maze, here):
    places = [tuple(map(int, place)) for place in MOVES + here]
    return [place for place in places if maze[place] != WALL]


def test_a_random_maze_pays_the_shortest_way_in_the_mean():
    task, generator = BY_NAME["RandomMaze"], np.random.default_rng(0)
    returns = []
    for _ in range(150):
        maze = random_maze(int(generator.integers(MIN_SIDE, MAX_SIDE + 1)), generator)
        starts = np.argwhere(maze == FREE)
        start = tuple(map(int, starts[generator.integers(len(starts))]))
        goal = len(maze) - 2, len(maze) - 2
        n_steps = fewest_steps(goal, lambda here, maze=maze: free_neighbours(maze, here))[start]
        returns.append(1 - 0.01 * (n_steps - 1) if n_steps <= MAX_STEPS else -1)
    four_errors = 4 * np.std(returns) / np.sqrt(len(returns))
    assert np.mean(returns) == pytest.approx(task.best, abs=four_errors)
    assert task.chance == -0.01 * MAX_STEPS


def test_who_names_another_suit_than_the_one_in_view_gets_chance_in_repeat_previous():
    import popgym  # noqa: F401  (registers its environments with Gymnasium)

    task = BY_NAME["RepeatPrevious"]
    env = gymnasium.make(task.env, disable_env_checker=True)
    generator, returns = np.random.default_rng(0), []
    for seed in range(150):
        suit, _ = env.reset(seed=seed)
        suits, total, ended = [suit], 0.0, False
        while not ended:
            action = (suit + 1 + generator.integers(3)) % 4
            suit, reward, ended, *_ = env.step(action)
            suits.append(suit)
            total += reward
        returns.append(total)
    four_errors = 4 * np.std(returns) / np.sqrt(len(returns))
    assert np.mean(returns) == pytest.approx(task.chance, abs=four_errors)


def test_the_ladder_is_trained_by_its_settings_files_at_equal_steps():
    runs = make_grid(LADDER, {"seed": ["0"]})
    places = {}
    for run in runs:
        settings = vars(run.config)
        (task,) = (task for task in TASKS if task.plays(settings))
        (agent,) = (agent for agent in AGENTS if agent.is_of(settings))
        places.setdefault(task.name, {})[agent.name] = run.config.n_steps
    assert len(runs) == sum(map(len, places.values())), "a cell is trained once"
    for task in TASKS:
        able = {agent.name for agent in AGENTS if not agent.blind(task)}
        assert set(places[task.name]) == able
        assert len(set(places[task.name].values())) == 1
