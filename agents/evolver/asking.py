"""What the evolver role is shown of a case, whatever it is asked, and how its words are read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from ...memory.records import Decision
from ...memory.rollouts import Rollout
from ...specs.printable import short_line
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion
from ...specs.updates import describe
from ..roles.client import Role
from .evidence import Memory
from .proposers import Case

#: Recorded responses that are shown: the best and the worst by quality.
SHOWN = 6
MAX_TEXT = 300  # characters of a line that the model wrote


def shown(case: Case, rollouts: Sequence[Rollout], spec: RunSpec) -> dict[str, Any]:
    """The values of a template about a case: the texts of others, and the mark that fences them."""
    task = case.harness.tasks[case.diagnosis.task_id]
    content = repr([task.prompt, [rollout.response for rollout in rollouts]])
    mark = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:16]
    known = case.harness.all_criteria(task.id)
    return {
        "fence": f"[{mark}]",
        "prompt": task.prompt,
        "rubric": case.harness.rubric(task.id),
        "guidance": [
            f"{mounted.field}: {line}"
            for mounted in case.harness.of(task.id).guidance
            for line in (["the criteria"] if mounted.lines == "rubric" else mounted.lines)
        ],
        "sentence": case.diagnosis.sentence,
        "responses": [
            {"reward": _figure(r.reward), "quality": _figure(r.quality), "text": r.response}
            for r in rollouts
        ],
        "refused": [_told(decision, known, case) for decision in case.refused],
        "similar": [_told(decision, known, case) for decision in case.similar],
        "measured": spec.evolver.critic.test == "measure",
    }


def recorded(memory: Memory, case: Case) -> list[Rollout]:
    """The best and the worst recorded responses of a diagnosis by quality, best first."""
    wanted = set(case.diagnosis.evidence)
    groups = memory.groups(case.diagnosis.step, 10**9, case.diagnosis.task_id)
    rollouts = [r for g in groups if g.id in wanted for r in memory.responses(g)]
    known = [r for r in rollouts if r.quality is not None]
    ranked = sorted(known, key=lambda r: -(r.quality or 0.0)) if known else rollouts
    half = SHOWN // 2
    return ranked if len(ranked) <= SHOWN else [*ranked[:half], *ranked[-half:]]


def is_spent(role: Role, purpose: str, budget: int | None) -> bool:
    """Has the role been asked as often for a purpose as it may be?"""
    used = role.usage.get(purpose)
    return budget is not None and used is not None and used.calls >= budget


def why(error: ValueError | RecursionError) -> str:
    """What is wrong with an answer, on one line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        return short_line(f"{where}: {first['msg']}" if where else first["msg"])
    return short_line(str(error))


def _told(decision: Decision, known: Sequence[Criterion], case: Case) -> str:
    seen = case.observed.get(decision.id)
    since = f"; before and since then: {seen}" if seen else ""
    return f"{describe(decision.update, known)}: {decision.reason}{since}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
