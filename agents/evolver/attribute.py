"""Attribution: from the pooled pair statistics of one task to a failure class and its interfaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from ...memory.records import Diagnosis, Group, Interval, PairClass
from ...specs.harness import HarnessState
from ...specs.sampling import stream
from ...specs.schema import RunSpec
from ..scoring.diagnosis import as_floats, pool, signal_interval, signal_rate
from ..scoring.reward import Floats

#: Failing classes (inversion includes spurious: both say that score and quality part ways) and the
#: interfaces that can repair them, best first.
OWNERS: dict[str, tuple[Literal["p", "g", "c"], ...]] = {
    "spurious": ("c",),
    "inversion": ("c",),
    "blind_low": ("g", "p"),
    "blind_mid": ("c",),
    "blind_high": ("c", "p"),
    "mastered": ("p",),
    "underused": ("p",),
    "recovered": ("p",),
    "healthy": (),
    "neutral": (),
    "not_enough_evidence": (),
}
WORDS: dict[str, str] = {
    "spurious": "the score tells apart responses that are equally good",
    "inversion": "higher scores go to worse responses",
    "blind_low": "all rollouts score at the floor although their quality differs",
    "blind_mid": "all rollouts get one middling score although their quality differs",
    "blind_high": "all rollouts score at the ceiling although their quality differs",
    "mastered": "all rollouts score at the ceiling and are equally good",
    "underused": "it gives more signal than the other tasks of its domain",
    "recovered": "paused, but its re-probes give signal again",
    "healthy": "its scores follow quality",
    "neutral": "its rollouts differ neither in score nor in quality",
    "not_enough_evidence": "not enough evidence to say",
}


def informative_share(counts: dict[PairClass, int]) -> float:
    """s(x) = informative pairs / all pairs with known score and quality; 0 without pairs."""
    known = sum(n for name, n in counts.items() if name != "unknown")
    return counts["informative"] / known if known else 0.0


def group_arrays(groups: Sequence[Group]) -> list[tuple[Floats, Floats, float]]:
    """(score_G, quality_G, resolution) of each group."""
    return [(as_floats(g.rewards), as_floats(g.quality), g.resolution) for g in groups]


def diagnose(
    task_id: str,
    groups: Sequence[Group],
    domain_groups: Sequence[Group],
    harness: HarnessState,
    spec: RunSpec,
    step: int,
) -> Diagnosis:
    """What `groups` (this task's, current) say, beside `domain_groups` (its domain's other tasks')."""
    rules = spec.evolver
    counts = pool(g.pairs for g in groups)
    rate = signal_rate(counts)
    rng = stream(spec.seed, "diagnosis", step, task_id)
    level = 1 - 2 * rules.alpha  # two-sided, so that either bound alone holds with 1 - alpha
    interval = signal_interval(group_arrays(groups), rng, level)
    failure = _failure(task_id, groups, domain_groups, counts, interval, harness, spec)
    return Diagnosis(
        id=f"d-{step:06d}-{task_id}",
        step=step,
        harness_version=harness.version,
        task_id=task_id,
        domain=harness.tasks[task_id].domain,
        failure=failure,
        interfaces=owners(failure, task_id, harness, spec),
        signal_rate=rate,
        interval=interval,
        pairs=counts,
        evidence=[g.id for g in groups],
        sentence=_sentence(failure, rate, interval, len(groups)),
    )


def _failure(
    task_id: str,
    groups: Sequence[Group],
    domain_groups: Sequence[Group],
    counts: dict[PairClass, int],
    interval: Interval | None,
    harness: HarnessState,
    spec: RunSpec,
) -> str:
    rules = spec.evolver
    if len(groups) < rules.attribute.min_groups:
        return "not_enough_evidence"
    share = informative_share(counts)
    if harness.of(task_id).paused:
        return "recovered" if share >= rules.critic.margin else "not_enough_evidence"
    known = sum(counts.values()) - counts["unknown"]
    at_ceiling = all(g.collapse == "collapsed-high" for g in groups)
    if known and at_ceiling and counts["neutral"] > known / 2:
        return "mastered"
    if interval is None:
        return "neutral" if known else "not_enough_evidence"
    if interval[1] < rules.attribute.healthy_signal:
        apart = counts["spurious"] + counts["inversion"]
        losses: list[tuple[int, str]] = [
            (apart, "inversion" if counts["inversion"] >= counts["spurious"] else "spurious"),
            (counts["blind_low"], "blind_low"),
            (counts["blind_mid"], "blind_mid"),
            (counts["blind_high"], "blind_high"),
        ]
        most, failure = max(losses, key=lambda loss: loss[0])
        if most:
            return failure
    others = pool(g.pairs for g in domain_groups)
    compared = len(domain_groups) >= rules.attribute.min_groups
    if compared and share >= informative_share(others) + 2 * rules.critic.margin:
        return "underused"
    rate = signal_rate(counts) or 0.0
    return "healthy" if rate >= rules.attribute.healthy_signal else "not_enough_evidence"


def _sentence(failure: str, rate: float | None, interval: Interval | None, groups: int) -> str:
    seen = "no pair could carry a signal"
    if rate is not None and interval is not None:
        seen = f"signal rate {rate:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{WORDS[failure]}; {seen} over {groups} groups"


def owners(
    failure: str, task_id: str, harness: HarnessState, spec: RunSpec
) -> list[Literal["p", "g", "c"]]:
    """The interfaces that can repair a failure and may evolve in this run, best first."""
    every = list(OWNERS[failure])
    if failure == "blind_high" and harness.of(task_id).guidance:
        every.insert(0, "g")  # guided rollouts at the ceiling: take the help away first
    return [i for i in every if getattr(spec.interfaces, i).evolve]


def severity(diagnosis: Diagnosis, probability: float) -> float:
    """How much signal a step loses to this diagnosis: what the evolver works on first."""
    rate = 1.0 if diagnosis.signal_rate is None else diagnosis.signal_rate
    lost = 1.0 if diagnosis.failure == "mastered" else 1.0 - rate
    return float(np.round(probability * lost, 9))
