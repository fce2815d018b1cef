"""The rows of a file as tasks: in this project's own words, or in the schema of a known data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from ...agents.scoring.plugins import fault
from ...specs.errors import Problem, explained
from ...specs.loader import SpecError
from ...specs.ood import OodTask
from ...specs.tasks import HeldOutTask, Task, TrainTask
from ...specs.yamlnodes import from_data
from .converters import CONVERTERS, recognised
from .converters.common import converted, is_text, safe_id, why
from .readers import RawRow, read_raw

AnyTask = TrainTask | HeldOutTask | OodTask
#: The `split` of a row in this project's own words.
SPLITS: dict[str, type[TrainTask] | type[HeldOutTask] | type[OodTask]] = {
    "train": TrainTask,
    "held_out": HeldOutTask,
    "ood": OodTask,
}


@dataclass(frozen=True)
class Row:
    """One row: `file:line`, and the task or the reason why it is refused."""

    where: str
    task: AnyTask | str
    malformed: bool = False
    """It is no row at all: no JSON, say."""


def read_rows(path: Path, read_on: bool = False) -> Iterator[Row]:
    """The rows of a file as tasks; a row without an id is named by its line or its content.

    Raises `SpecError` (`file:line:col`) where the file holds no rows, and at the first line that holds
    none, or with `read_on` gives that one as malformed.
    """
    for raw in read_raw(path):
        if isinstance(raw.fields, dict):
            task = _task(raw.fields, raw, path)
            yield Row(raw.where, task if isinstance(task, str) else unwritable(task) or task)
        elif read_on:
            yield Row(raw.place, raw.fields.message, malformed=True)
        else:
            raise SpecError([raw.fields])


def unwritable(task: Task) -> str | None:
    """Why a task that was read cannot be written as a line of JSON, or None."""
    try:
        # Not in the mode `json`, which makes nulls of numbers that are not finite.
        plain = task.model_dump(exclude_defaults=True)
        line = json.dumps(plain, ensure_ascii=False, allow_nan=False, default=to_jsonable_python)
        line.encode()
    except UnicodeEncodeError:
        return "half of a surrogate pair is not text"
    except ValueError as error:  # NaN or Infinity, which JSON does not have; bytes of a parquet file
        return f"holds what JSON cannot: {str(error)[:120]}"
    if "\\u0000" in line.replace("\\\\", ""):  # JSON's escape, and no backslash before `u0000`
        return "a NUL character is not text"
    return None


def _task(row: dict[str, Any], raw: RawRow, path: Path) -> AnyTask | str:
    if not is_text(row):
        return "half of a surrogate pair is not text"
    if converter := recognised(row):
        return converted(converter, row, raw.key)
    if is_own(row):
        name = safe_id(f"{path.stem}-{raw.number}")
        return from_own(row, {"id": name, "domain": "general", "source": path.name})
    known = ", ".join(CONVERTERS)
    return (
        "not a known schema; known are a task (prompt, rubric and the other keys of a task file) and the "
        f"rows of {known}"
    )


def is_own(row: dict[str, Any]) -> bool:
    """Is a row a task as it stands in a task file?"""
    return "prompt" in row and ("rubric" in row or "split" in row)


def from_own(row: dict[str, Any], named: dict[str, str]) -> AnyTask | str:
    """A row with the keys of a task file's task, and perhaps a `split`; `named` fills what is missing."""
    split = row.get("split", "train")
    if split not in SPLITS:
        return f"split: {split!r} is not allowed; allowed: {', '.join(SPLITS)}"
    fields = named | {key: value for key, value in row.items() if key != "split"}
    try:
        return SPLITS[split].model_validate(fields, context=fault)
    except ValidationError as error:
        problems: list[Problem] = []  # what no field may hold
        node = from_data(fields, problems)
        problems = problems or explained(SPLITS[split], node, error)
        return f"{problems[0].path}: {problems[0].message}" if problems else why(error)
    except RecursionError:  # the regex compiler's
        return "a regular expression is nested too deeply"
