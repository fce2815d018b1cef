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
    """Accept a change of several tasks, by task id, if the mean of their gains passes `accept`.

    Each task counts the same, and its replicates are of its own rollouts. No task may pay for another:
    the guards have to hold on every one of them, and none may lose signal beyond luck (a probability
    <= `alpha`, shared by the tasks, of being no loss).
    """
    guards: dict[str, Guard] = {}
    alone: dict[str, Measurement] = {}
    for task_id, one in seen.items():
        signal = one.signal
        alone[task_id] = accept(signal, one.guards, alpha, margin, one.rollouts).measured
        guards |= {f"{name} on {task_id}": guard for name, guard in one.guards.items()}
        if (signal.after_R >= signal.before_R).mean() <= alpha / len(seen):
            guards[f"signal rate on {task_id}"] = Guard(signal.before, signal.after)
    signals = [one.signal for one in seen.values()]
    pooled = Replicates(
        float(np.mean([signal.before for signal in signals])),
        float(np.mean([signal.after for signal in signals])),
        np.mean([signal.before_R for signal in signals], axis=0),
        np.mean([signal.after_R for signal in signals], axis=0),
    )
    rollouts = sum(one.rollouts for one in seen.values())
    outcome = accept(pooled, guards, alpha, margin, rollouts)
    measured = outcome.measured.model_copy(update={"guards": {}, "tasks": alone})
    return replace(outcome, reason=f"on {len(seen)} tasks: {outcome.reason}", measured=measured)
