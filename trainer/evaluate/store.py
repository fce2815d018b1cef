"""Responses on disk by content: a policy is never asked twice for the same one."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .policies import Ask, Reply


class ResponseStore:
    """An SQLite table from what was asked of which policy to what it replied."""

    def __init__(self, path: Path) -> None:
        self._db = _opened(path)
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS responses (key BLOB PRIMARY KEY, text TEXT, finished INTEGER)"
        )

    def get(self, identity: str, ask: Ask) -> Reply | None:
        """What the policy replied, if it is known."""
        row = self._db.execute(
            "SELECT text, finished FROM responses WHERE key = ?", (_key(identity, ask),)
        ).fetchone()
        return None if row is None else Reply(json.loads(row[0]), bool(row[1]))

    def put(self, identity: str, ask: Ask, reply: Reply) -> None:
        """Keep a reply. As JSON: a response may hold half of a surrogate pair."""
        row: tuple[Any, ...] = (_key(identity, ask), json.dumps(reply.text), int(reply.finished))
        self._db.execute("INSERT OR REPLACE INTO responses VALUES (?, ?, ?)", row)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


class ReasonStore:
    """An SQLite table from the hash of what a judge was asked to the reason that it gave.

    Several threads may use it.
    """

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._db = _opened(path)
        self._db.execute("CREATE TABLE IF NOT EXISTS reasons (hash BLOB PRIMARY KEY, text TEXT)")

    def get(self, hashes: Sequence[bytes]) -> dict[bytes, str]:
        """What is known of these questions."""
        found: dict[bytes, str] = {}
        with self._lock:
            for start in range(0, len(hashes), 500):
                part = hashes[start : start + 500]
                marks = ",".join("?" * len(part))
                rows = self._db.execute(f"SELECT hash, text FROM reasons WHERE hash IN ({marks})", part)
                found |= {key: json.loads(text) for key, text in rows}
        return found

    def put(self, reasons: Iterable[tuple[bytes, str]]) -> None:
        """Keep reasons. As JSON, like responses."""
        rows = [(key, json.dumps(text)) for key, text in reasons]
        with self._lock:
            self._db.executemany("INSERT OR REPLACE INTO reasons VALUES (?, ?)", rows)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()


def _opened(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    return db


def _key(identity: str, ask: Ask) -> bytes:
    content = json.dumps([identity, ask.prompt, ask.temperature, ask.max_tokens, ask.seed, ask.key])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
