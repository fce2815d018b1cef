"""Rollout text: one JSONL file a step, apart from the event log (which holds ids and numbers only)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .events import read_jsonl
from .files import write_atomic

KEPT_STEPS = 32  # steps whose rollouts stay in memory: the evolver reads the last ones often


@dataclass(frozen=True)
class Rollout:
    """One sampled response with everything that was concluded about it. None: unscored, unasked."""

    step: int
    slot: int
    sample: int
    task_id: str
    harness_version: int
    guided: bool
    guidance: tuple[str, ...]  # the lines it was shown
    gave_away: bool  # it names its guidance, or quotes it
    response: str
    tokens: int
    finished: bool
    reward: float | None
    advantage: float
    quality: float | None
    verdicts: dict[str, bool | None]


class RolloutStore:
    """The rollouts of a run, by step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._recent: dict[int, list[Rollout]] = {}

    def path(self, step: int) -> Path:
        """The file of one step."""
        return self.folder / f"step-{step:06d}.jsonl"

    def write(self, step: int, rollouts: Sequence[Rollout]) -> None:
        """Write one step's rollouts, replacing what an earlier attempt at the step left."""
        lines = [json.dumps(asdict(rollout)) + "\n" for rollout in rollouts]
        write_atomic(self.path(step), "".join(lines))
        self._recent.pop(step, None)

    def read(self, step: int) -> list[Rollout]:
        """One step's rollouts; [] if there are none."""
        if step not in self._recent:
            self._recent[step] = [_parse(row) for row in read_jsonl(self.path(step))]
            while len(self._recent) > KEPT_STEPS:
                del self._recent[next(iter(self._recent))]
        return self._recent[step]

    def group(self, step: int, slot: int) -> list[Rollout]:
        """The rollouts of one group, in sample order."""
        found = [r for r in self.read(step) if r.slot == slot]
        return sorted(found, key=lambda r: r.sample)


def _parse(row: dict[str, Any]) -> Rollout:
    return Rollout(**{**row, "guidance": tuple(row["guidance"])})
