"""Sentences by number, and what a frozen part of an agent makes of each, once."""

import hashlib
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

HASH_BYTES = 8
LEAST_ROOM = 64  # rows


class SentenceTable:
    """The different sentences that a run has met, each under a number.

    A number follows from its sentence alone: what other environments, an evaluation in between or
    an earlier part of the run have met before changes nothing.

    Attributes:
        version: Changes whenever the table does.
        generation: Changes where it is replaced by another.
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._number_of: dict[str, int] = {}
        self.version = self.generation = 0

    def __len__(self) -> int:
        return len(self._texts)

    def items(self, begin: int = 0) -> Iterable[tuple[int, str]]:
        """Return numbers and sentences from one on, in the order they were met."""
        return itertools.islice(self._texts.items(), begin, None)

    def numbers(self, texts: Iterable[Any]) -> list[int]:
        """Return the number of each of n sentences, those that are new included."""
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
        """Return all sentences."""
        return list(self._number_of)

    def load_state_dict(self, state: list[str]) -> None:
        """Know these sentences and no others.

        Raises:
            ValueError: it is no list of sentences.
        """
        if type(state) is not list or not all(type(text) is str for text in state):
            raise ValueError("sentences: not a list of texts")
        self._texts, self._number_of = {}, {}
        self.version += 1
        self.generation += 1
        self.numbers(state)

    def _number(self, text: str) -> int:
        if text not in self._number_of:
            digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES)
            number = int.from_bytes(digest.digest(), "little", signed=True)
            if number in self._texts:
                raise RuntimeError(f"{text!r} and {self._texts[number]!r} have one number")
            self._texts[number], self._number_of[text] = text, number
            self.version += 1
        return self._number_of[text]


class SentenceVectors:
    """What a frozen function makes of sentences: a table that grows by a row for each new one.

    Sentences are read one at a time, so that no row depends on what else was new. Nothing here is
    trained or saved, and copies of an agent share it.

    Args:
        sentences: Those there are.
        read: Map a sentence to its row [...], all of one shape.
    """

    def __init__(self, sentences: SentenceTable, read: Callable[[str], Tensor]) -> None:
        self._sentences, self._read = sentences, read
        self._version = self._generation = -1  # of the table when it was last looked through
        self._n_looked_through = 0  # of its sentences
        self._known: set[int] = set()
        self._numbers = torch.empty(0, dtype=torch.int64)  # ascending [V]
        self._row_of = torch.empty(0, dtype=torch.int64)  # where each number's row stands [V]
        self._rows: Tensor | None = None  # V in the order they were read, and room for more

    def __deepcopy__(self, copied: dict[int, Any]) -> "SentenceVectors":
        """Return this one."""
        return self

    def __call__(self, numbers: Tensor) -> Tensor:
        """Return the rows of sentences by their numbers [N, K] int64.  [N, K, ...]

        What is the number of no sentence, as behind the end of an episode in replay, has any row.
        """
        if self._version != self._sentences.version:
            self._grow(numbers.device)
        assert self._rows is not None, "whoever has a number has met a sentence"
        places = torch.searchsorted(self._numbers, numbers)
        return self._rows[self._row_of[places.clamp(max=len(self._numbers) - 1)]]

    @torch.no_grad()
    def _grow(self, device: torch.device) -> None:
        """Read the sentences that are new."""
        table = self._sentences
        begin = self._n_looked_through if table.generation == self._generation else 0
        new = {number: text for number, text in table.items(begin) if number not in self._known}
        self._version, self._generation = table.version, table.generation
        self._n_looked_through = len(table)
        if new:
            self._append(torch.stack([self._read(text) for text in new.values()]).to(device))
            self._insert(torch.tensor(list(new), device=device))
            self._known.update(new)

    def _append(self, rows: Tensor) -> None:
        """Put rows [n, ...] behind those there are, where there is room for them.

        Room is doubled, so that a run that keeps meeting sentences does not copy all of them each
        time.
        """
        n_rows = len(self._known)
        n_wanted = n_rows + len(rows)
        if self._rows is None or n_wanted > len(self._rows):
            room = rows.new_empty(max(LEAST_ROOM, 2 * n_wanted), *rows.shape[1:])
            if self._rows is not None:
                room[:n_rows] = self._rows[:n_rows]
            self._rows = room
        self._rows[n_rows:n_wanted] = rows

    def _insert(self, new: Tensor) -> None:
        """Take numbers [n], whose rows come last, into the ascending ones."""
        new, order = new.sort()
        known, n_known = self._numbers.to(new.device), len(self._numbers)
        places = torch.searchsorted(known, new) + torch.arange(len(new), device=new.device)
        is_new = torch.zeros(n_known + len(new), dtype=torch.bool, device=new.device)
        is_new[places] = True
        numbers, row_of = (torch.empty_like(is_new, dtype=torch.int64) for _ in range(2))
        numbers[is_new], numbers[~is_new] = new, known
        row_of[is_new], row_of[~is_new] = n_known + order, self._row_of.to(new.device)
        self._numbers, self._row_of = numbers, row_of
