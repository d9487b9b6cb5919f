"""Answers of language models, kept in one SQLite file that processes share and people pass on.

A row is a question: the sha256 of the model, the prompt and all parameters. The first answer is
kept, so all processes that share a file suggest the same. A read-only file is read into memory,
where new answers are added.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import quote

from utils.errors import RunError, UserError
from utils.files import cache_folder, check_writable, file_lock

# "HELM" in the file's header: another program's database is refused.
APPLICATION = int.from_bytes(b"HELM")
VERSION = 1
WAIT_SECONDS = 30.0  # for another process that is writing
TABLES = f"""
BEGIN IMMEDIATE;
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {VERSION};
CREATE TABLE answers (
    key TEXT PRIMARY KEY, model TEXT, question TEXT, parameters TEXT, answer TEXT,
    tokens INTEGER, seconds REAL, answered REAL
) WITHOUT ROWID;
CREATE TABLE budgets (run TEXT PRIMARY KEY, asked INTEGER) WITHOUT ROWID;
COMMIT;
"""


class CompletionRequest(NamedTuple):
    """A question to a language model.

    Attributes:
        model: The sha256 of its weights, or its name on a server.
        text: The prompt.
        parameters: All else that the answer depends on.
        shown: The part of the prompt that differs between questions, for readers of the file.
    """

    model: str
    text: str
    parameters: Mapping[str, Any]
    shown: str = ""

    @property
    def key(self) -> str:
        whole = json.dumps([self.model, self.text, self.parameters], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()


class Completion(NamedTuple):
    text: str
    tokens: int = 0
    seconds: float = 0.0


class AnswerCache:
    """The answers in one file, which may be read-only; UserError if it is unusable.

    `option` is the one that named the file, for messages.
    """

    def __init__(
        self, path: Path, option: str = "suggester_cache", read_only: bool = False
    ) -> None:
        self.named = f"{option} {path}"
        if path.exists() and not path.is_file():
            raise UserError(f"{self.named}: not a file. Name a file, in a folder")
        self.path, self._lock = path, Lock()
        # Without locks, and without the newest answers of a process that is writing.
        self._immutable = path.exists() and not os.access(path, os.W_OK)
        self._read_only = read_only or self._immutable
        with self._explained(UserError):
            self.connection = self._opened()

    def find(self, questions: Sequence[CompletionRequest]) -> list[Completion | None]:
        ask = "SELECT answer, tokens, seconds FROM answers WHERE key = ?"
        with self._explained():
            rows = [self.connection.execute(ask, (each.key,)).fetchone() for each in questions]
        return [None if row is None else Completion(*row) for row in rows]

    def keep(self, question: CompletionRequest, answer: Completion) -> Completion:
        """Keep an answer; return it, or the earlier one of another process."""
        parameters = json.dumps(question.parameters, sort_keys=True)
        row = question.key, question.model, question.shown or question.text, parameters, *answer
        with self._explained(), self.connection:
            # The first answer stays: two runs that share the file then learn from the same one.
            insert = "INSERT OR IGNORE INTO answers VALUES (?,?,?,?,?,?,?,?)"
            self.connection.execute(insert, (*row, time.time()))
        (kept,) = self.find([question])
        return kept or answer

    def drop(self, question: CompletionRequest) -> None:
        with self._explained(), self.connection:
            self.connection.execute("DELETE FROM answers WHERE key = ?", (question.key,))

    def spend(self, run: str, asked: int) -> int:
        """Record the number of requests of a run; return the largest ever recorded."""
        with self._explained(), self.connection:
            (most,) = self.connection.execute(
                "INSERT INTO budgets VALUES (?, ?) ON CONFLICT (run) "
                "DO UPDATE SET asked = max(asked, excluded.asked) RETURNING asked",
                (run, asked),
            ).fetchone()
        return int(most)

    def _opened(self) -> sqlite3.Connection:
        mode = "ro&immutable=1" if self._immutable else "ro" if self._read_only else "rwc"
        place = f"file:{quote(str(self.path.absolute()))}?mode={mode}"
        # A second thread may count its requests: a lock lets in one at a time.
        connection = sqlite3.connect(place, uri=True, timeout=WAIT_SECONDS, check_same_thread=False)
        if self._read_only:
            self._is_ours(connection)
            in_memory = sqlite3.connect(":memory:", check_same_thread=False)
            # A file that others write to is read once, as it is now.
            connection.backup(in_memory)
            connection.close()
            return in_memory
        connection.execute("PRAGMA synchronous = NORMAL")
        if not self._is_ours(connection):
            with file_lock(self.path):  # SQLite itself does not lock a file that is being made
                if not self._is_ours(connection):
                    # Readers do not wait for a writer then.
                    connection.execute("PRAGMA journal_mode = WAL")
                    connection.executescript(TABLES)
        return connection

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if (application, version) == (APPLICATION, VERSION):
            return True
        (n_tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        # Only an empty file becomes ours: tables in another one belong to somebody.
        if n_tables or self._read_only:
            raise sqlite3.DatabaseError("it is an SQLite file of something else")
        return False

    @contextmanager
    def _explained(self, kind: type[Exception] = RunError) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.Error as error:
            reason, advice = str(error).rstrip("."), "Move it away, or name another file"
            if "locked" in reason or "busy" in reason:
                advice = "Another program holds it: end that, or name another file"
            raise kind(f"{self.named}: cannot be used ({reason}). {advice}") from error


def open_cache(name: str | None) -> AnswerCache:
    """Return the answers of the file that `suggester_cache` names; UserError if it is unusable."""
    path = Path(name or cache_folder() / "suggestions.sqlite")
    if not path.exists():
        check_writable(path.parent, "suggester_cache")
        path.parent.mkdir(parents=True, exist_ok=True)
    return AnswerCache(path)
