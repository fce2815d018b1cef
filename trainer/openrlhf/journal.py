"""What was handed in and redrawn in the open step: it survives a restart of the controller."""

from __future__ import annotations

import json
from pathlib import Path

from ...memory.events import complete_lines
from ...memory.files import drop_unfinished_line
from .wire import RedrawReply, SubmitRequest


class Journal:
    """JSON lines, of one step: rollouts, and which slots were redrawn between them."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            drop_unfinished_line(path)
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def lines(self, step: int) -> list[SubmitRequest | RedrawReply]:
        """What stands there of a step, in order."""
        rows = [row for row in map(json.loads, complete_lines(self._path)) if row["step"] == step]
        return [(RedrawReply if "slots" in row else SubmitRequest).model_validate(row) for row in rows]

    def write(self, line: SubmitRequest | RedrawReply) -> None:
        """Add a line: a killed process loses nothing that was acknowledged."""
        self._file.write(line.model_dump_json() + "\n")
        self._file.flush()

    def clear(self) -> None:
        """The step is over."""
        self._file.truncate(0)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
