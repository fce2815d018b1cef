"""Checks, programs that decide one criterion, as they stand in YAML; `agents/scoring` runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from . import patterns
from .errors import Steps, did_you_mean
from .faults import FaultsError, fault
from .secrets import CheckArgs
from .strict import AtLeastOne, Strict

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
#: What is wrong with the name of a plugin check, or with the arguments given to it; None: nothing.
#: Handed in as pydantic's context where a person's file is read, since nothing here loads a plugin.
PluginFault = Callable[[str, Mapping[str, Any] | None], str | None]


class IfevalCheck(Strict):
    """One IFEval instruction, decided by an IFEval library."""

    kind: Literal["ifeval"]
    id: str
    """The instruction, e.g. `punctuation:no_comma`."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Its arguments under IFEval's names."""

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
            told = [f"no argument {name}{did_you_mean(name, missing or wanted)}" for name in unknown]
            told += [f"needs {', '.join(missing)}"] if missing else []
            takes = ", ".join(IFEVAL_ARGS[self.id]) or "none"
            at: Steps = ("args", unknown[0]) if unknown else ("args",)
            raise FaultsError([fault(f"{self.id}: {'; '.join(told)} (arguments: {takes})", at)])
        return self


class RegexCheck(Strict):
    """Met when a pattern is found, or absent. Case-insensitive."""

    kind: Literal["regex"]
    pattern: str
    """A regular expression, searched for anywhere in the response."""
    present: bool = True
    """`false`: met when the pattern is not found."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str) -> str:
        if wrong := patterns.fault(value):
            raise ValueError(wrong)
        return value


class WordsCheck(Strict):
    """Met when the response has between `min` and `max` words (either end may be left out)."""

    kind: Literal["words"]
    min: Annotated[int, Field(ge=0)] | None = None
    """Fewest words."""
    max: Annotated[int, Field(ge=1)] | None = None
    """Most words."""

    @model_validator(mode="after")
    def _bounded(self) -> WordsCheck:
        if self.min is None and self.max is None:
            raise ValueError("needs `min`, `max` or both (words)")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise FaultsError([fault(f"min {self.min} is above max {self.max}", ("min",))])
        return self


class MentionsCheck(Strict):
    """Met when enough of the terms occur as word beginnings. Case-insensitive."""

    kind: Literal["mentions"]
    terms: AtLeastOne[str]
    """Words, or beginnings of words."""
    at_least: Annotated[int, Field(ge=1)] = 1
    """How many of them have to occur."""

    @model_validator(mode="after")
    def _reachable(self) -> MentionsCheck:
        if self.at_least > len(self.terms):
            told = f"at_least {self.at_least} of only {len(self.terms)} terms"
            raise FaultsError([fault(told, ("at_least",))])
        return self


class RepetitionCheck(Strict):
    """Met when few of the response's word pairs repeat earlier ones."""

    kind: Literal["repetition"]
    max_share: Annotated[float, Field(ge=0.0, le=1.0)]
    """Largest share of repeated word pairs."""


class PluginCheck(Strict):
    """A check that an installed Python package declares under the entry points `harnessrl.checks`."""

    kind: Literal["plugin"]
    name: Annotated[str, Field(min_length=1)]
    """The entry point's name."""
    args: CheckArgs = Field(default_factory=dict, validate_default=True)
    """Its arguments by name."""

    # A run folder is read without a fault to ask: where the package is gone, a run goes on unscored.
    @field_validator("name")
    @classmethod
    def _installed(cls, value: str, info: ValidationInfo) -> str:
        fault: PluginFault | None = info.context
        if fault is not None and (message := fault(value, None)):
            raise ValueError(message)
        return value

    @field_validator("args")
    @classmethod
    def _accepted(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        fault: PluginFault | None = info.context
        name = info.data.get("name")  # absent: its own problem is told
        if fault is not None and name is not None and (message := fault(name, value)):
            raise ValueError(message)
        return value


Check = Annotated[
    IfevalCheck | RegexCheck | WordsCheck | MentionsCheck | RepetitionCheck | PluginCheck,
    Field(discriminator="kind"),
]
