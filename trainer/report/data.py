"""Reads a run folder into plain values. Nothing here needs a live run, or a finished one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from ...memory.events import complete_lines, next_version, read_log, start_state
from ...memory.records import Accepted, AnyRecord, Decision, Record, StepSummary
from ...memory.rollouts import Rollout, RolloutStore
from ...specs.harness import HarnessState, UpdateError
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, Task, TaskFile
from ...specs.updates import brought_in

R = TypeVar("R", bound=Record)
M = TypeVar("M", bound=BaseModel)
#: The purposes that rollouts and tokens are accounted under.
PURPOSES = ("train", "critic", "probe")


@dataclass(frozen=True)
class StepMetrics:
    """One step's line of metrics. None: not logged, or nothing to compute it from."""

    step: int
    values: dict[str, Any]
    seconds: dict[str, float]  # phase -> seconds; empty when metrics.jsonl lacks the step

    def get(self, name: str) -> float | None:
        """A scalar of the step."""
        return as_float(self.values.get(name))

    def counts(self, name: str) -> dict[str, float]:
        """A table of the step: `pairs`, `collapse`, `rollouts`, `tokens` or `judge_calls`."""
        return as_floats(self.values.get(name))


@dataclass(frozen=True)
class RunData:
    """What a run folder says, apart from rollouts (see `read_rollouts`)."""

    folder: Path
    spec: RunSpec | None
    tasks: TaskFile
    records: tuple[AnyRecord, ...]  # the surviving ones, in order
    steps: tuple[StepMetrics, ...]  # completed steps, ascending
    provenance: dict[str, Any]
    notes: tuple[str, ...]  # what was missing or unreadable, as sentences

    def of(self, kind: type[R]) -> list[R]:
        """The records of one type, in order."""
        return [record for record in self.records if isinstance(record, kind)]

    @property
    def by_task(self) -> dict[str, Task]:
        """Train, held-out and validation tasks by id."""
        every = (*self.tasks.train, *self.tasks.held_out, *self.tasks.validation)
        return {task.id: task for task in every}

    @cached_property
    def harness(self) -> tuple[list[HarnessState], list[str]]:
        """Every harness version, and a note for each one that could not be rebuilt."""
        notes: list[str] = []
        tasks = {task.id: task for task in self.tasks.train}
        try:
            states = [start_state(tasks, self.records)]
        except UpdateError as error:
            notes.append(f"Harness version 0 cannot be rebuilt: {error}.")
            states = [HarnessState(tasks)]
        for accepted in self.of(Accepted):
            number = len(states)
            try:
                states.append(next_version(states, accepted))
            except UpdateError as error:
                notes.append(f"Harness version {number} cannot be rebuilt: {error}.")
                states.append(replace(states[-1], version=number))
        return states, notes

    @cached_property
    def criteria(self) -> dict[str, Criterion]:
        """Every criterion the folder knows the text of, by id: seed, pool and proposed ones."""
        known = [c for task in self.by_task.values() for c in (*task.rubric, *task.pool.criteria)]
        known += self.tasks.shared_pool.criteria
        updates = [decision.update for decision in self.of(Decision)]
        updates += [update for accepted in self.of(Accepted) for update in accepted.updates]
        known += [criterion for update in updates for criterion in brought_in(update)]
        states, _ = self.harness
        known += [c for state in states for task_id in state.changes for c in state.all_criteria(task_id)]
        return {criterion.id: criterion for criterion in known}


def load_run(run: Path) -> RunData:
    """Read the run folder. Missing or damaged parts become notes; a missing folder is an error.

    Raises:
        FileNotFoundError: `run` is not a folder.
    """
    if not run.is_dir():
        raise FileNotFoundError(f"no run folder at {run}")
    notes: list[str] = []
    spec = _read_yaml(run / "spec.yaml", RunSpec, notes)
    tasks = _read_yaml(run / "tasks.yaml", TaskFile, notes) or TaskFile()
    records: tuple[AnyRecord, ...] = ()
    if (run / "events.jsonl").exists():
        records = tuple(read_log(run / "events.jsonl"))
    else:
        notes.append("There is no events.jsonl: the run stopped before it logged anything.")
    steps = _read_steps(run, records, notes)
    provenance = _read_provenance(run / "provenance.json", notes)
    return RunData(run, spec, tasks, records, steps, provenance, tuple(notes))


def rollouts_file(step: int) -> str:
    """Path of a step's rollouts inside the run folder."""
    return f"rollouts/step-{step:06d}.jsonl"


def read_rollouts(run: Path, step: int) -> dict[int, list[Rollout]]:
    """The rollouts of one step by slot, in sample order. Empty when the file is gone or damaged."""
    try:
        rows = RolloutStore(run / "rollouts").read(step)
    except (ValueError, KeyError, TypeError):
        return {}
    slots: dict[int, list[Rollout]] = {}
    for rollout in sorted(rows, key=lambda r: (r.slot, r.sample)):
        slots.setdefault(rollout.slot, []).append(rollout)
    return slots


def as_float(value: object) -> float | None:
    """The value as a finite float, or None (NaN and booleans are no measurements)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def as_floats(value: object) -> dict[str, float]:
    """The finite numbers of a JSON object, by key."""
    if not isinstance(value, dict):
        return {}
    numbers = {str(key): as_float(item) for key, item in value.items()}
    return {key: item for key, item in numbers.items() if item is not None}


def _read_steps(run: Path, records: tuple[AnyRecord, ...], notes: list[str]) -> tuple[StepMetrics, ...]:
    """Values from the event log (it knows the voided attempts); metrics.jsonl has the seconds."""
    rows = _metrics_rows(run / "metrics.jsonl", notes)
    seconds = {row.get("step"): as_floats(row.get("seconds")) for row in rows}
    steps = {
        record.step: StepMetrics(record.step, record.metrics, seconds.get(record.step, {}))
        for record in records
        if isinstance(record, StepSummary)
    }
    return tuple(steps[step] for step in sorted(steps))


def _metrics_rows(path: Path, notes: list[str]) -> Iterator[dict[str, Any]]:
    """The whole lines of metrics.jsonl; a damaged one becomes a note."""
    if not path.exists():
        notes.append("There is no metrics.jsonl: wall time is not known.")
    for number, line in enumerate(complete_lines(path), 1):
        try:
            row = json.loads(line)
        except ValueError:
            notes.append(f"metrics.jsonl:{number} cannot be read and is left out.")
            continue
        if isinstance(row, dict):
            yield row


def _read_yaml(path: Path, model: type[M], notes: list[str]) -> M | None:
    try:
        return model.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        notes.append(f"There is no {path.name}.")
    except (yaml.YAMLError, ValidationError) as error:
        notes.append(f"{path.name} cannot be used: {str(error).splitlines()[0]}.")
    return None


def _read_provenance(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notes.append("There is no provenance.json.")
        return {}
    except json.JSONDecodeError as error:
        notes.append(f"provenance.json cannot be read: {error}.")
        return {}
    return content if isinstance(content, dict) else {}
