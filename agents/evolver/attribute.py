"""Attribution: from the pooled pair statistics of one task to a failure class and its interfaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from ...memory.records import Attribution, Diagnosis, Group, Interval, PairClass
from ...specs.harness import HarnessState
from ...specs.sampling import stream
from ...specs.schema import RunSpec
from ..scoring.diagnosis import as_floats, pool, signal_interval, signal_rate
from ..scoring.reward import Floats

Interface = Literal["p", "g", "c"]
#: Standard errors by which the largest loss must lead the next one.
SIGMAS = 2.0
#: Failing classes (inversion includes spurious: both say that score and quality part ways) and the
#: interfaces that can repair them, best first.
OWNERS: dict[str, tuple[Interface, ...]] = {
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
        rival=_rival(failure, groups),
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
        most, failure = max(_losses(counts), key=lambda loss: loss[0])
        if most:
            return failure
    others = pool(g.pairs for g in domain_groups)
    compared = len(domain_groups) >= rules.attribute.min_groups
    if compared and share >= informative_share(others) + 2 * rules.critic.margin:
        return "underused"
    rate = signal_rate(counts) or 0.0
    return "healthy" if rate >= rules.attribute.healthy_signal else "not_enough_evidence"


def _losses(counts: dict[PairClass, int]) -> list[tuple[int, str]]:
    """Pairs lost to each kind of failure, and its class."""
    apart = counts["spurious"] + counts["inversion"]
    return [
        (apart, "inversion" if counts["inversion"] >= counts["spurious"] else "spurious"),
        (counts["blind_low"], "blind_low"),
        (counts["blind_mid"], "blind_mid"),
        (counts["blind_high"], "blind_high"),
    ]


def _rival(failure: str, groups: Sequence[Group]) -> str | None:
    """The second largest loss, where the largest leads it by at most `SIGMAS` standard errors.

    The error is over groups, which are independent of one another; pairs of one group are not.
    """
    names = [name for _, name in _losses(pool(g.pairs for g in groups))]
    if failure not in names or len(groups) < 2:
        return None
    losses_ML = np.array([[n for n, _ in _losses(g.pairs)] for g in groups])
    first, second = np.argsort(-losses_ML.sum(0), kind="stable")[:2]
    if not losses_ML[:, second].any():
        return None
    lead_M = losses_ML[:, first] - losses_ML[:, second]
    error = np.sqrt(len(groups)) * lead_M.std(ddof=1)
    return names[second] if lead_M.sum() <= SIGMAS * error else None


def _sentence(failure: str, rate: float | None, interval: Interval | None, groups: int) -> str:
    seen = "no pair could carry a signal"
    if rate is not None and interval is not None:
        seen = f"signal rate {rate:.2f} ({interval[0]:.2f} to {interval[1]:.2f})"
    return f"{WORDS[failure]}; {seen} over {groups} groups"


def owners(failure: str, task_id: str, harness: HarnessState, spec: RunSpec) -> list[Interface]:
    """The interfaces that can repair a failure and may evolve in this run, best first."""
    every = list(OWNERS[failure])
    if failure == "blind_high" and harness.of(task_id).guidance:
        every.insert(0, "g")  # guided rollouts at the ceiling: take the help away first
    return [i for i in every if getattr(spec.interfaces, i).evolve]


def open_interfaces(diagnosis: Diagnosis, harness: HarnessState, spec: RunSpec) -> list[Interface]:
    """What statistics leave open, in their order: the failure's owners, then those of its rival."""
    classes = [diagnosis.failure, *([diagnosis.rival] if diagnosis.rival else [])]
    return _each_once(i for c in classes for i in owners(c, diagnosis.task_id, harness, spec))


def attributed(
    diagnosis: Diagnosis, chosen: Interface, rationale: str, harness: HarnessState, spec: RunSpec
) -> Diagnosis:
    """The diagnosis with the evolver's choice first among the open interfaces, the others behind it.

    An interface that only the rival class has chooses that class too.
    """
    first = owners(diagnosis.failure, diagnosis.task_id, harness, spec)
    rival = diagnosis.rival if chosen not in first else None
    failure, sentence = diagnosis.failure, diagnosis.sentence
    if rival is not None:
        groups = len(diagnosis.evidence)
        failure, sentence = rival, _sentence(rival, diagnosis.signal_rate, diagnosis.interval, groups)
    behind = owners(failure, diagnosis.task_id, harness, spec)
    order = _each_once([chosen, *behind, *open_interfaces(diagnosis, harness, spec)])
    said = Attribution(by="evolver", rationale=rationale, failure=diagnosis.failure, interfaces=first)
    return diagnosis.model_copy(
        update={"failure": failure, "sentence": sentence, "interfaces": order, "attribution": said}
    )


def left_to_statistics(diagnosis: Diagnosis, reason: str) -> Diagnosis:
    """The diagnosis as it was, with why the evolver did not decide."""
    said = Attribution(
        by="statistics",
        rationale=reason,
        failure=diagnosis.failure,
        interfaces=diagnosis.interfaces,
    )
    return diagnosis.model_copy(update={"attribution": said})


def _each_once(interfaces: Iterable[Interface]) -> list[Interface]:
    return list(dict.fromkeys(interfaces))


def severity(diagnosis: Diagnosis, probability: float) -> float:
    """How much signal a step loses to this diagnosis: what the evolver works on first."""
    rate = 1.0 if diagnosis.signal_rate is None else diagnosis.signal_rate
    lost = 1.0 if diagnosis.failure == "mastered" else 1.0 - rate
    return float(np.round(probability * lost, 9))
