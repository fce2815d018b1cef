"""Criteria that a benchmark grades in levels (WritingBench 1 to 10, BiGGen-Bench 1 to 5)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...agents.roles.client import Answer, NoAnswer, Question, Role
from ...agents.roles.reading import answer_alone, read_json
from ...agents.scoring.scorer import kind
from ...agents.scoring.verdictcache import Reasons, VerdictCache
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
class _Given:
    """A grade and the judge's reason; or None, and why there is none."""

    grade: int | None
    said: str


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

    def __init__(
        self, role: Role | None, cache: VerdictCache | None, reasons: Reasons | None = None
    ) -> None:
        self.role = role
        self.cache = cache
        self.reasons = reasons

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

    def _ask(self, asked: Sequence[_Asked]) -> list[_Given]:
        """A grade, or why there is none."""
        if self.role is None:
            return [_Given(None, "needs a judge role, and none is configured")] * len(asked)
        questions = [one.question() for one in asked]
        keys = [self._key(question) for question in questions]
        found: dict[bytes, _Given] = {}
        if self.cache is not None:
            known = self.cache.get(list({*keys}))
            reasons = self.reasons.get(list(known)) if self.reasons is not None else {}
            found = {key: _Given(grade, reasons.get(key, "")) for key, grade in known.items()}
        open_ones = {key: n for n, key in enumerate(keys) if key not in found}
        for _ in range(1 + ASK_AGAIN):
            order = list(open_ones.items())

            def heard(n: int, answer: Answer | NoAnswer, order: list[tuple[bytes, int]] = order) -> None:
                key, which = order[n]
                found[key] = given = _read(answer, *asked[which].range)
                if given.grade is None:
                    return
                if self.reasons is not None and given.said:
                    self.reasons.put([(key, given.said)])
                if self.cache is not None:
                    self.cache.put([(key, given.grade)])

            answers = self.role.ask([questions[n] for _, n in order], "evaluate", heard)
            open_ones = {
                key: n
                for (key, n), answer in zip(order, answers, strict=True)
                if isinstance(answer, Answer) and found[key].grade is None
            }
            if not open_ones:
                break
        return [found[key] for key in keys]

    def _key(self, question: Question) -> bytes:
        assert self.role is not None
        spec = self.role.spec
        who = [spec.model, spec.temperature, spec.extra_body]
        content = json.dumps([who, question.messages])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


def _mean(criteria: Sequence[Graded], given: Sequence[_Given]) -> Measured:
    pairs = list(zip(criteria, given, strict=True))
    told = [{"criterion": each.name, "grade": one.grade, "reason": one.said} for each, one in pairs]
    cause = next((kind(one.said) for one in given if one.grade is None), None)
    if cause is not None:
        return Measured({"grade": Score(None, cause)}, detail={"grades": told})
    shares = [one.grade / each.levels[-1].high for each, one in pairs if one.grade is not None]
    return Measured({"grade": Score(sum(shares) / len(shares))}, detail={"grades": told})


def _read(answer: Answer | NoAnswer, low: int, high: int) -> _Given:
    if isinstance(answer, NoAnswer):
        return _Given(None, answer.cause)
    text = answer_alone(answer)
    try:
        found = read_json(_Grade, text)
    except ValueError:
        return _Given(None, f"the judge's answer is no grade: {text[:80]!r}")
    if not low <= found.grade <= high:
        return _Given(None, f"the judge's grade is not within {low} to {high}")
    return _Given(found.grade, found.reason)
