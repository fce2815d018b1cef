"""Prompts without criteria of their own: LongWriter-Zero, LongBench-Write and RoleBench."""

from __future__ import annotations

import regex

from ....specs.checks import WordsCheck
from ....specs.ood import OodTask
from ....specs.tasks import Criterion, TrainTask
from .common import Converter, Row, RowError, content_id, make

LENGTH_TOLERANCE = 0.2  # of the length that a prompt asks for

_HAN = regex.compile(r"\p{Han}")


def length_criterion(prompt: str, length: int) -> Criterion:
    """The one thing such a row says of a good response: how long it is.

    Words are counted by a program. Chinese has no spaces to count by, so there a judge is asked.
    """
    if _HAN.search(prompt):
        return Criterion(text=f"The response is about {length} characters long.", points=1.0)
    low, high = round(length * (1 - LENGTH_TOLERANCE)), round(length * (1 + LENGTH_TOLERANCE))
    check = WordsCheck(kind="words", min=max(low, 1), max=max(high, 1))
    return Criterion(text=f"has between {check.min} and {check.max} words", points=1.0, check=check)


def _longwriter(row: Row, key: str | None) -> TrainTask:
    if not isinstance(row.get("length"), int):
        raise RowError("a prompt without a rubric and without a length: nothing to score")
    return make(
        TrainTask,
        "longwriter-zero",
        content_id(row["prompt"], row["length"]),
        "writing",
        row["prompt"],
        [length_criterion(row["prompt"], row["length"])],
        more={"length": row["length"]},
    )


def _longbench_write(row: Row, key: str | None) -> OodTask:
    return make(
        OodTask,
        "longbench-write",
        content_id(row["prompt"], row["length"]),
        "writing",
        row["prompt"],
        [length_criterion(row["prompt"], row["length"])],
        more={"length": row["length"], "type": row["type"]},
    )


def _rolebench(row: Row, key: str | None) -> OodTask:
    """The role is in the prompt; what RoleLLM generated are references, of which any one will do."""
    role, question = row["role"], row["question"].strip()
    if _HAN.search(question):
        prompt = f"请扮演{role}\uff0c用{role}的身份和语气回答。\n\n{question}"
    else:
        prompt = f"You are {role}. Stay in character: answer as {role} would.\n\n{question}"
    return make(
        OodTask,
        "rolebench",
        content_id(role, row["question"]),
        "role-play",
        prompt,
        more={"role": role, "question": row["question"], "type": row.get("type")},
        references=tuple(row["generated"]),
    )


LONGWRITER_ZERO = Converter(
    "longwriter-zero",
    "writing",
    _longwriter,
    lambda row: {"prompt", "length"} == row.keys() & {"prompt", "length", "rubric", "type"},
)
LONGBENCH_WRITE = Converter(
    "longbench-write",
    "writing",
    _longbench_write,
    lambda row: {"prompt", "type", "length"} <= row.keys(),
    True,
)
ROLEBENCH = Converter(
    "rolebench",
    "role-play",
    _rolebench,
    lambda row: {"role", "question", "generated"} <= row.keys(),
    True,
)
