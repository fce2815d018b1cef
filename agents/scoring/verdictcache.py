"""Answers on disk by content: the same judge (or oracle) never decides the same question twice."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

#: Verdicts written between two looks at the size.
TRIM_EVERY = 1000


class Answers(Protocol):
    """Known answers by the hash of their question."""

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """What is known of these questions."""

    def put(self, verdicts: Iterable[tuple[bytes, int]]) -> None:
        """Keep verdicts."""


class Reasons(Protocol):
    """What a judge gave as its reasons, by the hash of the question."""

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, str]:
        """What is known of these questions."""

    def put(self, reasons: Iterable[tuple[bytes, str]]) -> None:
        """Keep reasons."""


class VerdictCache:
    """An SQLite table from a question's hash to its answer, a small number: of a judge 1 met, 0 not met.

    Unscored is never kept. At most `limit` answers stay; the least recently used ones go first. Several
    threads may use it.
    """

    def __init__(self, path: Path, limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self._lock = threading.Lock()
        self._news: set[bytes] | None = None  # kept since a branch was made
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._open()
        except sqlite3.DatabaseError as error:
            self._db.close()
            told = f"{path}: {error}; it only spares questions that were asked before: move it away"
            raise type(error)(told) from None

    def _open(self) -> None:
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS verdicts (hash BLOB PRIMARY KEY, met INTEGER, used INTEGER)"
        )
        self._db.execute("CREATE INDEX IF NOT EXISTS by_use ON verdicts (used)")
        (newest,) = self._db.execute("SELECT max(used) FROM verdicts").fetchone()
        self._clock = (newest or 0) + 1
        self._trim()

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """What is known of these questions."""
        with self._lock:
            self._clock += 1
            found = self._select(hashes)
            self._db.execute("BEGIN")
            self._db.executemany(
                "UPDATE verdicts SET used = ? WHERE hash = ?", ((self._clock, key) for key in found)
            )
            self._db.execute("COMMIT")
        return found

    def _select(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        for start in range(0, len(hashes), 500):
            part = hashes[start : start + 500]
            marks = ",".join("?" * len(part))
            rows = self._db.execute(f"SELECT hash, met FROM verdicts WHERE hash IN ({marks})", part)
            found |= dict(rows)
        return found

    def branch(self) -> Branch:
        """The cache as it is now, for one who works beside its users. There is one branch at a time."""
        with self._lock:
            self._news = set()
        return Branch(self)

    def end_branch(self) -> None:
        """The branch has been merged."""
        with self._lock:
            self._news = None

    def known_before(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """What was known of these questions when the branch was made (and was not dropped since)."""
        with self._lock:
            return self._select([key for key in hashes if key not in (self._news or ())])

    def put(self, verdicts: Iterable[tuple[bytes, int]]) -> None:
        """Keep verdicts."""
        rows = [(key, int(met), self._clock) for key, met in verdicts]
        if not rows:
            return
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
            if self._news is not None:
                self._news.update(key for key, *_ in rows)
            self._written += len(rows)
            if self._written >= min(TRIM_EVERY, self.limit):
                self._trim()

    def _trim(self) -> None:
        self._written = 0
        (size,) = self._db.execute("SELECT count(*) FROM verdicts").fetchone()
        if size > self.limit:
            self._db.execute(
                "DELETE FROM verdicts WHERE hash IN (SELECT hash FROM verdicts ORDER BY used LIMIT ?)",
                (size - self.limit,),
            )

    def __len__(self) -> int:
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM verdicts").fetchone()[0])

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


class Branch:
    """A cache as it was at one moment, and what its own user finds out.

    Neither side sees what the other one keeps until `merge`: who asks a question, and who is spared it,
    does not depend on who was faster.
    """

    def __init__(self, cache: VerdictCache) -> None:
        self.cache = cache
        self._own: dict[bytes, int] = {}

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, int]:
        """What is known of these questions."""
        own = {key: self._own[key] for key in hashes if key in self._own}
        return self.cache.known_before(hashes) | own

    def put(self, verdicts: Iterable[tuple[bytes, int]]) -> None:
        """Keep verdicts here."""
        self._own.update((key, int(met)) for key, met in verdicts)

    def merge(self) -> None:
        """Give the cache what was found out here."""
        self.cache.put(self._own.items())
        self.cache.end_branch()
