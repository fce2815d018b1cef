"""Evaluation-only sets beside task files, and what a run must not have of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ...specs.ood import OodTask
from ...specs.tasks import Task
from ...specs.texts import normalised
from .readers import FORMATS
from .rows import read_rows

#: The folder of a built mix for tasks of sources that state no licence.
APART = "not-for-export"


class Asked(NamedTuple):
    """A task that has the prompt of an evaluation-only one."""

    task: Task
    other: Task
    where: str
    """`file:line` of the other one."""


def beside(task_files: Sequence[Path]) -> dict[str, Path]:
    """The sets in a folder `ood` beside one of the files, by name."""
    return _in(dict.fromkeys(file.parent / "ood" for file in task_files))


def known_to(task_files: Sequence[Path]) -> list[Path]:
    """The files of all sets that belong with task files, those that a mix keeps apart too."""
    roots: list[Path] = []
    for folder in dict.fromkeys(file.parent for file in task_files):
        root = folder.parent if folder.name == APART else folder
        roots += [folder, root, root / APART]
    return list(dict.fromkeys(path for root in roots for path in _in([root / "ood"]).values()))


def _in(folders: Iterable[Path]) -> dict[str, Path]:
    files = [path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in FORMATS]
    return {path.stem: path for path in files}


def asked_again(tasks: Iterable[Task], files: Sequence[Path]) -> Iterator[Asked]:
    """The tasks with a prompt, or the bare question, of an evaluation-only set; rows that are no tasks
    are passed over. Raises `SpecError` for a file that holds no rows."""
    if not files:
        return
    by_prompt: dict[str, list[Task]] = {}
    for task in tasks:
        by_prompt.setdefault(normalised(task.prompt), []).append(task)
    for file in files:
        for row in read_rows(file, read_on=True):
            if isinstance(row.task, str):
                continue
            for text in dict.fromkeys(map(normalised, asked(row.task))):
                # Told once a task, however many sets have it.
                yield from (Asked(task, row.task, row.where) for task in by_prompt.pop(text, ()))


def asked(task: Task) -> list[str]:
    """An evaluation-only task's prompt, and its bare question as other data may have it."""
    more = task.origin.more if task.origin else {}
    question = more.get("question") or more.get("QUESTION")
    if not isinstance(question, str):
        return [task.prompt]
    if isinstance(task, OodTask) and task.answer:
        first = question.find(next(iter(task.answer.choices.values())))
        if first > 0:  # some copies list the options with the question
            question = question[:first].rsplit("\n", 1)[0]
    return [task.prompt, question]
