"""The health figures of one step, from its records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..agents.evolver.attribute import group_arrays
from ..agents.scoring.diagnosis import pool, signal_interval, signal_rate
from ..memory.records import Group
from ..memory.rollouts import Rollout
from ..specs.harness import HarnessState
from ..specs.sampling import effective_tasks, probabilities, stream
from ..specs.schema import RunSpec


class NotFiniteError(Exception):
    """An engine reports a step of which nothing can be learnt; the message says which and what."""


def check_finite(step: int, figures: Mapping[str, float | None]) -> None:
    """Raises `NotFiniteError` for loss, gradient norm or the like that is NaN or infinite."""
    wrong = [
        f"{name} is {value}"
        for name, value in figures.items()
        if value is not None and not math.isfinite(value)
    ]
    if wrong:
        raise NotFiniteError(
            f"step {step} (the first is 0): {', '.join(wrong)}; nothing of this step is kept. A resume "
            "comes to the same: start again with a lower engine.learning_rate, or fewer engine.epochs"
        )


def step_metrics(
    step: int,
    harness: HarnessState,
    spec: RunSpec,
    groups: Sequence[Group],
    rollouts: Sequence[Rollout],
    causes: Mapping[str, int],
) -> dict[str, Any]:
    """One line of metrics.jsonl, without what the engine adds. None: nothing to say, never 0."""
    counts = pool(g.pairs for g in groups)
    rng = stream(spec.seed, "signal-interval", step)
    interval = signal_interval(group_arrays(groups), rng) or (None, None)
    verdicts = [v for g in groups for column in g.met.values() for v in column]
    p = spec.interfaces.p
    chances = probabilities(harness, p.domain_shares, p.paused_weight)
    return {
        "step": step,
        "harness_version": harness.version,
        "reward_mean": _mean(r for g in groups for r in g.rewards),
        "quality_mean": _mean(q for g in groups for q in g.quality),
        "signal_rate": signal_rate(counts),
        "signal_low": interval[0],
        "signal_high": interval[1],
        "zero_std_share": float(np.mean([g.collapse.startswith("collapsed") for g in groups])),
        "unscored_share": float(np.mean([v is None for v in verdicts])),
        "unrewarded_share": float(np.mean([r is None for g in groups for r in g.rewards])),
        "criteria": _by_criterion(groups),
        "pairs": counts,
        "collapse": dict(Counter(g.collapse for g in groups)),
        "unscored_causes": dict(causes),
        "guided_share": float(np.mean([r.guided for r in rollouts])),
        "gave_away_share": _mean(float(r.gave_away) for r in rollouts if r.guided),
        "effective_tasks": effective_tasks(list(chances.values())),
        "criteria_active": sum(len(harness.rubric(task_id)) for task_id in harness.tasks),
        "guided_tasks": sum(bool(harness.of(task_id).guidance) for task_id in harness.tasks),
        "paused_tasks": sum(change.paused for change in harness.changes.values()),
        "words_mean": float(np.mean([len(r.response.split()) for r in rollouts])),
        "truncated_share": float(np.mean([not r.finished for r in rollouts])),
    }


def evolver_wait(seconds: Mapping[str, float]) -> float:
    """Seconds of a step that training waited for the evolver. A look beside training takes others too."""
    return seconds.get("evolve_wait", seconds.get("evolve", 0.0))


def wall_time(seconds: Mapping[str, float]) -> float:
    """Seconds a step took, from those of its parts: what ran beside it (`evolve`) is no part of it."""
    rest = sum(value for part, value in seconds.items() if part not in ("evolve", "evolve_wait"))
    return rest + evolver_wait(seconds)


def _by_criterion(groups: Sequence[Group]) -> dict[str, dict[str, float | None]]:
    """Per criterion: share met of the scored verdicts, and share unscored of all."""
    verdicts: dict[str, list[bool | None]] = {}
    for group in groups:
        for criterion, column in group.met.items():
            verdicts.setdefault(criterion, []).extend(column)
    return {
        criterion: {
            "met": _mean(column),
            "unscored": float(np.mean([verdict is None for verdict in column])),
        }
        for criterion, column in verdicts.items()
    }


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
