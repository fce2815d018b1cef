"""The rows of a file as tasks: in this project's own words, or in the schema of a known data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python

from ...agents.scoring.plugins import fault
from ...specs.errors import Node, Problem, did_you_mean, dotted, explained, near_miss
from ...specs.loader import SpecError
from ...specs.ood import OodTask
from ...specs.tasks import HeldOutTask, Task, TrainTask
from ...specs.yamlnodes import MAX_DEPTH, from_data, read
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
#: Bytes of a line in which the columns of mistakes are looked for.
MAX_PLACED = 100_000
#: Where a task stands in a run's tasks.yaml, which takes no more than 64 bits and `MAX_DEPTH` levels.
_IN_A_FILE = ("train", 0)
_DEEPEST = MAX_DEPTH - len(_IN_A_FILE)
_ZEROS = bytes.maketrans(b"123456789E", b"000000000e")


@dataclass(frozen=True)
class Row:
    """One row: `file:line`, and the task or the reason why it is refused."""

    where: str
    task: AnyTask | str
    malformed: bool = False
    """It is no row at all: no JSON, say."""
    problems: tuple[Problem, ...] = ()
    """All that is wrong with what is no row at all, or with a row in this project's own words."""


def read_rows(path: Path, read_on: bool = False) -> Iterator[Row]:
    """The rows of a file as tasks; a row without an id is named by its line or its content.

    Raises `SpecError` (`file:line:col`) where the file holds no rows, and at the first line that holds
    none, or with `read_on` gives that one as malformed.
    """
    for raw in read_raw(path):
        if isinstance(raw.fields, dict):
            yield _row(raw.fields, raw, path)
        elif read_on:
            yield Row(raw.place, raw.fields.message, malformed=True, problems=(raw.fields,))
        else:
            raise SpecError([raw.fields])


def _row(fields: dict[str, Any], raw: RawRow, path: Path) -> Row:
    converter = recognised(fields)
    plain = converter is None and _is_plain(raw.line) and path.name.isascii()
    task = converted(converter, fields, raw.key) if converter else _as_it_stands(fields, raw, path, plain)
    if not plain and not isinstance(task, list | str):
        task = unwritable(task) or task
    if isinstance(task, str) and converter is None and is_own(fields):
        task = [Problem("", 0, 0, "", task)]
    if not isinstance(task, list):
        return Row(raw.where, task)
    lines = not raw.where.endswith("]")
    inside = "" if lines else raw.where.removeprefix(str(path))
    placed = [
        Problem(
            str(path),
            raw.number if lines else 1,
            problem.column or 1,
            f"{inside}.{problem.path}".strip("."),
            problem.message,
        )
        for problem in sorted(task, key=lambda one: one.column)
    ]
    return Row(raw.where, _first(task), problems=tuple(placed))


def _first(problems: list[Problem]) -> str:
    """The first of a row's problems in the words of a row that is refused."""
    path, message = problems[0].path, problems[0].message
    return f"{path}: {message}" if path else message


def _is_plain(line: bytes) -> bool:
    """Can all that stands in a task as JSON be written, and read back from a run folder? Only yes is
    certain."""
    zeros = line.translate(_ZEROS, b"+")
    return (
        bool(line)
        and b"\\u" not in line  # no half of a surrogate pair, no NUL
        and b"NaN" not in line
        and b"Infinity" not in line
        and b"0e000" not in zeros  # no number that is read as infinite
        and b"0" * 19 not in zeros  # nor one beyond 64 bits
        # `}, {` leads no deeper: of the criteria of a rubric, one counts.
        and line.count(b"{") + line.count(b"[") - line.count(b"},{") - line.count(b"}, {") <= _DEEPEST
    )


def unwritable(task: Task) -> str | None:
    """Why a task cannot be written as a line of JSON, or not be read back from a run folder; or None."""
    with suppress(PydanticSerializationError):
        written = to_json(task, exclude_none=True)
        if b"null" not in written and _is_plain(written):  # null: it may have been a NaN
            return None
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
    problems: list[Problem] = []
    from_data(plain, problems, _IN_A_FILE)
    if problems:
        problem = problems[0]
        return f"{problem.path.removeprefix(dotted(_IN_A_FILE) + '.')}: {problem.message}"
    return None


def task_of(row: dict[str, Any], raw: RawRow, path: Path) -> AnyTask | list[Problem] | str:
    """A row's fields as a task, or why they are none; it may hold what no line of JSON can."""
    converter = recognised(row)
    return converted(converter, row, raw.key) if converter else _as_it_stands(row, raw, path)


def _as_it_stands(
    row: dict[str, Any], raw: RawRow, path: Path, plain: bool = False
) -> AnyTask | list[Problem] | str:
    """The same for a row that no data set has; `plain`: with nothing in it that no file could hold."""
    if not plain and not is_text(row):
        return "half of a surrogate pair is not text"
    if is_own(row):
        named = {"domain": "general", "source": path.name}
        if "id" not in row:
            named["id"] = safe_id(f"{path.stem}-{raw.number}")
        return _own(row, named, raw.line)
    known = ", ".join(CONVERTERS)
    meant = " (did you mean rubric, not rubrics?)" if {"prompt", "rubrics"} <= row.keys() else ""
    return (
        f"not a known schema{meant}; known are a task (prompt, rubric and the other keys of a task file) "
        f"and the rows of {known}"
    )


def is_own(row: dict[str, Any]) -> bool:
    """Is a row a task as it stands in a task file, perhaps with a typo in one of the keys that tell?"""
    if "prompt" in row and ("rubric" in row or "split" in row):
        return True
    keys = ("prompt", "rubric")
    if "rubrics" in row:
        return False  # no typo: a key of several data sets
    return any(key in row for key in keys) and {*keys} <= {near_miss(key, keys) for key in row}


def from_own(row: dict[str, Any], named: dict[str, str]) -> AnyTask | str:
    """A row with the keys of a task file's task, and perhaps a `split`; `named` fills what is missing."""
    task = _own(row, named, b"")
    return _first(task) if isinstance(task, list) else task


def _own(row: dict[str, Any], named: dict[str, str], line: bytes) -> AnyTask | list[Problem] | str:
    """The same; of a row that is no task all that is wrong, with the columns in its line."""
    split = row.get("split", "train")
    fields = named | {key: value for key, value in row.items() if key != "split"}
    kind = SPLITS.get(split) if isinstance(split, str) else None
    problems: list[Problem] = []
    if kind is None:
        told = f"{split!r} is not allowed{did_you_mean(str(split), SPLITS)}; allowed: {', '.join(SPLITS)}"
        problems.append(_nodes(row, line).at(("split",)).problem(("split",), told))
    try:
        task = (kind or TrainTask).model_validate(fields, context=fault)
    except ValidationError as error:
        of_no_field: list[Problem] = []  # what no field may hold
        node = from_data(fields, of_no_field, quoted=True)
        node = _nodes(row, line) if line else node
        return problems + of_no_field + explained(kind or TrainTask, node, error) or why(error)
    except RecursionError:  # the regex compiler's
        return "a regular expression is nested too deeply"
    return problems or task


def _nodes(row: dict[str, Any], line: bytes) -> Node:
    """A row's values, with their places in its line where that is YAML as well, as JSON mostly is."""
    if 0 < len(line) <= MAX_PLACED:
        with suppress(SpecError, UnicodeDecodeError):
            node, _ = read(line.decode(), "")
            if node.plain() == row:
                return node
    return from_data(row, [], quoted=True)
