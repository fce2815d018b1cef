"""The data set that OpenRLHF iterates over: opaque slots, filled by the controller when they come up."""

from __future__ import annotations

import json
from pathlib import Path

from ...memory.files import write_atomic


def write_slots(path: Path, steps: int, tasks_per_step: int) -> None:
    """Write steps x tasks_per_step rows, in order. A row's `label` is all that reaches the executor:
    JSON with `step` and `slot`, both from 0. Its `input` is for people who read OpenRLHF's log."""
    rows = (
        {"input": f"slot {step}/{slot}", "label": json.dumps({"step": step, "slot": slot})}
        for step in range(steps)
        for slot in range(tasks_per_step)
    )
    write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
