from itertools import islice

import numpy as np
import pytest

from envs.minigrid import AGENT_CELL, draw
from envs.minigrid_captions import (
    HELD_OUT_TASKS,
    TASKS,
    CaptionBatches,
    caption,
    mixed_views,
    object_cells,
    only_object,
)
from envs.minigrid_views import COLOURS, KINDS, STATES

pytest.importorskip("minigrid")

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


def test_what_is_not_seen_is_not_told():
    view = view_of({})
    view[:, :5] = 0
    assert caption(view) == "an empty room"


@pytest.mark.parametrize(
    ("things", "noun"),
    [
        ({}, None),
        ({AHEAD: "grey wall"}, None),
        ({AHEAD: "grey wall", (1, 2): "red lava"}, "lava"),
        ({AGENT_CELL: "grey box"}, "box"),
        ({(1, 2): "red key", (2, 2): "red key"}, None),
    ],
)
def test_one_object_is_told_from_none_and_several(things, noun):
    assert only_object(view_of(things)) == noun


def test_images_are_the_drawn_views_and_captions_describe_them():
    views = np.stack(list(islice(mixed_views(seed=7), 20)))
    (images, captions), *rest = CaptionBatches(seed=7, n_batches=2, batch_size=20)
    np.testing.assert_array_equal(images, draw(views))
    assert captions == [caption(view) for view in views]
    assert len(rest) == 1


def test_batches_are_the_same_each_time_around_and_others_for_other_seeds():
    batches = CaptionBatches(seed=1, n_batches=2, batch_size=8)
    first, again = [captions for _, captions in batches], [captions for _, captions in batches]
    assert first == again
    assert len(batches) == len(first) == 2
    assert first != [captions for _, captions in CaptionBatches(2, n_batches=2, batch_size=8)]


def test_most_views_show_an_object():
    views = list(islice(mixed_views(seed=0), 400))
    assert sum(len(object_cells(view)) > 0 for view in views) > 300


def test_no_family_of_tasks_is_both_played_and_held_out():
    def families(tasks):
        return {name.split("-")[1].rstrip("0123456789RS") for name in tasks}

    assert not families(TASKS) & families(HELD_OUT_TASKS)
    assert len(families(TASKS)) > 10
