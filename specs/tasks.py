"""Tasks, criteria, checks and the oracle's quality description, as they stand in YAML.

Everything is a frozen pydantic model with ``extra="forbid"``: an unknown key is an error, never
ignored. `specs/loader.py` turns pydantic's errors into ``file:line:col`` messages.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any, Literal, TypeVar

import regex
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

#: The 25 instructions of IFEval (arXiv 2311.07911) with the arguments each one takes. Kept here as
#: plain text so that a spec can be validated without importing the checker library.
IFEVAL_ARGS: dict[str, tuple[str, ...]] = {
    "change_case:capital_word_frequency": ("capital_frequency", "capital_relation"),
    "change_case:english_capital": (),
    "change_case:english_lowercase": (),
    "combination:repeat_prompt": ("prompt_to_repeat",),
    "combination:two_responses": (),
    "detectable_content:number_placeholders": ("num_placeholders",),
    "detectable_content:postscript": ("postscript_marker",),
    "detectable_format:constrained_response": (),
    "detectable_format:json_format": (),
    "detectable_format:multiple_sections": ("section_spliter", "num_sections"),
    "detectable_format:number_bullet_lists": ("num_bullets",),
    "detectable_format:number_highlighted_sections": ("num_highlights",),
    "detectable_format:title": (),
    "keywords:existence": ("keywords",),
    "keywords:forbidden_words": ("forbidden_words",),
    "keywords:frequency": ("keyword", "frequency", "relation"),
    "keywords:letter_frequency": ("letter", "let_frequency", "let_relation"),
    "language:response_language": ("language",),
    "length_constraints:nth_paragraph_first_word": ("num_paragraphs", "nth_paragraph", "first_word"),
    "length_constraints:number_paragraphs": ("num_paragraphs",),
    "length_constraints:number_sentences": ("num_sentences", "relation"),
    "length_constraints:number_words": ("num_words", "relation"),
    "punctuation:no_comma": (),
    "startend:end_checker": ("end_phrase",),
    "startend:quotation": (),
}
IFEVAL_IDS = tuple(IFEVAL_ARGS)


class Strict(BaseModel):
    """Base of every YAML-facing model: immutable, unknown keys rejected, no silent coercion."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


T = TypeVar("T")
#: A YAML list, kept as a tuple. (Strict mode would take tuples only; the items stay strict.)
Many = Annotated[tuple[T, ...], Field(strict=False)]
AtLeastOne = Annotated[tuple[T, ...], Field(strict=False, min_length=1)]


# --- checks: programs that decide one criterion -------------------------------------------------


class IfevalCheck(Strict):
    """One IFEval instruction, decided by an IFEval library."""

    kind: Literal["ifeval"]
    id: str
    args: dict[str, Any] = Field(default_factory=dict)

    @field_validator("id")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in IFEVAL_IDS:
            raise ValueError(f"unknown IFEval instruction; allowed: {', '.join(IFEVAL_IDS)}")
        return value

    @model_validator(mode="after")
    def _has_its_arguments(self) -> IfevalCheck:
        wanted = set(IFEVAL_ARGS[self.id])
        optional = {"prompt_to_repeat"}  # without it, the task's own prompt
        given = {name for name, value in self.args.items() if value is not None}
        unknown = sorted(given - wanted)
        missing = sorted(wanted - given - optional)
        if unknown or missing:
            told = [f"no argument {', '.join(unknown)}"] if unknown else []
            told += [f"needs {', '.join(missing)}"] if missing else []
            takes = ", ".join(IFEVAL_ARGS[self.id]) or "none"
            raise ValueError(f"{self.id}: {'; '.join(told)} (arguments: {takes})")
        return self


class RegexCheck(Strict):
    """Met when `pattern` is found (`present: true`) or absent (`present: false`). Case-insensitive."""

    kind: Literal["regex"]
    pattern: str
    present: bool = True

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            regex.compile(value)
        except regex.error as error:
            raise ValueError(f"not a regular expression ({error})") from None
        return value


class WordsCheck(Strict):
    """Met when the response has between `min` and `max` words (either end may be left out)."""

    kind: Literal["words"]
    min: Annotated[int, Field(ge=0)] | None = None
    max: Annotated[int, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _bounded(self) -> WordsCheck:
        if self.min is None and self.max is None:
            raise ValueError("needs `min`, `max` or both (words)")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class MentionsCheck(Strict):
    """Met when at least `at_least` of `terms` occur as word beginnings. Case-insensitive."""

    kind: Literal["mentions"]
    terms: AtLeastOne[str]
    at_least: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _reachable(self) -> MentionsCheck:
        if self.at_least > len(self.terms):
            raise ValueError(f"at_least {self.at_least} of only {len(self.terms)} terms")
        return self


class RepetitionCheck(Strict):
    """Met when at most `max_share` (0..1) of the response's word pairs are repeats of earlier ones."""

    kind: Literal["repetition"]
    max_share: Annotated[float, Field(ge=0.0, le=1.0)]


Check = Annotated[
    IfevalCheck | RegexCheck | WordsCheck | MentionsCheck | RepetitionCheck,
    Field(discriminator="kind"),
]


class Criterion(Strict):
    """One thing the rubric looks for. Negative `points` mark a bad behaviour: met = it is present."""

    text: Annotated[str, Field(min_length=1)]
    points: float
    check: Check | None = None

    @field_validator("points")
    @classmethod
    def _counts(cls, value: float) -> float:
        if value == 0 or not math.isfinite(value):
            raise ValueError("points must be a finite number other than 0 (negative = penalty)")
        return value

    @property
    def id(self) -> str:
        """Content hash: the same criterion has the same id in every file, order and run."""
        content = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return "c-" + hashlib.sha256(content.encode()).hexdigest()[:10]


# --- the oracle's view of a task ---------------------------------------------------------------


class Asks(Strict):
    """What the prompt asks for, in the oracle's own graded measures (never rubric checks)."""

    lowercase: bool = False
    no_commas: bool = False
    no_digits: bool = False
    quoted: bool = False
    question: bool = False
    one_sentence: bool = False
    first_person: bool = False
    max_words: Annotated[int, Field(ge=1)] | None = None
    min_words: Annotated[int, Field(ge=1)] | None = None
    starts_with: str | None = None


class Quality(Strict):
    """What a good answer is, for the embedded oracle: no rubric criterion is derived from it.

    `topic` lists concepts; each is a group of word beginnings, any one of which covers it. Two
    concepts make a short answer fully on topic.
    `complete_words` is the length (words) below which an answer is too thin to be complete.
    """

    topic: AtLeastOne[AtLeastOne[str]]
    asks: Asks = Asks()
    complete_words: Annotated[int, Field(ge=1)] = 8


# --- tasks -------------------------------------------------------------------------------------


class Pool(Strict):
    """Candidates the catalogue proposer may draw from: useful, useless and harmful ones, unlabelled.

    A guidance candidate is a checklist: lines mounted on some rollouts of the task.
    """

    criteria: Many[Criterion] = ()
    checklists: Many[AtLeastOne[str]] = ()


class Task(Strict):
    """A prompt with its seed rubric. `quality` feeds the oracle, `pool` the catalogue proposer."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    domain: Annotated[str, Field(min_length=1)]
    prompt: Annotated[str, Field(min_length=1)]
    rubric: AtLeastOne[Criterion]
    quality: Quality | None = None
    pool: Pool = Pool()
    source: str = "starter"

    @model_validator(mode="after")
    def _distinct_criteria(self) -> Task:
        ids = [criterion.id for criterion in self.rubric]
        if len(set(ids)) < len(ids):
            raise ValueError("the rubric lists the same criterion twice")
        return self


class TrainTask(Task):
    """A task the sampler, the evolver and the memory may see."""


class HeldOutTask(Task):
    """A task for reporting only. Nothing in memory/, agents/evolver/ or the sampler accepts this type."""


class TaskFile(Strict):
    """A YAML file of tasks: the `train` ones, the `held_out` ones, and a pool shared by all of them."""

    shared_pool: Pool = Pool()
    train: Many[TrainTask] = ()
    held_out: Many[HeldOutTask] = ()
