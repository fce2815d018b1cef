"""Tasks, criteria and the oracle's quality description, as they stand in YAML.

Everything is a frozen pydantic model with ``extra="forbid"``: an unknown key is an error, never
ignored. `specs/loader.py` turns pydantic's errors into ``file:line:col`` messages.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from .checks import Check
from .faults import FaultsError, fault
from .strict import AtLeastOne, Many, Strict

#: What some write where there is no licence. Such a task must not pass for one that has a licence.
NO_LICENCE = frozenset(
    ("n/a", "no license", "no licence", "none", "none stated", "null", "unknown", "unlicensed")
)


def _is_a_licence(value: str) -> str:
    plain = value.strip()
    if plain != value or not any(c.isalnum() for c in value) or plain.casefold() in NO_LICENCE:
        raise ValueError("must name a licence, without blanks around it; none stated: leave the key out")
    return value


#: The name of a licence, such as `CC-BY-4.0`.
Licence = Annotated[str, AfterValidator(_is_a_licence)]


#: The least and the most points of a criterion, in size: of a rubric's no sum overflows or loses any.
LEAST_POINTS, MOST_POINTS = 1e-6, 1e6


def _count(points: float) -> float:
    if not LEAST_POINTS <= abs(points) <= MOST_POINTS:
        told = "points must be a finite number other than 0 (negative = penalty), in size"
        raise ValueError(f"{told} from {LEAST_POINTS:f} to {MOST_POINTS:,.0f}")
    return points


#: Points of a criterion.
Points = Annotated[float, AfterValidator(_count)]


class Criterion(Strict):
    """One thing the rubric looks for."""

    text: Annotated[str, Field(min_length=1)]
    """What is looked for, in words. A judge reads this and nothing else of the criterion."""
    points: Points
    """What meeting it is worth, at most 1,000,000. Below zero: a bad behaviour, and met means that it is
    present."""
    check: Check | None = None
    """A program that decides it; without one, a judge does."""
    extract: Annotated[str, Field(min_length=1)] | None = None
    """What a judge copies out of the response (`the final numeric answer`) for the check to read."""
    gate: Annotated[float, Field(ge=0.0, lt=1.0)] | None = None
    """The most a response can earn that fails it (unmet; met, where `points` are below zero)."""
    tags: AtLeastOne[str] | None = None
    """What the source says of it (`axis:accuracy`), for tables by axis. No part of the criterion's id."""

    @field_validator("extract")
    @classmethod
    def _is_checked(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("check", "wrong itself") is None:
            raise ValueError("`extract` needs a `check` that decides on what is extracted")
        return value

    @property
    def needs_judge(self) -> bool:
        """Does a judge have to decide it, or to extract what a check decides on?"""
        return self.check is None or self.extract is not None

    @property
    def id(self) -> str:
        """Content hash: the same criterion has the same id in every file, order and run."""
        unused = {name for name in ("gate", "extract") if getattr(self, name) is None}
        content = json.dumps(self.model_dump(mode="json", exclude=unused | {"tags"}), sort_keys=True)
        return "c-" + hashlib.sha256(content.encode()).hexdigest()[:10]


# --- the oracle's view of a task ---------------------------------------------------------------


class Asks(Strict):
    """What the prompt asks for, in the oracle's own graded measures (never rubric checks)."""

    lowercase: bool = False
    """No capital letters."""
    no_commas: bool = False
    """No commas."""
    no_digits: bool = False
    """No digits."""
    quoted: bool = False
    """The whole response in double quotes."""
    question: bool = False
    """It ends with a question mark."""
    one_sentence: bool = False
    """A single sentence."""
    first_person: bool = False
    """It speaks of itself as I."""
    max_words: Annotated[int, Field(ge=1)] | None = None
    """Most words."""
    min_words: Annotated[int, Field(ge=1)] | None = None
    """Fewest words."""
    starts_with: str | None = None
    """How it begins."""


class Quality(Strict):
    """What a good answer is, for the embedded oracle: no rubric criterion is derived from it."""

    topic: AtLeastOne[AtLeastOne[str]]
    """Concepts, each a group of word beginnings of which any one covers it. Two concepts make a short
    answer fully on topic."""
    asks: Asks = Asks()
    """What the prompt asks of the form."""
    complete_words: Annotated[int, Field(ge=1)] = 8
    """Words below which an answer is too thin to be complete."""


# --- tasks -------------------------------------------------------------------------------------


class Pool(Strict):
    """Candidates the catalogue proposer may draw from: useful, useless and harmful ones, unlabelled."""

    criteria: Many[Criterion] = ()
    """Criteria that may be added."""
    checklists: Many[AtLeastOne[str]] = ()
    """Checklists that may be mounted: lines shown to some rollouts of the task."""


class Message(Strict):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who wrote it."""
    content: str
    """What it says."""


def as_prompt(messages: Sequence[Message]) -> str:
    """A conversation as one user message, which is what the policy is given.

    A single message is its content alone; system messages come first, without a name.
    """
    system = [m.content for m in messages if m.role == "system"]
    turns = [m for m in messages if m.role != "system"]
    if len(turns) == 1:
        return "\n\n".join([*system, turns[0].content])
    said = [f"[{m.role}]\n{m.content}" for m in turns]
    return "\n\n".join([*system, "Write the assistant's next message in this conversation.", *said])


class Origin(Strict):
    """Where in its source a task comes from, and what the source says besides."""

    row: str
    """The source's own id of the row, or a hash of its content."""
    set: str | None = None
    """The data set's own name, whatever a mix calls it."""
    canary: str | None = None
    """A string that marks benchmark data, kept so that a training corpus can be searched for it."""
    more: dict[str, Any] = Field(default_factory=dict)
    """The row's other fields under the source's own names."""


class Task(Strict):
    """A prompt with its seed rubric."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the task everywhere; used once over all files."""
    domain: Annotated[str, Field(min_length=1)]
    """Sampling keeps each domain's share fixed; tables and plots are by domain."""
    prompt: Annotated[str, Field(min_length=1)]
    """The user message."""
    rubric: AtLeastOne[Criterion]
    """c_0, the seed criteria."""
    quality: Quality | None = None
    """What the embedded oracle goes by; without it, that one never diagnoses the task."""
    pool: Pool = Pool()
    """What the catalogue proposer may try on this task."""
    tags: Many[str] = ()
    """Names by which updates of p can reach the task."""
    reference: str | None = None
    """A known good response, shown to the oracle alone. Guidance that repeats it is refused as a leak."""
    source: str = "starter"
    """Where the task comes from."""
    licence: Licence | None = None
    """The licence that its source states; without one, a built mix keeps the task apart."""
    origin: Origin | None = None
    """Its row in the source."""
    messages: AtLeastOne[Message] | None = None
    """The conversation that `prompt` is the text of, where the source has one."""

    @field_validator("prompt")
    @classmethod
    def _says_something(cls, value: str) -> str:
        if value and not value.strip():
            raise ValueError("nothing but white space")
        return value

    @model_validator(mode="after")
    def _is_the_conversation(self) -> Task:
        if self.messages is not None and self.prompt != as_prompt(self.messages):
            raise FaultsError([fault("`prompt` is not the text of `messages`", ("prompt",))])
        return self

    @model_validator(mode="after")
    def _distinct_criteria(self) -> Task:
        if len({criterion.text for criterion in self.rubric}) == len(self.rubric):
            return self  # ids are slow to compute, and equal criteria have equal texts
        ids = [criterion.id for criterion in self.rubric]
        if len(set(ids)) < len(ids):
            told = "the rubric lists the same criterion twice"
            twice = [n for n, one in enumerate(ids) if one in ids[:n]]
            raise FaultsError([fault(told, ("rubric", n)) for n in twice])
        return self


class TrainTask(Task):
    """A task the sampler, the evolver and the memory may see."""


class HeldOutTask(Task):
    """A task for reporting only. Nothing in memory/, agents/evolver/ or the sampler accepts this type."""


class ValidationTask(HeldOutTask):
    """A task by which the best checkpoint is chosen: as far from the evolver as any held-out one."""


class TaskFile(Strict):
    """A file of tasks."""

    shared_pool: Pool = Pool()
    """Candidates for every training task of the file."""
    train: Many[TrainTask] = ()
    """Tasks to train on."""
    held_out: Many[HeldOutTask] = ()
    """Tasks for reporting only: measured before and after, never seen by the evolver."""
    validation: Many[ValidationTask] = ()
    """Tasks by which the best checkpoint is chosen; without any, `logging.validation_share` sets some
    apart."""
