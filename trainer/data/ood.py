"""Evaluation-only sets beside task files, and what a run must not have of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...specs.errors import Problem, SpecError
from ...specs.ood import OodTask
from ...specs.tasks import Task
from ...specs.texts import letters, normalised
from .converters import recognised
from .converters.common import safe_id
from .readers import FORMATS, RawRow, read_raw
from .rows import is_own, task_of

#: The folder of a built mix for tasks of sources that state no licence.
APART = "not-for-export"


class Asked(NamedTuple):
    """A task that has the prompt of an evaluation-only one."""

    task: Task
    other: str
    """The id of the other one."""
    where: str
    """`file:line` of the other one."""


def beside(task_files: Sequence[Path]) -> dict[str, Path]:
    """The sets in a folder `ood` beside one of the files, by name: of files with one name, the paths."""
    files = _in(file.parent / "ood" for file in task_files)
    times = Counter(path.stem for path in files)
    return {path.stem if times[path.stem] == 1 else str(path): path for path in files}


def known_to(task_files: Sequence[Path]) -> list[Path]:
    """The files of all sets that belong with task files, those that a mix keeps apart too."""
    roots: list[Path] = []
    for file in task_files:
        root = file.parent.parent if file.parent.name == APART else file.parent
        roots += [file.parent, root, root / APART]
    return _in(root / "ood" for root in roots)


def _in(folders: Iterable[Path]) -> list[Path]:
    found = (path for folder in dict.fromkeys(folders) for path in sorted(folder.glob("*")))
    return [path for path in found if path.suffix in FORMATS]


def asked_again(tasks: Iterable[Task], files: Sequence[Path], unread: list[Problem]) -> Iterator[Asked]:
    """The tasks with a prompt, or the bare question, of an evaluation-only set.

    Rows that are no tasks are passed over; why a file holds no rows goes into `unread`.
    """
    if not files:
        return
    by_prompt: dict[str, list[Task]] = {}
    for task in tasks:
        by_prompt.setdefault(normalised(task.prompt), []).append(task)
    known = set(map(letters, by_prompt))
    for file in files:
        try:
            for raw in read_raw(file):
                name, texts = _asked_by(raw, file)
                for text in texts:
                    if letters(text) in known:
                        # Told once a task, however many sets have it.
                        same = by_prompt.pop(normalised(text), ())
                        yield from (Asked(task, name, raw.where) for task in same)
        except SpecError as error:
            unread += error.problems


def _asked_by(raw: RawRow, file: Path) -> tuple[str, list[str]]:
    """A row's id, and what it asks; of a row of our own form as it is written, task or no task."""
    row = raw.fields
    if not isinstance(row, dict):
        return "", []
    if is_own(row) and isinstance(prompt := row.get("prompt"), str) and not recognised(row):
        name = row["id"] if "id" in row else safe_id(f"{file.stem}-{raw.number}")
        return str(name), _asked(
            prompt, _inside(row, "origin", "more"), _inside(row, "answer", "choices")
        )
    task = task_of(row, raw, file)
    return (task.id, asked(task)) if isinstance(task, Task) else ("", [])


def _inside(row: Any, *keys: str) -> dict[str, Any]:
    for key in keys:
        row = row.get(key) if isinstance(row, dict) else None
    return row if isinstance(row, dict) else {}


def asked(task: Task) -> list[str]:
    """An evaluation-only task's prompt, and its bare question as other data may have it."""
    choices = task.answer.choices if isinstance(task, OodTask) and task.answer else {}
    return _asked(task.prompt, task.origin.more if task.origin else {}, choices)


def _asked(prompt: str, more: dict[str, Any], choices: dict[str, Any]) -> list[str]:
    question = more.get("question") or more.get("QUESTION")
    if not isinstance(question, str):
        return [prompt]
    if choices:
        first = question.find(str(next(iter(choices.values()))))
        if first > 0:  # some copies list the options with the question
            question = question[:first].rsplit("\n", 1)[0]
    return [prompt, question]
