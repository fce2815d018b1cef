"""Typed updates: one change to one interface of the harness, for one task or several.

The evolver proposes them, people write them (`harnessrl harness apply`), the event log keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, model_validator

from .errors import did_you_mean
from .faults import Fault, FaultsError, fault
from .guidance import Dose, Fade, GuidanceField, Lines
from .strict import Many, Strict
from .tasks import Criterion, Points, Task


class _Update(Strict):
    task_ids: Many[str] = ()
    """The tasks it changes."""
    rationale: str
    """Why, in a sentence."""
    evidence: Many[str] = ()
    """Record ids: the diagnosis and the groups it rests on."""
    expected: float | None = None
    """Gain the critic is predicted to measure (in the signal of the interface, -1 to 1), if any is."""

    @model_validator(mode="after")
    def _reaches_a_task(self) -> _Update:
        if not (self.task_ids or getattr(self, "domains", ()) or getattr(self, "tags", ())):
            raise ValueError("names no task: give task_ids (for p also domains or tags)")
        twice = [n for n, one in enumerate(self.task_ids) if one in self.task_ids[:n]]
        if twice:
            raise FaultsError([fault("is named twice", ("task_ids", n)) for n in twice])
        return self


class _SamplingUpdate(_Update):
    domains: Many[str] = ()
    """... and every training task of these domains."""
    tags: Many[str] = ()
    """... and every training task with one of these tags."""


class Boost(_SamplingUpdate):
    """p: multiply the sampling weight of the tasks, inside their domains' fixed shares."""

    interface: Literal["p"] = "p"
    op: Literal["boost"] = "boost"
    factor: Annotated[float, Field(gt=1.0, le=10.0)]
    """What the weight is multiplied by."""


class Dampen(_SamplingUpdate):
    """p: the opposite of a boost."""

    interface: Literal["p"] = "p"
    op: Literal["dampen"] = "dampen"
    factor: Annotated[float, Field(ge=0.1, lt=1.0)]
    """What the weight is multiplied by."""


class Pause(_SamplingUpdate):
    """p: sample the tasks at the floor only (never not at all: the floor re-probes them)."""

    interface: Literal["p"] = "p"
    op: Literal["pause"] = "pause"


class Resume(_SamplingUpdate):
    """p: undo a pause."""

    interface: Literal["p"] = "p"
    op: Literal["resume"] = "resume"


class Mount(_Update):
    """g: show lines to some rollouts of a group; replaces what the field held."""

    interface: Literal["g"] = "g"
    op: Literal["mount"] = "mount"
    field: GuidanceField = "checklist"
    """What kind of text it is."""
    lines: Lines
    """Its lines, or `rubric`: the criteria in force."""
    share: Dose
    """Share of a group's rollouts that carry it, rounded down so that some stay plain; or `ramp`."""
    fade: Fade | None = None
    """How it goes away; default: it stays."""


class Edit(_Update):
    """g: other lines in a mounted field; share and fade stay."""

    interface: Literal["g"] = "g"
    op: Literal["edit"] = "edit"
    field: GuidanceField = "checklist"
    """The field."""
    lines: Lines
    """Its new lines."""


class SetFade(_Update):
    """g: give a mounted field a way to go."""

    interface: Literal["g"] = "g"
    op: Literal["fade"] = "fade"
    field: GuidanceField = "checklist"
    """The field."""
    fade: Fade
    """How it goes away, from now on."""


class Unmount(_Update):
    """g: take a field off."""

    interface: Literal["g"] = "g"
    op: Literal["unmount"] = "unmount"
    field: GuidanceField = "checklist"
    """The field."""


class Add(_Update):
    """c: one more criterion."""

    interface: Literal["c"] = "c"
    op: Literal["add"] = "add"
    criterion: Criterion
    """The new one."""


class Rewrite(_Update):
    """c: another criterion in place of one."""

    interface: Literal["c"] = "c"
    op: Literal["rewrite"] = "rewrite"
    criterion_id: str
    """The one it replaces, which is retired."""
    criterion: Criterion
    """The new one."""


class Split(_Update):
    """c: several criteria in place of one."""

    interface: Literal["c"] = "c"
    op: Literal["split"] = "split"
    criterion_id: str
    """The one they replace, which is retired."""
    criteria: Annotated[tuple[Criterion, ...], Field(strict=False, min_length=2)]
    """The new ones."""


class Merge(_Update):
    """c: one criterion in place of several."""

    interface: Literal["c"] = "c"
    op: Literal["merge"] = "merge"
    criterion_ids: Annotated[tuple[str, ...], Field(strict=False, min_length=2)]
    """The ones it replaces, which are retired."""
    criterion: Criterion
    """The new one."""

    @model_validator(mode="after")
    def _several(self) -> Merge:
        if len(set(self.criterion_ids)) < len(self.criterion_ids):
            ids = self.criterion_ids
            twice = [n for n, one in enumerate(ids) if one in ids[:n]]
            raise FaultsError([fault("is named twice", ("criterion_ids", n)) for n in twice])
        return self


class Reweight(_Update):
    """c: other points for a criterion."""

    interface: Literal["c"] = "c"
    op: Literal["reweight"] = "reweight"
    criterion_id: str
    """The criterion."""
    points: Points
    """Its new points, of the same sign."""


class Gate(_Update):
    """c: let a criterion cap the reward, or no longer."""

    interface: Literal["c"] = "c"
    op: Literal["gate"] = "gate"
    criterion_id: str
    """The criterion."""
    cap: Annotated[float, Field(ge=0.0, lt=1.0)] | None
    """The most a response can earn that fails it; null takes the gate off."""


class Retire(_Update):
    """c: stop scoring a criterion. It stays on record and can be restored."""

    interface: Literal["c"] = "c"
    op: Literal["retire"] = "retire"
    criterion_id: str
    """The criterion."""


class Restore(_Update):
    """c: score a retired criterion again."""

    interface: Literal["c"] = "c"
    op: Literal["restore"] = "restore"
    criterion_id: str
    """The criterion."""


SamplingUpdate = Boost | Dampen | Pause | Resume
GuidanceUpdate = Mount | Edit | SetFade | Unmount
RubricUpdate = Add | Rewrite | Split | Merge | Reweight | Gate | Retire | Restore
Update = Annotated[SamplingUpdate | GuidanceUpdate | RubricUpdate, Field(discriminator="op")]
UPDATE: TypeAdapter[Update] = TypeAdapter(Update)


#: Tasks that an update of g or c may name and be measured: each costs fresh rollouts of its own.
MOST_MEASURED = 16


class UpdateFile(Strict):
    """One update as a person writes it, for `harnessrl harness apply`."""

    update: Update
    """The update; `op` says which."""


def unknown_names(update: Update, tasks: Mapping[str, Task]) -> Iterator[Fault]:
    """The tasks, domains and tags that an update names and no training task has."""
    for n, name in enumerate(update.task_ids):
        if name not in tasks:
            yield fault(
                f"{update.op}: no training task {name!r}{did_you_mean(name, tasks)}", ("task_ids", n)
            )
    if isinstance(update, SamplingUpdate):
        domains = sorted({task.domain for task in tasks.values()})
        for n, name in enumerate(update.domains):
            if name not in domains:
                told = f"{update.op}: no training task of domain {name!r}; allowed: {', '.join(domains)}"
                yield fault(told, ("domains", n))
        tags = sorted({tag for task in tasks.values() for tag in task.tags})
        for n, name in enumerate(update.tags):
            if name not in tags:
                every = ", ".join(tags) or "none"
                yield fault(
                    f"{update.op}: no training task with tag {name!r}; allowed: {every}", ("tags", n)
                )


def resolve(update: Update, tasks: Mapping[str, Task]) -> Update:
    """`update` with its domains and tags spelled out as task ids, so that a log says what changed.

    Raises `ValueError` for a domain or a tag that no training task has.
    """
    if not isinstance(update, SamplingUpdate) or not (update.domains or update.tags):
        return update
    for unknown in unknown_names(update.model_copy(update={"task_ids": ()}), tasks):
        raise ValueError(unknown.message)
    ids = list(update.task_ids)
    for name in update.domains:
        ids += [task.id for task in tasks.values() if task.domain == name]
    for tag in update.tags:
        ids += [task.id for task in tasks.values() if tag in task.tags]
    return update.model_copy(update={"task_ids": tuple(dict.fromkeys(ids)), "domains": (), "tags": ()})


def replaced(update: Update) -> set[str]:
    """Ids of the criteria that an update retires."""
    match update:
        case Merge():
            return set(update.criterion_ids)
        case Rewrite() | Split() | Reweight() | Gate() | Retire():
            return {update.criterion_id}
    return set()


def brought_in(update: Update) -> tuple[Criterion, ...]:
    """The criteria that an update spells out."""
    match update:
        case Add() | Rewrite() | Merge():
            return (update.criterion,)
        case Split():
            return update.criteria
    return ()


def describe(update: Update, known: Iterable[Criterion] = ()) -> str:
    """One line for people: what the update does, without the rationale.

    `known` criteria are told by their text where the update names an id only.
    """
    texts = {criterion.id: repr(criterion.text) for criterion in known}

    def name(criterion_id: str) -> str:
        return texts.get(criterion_id, criterion_id)

    tasks = ", ".join(update.task_ids)
    if len(update.task_ids) > 3:
        tasks = f"{len(update.task_ids)} tasks"
    match update:
        case Boost() | Dampen():
            what = f"x{update.factor:g}"
        case Mount():
            dose = update.share if isinstance(update.share, str) else f"{update.share:.0%}"
            if update.lines == "rubric":
                what = f"the rubric as {update.field} on {dose}"
            else:
                what = f"a {len(update.lines)}-line {update.field} on {dose}"
        case Edit():
            what = f"the {update.field}"
        case SetFade():
            what = f"the {update.field}: {update.fade.kind}"
        case Unmount():
            what = "" if update.field == "checklist" else f"the {update.field}"
        case Add():
            what = f"{update.criterion.text!r}, {update.criterion.points:+g} points"
        case Rewrite():
            what = f"{name(update.criterion_id)} as {update.criterion.text!r}"
        case Split():
            what = f"{name(update.criterion_id)} in {len(update.criteria)}"
        case Merge():
            what = f"{len(update.criterion_ids)} criteria into {update.criterion.text!r}"
        case Reweight():
            what = f"{name(update.criterion_id)} to {update.points:+g} points"
        case Gate():
            cap = "no gate" if update.cap is None else f"a cap of {update.cap:g}"
            what = f"{name(update.criterion_id)}: {cap}"
        case Retire() | Restore():
            what = name(update.criterion_id)
        case _:
            what = ""
    return f"{update.interface} {update.op} {what} ({tasks})".replace("  ", " ")
