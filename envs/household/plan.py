"""Plans of houses: a row a room, a square a receptacle, a dot a thing."""

import numpy as np

from envs.household.rules import NONE, Households

SQUARE = 22  # pixels of a receptacle, its frame included
DOT, GAP, PER_ROW = 5, 1, 3
MOST_DOTS = PER_ROW * PER_ROW
WALL, FLOOR, UNKNOWN = (70, 70, 70), (250, 250, 250), (205, 205, 205)
RIGHT, WRONG, HELD, AGENT = (40, 150, 60), (210, 50, 40), (255, 150, 0), (40, 100, 230)
PICTURE_LEGEND = (
    "a row a room, a square a receptacle; blue frame: the agent; green: a thing where it belongs; "
    "red: one that is misplaced; orange: one that is held; grey: rooms not seen yet"
)


def drawn_plans(households: Households) -> tuple[np.ndarray, ...]:
    """Return a plan of every house.  [H, W, 3] uint8 each"""
    return tuple(_plan(households, row) for row in range(len(households.at)))


def _plan(households: Households, row: int) -> np.ndarray:
    house = households.house
    n_columns = int(house.numbers_in_room.max()) + 1
    plan = np.full((len(house.rooms) * SQUARE, n_columns * SQUARE, 3), WALL, np.uint8)
    corners = zip(house.room_of.tolist(), house.numbers_in_room.tolist(), strict=True)
    squares = [_square(plan, *corner) for corner in corners]
    for square, room in zip(squares, house.room_of.tolist(), strict=True):
        is_known = int(households.known_rooms[row]) >> room & 1
        square[1:-1, 1:-1] = FLOOR if is_known else UNKNOWN
    here = squares[int(households.at[row])]
    inside = here[2:-2, 2:-2].copy()
    here[:], here[2:-2, 2:-2] = AGENT, inside
    for square, colours in zip(squares, _dots(households, row), strict=True):
        for number, colour in enumerate(colours[:MOST_DOTS]):
            _draw_dot(square, number, colour)
    return plan


def _dots(households: Households, row: int) -> list[list[tuple[int, int, int]]]:
    """Return the colours of the things in every place; what is held is where the agent is."""
    house = households.house
    dots: list[list[tuple[int, int, int]]] = [[] for _ in house.places]
    pairs = zip(households.kinds[row].tolist(), households.places[row].tolist(), strict=True)
    for kind, place in sorted(pairs, key=lambda pair: pair[1]):  # what is held first
        if place == NONE:
            dots[int(households.at[row])].append(HELD)
        else:
            dots[place].append(RIGHT if house.suits[kind, place] else WRONG)
    return dots


def _square(plan: np.ndarray, room: int, number: int) -> np.ndarray:
    """Return the part of a plan that is a receptacle."""
    top, left = room * SQUARE, number * SQUARE
    return plan[top : top + SQUARE, left : left + SQUARE]


def _draw_dot(square: np.ndarray, number: int, colour: tuple[int, int, int]) -> None:
    row, column = divmod(number, PER_ROW)
    first = (SQUARE - PER_ROW * DOT - (PER_ROW - 1) * GAP) // 2
    top, left = (first + each * (DOT + GAP) for each in (row, column))
    square[top : top + DOT, left : left + DOT] = colour
