"""Proposers: from a diagnosis to one typed update. `Catalogue` needs no LLM.

The catalogue draws criteria and checklists from the task's pool. What it knows about a candidate is
only what it can measure (its effect on recorded rollouts) or remember (what the critic measured for
the same candidate elsewhere or, where nothing was measured, what followed it in training). Order, wording
and points of pool entries play no part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from ...memory.index import REMEMBERED
from ...memory.records import Decision, Diagnosis, RefusedProposal
from ...specs.harness import HarnessState
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, TrainTask
from ...specs.updates import Add, Boost, Mount, Pause, Resume, Retire, Unmount, Update, brought_in
from ..scoring.diagnosis import agreement, as_floats, group_signals
from ..scoring.reward import Floats
from ..scoring.scorer import Scorer
from .evidence import Memory
from .observed import Observed

BOOST_FACTOR = 2.0


@dataclass(frozen=True)
class Case:
    """What a proposer is shown. `refused`: what this run turned down here, and what was accepted
    unmeasured and then lost signal here. `observed`: by decision id, what followed the unmeasured ones.
    """

    diagnosis: Diagnosis
    harness: HarnessState
    similar: Sequence[Decision]  # of other tasks, most similar diagnosis first
    refused: Sequence[Decision]  # of this task, with the measured reasons
    observed: Mapping[str, Observed] = field(default_factory=dict)
    unusable: Sequence[RefusedProposal] = ()  # to this diagnosis so far


@dataclass(frozen=True)
class NoCandidate:
    """Why a proposer has nothing to measure."""

    reason: str


@dataclass(frozen=True)
class Unusable(NoCandidate):
    """A proposal was made, and it may not be measured: another one may be asked for."""

    proposed: str


class Proposer(Protocol):
    """One proposal a call. Never applies anything."""

    def propose(self, case: Case) -> Update | NoCandidate:
        """The next candidate for `case`, different from every refused one."""


def content_key(update: Update) -> str:
    """What an update does, without its tasks and its reasons: equal for the same change elsewhere."""
    shown = update.model_dump_json(exclude={"task_ids", "rationale", "evidence", "expected"})
    return hashlib.sha256(shown.encode()).hexdigest()


class Catalogue:
    """The deterministic proposer: measured and remembered effects rank the pool's entries."""

    def __init__(self, memory: Memory, scorer: Scorer, spec: RunSpec) -> None:
        self.memory = memory
        self.scorer = scorer
        self.spec = spec

    def propose(self, case: Case) -> Update | NoCandidate:
        """The candidate with the best expected gain, over the interfaces in the diagnosis' order."""
        refused = {content_key(d.update) for d in case.refused}
        for interface in case.diagnosis.interfaces:
            every = {"p": self._for_p, "g": self._for_g, "c": self._for_c}[interface](case)
            fresh = [u for u in every if content_key(u) not in refused]
            if fresh:
                # Equal expectations are settled by content, so that a pool's order decides nothing.
                best = min(fresh, key=lambda u: (-_or_zero(u.expected), content_key(u)))
                return _citing(best, case)
        return NoCandidate(
            f"no candidate is left for {case.diagnosis.failure} that recorded rollouts speak for"
            f" ({len(case.refused)} refused before)"
        )

    def _for_p(self, case: Case) -> list[Update]:
        about = _about(case.diagnosis)
        task_id = case.diagnosis.task_id
        paused = case.harness.of(task_id).paused
        match case.diagnosis.failure:
            case "underused":
                return [Boost(factor=BOOST_FACTOR, **about)]
            case "recovered" if paused:
                return [Resume(**about)]
            case "mastered" | "blind_low" | "blind_high" if not paused:
                return [Pause(**about)]
        return []

    def _for_g(self, case: Case) -> list[Update]:
        about = _about(case.diagnosis)
        task = case.harness.tasks[case.diagnosis.task_id]
        mounted = case.harness.of(task.id).field("checklist")
        if case.diagnosis.failure == "blind_high":
            return [Unmount(field=g.field, **about) for g in case.harness.of(task.id).guidance]
        out: list[Update] = []
        for checklist in task.pool.checklists:
            if mounted is None or mounted.lines != checklist:
                share = self.spec.interfaces.g.share
                out.append(_as_remembered(Mount(lines=checklist, share=share, **about), case))
        offs = [Unmount(field=g.field, **about) for g in case.harness.of(task.id).guidance]
        return [*out, *(_as_remembered(off, case) for off in offs if _undone(off, case))]

    def _for_c(self, case: Case) -> list[Update]:
        """Adding any pool criterion or retiring any scored one, if recorded rollouts speak for it."""
        task = case.harness.tasks[case.diagnosis.task_id]
        rubric = case.harness.rubric(task.id)
        known = {c.id for c in case.harness.all_criteria(task.id)}
        about = _about(case.diagnosis)
        options: list[tuple[Update, list[Criterion]]] = [
            (Add(criterion=c, **about), [*rubric, c]) for c in task.pool.criteria if c.id not in known
        ]
        seed = task.rubric if self.spec.interfaces.c.anchored else ()
        if len(rubric) > 1:
            options += [
                (Retire(criterion_id=c.id, **about), [r for r in rubric if r.id != c.id])
                for c in rubric
                if c not in seed
            ]
        if self.spec.evolver.propose.select == "any":
            wanted = [update for update, _ in options if update.op == "add" or _undone(update, case)]
            return [_as_remembered(update, case) for update in wanted]
        replay = _Replay(task, self.memory, self.scorer, case)
        before = replay.measure(rubric)
        if before is None:
            return []
        before_rate, before_agreement = before
        out: list[Update] = []
        for update, after in options:
            measured = replay.measure(after)
            if measured is None:
                continue
            rate, agrees = measured
            remembered = _remembered(update, case)
            predicted = rate - before_rate
            expected = predicted if remembered is None else (predicted + remembered) / 2
            if expected >= self.spec.evolver.critic.margin and agrees >= before_agreement:
                out.append(update.model_copy(update={"expected": round(expected, 6)}))
        return out


def _remembered(update: Update, case: Case) -> float | None:
    """Mean gain of a change that memory holds; None: it holds nothing about it."""
    gains = [gain for _, gain in _memories(update, case)]
    return float(np.mean(gains)) if gains else None


def _memories(update: Update, case: Case) -> list[tuple[Decision, float]]:
    """The decisions that say something about a change, and what gain each lets expect: that of the same
    change on tasks with similar failures, and what was lost here by those that it would undo."""
    key = content_key(update)
    found: list[tuple[Decision, float]] = []
    for decision in case.similar:
        known = decision.measured or case.observed.get(decision.id)
        if known is not None and content_key(decision.update) == key:
            found.append((decision, known.gain))
    return found + [(decision, -case.observed[decision.id].gain) for decision in _undone(update, case)]


def _undone(update: Update, case: Case) -> list[Decision]:
    """The changes that lost signal on this task, unmeasured, and that `update` would take back."""
    lost = [d for d in case.refused if d.id in case.observed]
    match update:
        case Retire():
            return [d for d in lost if update.criterion_id in {c.id for c in brought_in(d.update)}]
        case Unmount():
            mounted = case.harness.of(case.diagnosis.task_id).field(update.field)
            return [
                d for d in lost if mounted and d.update.op == "mount" and d.update.lines == mounted.lines
            ]
    return []


def _as_remembered(update: Update, case: Case) -> Update:
    """A change with the gain that memory lets expect, if it holds any."""
    return update.model_copy(update={"expected": _remembered(update, case)})


def _citing(update: Update, case: Case) -> Update:
    """A change with the observations that speak for it, or against it, in its rationale."""
    seen = [f"{d.id}, {case.observed[d.id]}" for d, _ in _memories(update, case) if d.id in case.observed]
    if not seen:
        return update
    return update.model_copy(update={"rationale": f"{update.rationale}{REMEMBERED}{'; '.join(seen)}"})


def _about(diagnosis: Diagnosis) -> dict[str, Any]:
    """The fields every update from one diagnosis shares."""
    return {
        "task_ids": (diagnosis.task_id,),
        "rationale": diagnosis.sentence,
        "evidence": (diagnosis.id, *diagnosis.evidence),
    }


class _Replay:
    """Recorded rollouts of the diagnosis' groups, to be scored again under another rubric."""

    def __init__(self, task: TrainTask, memory: Memory, scorer: Scorer, case: Case) -> None:
        wanted = set(case.diagnosis.evidence)
        groups = [g for g in memory.groups(case.diagnosis.step, 10**9, task.id) if g.id in wanted]
        rollouts = [memory.responses(g) for g in groups]
        self.task, self.scorer = task, scorer
        self.texts = [[r.response for r in group] for group in rollouts]
        self.quality = [as_floats(r.quality for r in group) for group in rollouts]
        self.resolution = [group.resolution for group in groups]
        self._met: dict[str, list[Floats]] = {}

    def measure(self, rubric: Sequence[Criterion]) -> tuple[float, float] | None:
        """(signal rate, agreement with quality) of the recorded groups under `rubric`.

        None where no group can be scored under it.
        """
        top = bottom = 0.0
        agreements = []
        for n, quality_G in enumerate(self.quality):
            met_GK = np.stack([self._verdicts(c)[n] for c in rubric], axis=1)
            score_G = self.scorer.rewards(rubric, met_GK)
            if np.isnan(score_G).all():
                continue
            resolution = self.resolution[n]
            signals = group_signals(score_G, quality_G, np.arange(len(score_G)), resolution)
            top += float(signals.informative)
            bottom += float(signals.denominator)
            agreements.append(agreement(score_G, quality_G, resolution))
        if self.quality and not agreements:
            return None
        return (top / bottom if bottom else 0.0), float(np.mean(agreements or [0.0]))

    def _verdicts(self, criterion: Criterion) -> list[Floats]:
        if criterion.id not in self._met:
            self._met[criterion.id] = [
                self.scorer.verdicts(self.task, [criterion], texts, "critic")[:, 0]
                for texts in self.texts
            ]
        return self._met[criterion.id]


def _or_zero(value: float | None) -> float:
    return 0.0 if value is None else value
