"""Typed updates: one change to one interface of the harness, for one task or several.

`expected` is what the proposer predicts the critic will measure (the gain in the signal the
interface is judged by, in [-1, 1]); None when it makes no prediction.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from .tasks import AtLeastOne, Criterion, Many, Strict


class _Update(Strict):
    task_ids: AtLeastOne[str]
    rationale: str
    evidence: Many[str] = ()  # record ids: the diagnosis and the groups it rests on
    expected: float | None = None


class Boost(_Update):
    """p: multiply the sampling weight of the tasks, inside their domains' fixed shares."""

    interface: Literal["p"] = "p"
    op: Literal["boost"] = "boost"
    factor: Annotated[float, Field(gt=1.0, le=10.0)]


class Pause(_Update):
    """p: sample the tasks at the floor only (never not at all: the floor re-probes them)."""

    interface: Literal["p"] = "p"
    op: Literal["pause"] = "pause"


class Resume(_Update):
    """p: undo a pause."""

    interface: Literal["p"] = "p"
    op: Literal["resume"] = "resume"


class Mount(_Update):
    """g: show `checklist` on `share` of a group's rollouts (rounded down, so some stay unguided)."""

    interface: Literal["g"] = "g"
    op: Literal["mount"] = "mount"
    checklist: AtLeastOne[str]
    share: Annotated[float, Field(gt=0.0, lt=1.0)]


class Unmount(_Update):
    """g: take the guidance off."""

    interface: Literal["g"] = "g"
    op: Literal["unmount"] = "unmount"


class Add(_Update):
    """c: one more criterion."""

    interface: Literal["c"] = "c"
    op: Literal["add"] = "add"
    criterion: Criterion


class Retire(_Update):
    """c: stop scoring a criterion. It stays on record and can be restored."""

    interface: Literal["c"] = "c"
    op: Literal["retire"] = "retire"
    criterion_id: str


class Restore(_Update):
    """c: score a retired criterion again."""

    interface: Literal["c"] = "c"
    op: Literal["restore"] = "restore"
    criterion_id: str


Update = Annotated[
    Boost | Pause | Resume | Mount | Unmount | Add | Retire | Restore, Field(discriminator="op")
]
UPDATE: TypeAdapter[Update] = TypeAdapter(Update)


def describe(update: Update) -> str:
    """One line for people: what the update does, without the rationale."""
    tasks = ", ".join(update.task_ids)
    match update:
        case Boost():
            return f"p boost x{update.factor:g} ({tasks})"
        case Mount():
            return f"g mount a {len(update.checklist)}-line checklist on {update.share:.0%} ({tasks})"
        case Add():
            return f"c add {update.criterion.text!r}, {update.criterion.points:+g} points ({tasks})"
        case Retire() | Restore():
            return f"c {update.op} {update.criterion_id} ({tasks})"
        case _:
            return f"{update.interface} {update.op} ({tasks})"
