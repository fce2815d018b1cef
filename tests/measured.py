"""What the tests of `harnessrl evaluate` share: tasks, scripted policies, and reading results."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny
from scripted_endpoint import Body, Reply, question

#: Four rows as MedQA has them; B is right.
MEDQA = [
    {
        "question": f"Which one is number {i}?",
        "options": {"A": "the first", "B": "the second", "C": "the third", "D": "the fourth"},
        "answer": "the second",
        "answer_idx": "B",
    }
    for i in range(4)
]

WORDS = ("lamp", "river", "stone", "cloud")


def result(out: Path) -> dict[str, Any]:
    """The JSON of an evaluation."""
    found: dict[str, Any] = json.loads((out / "evaluation.json").read_text())
    return found


def score(policy: dict[str, Any], set_name: str, metric: str, mode: str = "greedy") -> dict[str, Any]:
    """One row over a whole set."""
    (row,) = [
        row
        for row in policy["rows"]
        if (row["set_name"], row["part"], row["metric"], row["mode"]) == (set_name, "", metric, mode)
    ]
    return dict(row)


def held_out(n: int) -> list[dict[str, Any]]:
    """Tasks whose rubric is decided by checks."""
    return [
        {
            "id": f"held-{i}",
            "domain": f"domain-{i % 2}",
            "prompt": f"Write about task number {i}.",
            "rubric": [
                {"text": f"says {word}", "points": 1, "check": {"kind": "mentions", "terms": [word]}}
                for word in WORDS
            ]
            + [{"text": "shouts", "points": -4, "check": {"kind": "regex", "pattern": "!"}}],
        }
        for i in range(n)
    ]


def saying(texts: Callable[[str], str]) -> Callable[[Body], Reply]:
    """A policy that answers a prompt with a text."""
    return lambda body: Reply(texts(question(body)))


def n_of(prompt: str) -> int:
    """The number in a task's prompt."""
    return int(prompt.rstrip(".").split()[-1])


def n_stored(path: Path, table: str = "responses") -> int:
    """Responses on disk, or verdicts."""
    if not path.exists():
        return 0
    with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
    return 0


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A JSONL file."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(tiny.join([json.dumps(row) for row in rows]))
    return path
