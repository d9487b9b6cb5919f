from itertools import islice

import numpy as np
import pytest

from envs.minigrid import AGENT_CELL
from envs.minigrid_views import (
    COLOURS,
    DOOR,
    KINDS,
    STATES,
    WALL,
    played_views,
    random_rooms,
    visible_cells,
)

pytest.importorskip("minigrid")
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall


def rooms(n, seed=0):
    return random_rooms(n, np.random.default_rng(seed))


def test_the_symbols_are_minigrids():
    for ours, theirs in (
        (KINDS, OBJECT_TO_IDX),
        (COLOURS, COLOR_TO_IDX),
        (STATES, STATE_TO_IDX),
    ):
        assert {name: number for number, name in enumerate(ours)} == theirs


def test_cells_are_visible_where_minigrid_says():
    generator = np.random.default_rng(1)
    opaque = generator.random((200, 7, 7)) < generator.uniform(0, 0.7, (200, 1, 1))
    for cells, seen in zip(opaque, visible_cells(opaque), strict=True):
        grid = Grid(7, 7)
        for place in np.argwhere(cells):
            grid.set(*place, Wall())
        np.testing.assert_array_equal(seen, grid.process_vis(AGENT_CELL))


def test_rooms_are_written_in_symbols_minigrid_would_write():
    for view in rooms(100):
        grid, seen = Grid.decode(view)
        np.testing.assert_array_equal(grid.encode(seen), view)


def test_rooms_show_every_object_colour_and_door_state():
    views = rooms(2000).reshape(-1, 3)
    doors = views[views[:, 0] == DOOR]
    assert set(KINDS) - {KINDS[kind] for kind in np.unique(views[:, 0])} == {"floor", "agent"}
    assert len(np.unique(doors[:, 1:], axis=0)) == len(COLOURS) * len(STATES)


def test_the_agent_stands_on_nothing_but_what_it_carries():
    carried = {KINDS[view[(*AGENT_CELL, 0)]] for view in rooms(500)}
    assert carried == {"empty", "key", "ball", "box"}


def test_rooms_follow_their_seed():
    np.testing.assert_array_equal(rooms(20, seed=3), rooms(20, seed=3))
    assert (rooms(20, seed=3) != rooms(20, seed=4)).any()


def test_play_follows_its_seed_and_shows_views_of_its_tasks():
    tasks = ["MiniGrid-Empty-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"]
    first, again, other = (
        np.stack(list(islice(played_views(tasks, seed), 150))) for seed in (5, 5, 6)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    shown = {KINDS[kind] for kind in np.unique(first[..., 0])}
    assert shown <= {"unseen", "empty", "wall", "goal", "ball"}
    assert (first[..., 0] == WALL).any()


def test_an_unknown_task_is_not_played():
    with pytest.raises(AssertionError, match="MiniGrid-Nowhere"):
        next(played_views(["MiniGrid-Nowhere-v0"], 0))
