"""Files to rows: JSON Lines, a JSON array or mapping by id, CSV, parquet. Nothing in a row is run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...specs.errors import Problem
from ...specs.loader import SpecError

#: What can be read, by the end of a file's name.
FORMATS = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class RawRow:
    """One row of a file."""

    where: str
    """`file:line`, or `file[number]` where rows are no lines."""
    number: int
    """Its line, or its number, from 1."""
    fields: dict[str, Any] | Problem
    """What is wrong with the line, where it holds no row."""
    key: str | None = None
    """The row's key in a file that is a mapping by id."""


def read_raw(path: Path) -> Iterator[RawRow]:
    """The rows of a file, in order. A line that holds no row is a row with a problem.

    Raises `SpecError` for a file that cannot be read as a whole.
    """
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        message = f"not a data file: {path.suffix or 'no suffix'}; allowed: {', '.join(FORMATS)}"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    try:
        yield from reader(path)
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None


def parse_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises `SpecError` with `file:line:col`."""
    column, message = 1, ""
    try:
        row = json.loads(line.decode("utf-8"))
        if isinstance(row, dict):
            return row
        message = f"a row must be a JSON object, not {type(row).__name__}"
    except UnicodeDecodeError as error:
        column, message = error.start + 1, f"byte {line[error.start]:#x} is not UTF-8"
    except json.JSONDecodeError as error:
        column, message = error.colno, f"not JSON: {error.msg}"
    except RecursionError:
        message = "nested too deeply"
    except ValueError as error:  # a number too long to read
        message = f"not JSON that can be read: {error}"
    raise SpecError([Problem(str(path), number, column, "", message)])


def sha256_of(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _jsonl(path: Path) -> Iterator[RawRow]:
    with path.open("rb") as file:  # bytes: U+2028 inside a string is no end of a line
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield RawRow(f"{path}:{number}", number, parse_row(path, number, line))
                except SpecError as error:
                    yield RawRow(f"{path}:{number}", number, error.problems[0])


def _json(path: Path) -> Iterator[RawRow]:
    try:
        data = json.loads(path.read_bytes().decode("utf-8"))
    except json.JSONDecodeError as error:
        problem = Problem(str(path), error.lineno, error.colno, "", f"not JSON: {error.msg}")
        raise SpecError([problem]) from None
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise SpecError([Problem(str(path), 1, 1, "", f"not JSON that can be read: {error}")]) from None
    if not isinstance(data, list | dict):
        message = f"must hold a list of rows or a mapping by id, not {type(data).__name__}"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    keys = list(data) if isinstance(data, dict) else [None] * len(data)
    rows = data.values() if isinstance(data, dict) else data
    for number, (key, row) in enumerate(zip(keys, rows, strict=True), 1):
        if isinstance(row, dict):
            yield RawRow(f"{path}[{number}]", number, row, key)
        else:
            message = f"a row must be a JSON object, not {type(row).__name__}"
            yield RawRow(f"{path}[{number}]", number, Problem(str(path), 1, 1, f"[{number}]", message))


def _csv(path: Path) -> Iterator[RawRow]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {error.start + 1}"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None
    reader = csv.DictReader(io.StringIO(text))
    for row in reader:
        where = f"{path}:{reader.line_num}"
        if None in row or None in row.values():
            message = f"has not the {len(reader.fieldnames or ())} columns that the first line names"
            problem = Problem(str(path), reader.line_num, 1, "", message)
            yield RawRow(where, reader.line_num, problem)
        else:
            yield RawRow(where, reader.line_num, dict(row))


def _parquet(path: Path) -> Iterator[RawRow]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        message = "reading parquet needs the package pyarrow: pip install pyarrow"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(f"{path}[{number}]", number, row)
    except ArrowException as error:
        message = f"not parquet that can be read: {str(error)[:200]}"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None
