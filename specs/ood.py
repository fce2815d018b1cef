"""Tasks of evaluation-only sets: what is graded in levels, matched exactly, or verified by rule."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from .strict import AtLeastOne, Many, Strict
from .tasks import Criterion, Task


class Level(Strict):
    """One level of a graded criterion."""

    low: int
    """The lowest grade of the level."""
    high: int
    """The highest one."""
    text: Annotated[str, Field(min_length=1)]
    """What a response of this level is like."""


class Graded(Strict):
    """A criterion that a benchmark grades in levels instead of met or not met."""

    name: str
    """What it is called."""
    text: Annotated[str, Field(min_length=1)]
    """What is graded."""
    levels: AtLeastOne[Level]
    """From the lowest to the highest."""


class AnswerKey(Strict):
    """The one right answer of an exact-match task."""

    choices: dict[str, str]
    """Every answer that may be given: its label and its text."""
    correct: str
    """The label of the right one."""

    @model_validator(mode="after")
    def _is_a_choice(self) -> AnswerKey:
        if self.correct not in self.choices:
            raise ValueError(f"{self.correct} is none of the choices: {', '.join(self.choices)}")
        return self


class Instruction(Strict):
    """One verifiable instruction of IFEval or IFBench."""

    id: str
    """Its name, such as `count:word_count_range`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments, without those that are null."""


class OodTask(Task):
    """A task of a set that is for evaluation only. Nothing may train on it, under whatever name."""

    rubric: Many[Criterion] = ()
    """Criteria that are met or not; where the set grades in levels, its grades made binary."""
    grades: Many[Graded] = ()
    """The set's own graded criteria."""
    answer: AnswerKey | None = None
    """The right answer, where there is one."""
    instructions: Many[Instruction] = ()
    """Verifiable instructions, each as often as the set lists it."""
    references: Many[str] = ()
    """Known good responses."""

    @model_validator(mode="after")
    def _measurable(self) -> OodTask:
        if not (self.rubric or self.grades or self.answer or self.instructions or self.references):
            raise ValueError("needs one of rubric, grades, answer, instructions and references")
        return self
