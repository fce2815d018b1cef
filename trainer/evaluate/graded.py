"""Criteria that a benchmark grades in levels (WritingBench 1 to 10, BiGGen-Bench 1 to 5)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from ...agents.roles.client import Answer, NoAnswer, Question, Role, answer_alone
from ...agents.scoring.verdictcache import VerdictCache
from ...prompts import render
from ...specs.ood import Graded, OodTask
from ...specs.tasks import Task
from .measures import Group, Measured, Score

#: How often an answer that is no grade is asked for again.
ASK_AGAIN = 1


class _Grade(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    grade: int
    reason: str = ""


@dataclass(frozen=True)
class _Asked:
    """One criterion of one response."""

    task: OodTask
    criterion: Graded
    text: str

    @property
    def range(self) -> tuple[int, int]:
        """The lowest and the highest grade."""
        levels = self.criterion.levels
        return levels[0].low, levels[-1].high

    def question(self) -> Question:
        """What the judge is asked. The mark depends on the quoted texts: nothing can end a quotation."""
        quoted = json.dumps([self.task.prompt, self.text]).encode()
        fence = f"[{hashlib.sha256(quoted).hexdigest()[:16]}]"
        text = render(
            "level",
            fence=fence,
            prompt=self.task.prompt,
            response=self.text,
            reference=self.task.reference,
            title=self.criterion.name,
            criterion=self.criterion.text,
            levels=self.criterion.levels,
        )
        low, high = self.range
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {
                "reason": {"type": "string"},
                "grade": {"type": "integer", "enum": list(range(low, high + 1))},
            },
            "required": ["reason", "grade"],
            "additionalProperties": False,
        }
        return Question([{"role": "user", "content": text}], schema, "grade")


class GradeMeasure:
    """The mean of a response's grades, as a share of the highest grade; none where one is missing."""

    def __init__(self, role: Role | None, cache: VerdictCache | None) -> None:
        self.role = role
        self.cache = cache

    def fits(self, task: Task) -> bool:
        """Does the set grade in levels?"""
        return isinstance(task, OodTask) and bool(task.grades)

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """All grades are asked for at once."""
        asked = [
            _Asked(group.task, criterion, text)
            for group in groups
            if isinstance(group.task, OodTask)
            for text in group.texts
            for criterion in group.task.grades
        ]
        said = iter(self._ask(asked))
        out = []
        for group in groups:
            assert isinstance(group.task, OodTask)
            grades = group.task.grades
            out.append([_mean(grades, [next(said) for _ in grades]) for _ in group.texts])
        return out

    def _ask(self, asked: Sequence[_Asked]) -> list[int | str]:
        """A grade, or why there is none."""
        if self.role is None:
            return ["needs a judge role, and none is configured"] * len(asked)
        questions = [one.question() for one in asked]
        keys = [self._key(question) for question in questions]
        found: dict[bytes, int | str] = {}
        if self.cache is not None:
            found |= self.cache.get(list({*keys}))
        open_ones = {key: n for n, key in enumerate(keys) if key not in found}
        for _ in range(1 + ASK_AGAIN):
            answers = self.role.ask([questions[n] for n in open_ones.values()], "evaluate")
            again = {}
            for (key, n), answer in zip(open_ones.items(), answers, strict=True):
                found[key] = _read(answer, *asked[n].range)
                if isinstance(answer, Answer) and isinstance(found[key], str):
                    again[key] = n
                elif self.cache is not None and isinstance(grade := found[key], int):
                    self.cache.put([(key, grade)])
            open_ones = again
            if not open_ones:
                break
        return [found[key] for key in keys]

    def _key(self, question: Question) -> bytes:
        assert self.role is not None
        spec = self.role.spec
        who = [spec.model, spec.temperature, spec.extra_body]
        content = json.dumps([who, question.messages])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


def _mean(criteria: Sequence[Graded], grades: Sequence[int | str]) -> Measured:
    told = {criterion.name: grade for criterion, grade in zip(criteria, grades, strict=True)}
    cause = next((grade for grade in grades if isinstance(grade, str)), None)
    if cause is not None:
        return Measured({"grade": Score(None, cause)}, detail={"grades": told})
    shares = [
        grade / criterion.levels[-1].high
        for criterion, grade in zip(criteria, grades, strict=True)
        if isinstance(grade, int)
    ]
    return Measured({"grade": Score(sum(shares) / len(shares))}, detail={"grades": told})


def _read(answer: Answer | NoAnswer, low: int, high: int) -> int | str:
    if isinstance(answer, NoAnswer):
        return answer.cause
    text = answer_alone(answer)
    try:
        grade = _Grade.model_validate_json(text).grade
    except ValidationError:
        return f"the judge's answer is no grade: {text[:80]!r}"
    return grade if low <= grade <= high else f"the judge's grade is not within {low} to {high}"
