"""`accept`: does a measured candidate enter the harness? One pure function, and its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from ...memory.records import Measurement
from ..scoring.reward import Floats


@dataclass(frozen=True)
class Replicates:
    """A signal and its bootstrap replicates, before and after, on one scale."""

    before: float
    after: float
    before_R: Floats
    after_R: Floats


@dataclass(frozen=True)
class Guard:
    """A quantity that must not fall (`strict`: that must rise) from `before` to `after`."""

    before: float
    after: float
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether the guard lets the candidate pass."""
        if self.strict:
            return self.after > self.before
        return self.after >= self.before


@dataclass(frozen=True)
class Seen:
    """What a look at one task's fresh rollouts shows."""

    signal: Replicates
    guards: Mapping[str, Guard]
    rollouts: int


@dataclass(frozen=True)
class Outcome:
    """`accepted`, or a rejection whose `reason` says what was measured; `open`: more data may help."""

    accepted: bool
    reason: str
    measured: Measurement
    open: bool = False


def accept(
    signal: Replicates,
    guards: Mapping[str, Guard],
    alpha: float,
    margin: float,
    rollouts: int,
) -> Outcome:
    """Accept a gain of at least `margin` that has probability <= `alpha` of being none, guards held.

    `alpha` is this look's part of the candidate's whole (Bonferroni over looks and revisions).
    A rejection stays `open` while the interval still reaches a worthwhile gain.
    """
    gain = signal.after - signal.before
    gain_R = signal.after_R - signal.before_R
    low, high = np.quantile(gain_R, [0.05, 0.95])
    p_no_gain = float((gain_R <= 0).mean())
    measured = Measurement(
        before=signal.before,
        after=signal.after,
        gain=gain,
        interval=(float(low), float(high)),
        p_no_gain=p_no_gain,
        alpha=alpha,
        margin=margin,
        rollouts=rollouts,
        guards={name: (g.before, g.after) for name, g in guards.items()},
    )
    seen = f"gain {gain:+.2f} ({low:+.2f} to {high:+.2f})"
    failed = [name for name, guard in guards.items() if not guard.holds]
    if failed:
        told = ", ".join(f"{n} {guards[n].before:.2f} -> {guards[n].after:.2f}" for n in failed)
        return Outcome(False, f"guard failed: {told}; {seen}", measured)
    if gain < margin:
        reason = f"{seen} is below the margin {margin:.2f}"
        return Outcome(False, reason, measured, open=bool(gain > 0 and high >= margin))
    if p_no_gain > alpha:
        reason = f"{seen} may be luck: P(no gain) {p_no_gain:.3f} is above {alpha:.3f}"
        return Outcome(False, reason, measured, open=True)
    return Outcome(True, f"{seen}, P(no gain) {p_no_gain:.3f} <= {alpha:.3f}, guards held", measured)


def accept_on_all(seen: Mapping[str, Seen], alpha: float, margin: float) -> Outcome:
    """Accept a change of several tasks, by task id, if what was seen passes `accept` on average.

    Each task counts the same, and its replicates are of its own rollouts. Guards have to hold on the mean
    of the tasks: of many, one would fail them by chance. No task may pay for another: on none may a
    guarded quantity fall by more than `margin`, or the signal beyond luck (a probability <= `alpha`,
    shared by the tasks, of being no loss).
    """
    every = list(seen.values())
    guards = {
        name: Guard(
            float(np.mean([one.guards[name].before for one in every])),
            float(np.mean([one.guards[name].after for one in every])),
            guard.strict,
        )
        for name, guard in every[0].guards.items()
    }
    alone: dict[str, Measurement] = {}
    for task_id, one in seen.items():
        signal = one.signal
        alone[task_id] = accept(signal, one.guards, alpha, margin, one.rollouts).measured
        for name, guard in one.guards.items():
            if guard.before - guard.after > margin:
                guards[f"{name} on {task_id}"] = guard
        if (signal.after_R >= signal.before_R).mean() <= alpha / len(seen):
            guards[f"signal rate on {task_id}"] = Guard(signal.before, signal.after)
    pooled = Replicates(
        float(np.mean([one.signal.before for one in every])),
        float(np.mean([one.signal.after for one in every])),
        np.mean([one.signal.before_R for one in every], axis=0),
        np.mean([one.signal.after_R for one in every], axis=0),
    )
    outcome = accept(pooled, guards, alpha, margin, sum(one.rollouts for one in every))
    measured = outcome.measured.model_copy(update={"tasks": alone})
    return replace(outcome, reason=f"on {len(seen)} tasks: {outcome.reason}", measured=measured)
