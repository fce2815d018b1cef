"""The append-only event log: the run's source of truth. One JSON record a line."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..specs.guidance import in_order
from ..specs.harness import HarnessState, TaskHarness, UpdateError, apply, roll_back
from ..specs.harnessfile import begin_with
from ..specs.tasks import TrainTask
from .files import append_synced, drop_unfinished_line
from .records import RECORD, Accepted, AnyRecord, Resumed, RunStarted


class LogError(Exception):
    """The log cannot be read; the message says where."""


def parse_line(path: Path, number: int, line: bytes) -> AnyRecord:
    """One record from one line. Raises `LogError` with `file:line`."""
    try:
        return RECORD.validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LogError(f"{path}:{number}:1: not a record: {where} {first['msg']}") from None


def complete_lines(path: Path) -> list[bytes]:
    """The finished lines of a JSONL file. A last line without its newline was cut short: left out."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def before_step(records: Iterable[AnyRecord], step: int) -> list[AnyRecord]:
    """What was logged by the time that `step` steps were done: all up to the first record of a later one.

    A look that ran beside training is logged where it was applied, and names the step it began after: a
    record of an earlier step can come later.
    """
    return list(itertools.takewhile(lambda record: record.step < step, records))


def read_log(path: Path) -> list[AnyRecord]:
    """The surviving records in order: of those before a `resumed` record, `before_step` its own.

    Raises `LogError` for a line that is no record (other than an unfinished last one).
    """
    records: list[AnyRecord] = []
    for number, line in enumerate(complete_lines(path), 1):
        record = parse_line(path, number, line)
        if isinstance(record, Resumed):
            records = before_step(records, record.step)
        records.append(record)
    return records


def start_state(tasks: Mapping[str, TrainTask], records: Iterable[AnyRecord]) -> HarnessState:
    """Version 0: the seed tasks with what the run started from. Raises `UpdateError`."""
    for record in records:
        if isinstance(record, RunStarted):
            mounted = tuple(entry.mounted() for entry in record.guidance)
            start = TaskHarness(guidance=in_order(mounted))
            return replace(begin_with(record.harness, tasks), start=start)
    return HarnessState(tasks)


def fold_versions(tasks: Mapping[str, TrainTask], records: Sequence[AnyRecord]) -> list[HarnessState]:
    """Every harness version from version 0 on: the fold of a log's accepted updates.

    Raises `UpdateError` when they do not fit the tasks.
    """
    versions = [start_state(tasks, records)]
    for record in records:
        if isinstance(record, Accepted):
            versions.append(next_version(versions, record))
    return versions


def next_version(versions: Sequence[HarnessState], record: Accepted) -> HarnessState:
    """What an accepted batch makes of the last of `versions`. Raises `UpdateError`."""
    if record.rolled_back_to is None:
        return apply(versions[-1], record.updates, record.step)
    if not 0 <= record.rolled_back_to < len(versions):
        raise UpdateError(f"there is no version {record.rolled_back_to} to go back to")
    return roll_back(versions[-1], versions[record.rolled_back_to])


class EventLog:
    """Appends records to a log file; every `append` is on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        drop_unfinished_line(path)

    def append(self, records: Iterable[AnyRecord]) -> None:
        """Write records in one go and flush them to disk."""
        append_synced(self.path, "".join(record.model_dump_json() + "\n" for record in records))


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSONL file of ours (metrics, rollouts); [] if it does not exist."""
    return [json.loads(line) for line in complete_lines(path)]
