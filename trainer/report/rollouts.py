"""Which rollouts the page shows: all of them, unless that would make the page too heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from ...memory.rollouts import Rollout
from ...specs.printable import neutralise
from .data import RunData, read_rollouts
from .history import Timeline, Visit

#: Characters of rollout markup for the first task, and for all the others together.
FOCUS_BUDGET = 2_000_000
OTHERS_BUDGET = 2_500_000
#: Characters shown of one response.
MAX_RESPONSE = 6_000
#: Markup around one rollout and around one verdict, roughly (characters).
_ROLLOUT_MARKUP = 700
_VERDICT_MARKUP = 130


def attach_rollouts(data: RunData, timelines: Sequence[Timeline]) -> tuple[list[Timeline], int]:
    """The timelines with rollouts on their visits, newest visits first while the budget lasts.

    Also returns how many visits had rollouts on disk that did not fit.
    """
    others = max(1, len(timelines) - 1)
    left = {
        timeline.task_id: FOCUS_BUDGET if place == 0 else OTHERS_BUDGET // others
        for place, timeline in enumerate(timelines)
    }
    wanted = {
        (row.group.step, row.group.slot): row.group.task_id
        for timeline in timelines
        for row in timeline.rows
        if isinstance(row, Visit)
    }
    texts = {key: len(escape(neutralise(c.text))) for key, c in data.criteria.items()}
    shown: dict[tuple[int, int], tuple[Rollout, ...]] = {}
    unshown = 0
    for step in sorted({step for step, _ in wanted}, reverse=True):
        for slot, found in sorted(read_rollouts(data.folder, step).items()):
            task_id = wanted.get((step, slot))
            # A file can outlive the attempt that wrote it; its tasks then differ from the log's.
            rollouts = tuple(_shorten(r) for r in found if r.task_id == task_id)
            if task_id is None or not rollouts:
                continue
            cost = sum(_cost(rollout, texts) for rollout in rollouts)
            if cost <= left[task_id]:
                shown[step, slot] = rollouts
                left[task_id] -= cost
            else:
                left[task_id] = 0
                unshown += 1
    return [_with_rollouts(timeline, shown) for timeline in timelines], unshown


def _with_rollouts(timeline: Timeline, shown: dict[tuple[int, int], tuple[Rollout, ...]]) -> Timeline:
    rows = [
        replace(row, rollouts=shown.get((row.group.step, row.group.slot), ()))
        if isinstance(row, Visit)
        else row
        for row in timeline.rows
    ]
    return replace(timeline, rows=rows)


def _shorten(rollout: Rollout) -> Rollout:
    more = len(rollout.response) - MAX_RESPONSE
    if more <= 0:
        return rollout
    text = f"{rollout.response[:MAX_RESPONSE]}\n[… {more:,} more characters in the rollouts file]"
    return replace(rollout, response=text)


def _cost(rollout: Rollout, texts: dict[str, int]) -> int:
    """Characters of markup that the rollout takes, roughly."""
    verdicts = sum(_VERDICT_MARKUP + texts.get(key, 20) for key in rollout.verdicts)
    lines = sum(len(escape(neutralise(line))) for line in rollout.guidance or ())
    return _ROLLOUT_MARKUP + len(escape(neutralise(rollout.response))) + lines + verdicts
