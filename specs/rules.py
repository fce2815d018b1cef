"""What a run's spec forbids of its harness whatever a measurement says, and what cannot be measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import Steps
from .faults import Fault, fault
from .guidance import Lines, overlap
from .harness import HarnessState, apply
from .schema import GuidanceInterface, Interfaces
from .tasks import Task
from .updates import Edit, Mount, Update, replaced

RAMP = "a ramp shows each rollout other lines"


def leak(lines: Lines, task: Task, g: GuidanceInterface) -> str | None:
    """Why guidance repeats too much of what a task keeps as its reference, or None."""
    if lines == "rubric" or not task.reference:
        return None
    share = overlap(lines, task.reference, task.prompt)
    if share <= g.max_overlap:
        return None
    return (
        f"a leak, {share:.0%} of it (by 4-word runs) is in the reference of {task.id} "
        f"(interfaces.g.max_overlap {g.max_overlap:g})"
    )


def forbidden(update: Update, tasks: Mapping[str, Task], interfaces: Interfaces) -> Iterator[Fault]:
    """Every rule that an update of known tasks breaks, task by task."""
    for n, task_id in enumerate(update.task_ids):
        task = tasks[task_id]
        touched = sorted(replaced(update) & {criterion.id for criterion in task.rubric})
        if interfaces.c.anchored and touched:
            told = (
                f"{update.op}: {', '.join(touched)} is a seed criterion of {task_id}, and "
                "interfaces.c.anchored keeps those"
            )
            ids = getattr(update, "criterion_ids", ())
            at: Steps = ("criterion_ids", ids.index(touched[0])) if ids else ("criterion_id",)
            yield fault(told, at, ("task_ids", n))
        if isinstance(update, Mount | Edit) and (found := leak(update.lines, task, interfaces.g)):
            yield fault(f"{update.op}: {found}", ("lines",))


def ramps(state: HarnessState, task_id: str) -> bool:
    """Is some guidance of a task a ramp? Then its rollouts are of no kinds that could be compared."""
    return any(guidance.share == "ramp" for guidance in state.of(task_id).guidance)


def unmeasurable(update: Update, state: HarnessState) -> Iterator[Fault]:
    """Why an update that can be applied to `state` could not be measured, task by task."""
    if update.interface != "g":
        return
    states = state, apply(state, [update])
    for n, task_id in enumerate(update.task_ids):
        if any(ramps(one, task_id) for one in states):
            told = f"{RAMP}: on {task_id} a change of g is applied unmeasured (--force) or not at all"
            mine = isinstance(update, Mount) and update.share == "ramp"
            yield fault(told, *((("share",),) if mine else ()), ("task_ids", n))
