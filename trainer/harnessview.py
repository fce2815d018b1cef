"""A harness in lines for people: what holds for a task, and what differs between two versions."""

from __future__ import annotations

from collections.abc import Iterator

from ..specs.guidance import Guidance
from ..specs.harness import HarnessState, TaskHarness, diff
from ..specs.tasks import Criterion


def overview(state: HarnessState, paused_weight: float) -> Iterator[str]:
    """The version, and a line for each task that it changes."""
    yield f"version {state.version}: {len(state.tasks)} tasks, {len(state.changes)} changed"
    for guidance in state.start.guidance:
        yield f"  every task starts with {_guidance(guidance)}"
    for task_id in sorted(state.changes):
        change, rubric = state.of(task_id), state.rubric(task_id)
        seeds = {criterion.id for criterion in state.tasks[task_id].rubric}
        added = sum(criterion.id not in seeds for criterion in rubric)
        guided = ", ".join(g.field for g in change.guidance) or "-"
        yield (
            f"  {task_id}: weight {state.weight(task_id, paused_weight):g}"
            f"{' (paused)' if change.paused else ''}, guidance {guided}, "
            f"{len(rubric)} criteria ({added} added, {len(change.retired)} retired)"
        )


def task_lines(state: HarnessState, task_id: str, paused_weight: float) -> Iterator[str]:
    """(weight, guidance, rubric) of one task, with where each criterion comes from."""
    change = state.of(task_id)
    paused = " (paused)" if change.paused else ""
    yield f"{task_id}, version {state.version}"
    yield f"p  weight {state.weight(task_id, paused_weight):g}{paused}"
    for guidance in change.guidance:
        yield f"g  {_guidance(guidance)}"
    if not change.guidance:
        yield "g  no guidance"
    origins = {e.criterion.id: f"{e.how}, version {e.version}" for e in change.added}
    for criterion in state.all_criteria(task_id):
        origin = origins.get(criterion.id, "seed")
        retired = ", retired" if criterion.id in change.retired else ""
        yield f"c  {_criterion(criterion)}  [{origin}{retired}]"


def diff_lines(before: HarnessState, after: HarnessState) -> Iterator[str]:
    """What `after` has otherwise than `before`, task by task."""
    changed = diff(before, after)
    yield f"version {before.version} -> {after.version}: {len(changed)} tasks differ"
    for task_id, (old, new) in changed.items():
        yield task_id
        yield from (f"  {line}" for line in _differences(before, after, task_id, old, new))


def _differences(
    before: HarnessState, after: HarnessState, task_id: str, old: TaskHarness, new: TaskHarness
) -> Iterator[str]:
    if old.boost != new.boost:
        yield f"p  boost {old.boost:g} -> {new.boost:g}"
    if old.paused != new.paused:
        yield f"p  {'paused' if new.paused else 'resumed'}"
    for gone in (g for g in old.guidance if g not in new.guidance):
        yield f"g  - {_guidance(gone)}"
    for come in (g for g in new.guidance if g not in old.guidance):
        yield f"g  + {_guidance(come)}"
    was, is_now = before.rubric(task_id), after.rubric(task_id)
    for criterion in (c for c in was if c not in is_now):
        yield f"c  - {_criterion(criterion)}"
    for criterion in (c for c in is_now if c not in was):
        yield f"c  + {_criterion(criterion)}"


def _guidance(guidance: Guidance) -> str:
    dose = guidance.share if guidance.share == "ramp" else f"{guidance.share:.0%}"
    fade = f", fade {guidance.fade.kind}" if guidance.fade else ""
    lines = "the rubric" if guidance.lines == "rubric" else " / ".join(guidance.lines)
    return f"{guidance.field} on {dose}{fade}: {lines}"


def _criterion(criterion: Criterion) -> str:
    gate = "" if criterion.gate is None else f", gate {criterion.gate:g}"
    kind = "judge, " if criterion.extract else ""
    kind += criterion.check.kind if criterion.check else "judge"
    return f"{criterion.id}  {criterion.points:+g}{gate}  {kind}  {criterion.text}"
