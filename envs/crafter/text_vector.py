"""The game in words as a vector environment: phrases as actions, sentences beside pictures."""

import string
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Text
from gymnasium.vector.utils import batch_space

from envs.converted import ACTION_NAMES
from envs.crafter import words
from envs.crafter.actions import text_commands, text_nouns
from envs.crafter.grey import GREY_SIDE, greyed
from envs.crafter.package import rules_of_text
from envs.crafter.said import Said, said_of_tiles, said_of_worlds
from envs.crafter.step import look_around_target, names_match
from envs.crafter.vector import SIDE, CrafterVectorEnv
from utils.arrays import objects

# What is said of the state that a step has led to, before any reset.
AFTER_STEP = {
    "scene": "last_scene",
    "inventory": "last_inventory",
    "status": "last_status",
    "items": "items_after",
}


class TileReader(Protocol):
    """Reads what each tile of a picture shows."""

    @property
    def fingerprint(self) -> str:
        """Return what tells it from others."""

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Map pictures [R, 3, 64, 64] uint8 to how likely each tile shows what.

        Returns:
            Probabilities of tiles.KINDS, row before column.  [R, K, 9, 9]
        """


class TextGame(NamedTuple):
    """How CrafterText is played.

    Attributes:
        phrases: What the actions are called.
        length: Steps after which an episode is cut off.
        is_grey: Whether pictures are grey, 84 x 84.
        use_text: Whether the sentences are shown beside them.
        dying: Whether an episode ends where no health is left.
        reads_pixels: Whether what is said is read from pictures.
    """

    phrases: tuple[str, ...]
    length: int
    is_grey: bool = True
    use_text: bool = True
    dying: bool = True
    reads_pixels: bool = False


class CrafterTextVectorEnv(CrafterVectorEnv):
    """The game of ELLM (Du et al. 2023): actions that are phrases, and sentences beside pictures.

    It says everything in words in `info`, too: after `reset` and `step` "scene", "inventory",
    "status" and "items" of the state in which the next action is taken; of the step just taken
    "phrase", "action_success", "eval_success", "unlocked", and of the state it led to, before any
    reset, "around_target", "items_after", "last_scene", "last_inventory" and "last_status".  [N]

    Args:
        n_envs: Number of environments.
        seed: Of the run.
        game: What is shown, and how it is played.

    Attributes:
        tile_reader: Reads coloured pictures, as the agent sees them or would, where the game says
            what is in these; it must be given before the first `reset`.
    """

    tile_reader: TileReader | None = None

    def __init__(self, n_envs: int, seed: int, game: TextGame) -> None:
        super().__init__(n_envs, seed, game.length, text_commands(game.phrases), rules_of_text())
        self.metadata[ACTION_NAMES] = game.phrases
        self._game = game
        self._phrases = np.array(game.phrases, dtype=object)
        self._nouns = text_nouns(game.phrases)
        self._matched = np.zeros(n_envs, bool)
        self._around = np.zeros((n_envs, 3, 3), np.uint8)
        self._said: list[Said] = []  # of what has been observed in this step
        self._set_spaces()

    def _set_spaces(self) -> None:
        """Say in the spaces what is shown."""
        shape = (1, GREY_SIDE, GREY_SIDE) if self._game.is_grey else (3, SIDE, SIDE)
        parts: dict[str, gymnasium.Space] = {"image": Box(0, 255, shape, np.uint8)}
        if self._game.use_text:
            letters = string.ascii_lowercase + " ,._"
            parts["caption"] = Text(words.MOST_LETTERS, charset=letters)
        self.single_observation_space = gymnasium.spaces.Dict(parts)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode everywhere and say what the players see."""
        self._said.clear()
        images, info = super().reset(seed=seed, options=options)
        (said,) = self._said
        return self._shown(images, said), info | said.info({})

    def step(
        self, actions: np.ndarray
    ) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take one step everywhere, and say what was done and what the players see now."""
        self._said.clear()
        images, rewards, terminated, truncated, info = super().step(actions)
        last, *fresh = self._said
        said, rows = last, np.flatnonzero(terminated | truncated)
        if fresh:
            said = last.replaced(rows, *fresh)
            finals = self._shown(info["final_obs"], last)
            for row in rows:
                info["final_obs"][row] = {name: part[row] for name, part in finals.items()}
        info |= said.info({}) | last.info(AFTER_STEP) | self._done(np.asarray(actions))
        return self._shown(images, said), rewards, terminated, truncated, info

    def advance(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take one step everywhere and note what can be said of it."""
        names_match(self._worlds, self._nouns[actions], self._matched)
        results = super().advance(actions)
        look_around_target(self._worlds, self._around)
        return results

    def pay(self) -> np.ndarray:
        """Return one where anything has been unlocked.  [N]"""
        return np.asarray(self._news.any(1), np.float64)

    def died(self) -> np.ndarray:
        """Return where the player has no health left, if that matters.  [N]"""
        return super().died() & self._game.dying

    def observe(self, rows: np.ndarray) -> np.ndarray:
        """Draw what players see, and note what there is to say of it.

        Returns:
            [R, 1, 84, 84] grey or [R, 3, 64, 64]
        """
        frames = super().observe(rows)
        self._said.append(self._say(rows, frames))
        return greyed(frames) if self._game.is_grey else frames

    @property
    def reads_pixels(self) -> bool:
        """Whether what is said is read from pictures, by `tile_reader`."""
        return self._game.reads_pixels

    def fingerprints(self) -> dict[str, str]:
        """Return the sha256 of the weights that pictures are read with, if they are."""
        return {"captions": self.tile_reader.fingerprint} if self.tile_reader else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics of episodes that have ended, and what pictures are read with."""
        return super().state_dict() | self.fingerprints()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from saved statistics.

        Raises:
            ValueError: pictures were read by another reader.
        """
        if self.tile_reader and state["captions"] != self.tile_reader.fingerprint:
            raise ValueError("captions: they are read by other weights than when it was saved")
        super().load_state_dict(state)

    def _say(self, rows: np.ndarray, frames: np.ndarray) -> Said:
        """Say what some of the players see, hold and feel, given their pictures [R, 3, 64, 64]."""
        if self.reads_pixels:
            assert self.tile_reader is not None, "whoever opens the game gives it one"
            return said_of_tiles(self.tile_reader(frames))
        everywhere = len(rows) == self.num_envs  # taking rows of worlds copies them
        return said_of_worlds(self._worlds if everywhere else self._worlds[rows])

    def _shown(self, images: np.ndarray, said: Said) -> dict[str, Any]:
        """Return images, and beside each what is said as one text."""
        return {"image": images} | ({"caption": said.captions()} if self._game.use_text else {})

    def _done(self, actions: np.ndarray) -> dict[str, np.ndarray]:
        """Return what there is to say of the step just taken."""
        around = (words.names_around(cells.tobytes()) for cells in self._around)
        return {
            "phrase": self._phrases[actions],
            "action_success": self._changed | self._matched,
            "eval_success": self._changed.copy(),
            "around_target": objects(around),
        }
