"""Anchors: the fixed responses of each task that the oracle measures all others by. A line a task."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from pathlib import Path

from .events import read_jsonl
from .files import append_synced, drop_unfinished_line


class Anchors:
    """The anchors of every task, in a file that is only ever appended to (None: kept nowhere).

    A task's anchors are what they were when it was first seen, in this run or in an attempt that a
    resume has voided: what was measured by them stays comparable with what will be. Several threads may
    use it.
    """

    def __init__(self, path: Path | None, most: int) -> None:
        self.path = path
        self.most = most
        self._choosing = threading.Lock()
        self._texts: dict[str, list[str]] = {}
        if path is not None:
            drop_unfinished_line(path)
            self._texts = {row["task"]: row["anchors"] for row in reversed(read_jsonl(path))}

    def of(self, task_id: str, reference: str | None, responses: Iterable[str]) -> list[str]:
        """The anchors of a task; when it has none yet, at most `most` of the texts given become them.

        [] if there is nothing to choose from.
        """
        with self._choosing:
            return self._of(task_id, reference, responses)

    def _of(self, task_id: str, reference: str | None, responses: Iterable[str]) -> list[str]:
        if task_id not in self._texts:
            given = [*([] if reference is None else [reference]), *responses]
            chosen = list(dict.fromkeys(given))[: self.most]
            if not chosen:
                return []
            if self.path is not None:
                append_synced(self.path, json.dumps({"task": task_id, "anchors": chosen}) + "\n")
            self._texts[task_id] = chosen
        return self._texts[task_id]
