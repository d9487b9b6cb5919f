"""Observations by kind, the inputs of an agent at one step, and running statistics of numbers."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional as F

from utils.environments import Observation
from utils.errors import UserError

ACTION_MASK = "action_mask"  # the key of an observation that says which actions are allowed
TEXT_DTYPE = "U"  # the kind of dtype of Gymnasium's Text, and of MiniGrid's MissionSpace
CLIP, EPSILON = 10.0, 1e-8  # of normalised numbers, and what is added to their variance


class Observations(NamedTuple):
    """The observations of N environments at one step; a kind that an environment lacks is None.

    Attributes:
        images: [N, C, H, W] uint8
        vectors: Numbers, discrete ones as one-hot vectors.  [N, F] float32
        text: Numbers of sentences in the reader's table.  [N, K] int64
        action_masks: Whether an action is allowed.  [N, A] bool
        last_step: For agents that read them: the last action, a discrete one as a one-hot vector,
            and the last reward, as the environment paid it; zeros where an episode begins.
            [N, A+1] float32
    """

    images: Tensor | None = None
    vectors: Tensor | None = None
    text: Tensor | None = None
    action_masks: Tensor | None = None
    last_step: Tensor | None = None

    def map(self, function: Callable[..., Tensor], *others: "Observations") -> "Observations":
        kinds = zip(self, *others, strict=True)
        return Observations(*(None if kind[0] is None else function(*kind) for kind in kinds))

    def tensors(self) -> dict[str, Tensor]:
        return {name: kind for name, kind in self._asdict().items() if kind is not None}

    def any(self) -> Tensor:
        return next(kind for kind in self if kind is not None)


@dataclass(frozen=True)
class ObservationBatch:
    """B observations to learn from: rows of the stored ones, in any order.

    Attributes:
        stored: P observations, which stay as they are.
        rows: Their rows in `stored`; None for all.  [B] int64
        found: An encoder's results for all stored ones, shared by the batches of one update.
    """

    stored: Observations
    rows: Tensor | None = None
    found: dict[str, Any] = field(default_factory=dict)

    def select(self, rows: Tensor) -> "ObservationBatch":
        """Return the observations of some rows of this batch.  [B'] int64"""
        rows = rows if self.rows is None else self.rows[rows]
        return ObservationBatch(self.stored, rows, self.found)

    def picked(self, stored: Tensor) -> Tensor:
        return stored if self.rows is None else stored[self.rows]

    @property
    def selected(self) -> Observations:
        """[B, ...] of each kind"""
        return self.stored.map(self.picked)

    @property
    def images(self) -> Tensor | None:
        """[B, C, H, W] uint8"""
        return None if self.stored.images is None else self.picked(self.stored.images)

    @property
    def vectors(self) -> Tensor | None:
        """[B, F] float32"""
        return None if self.stored.vectors is None else self.picked(self.stored.vectors)

    @property
    def text(self) -> Tensor | None:
        """[B, K] int64"""
        return None if self.stored.text is None else self.picked(self.stored.text)

    @property
    def action_masks(self) -> Tensor | None:
        """[B, A] bool"""
        return None if self.stored.action_masks is None else self.picked(self.stored.action_masks)

    @property
    def last_step(self) -> Tensor | None:
        """[B, A+1] float32"""
        return None if self.stored.last_step is None else self.picked(self.stored.last_step)

    @property
    def is_cuda(self) -> bool:
        return self.stored.any().is_cuda


class AgentInput(NamedTuple):
    """The inputs of an agent at one step of N environments.

    Attributes:
        is_first: Whether an episode begins with this observation.  [N] bool
        last_actions: 0 where an episode begins.  [N] int64, or [N, A] float32 of a Box
        last_rewards: The environment's own reward for them; 0 where one begins.  [N] float32
        tokens: As a frozen memory has read them, of a recorded step; else None.  [N, K, D]
    """

    observations: Observations
    is_first: Tensor
    last_actions: Tensor
    last_rewards: Tensor
    tokens: Tensor | None = None

    @property
    def n_envs(self) -> int:
        return len(self.is_first)

    @classmethod
    def first(cls, observations: Observations, action_shape: Sequence[int] = ()) -> "AgentInput":
        shown = observations.any()
        is_first = torch.ones(len(shown), dtype=torch.bool, device=shown.device)
        kind = torch.float32 if action_shape else torch.int64
        nothing = torch.zeros(len(shown), *action_shape, dtype=kind, device=shown.device)
        return cls(observations, is_first, nothing, is_first * 0.0)

    @classmethod
    def after(
        cls, observations: Observations, actions: Tensor, rewards: np.ndarray, ended: np.ndarray
    ) -> "AgentInput":
        """Return the percept that follows actions [N] or [N, A] with rewards [N].

        `ended` [N] bool marks an episode's last step: the observation begins another.
        """
        is_first = torch.as_tensor(ended, device=actions.device)
        paid = torch.tensor(rewards, dtype=torch.float32, device=actions.device)
        if ended.any():
            actions, paid = zero_where(is_first, actions), paid.masked_fill(is_first, 0.0)
        return cls(observations, is_first, actions, paid).showing(observations)

    def showing(self, observations: Observations) -> "AgentInput":
        """Return this input with other observations; these get its `last_step` if they have one."""
        if observations.last_step is not None:
            n_actions, actions = observations.last_step.shape[1] - 1, self.last_actions
            if not actions.is_floating_point():
                actions = F.one_hot(actions, n_actions)
            last_step = torch.cat((actions, self.last_rewards[:, None]), dim=1)
            last_step = last_step.masked_fill(self.is_first[:, None], 0.0)
            observations = observations._replace(last_step=last_step)
        return self._replace(observations=observations)


def zero_where(is_first: Tensor, actions: Tensor) -> Tensor:
    """Return actions [...] or [..., A], 0 where `is_first` [...]."""
    at = is_first if actions.ndim == is_first.ndim else is_first[..., None]
    return actions.masked_fill(at, 0)


Percept = AgentInput  # the earlier name, understood for one version


class Moments(NamedTuple):
    """Count n, mean, and sum of squared differences from it; numbers, or tensors by element."""

    count: Any
    mean: Any
    squares: Any

    @classmethod
    def of(cls, rows: Any) -> "Moments":
        """Return those of a tensor's rows [B, F], in double precision.  [F] each"""
        rows = rows.double()
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).square().sum(0))

    def merged(self, other: "Moments") -> "Moments":
        """Return the moments of both (Chan, Golub and LeVeque 1979, updating formulas).

        M2 = M2_a + M2_b + (mean_b - mean_a)^2 * n_a * n_b / (n_a + n_b)
        """
        total = self.count + other.count
        difference = other.mean - self.mean
        squares = self.squares + other.squares
        squares = squares + difference * difference * self.count * other.count / total
        return Moments(total, self.mean + difference * other.count / total, squares)


class RunningMeanVariance:
    """Mean and population variance of all values seen so far, as float64.

    Before the first value the variance is 1, with the weight of a ten-thousandth of a value, which
    is included in `count`.
    """

    def __init__(self) -> None:
        self.mean = 0.0
        self.variance = 1.0
        self.count = 1e-4

    def update(self, values: ArrayLike, correction: int = 0) -> None:
        """Add a batch of values of any shape; each element counts once.

        `correction` 1 takes the batch for a sample, so that its own variance is unbiased.
        """
        batch = np.asarray(values, dtype=np.float64)
        if batch.size == 0:
            return
        own = Moments(self.count, self.mean, self.count * self.variance)
        new = Moments(
            batch.size, float(batch.mean()), batch.size * float(batch.var(ddof=correction))
        )
        self.count, self.mean, squares = own.merged(new)
        self.variance = squares / self.count

    def state_dict(self) -> dict[str, float]:
        return {"mean": self.mean, "variance": self.variance, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.mean = float(state["mean"])
        self.variance = float(state["variance"])
        self.count = float(state["count"])


class RunningMoments(nn.Module):
    """The moments of all rows so far, feature by feature, as a part of the state."""

    mean: Tensor
    squares: Tensor
    count: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        # In double precision, since a run adds up millions of rows.
        self.register_buffer("mean", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def update(self, rows: Tensor) -> None:
        self.merge(Moments.of(rows))

    def merge(self, new: Moments) -> None:
        after = Moments(self.count, self.mean, self.squares).merged(new)
        for buffer, value in zip((self.count, self.mean, self.squares), after, strict=True):
            buffer.copy_(value)


class VectorNormalizer(RunningMoments):
    """Normalises the numbers of observations by the moments of all steps so far.

        x' = clip((x - mean) / sqrt(variance + 1e-8), -10, 10)

    The numbers of this equation are those of OpenAI's baselines (VecNormalize). Before the first
    moments x' is 0: as they are, large numbers would saturate networks before any is known to be
    large. Numbers that are not of a Box, such as one-hot vectors, stay as they are. The moments
    change between updates alone, so that an update learns by those that the agent acted by. All
    networks of an agent share them, target networks among them.

    Args:
        is_of_box: Which of the F numbers are those of a Box.  [F] bool
    """

    centre: Tensor
    scale: Tensor
    is_of_box: Tensor

    def __init__(self, is_of_box: Tensor) -> None:
        super().__init__(len(is_of_box))
        self.register_buffer("centre", torch.zeros(len(is_of_box), dtype=torch.float64))
        self.register_buffer("scale", (~is_of_box).double())
        self.register_buffer("is_of_box", is_of_box, persistent=False)

    def __deepcopy__(self, copied: dict[int, object]) -> "VectorNormalizer":
        return self

    def merge(self, new: Moments) -> None:
        super().merge(new)
        # A number that never changed has variance 0, and is divided by the square root of EPSILON.
        scale = (self.squares / self.count + EPSILON).rsqrt()
        self.centre.copy_(self.mean.where(self.is_of_box, 0))
        self.scale.copy_(scale.where(self.is_of_box, 1))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return vectors [..., F] normalised, float32."""
        # In double precision: of 100000 and 100001 it is the difference that counts.
        return ((vectors - self.centre) * self.scale).clamp(-CLIP, CLIP).float()


class ObservationPreprocessor:
    """Turns the observations of a vector environment into tensors by kind.

    `space` is that of one environment: images (uint8, channel first), vectors, discrete or
    multi-discrete numbers, texts, or a dictionary of those, whose images have one size and are
    stacked on channels; others raise UserError. `n_last` is the width of `Observations.last_step`,
    0 without; it is filled by `AgentInput`. `normalizes`: as `normalize_observations`.

    Attributes:
        action_shape: (A,) where actions are vectors of a Box, () where they are discrete.
        image_shape: (C, H, W), None without images.
        n_numbers: F, the width of the vectors; 0 without.
        normalizer: What networks read vectors through, a part of these networks; None: nothing.
        number_names: Names of the F numbers, from their keys ("wind 2", "door = 0"), or "".
        n_texts: K, the sentences of an observation, in the order of their keys; 0 without.
        sentences: All that have been read.
    """

    def __init__(
        self,
        space: spaces.Space,
        n_last: int = 0,
        action_shape: Sequence[int] | None = (),
        normalizes: bool = False,
    ) -> None:
        self._parts, self.n_last = _parts(space, ()), n_last
        self.action_shape = tuple(action_shape or ())
        self.has_mask = any(kind == "action_masks" for _, _, kind in self._parts)
        images = [part for _, part, kind in self._parts if kind == "images"]
        if len({image.shape[1:] for image in images}) > 1:
            raise UserError(f"observations: {space} has images of unequal sizes")
        self.image_shape: tuple[int, ...] | None = None
        if images:
            self.image_shape = sum(image.shape[0] for image in images), *images[0].shape[1:]
        numbers = [(path, part) for path, part, kind in self._parts if kind == "vectors"]
        self.number_names = [name for path, part in numbers for name in _names(path, part)]
        self.n_numbers = len(self.number_names)
        self.normalizer = None
        if normalizes:
            is_of_box = [
                isinstance(part, spaces.Box) for path, part in numbers for _ in _names(path, part)
            ]
            if not any(is_of_box):
                raise UserError(
                    f"normalize_observations: true normalises numbers of a Box, and {space} has "
                    "none. Leave it at false"
                )
            self.normalizer = VectorNormalizer(torch.tensor(is_of_box))
        self.n_texts = sum(kind == "text" for _, _, kind in self._parts)
        self.sentences = SentenceTable()

    def __call__(
        self, observations: Observation, device: torch.device | str = "cpu"
    ) -> Observations:
        images, vectors, texts, masks, last_step = [], [], [], None, None
        for path, space, kind in self._parts:
            shown = observations
            for key in path:
                shown = shown[key]
            if kind == "images":
                images.append(torch.as_tensor(shown, device=device))
            elif kind == "text":
                texts.append(torch.tensor(self.sentences.numbers(shown), device=device))
            elif kind == "action_masks":
                masks = torch.as_tensor(shown, dtype=torch.bool, device=device)
            else:
                numbers = _numbers(shown, space)
                vectors.append(torch.as_tensor(numbers, dtype=torch.float32, device=device))
            n_envs = len(shown)
        if self.n_last:
            last_step = torch.zeros(n_envs, self.n_last, device=device)
        return Observations(
            (images[0] if len(images) == 1 else torch.cat(images, 1)) if images else None,
            torch.cat(vectors, 1) if vectors else None,
            torch.stack(texts, 1) if texts else None,
            masks,
            last_step,
        )


# Keys that lead to a part of an observation through dictionaries, its space, and its kind.
_Part = tuple[tuple[str, ...], Any, str]


def _parts(space: spaces.Space, path: tuple[str, ...]) -> list[_Part]:
    if isinstance(space, spaces.Dict):
        return [part for key in space for part in _parts(space[key], (*path, key))]
    if path == (ACTION_MASK,):
        return [(path, space, "action_masks")]
    n_axes = len(space.shape or ())
    if isinstance(space, spaces.Box) and n_axes == 3 and space.dtype == np.uint8:
        return [(path, space, "images")]
    if space.dtype is not None and space.dtype.kind == TEXT_DTYPE:
        return [(path, space, "text")]
    in_a_row = isinstance(space, spaces.Box | spaces.MultiDiscrete) and n_axes <= 1
    if in_a_row or isinstance(space, spaces.Discrete | spaces.MultiBinary):
        return [(path, space, "vectors")]
    name = ".".join(path) or "the observation"
    raise UserError(
        f"observations: {name} is {space}. Agents see images (uint8, channel first), vectors, "
        "discrete numbers, texts, and dictionaries of those"
    )


def _names(path: tuple[str, ...], space: spaces.Space) -> list[str]:
    key, n_numbers = ".".join(path), int(spaces.flatdim(space))
    if not key or n_numbers == 1:
        return [key] * n_numbers
    if isinstance(space, spaces.Discrete):
        return [f"{key} = {int(space.start) + n}" for n in range(n_numbers)]
    return [f"{key} {n + 1}" for n in range(n_numbers)]


def _numbers(values: np.ndarray, space: spaces.Space) -> np.ndarray:
    """Return numbers as vectors, discrete ones as one-hot vectors.  [N, F]"""
    if isinstance(space, spaces.Discrete):
        return _hot(np.asarray(values)[:, None] - int(space.start), np.array([space.n]))
    if isinstance(space, spaces.MultiDiscrete):
        return _hot(np.asarray(values) - space.start, space.nvec)
    return np.asarray(values, np.float32).reshape(len(values), -1)


def _hot(numbers: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return K one-hot vectors side by side of numbers [N, K], each below its size [K].  [N, F]"""
    if (numbers < 0).any() or (numbers >= sizes).any():
        raise ValueError(f"an environment shows {numbers.tolist()}, numbers below {sizes.tolist()}")
    hot = np.zeros((len(numbers), sizes.sum()), dtype=np.float32)
    np.put_along_axis(hot, numbers + sizes.cumsum() - sizes, 1.0, axis=1)
    return hot


HASH_BYTES = 8


class SentenceTable:
    """The different sentences of a run, each under a number that follows from it alone."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._number_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._texts)

    def text(self, number: int) -> str | None:
        return self._texts.get(number)

    def numbers(self, texts: Iterable[object]) -> list[int]:
        """Return the number of each of n sentences; new ones are added."""
        return [self._number(str(text)) for text in texts]

    def texts(self, numbers: Tensor) -> np.ndarray:
        """Return sentences by their numbers [...].  [...] text"""
        flat = [self._texts[number] for number in numbers.flatten().tolist()]
        return np.array(flat, dtype=np.str_).reshape(tuple(numbers.shape))

    def check(self, numbers: Tensor | None) -> None:
        """Raise ValueError where a number is that of no sentence here."""
        if numbers is not None and not self._texts.keys() >= set(numbers.unique().tolist()):
            raise ValueError("text: a number of a sentence that is not in the table")

    def state_dict(self) -> list[str]:
        return list(self._number_of)

    def load_state_dict(self, state: list[str]) -> None:
        """Replace all sentences; ValueError if `state` is no list of texts."""
        if type(state) is not list or not all(type(text) is str for text in state):
            raise ValueError("sentences: not a list of texts")
        self._texts, self._number_of = {}, {}
        self.numbers(state)

    def _number(self, text: str) -> int:
        if text not in self._number_of:
            # Whatever an environment says has a number, half a surrogate as well.
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES)
            number = int.from_bytes(digest.digest(), "little", signed=True)
            # In a run this hardly happens, and then no sentence is taken for another.
            if number in self._texts:
                raise RuntimeError(f"{text!r} and {self._texts[number]!r} have one number")
            self._texts[number], self._number_of[text] = text, number
        return self._number_of[text]


class SentenceVectors:
    """A frozen function of sentences, as a table that grows by a row for each new one.

    Sentences are read one at a time, so that no row depends on the other new ones. Nothing here is
    trained or saved, and copies of an agent share it. `read` maps a sentence to its row [...].
    """

    def __init__(self, sentences: SentenceTable, read: Callable[[str], Tensor]) -> None:
        self._sentences, self._read = sentences, read
        self._row_of: dict[int | None, int] = {}  # number of a sentence -> its row
        self._rows: Tensor | None = None

    def __deepcopy__(self, copied: dict[int, object]) -> "SentenceVectors":
        return self

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the rows of sentences by their numbers [N, K] int64.  [N, K, ...]

        A number of no sentence, as behind the end of an episode in replay, gets any row.
        """
        different, place = numbers.unique(return_inverse=True)
        wanted = different.tolist()
        self._read_new([each for each in wanted if each not in self._row_of], numbers.device)
        assert self._rows is not None, "a number stands for a sentence in the table"
        # On the device once, for all of the batch.
        rows = torch.tensor([self._row_of.get(each, 0) for each in wanted], device=numbers.device)
        return self._rows[rows[place]]

    @torch.no_grad()
    def _read_new(self, numbers: list[int], device: torch.device) -> None:
        known = ((each, self._sentences.text(each)) for each in numbers)
        new: dict[int | None, str] = {each: text for each, text in known if text is not None}
        if self._rows is None and not new:
            new[None] = ""  # the row of numbers that stand for no sentence
        if not new:
            return
        with torch.autocast(device.type, enabled=False):  # the same rows in any update
            rows = torch.stack([self._read(text) for text in new.values()]).to(device)
        self._rows = rows if self._rows is None else torch.cat((self._rows, rows))
        self._row_of |= zip(new, range(len(self._row_of), len(self._rows)), strict=True)
