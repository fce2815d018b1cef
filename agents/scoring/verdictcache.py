"""Answers on disk by content: the same judge (or oracle) never decides the same question twice."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Verdicts written between two looks at the size.
TRIM_EVERY = 1000


class VerdictCache:
    """An SQLite table from a question's hash to its answer, a small number: of a judge 1 met, 0 not met.

    Unscored is never kept. At most `limit` answers stay; the least recently used ones go first. Several
    threads may use it.
    """

    def __init__(self, path: Path, limit: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.limit = limit
        self._lock = threading.Lock()
        self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
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
        found: dict[bytes, int] = {}
        with self._lock:
            self._clock += 1
            for start in range(0, len(hashes), 500):
                part = hashes[start : start + 500]
                marks = ",".join("?" * len(part))
                rows = self._db.execute(f"SELECT hash, met FROM verdicts WHERE hash IN ({marks})", part)
                found |= dict(rows)
            self._db.execute("BEGIN")
            self._db.executemany(
                "UPDATE verdicts SET used = ? WHERE hash = ?", ((self._clock, key) for key in found)
            )
            self._db.execute("COMMIT")
        return found

    def put(self, verdicts: Iterable[tuple[bytes, int]]) -> None:
        """Keep verdicts."""
        rows = [(key, int(met), self._clock) for key, met in verdicts]
        if not rows:
            return
        with self._lock:
            self._db.execute("BEGIN")
            self._db.executemany("INSERT OR REPLACE INTO verdicts VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
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
