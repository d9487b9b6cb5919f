from itertools import islice

import numpy as np
import pytest
from minigrid.core.constants import COLOR_TO_IDX, OBJECT_TO_IDX, STATE_TO_IDX
from minigrid.core.grid import Grid
from minigrid.core.world_object import Wall

from envs.minigrid import AGENT_CELL, draw
from envs.minigrid_captions import (
    COLOURS,
    DOOR,
    KINDS,
    STATES,
    TASKS,
    WALL,
    CaptionBatches,
    caption,
    mixed_views,
    object_cells,
    played_views,
    random_rooms,
    visible_cells,
)

AHEAD = (3, 5)


def view_of(things):
    """Return an empty room with things such as "locked red door" at places."""
    view = np.zeros((7, 7, 3), np.uint8)
    view[..., 0] = KINDS.index("empty")
    for place, words in things.items():
        *state, colour, noun = words.split()
        number = STATES.index(state[0]) if state else 0
        view[place] = KINDS.index(noun), COLOURS.index(colour), number
    return view


@pytest.mark.parametrize(
    ("things", "expected"),
    [
        ({}, "an empty room"),
        ({AHEAD: "grey wall"}, "a wall"),
        ({(3, 4): "grey wall"}, "an empty room"),
        ({(0, 0): "red key"}, "a red key"),
        ({(0, 0): "red key", AHEAD: "grey wall"}, "a red key"),
        ({(2, 2): "open blue door"}, "an open blue door"),
        ({(2, 2): "locked grey door"}, "a locked grey door"),
        ({(5, 1): "closed blue door", (4, 4): "red key"}, "a red key and a closed blue door"),
        ({(4, 4): "red key", (1, 1): "red key"}, "a red key"),
        ({(4, 4): "red lava", (1, 1): "red lava", (0, 0): "green goal"}, "lava and a green goal"),
        ({AGENT_CELL: "yellow ball"}, "a carried yellow ball"),
        (
            {AGENT_CELL: "yellow key", AHEAD: "yellow key", (0, 0): "purple box"},
            "a carried yellow key and a yellow key",
        ),
    ],
)
def test_captions_name_the_two_nearest_different_things(things, expected):
    assert caption(view_of(things)) == expected


def test_batches_are_drawn_views_with_their_captions_the_same_for_a_seed():
    def batches(seed):
        return list(CaptionBatches(seed, n_batches=2, batch_size=20))

    views = np.stack(list(islice(mixed_views(seed=7), 20)))
    (images, captions), (others, _) = batches(7)
    np.testing.assert_array_equal(images, draw(views))
    assert captions == [caption(view) for view in views]
    assert sum(len(object_cells(view)) > 0 for view in views) > 15
    (again, _), _ = batches(7)
    np.testing.assert_array_equal(again, images)
    assert (others != images).any()
    assert (batches(8)[0][0] != images).any()


def test_the_symbols_are_minigrids():
    for ours, theirs in ((KINDS, OBJECT_TO_IDX), (COLOURS, COLOR_TO_IDX), (STATES, STATE_TO_IDX)):
        assert {name: number for number, name in enumerate(ours)} == theirs


def test_cells_are_visible_where_minigrid_says():
    generator = np.random.default_rng(1)
    opaque = generator.random((200, 7, 7)) < generator.uniform(0, 0.7, (200, 1, 1))
    for cells, seen in zip(opaque, visible_cells(opaque), strict=True):
        grid = Grid(7, 7)
        for place in np.argwhere(cells):
            grid.set(*place, Wall())
        np.testing.assert_array_equal(seen, grid.process_vis(AGENT_CELL))


def test_rooms_show_every_object_colour_and_door_state_as_minigrid_would_write_them():
    views = random_rooms(2000, np.random.default_rng(0))
    for view in views[:100]:
        grid, seen = Grid.decode(view)
        np.testing.assert_array_equal(grid.encode(seen), view)
    carried = {KINDS[view[(*AGENT_CELL, 0)]] for view in views}
    assert carried == {"empty", "key", "ball", "box"}
    cells = views.reshape(-1, 3)
    doors = cells[cells[:, 0] == DOOR]
    assert set(KINDS) - {KINDS[kind] for kind in np.unique(cells[:, 0])} == {"floor", "agent"}
    assert len(np.unique(doors[:, 1:], axis=0)) == len(COLOURS) * len(STATES)


def test_families_that_are_held_out_to_try_an_encoder_are_not_played():
    played = {name.split("-")[1].rstrip("0123456789RS") for name in TASKS}
    assert not played & {"GoToObject", "KeyCorridor", "LavaGap", "Memory", "RedBlueDoors"}
    assert len(played) > 10


def test_play_follows_its_seed_and_shows_views_of_its_tasks():
    tasks = ["MiniGrid-Empty-5x5-v0", "MiniGrid-Dynamic-Obstacles-5x5-v0"]
    plays = (islice(played_views(tasks, seed), 150) for seed in (5, 5, 6))
    first, again, other = (np.stack(list(play)) for play in plays)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    shown = {KINDS[kind] for kind in np.unique(first[..., 0])}
    assert shown <= {"unseen", "empty", "wall", "goal", "ball"}
    assert (first[..., 0] == WALL).any()
