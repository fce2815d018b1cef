"""Files to rows: JSON Lines, a JSON array or mapping by id, CSV, parquet. Nothing in a row is run."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from ...specs.errors import Problem, shortened
from ...specs.loader import SpecError
from ...specs.yamlnodes import once

#: What can be read, by the end of a file's name.
FORMATS = (".jsonl", ".json", ".csv", ".parquet")
MAX_ROW = 10_000_000  # characters (bytes of a line): what is larger is a mistake, and no prompt
MAX_DEPTH = 100  # lists and mappings inside each other: far below what Python and pydantic can write
BOM = b"\xef\xbb\xbf"


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
    line: bytes = b""
    """The row as it is written, where rows are lines."""

    @property
    def place(self) -> str:
        """`file:line`, with the column where the line is at fault at a later one."""
        if isinstance(self.fields, Problem) and self.fields.column > 1:
            return f"{self.where}:{self.fields.column}"
        return self.where


def read_raw(path: Path) -> Iterator[RawRow]:
    """The rows of a file, in order. A line that holds no row is a row with a problem.

    So is a row that is larger than `MAX_ROW` or nested deeper than `MAX_DEPTH`. Raises `SpecError` for
    a file that cannot be read as a whole.
    """
    readers = {".jsonl": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix)
    if reader is None:
        message = f"not a data file: {path.suffix or 'no suffix'}; allowed: {', '.join(FORMATS)}"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    try:
        for raw in reader(path):
            # No line is too large here, nor one of few brackets nested too deeply.
            may_be = not raw.line or raw.line.count(b"{") + raw.line.count(b"[") >= MAX_DEPTH
            if may_be and isinstance(raw.fields, dict) and (told := _beyond_limits(raw.fields)):
                line, name = (1, f"[{raw.number}]") if raw.where.endswith("]") else (raw.number, "")
                raw = replace(raw, fields=Problem(str(path), line, 1, name, told))
            yield raw
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None


def parse_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises `SpecError` with `file:line:col`."""
    column, message = 1, ""
    try:
        # Without its end: what is cut short is at fault where it stops, not on a next line.
        row = json.loads(line.decode("utf-8").rstrip("\r\n"), object_pairs_hook=once)
        if isinstance(row, dict):
            return row
        message = f"a row must be a JSON object, not {type(row).__name__}"
    except UnicodeDecodeError as error:
        column, message = error.start + 1, f"byte {line[error.start]:#x} is not UTF-8"
    except json.JSONDecodeError as error:
        column, message = error.colno, f"not JSON: {error.msg}"
    except RecursionError:
        message = "nested too deeply"
    except ValueError as error:  # a number too long to read, a key twice
        message = f"not JSON that can be read: {error}"
    raise SpecError([Problem(str(path), number, column, "", message)])


def sha256_of(path: Path) -> str:
    """Hash of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _beyond_limits(row: dict[str, Any]) -> str | None:
    """Why a row is too large or nested too deeply, or None."""
    level: list[Any] = [row]
    size = 0
    for _ in range(MAX_DEPTH):
        size += sum(len(value) for value in level if isinstance(value, str))
        level = [below for value in level for below in _inside(value)]
        if not level:
            return _too_large(size) if size > MAX_ROW else None
    return f"nested too deeply (more than {MAX_DEPTH} levels)"


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _too_large(size: int) -> str:
    return f"too large ({size:,} characters; a row has at most {MAX_ROW:,})"


def _jsonl(path: Path) -> Iterator[RawRow]:
    with path.open("rb") as file:  # bytes: U+2028 inside a string is no end of a line
        for number, (line, size) in enumerate(_lines(file), 1):
            where = f"{path}:{number}"
            if size > MAX_ROW:
                yield RawRow(where, number, Problem(str(path), number, 1, "", _too_large(size)))
            elif line.strip():
                try:
                    yield RawRow(where, number, parse_row(path, number, line), line=line)
                except SpecError as error:
                    yield RawRow(where, number, error.problems[0])


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """The lines of a file and their sizes; of one that is too large only a part, to fit into memory."""
    first = file.read(len(BOM))
    file.seek(len(BOM) if first == BOM else 0)
    while line := file.readline(MAX_ROW + 2):
        size = len(line)
        rest = line
        while size > MAX_ROW and not rest.endswith(b"\n") and (rest := file.readline(MAX_ROW)):
            size += len(rest)
        yield line, size


def _json(path: Path) -> Iterator[RawRow]:
    text = _text(path)
    try:
        data = json.loads(text, object_pairs_hook=_mapping)
    except json.JSONDecodeError as error:
        problem = Problem(str(path), error.lineno, error.colno, "", f"not JSON: {error.msg}")
        raise SpecError([problem]) from None
    except (RecursionError, ValueError) as error:
        told = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise SpecError([Problem(str(path), 1, 1, "", f"not JSON that can be read: {told}")]) from None
    if not isinstance(data, list | dict):
        message = f"must hold a list of rows or a mapping by id, not {type(data).__name__}"
        raise SpecError([Problem(str(path), 1, 1, "", message)])
    if isinstance(data, _Repetitive):
        rows: list[tuple[str | None, Any]] = data.pairs
    else:
        rows = list(data.items()) if isinstance(data, dict) else [(None, row) for row in data]
    seen: set[str] = set()
    for number, (key, row) in enumerate(rows, 1):
        if key is not None and key in seen:
            message = f"the key {shortened(key)!r} names a row above already"
        elif isinstance(row, _Repetitive):
            message = "a key occurs twice in it"
        elif isinstance(row, dict):
            if key is not None:
                seen.add(key)
            yield RawRow(f"{path}[{number}]", number, row, key)
            continue
        else:
            message = f"a row must be a JSON object, not {type(row).__name__}"
        yield RawRow(f"{path}[{number}]", number, Problem(str(path), 1, 1, f"[{number}]", message))


class _Repetitive(dict[str, Any]):
    """A JSON object in which a key occurs twice; as a dict it has the last value, as JSON readers do."""

    pairs: list[tuple[str | None, Any]]


def _mapping(pairs: list[tuple[str | None, Any]]) -> dict[str, Any]:
    plain: dict[Any, Any] = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    twice = _Repetitive(plain)
    twice.pairs = pairs
    return twice


def _text(path: Path) -> str:
    """A file's text. Raises `SpecError` with `file:line:col` of what is no UTF-8."""
    data = path.read_bytes().removeprefix(BOM)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        message = f"byte {data[error.start]:#x} is not UTF-8"
        raise SpecError([Problem(str(path), line, column, "", message)]) from None


def _csv(path: Path) -> Iterator[RawRow]:
    csv.field_size_limit(MAX_ROW)
    reader = csv.DictReader(io.StringIO(_text(path)))
    try:
        columns = len(reader.fieldnames or ())
    except csv.Error as error:
        raise SpecError([Problem(str(path), 1, 1, "", f"not CSV: {error}")]) from None
    lines = reader.reader  # whose count is right after an error, too
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the reader goes on with the line after it
            message = f"not CSV: {error}"
        else:
            if None not in row and None not in row.values():
                yield RawRow(f"{path}:{lines.line_num}", lines.line_num, dict(row))
                continue
            message = f"has not the {columns} columns that the first line names"
        problem = Problem(str(path), lines.line_num, 1, "", message)
        yield RawRow(f"{path}:{lines.line_num}", lines.line_num, problem)


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
                for n in range(batch.num_rows):
                    number += 1
                    yield RawRow(f"{path}[{number}]", number, _parquet_row(path, number, batch, n))
    except ArrowException as error:
        message = f"not parquet that can be read: {str(error)[:200]}"
        raise SpecError([Problem(str(path), 1, 1, "", message)]) from None


def _parquet_row(path: Path, number: int, batch: Any, n: int) -> dict[str, Any] | Problem:
    """Row `n` of a batch: its values are decoded here, where one of them may be no text or no date."""
    try:
        row: dict[str, Any] = batch.slice(n, 1).to_pylist()[0]
        return row
    except (ValueError, OverflowError) as error:
        return Problem(str(path), 1, 1, f"[{number}]", f"a value cannot be read: {error}")
