"""The headline: what the run was, what it cost, and before / after in numbers and in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from ...memory.records import Decision, Evaluation, Probe, Resumed, RunFinished, RunStarted
from .data import PURPOSES, RunData, StepMetrics
from .decisions import Tally
from .history import Version
from .text import count, number, plural, signed

_SPLITS = (("train", "Train"), ("held_out", "Held-out"))
#: Fewer tasks than this say nothing about the spread over tasks.
_MIN_TASKS = 3


@dataclass(frozen=True)
class Header:
    """What the run was and how far it came."""

    name: str
    recipe: str
    seed: str
    policy: str
    oracle: bool | None  # None: the spec is missing
    finished: bool
    resumed: int  # how often
    steps_done: int
    steps_planned: int | None
    version: int
    budget: list[tuple[str, float | None, float | None]]  # purpose, rollouts, tokens
    judge_calls: dict[str, float]
    loop_seconds: float | None  # rollout + score + train
    evolver_seconds: float | None
    waited_seconds: float | None  # for looks beside training; None: there were none
    save_seconds: float | None
    probe_seconds: float
    evaluation_seconds: float | None  # None: there was no evaluation

    @property
    def status(self) -> str:
        """Finished or not; a folder cannot tell a running run from an interrupted one."""
        return "finished" if self.finished else "not finished (interrupted, or still running)"


#: A measurement of some tasks, or none.
Measured = Probe | Evaluation | None


@dataclass(frozen=True)
class Change:
    """A mean before and after. `spread` is two standard errors of the change over tasks."""

    before: float | None
    after: float | None
    spread: float | None = None

    @property
    def change(self) -> float | None:
        """After minus before."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def direction(self) -> int:
        """1 / -1 when the change is larger than its spread, else 0."""
        change = self.change
        if change is None or abs(change) <= (self.spread or 0.0) or not round(change, 3):
            return 0
        return 1 if change > 0 else -1


@dataclass(frozen=True)
class ProbeTask:
    """One task of a probe."""

    task_id: str
    reward: Change
    quality: Change


@dataclass(frozen=True)
class ProbeSplit:
    """The probe of one split, before and after."""

    name: str
    samples: str
    reward: Change
    quality: Change
    words: Change  # mean response length
    tasks: list[ProbeTask]
    audit: str | None  # how far the oracle is right; None: nobody was asked


def header(data: RunData, versions: Sequence[Version]) -> Header:
    """Collect the header from the records, the spec and the last step's totals."""
    started = next(iter(data.of(RunStarted)), None)
    spec = data.spec
    rollouts, tokens, judge_calls = _totals(data)
    purposes = [*PURPOSES, *sorted(rollouts.keys() - set(PURPOSES))]
    evaluations = data.of(Evaluation)
    seed = started.seed if started else spec.seed if spec else None
    return Header(
        name=started.name if started else spec.name if spec else data.folder.resolve().name,
        recipe=(started.recipe if started else "") or "no recipe",
        seed="unknown" if seed is None else str(seed),
        policy=spec.roles.policy.model if spec else "unknown",
        oracle=spec.oracle.kind != "none" if spec else None,
        finished=bool(data.of(RunFinished)),
        resumed=len(data.of(Resumed)),
        steps_done=len(data.steps),
        steps_planned=spec.engine.steps if spec else None,
        version=versions[-1].number,
        budget=[(name, rollouts.get(name), tokens.get(name)) for name in purposes],
        judge_calls=judge_calls,
        loop_seconds=_seconds(data.steps, ("rollout", "score", "train")),
        evolver_seconds=_seconds(data.steps, ("evolve",)),
        waited_seconds=_seconds(data.steps, ("evolve_wait",)),
        save_seconds=_seconds(data.steps, ("save",)),
        probe_seconds=sum(probe.seconds for probe in data.of(Probe)),
        evaluation_seconds=sum(one.seconds for one in evaluations) if evaluations else None,
    )


@dataclass(frozen=True)
class Best:
    """The evaluation with the highest validation reward, and the last one."""

    tasks: int
    steps: int
    reward: float
    quality: float | None
    last_reward: float | None
    steps_done: int


def validation(data: RunData) -> Best | None:
    """Which policy was kept as the best; None where no evaluation was scored."""
    evaluations = data.of(Evaluation)
    scored = [(one.reward, one) for one in evaluations if one.reward is not None]
    if not scored:
        return None
    reward, best = max(scored, key=lambda pair: (pair[0], -pair[1].steps_done))
    last = evaluations[-1]
    return Best(len(best.per_task), best.steps_done, reward, best.quality, last.reward, last.steps_done)


@dataclass(frozen=True)
class RaisedAlarm:
    """An alarm and the steps over which it was on; the sentence is its last one (numbers move)."""

    sentence: str
    first: int
    last: int


def raised_alarms(data: RunData, most: int = 12) -> list[RaisedAlarm]:
    """The alarms of a run, those that were on longest first. An alarm is known by what it is about."""
    found: dict[str, RaisedAlarm] = {}
    for step in data.steps:
        listed = step.values.get("alarms")
        for alarm in listed if isinstance(listed, list) else []:
            about = f"{alarm['kind']} {alarm['where']}"
            first = found[about].first if about in found else step.step
            found[about] = RaisedAlarm(alarm["sentence"], first, step.step)
    return sorted(found.values(), key=lambda a: (a.first - a.last, a.first, a.sentence))[:most]


def _totals(data: RunData) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
    """Rollouts, tokens and judge calls by purpose: the run's own totals, else the last step's."""
    for end in data.of(RunFinished):
        return dict(end.rollouts), dict(end.tokens), dict(end.judge_calls)
    if not data.steps:
        return {}, {}, {}
    last = data.steps[-1]
    return last.counts("rollouts"), last.counts("tokens"), last.counts("judge_calls")


def probes(data: RunData) -> list[ProbeSplit]:
    """Before / after by split; a split without any probe is left out."""
    found: dict[tuple[str, str], Probe] = {(p.split, p.when): p for p in data.of(Probe)}
    out = []
    for split, name in _SPLITS:
        before, after = found.get((split, "before")), found.get((split, "after"))
        if before is None and after is None:
            continue
        out.append(_compared(name, before, after, _audit(before, after)))
    return out


def _validated(data: RunData) -> list[ProbeSplit]:
    """The first and the last evaluation on validation tasks, as a probe; [] where there are no two."""
    scored = [one for one in data.of(Evaluation) if one.reward is not None]
    return [_compared("Validation", scored[0], scored[-1])] if len(scored) > 1 else []


def _compared(name: str, before: Measured, after: Measured, audit: str | None = None) -> ProbeSplit:
    tasks = _probe_tasks(before, after)
    return ProbeSplit(
        name=name,
        samples=" / ".join(count(p.samples) for p in (before, after) if p),
        reward=_change(before, after, "reward", [task.reward for task in tasks]),
        quality=_change(before, after, "quality", [task.quality for task in tasks]),
        words=Change(before.words if before else None, after.words if after else None),
        tasks=tasks,
        audit=audit,
    )


def sentences(
    data: RunData, head: Header, splits: Sequence[ProbeSplit], tally: Sequence[Tally]
) -> list[str]:
    """What the run came to, in plain words and whichever way it went."""
    out = [_progress(head)]
    compared = [split for split in splits if split.reward.change is not None]
    out += [_split_sentence(split) for split in compared]
    if not compared:
        out.append(
            "There is no probe from both before and after, so the policy's change on the tasks that it "
            "was trained on cannot be stated."
        )
    out += [_split_sentence(split) for split in _validated(data)]
    if head.oracle is False or (compared and all(s.quality.change is None for s in compared)):
        out.append(
            "There is no oracle verdict: whether more reward meant better responses cannot be judged."
        )
    out += [_decision_sentence(tally, bool(data.of(Decision))), *_signal_sentence(data.steps)]
    return out


def _progress(head: Header) -> str:
    planned = "an unknown number of" if head.steps_planned is None else f"{head.steps_planned:,}"
    end = "The run finished" if head.finished else "The run is not finished"
    return (
        f"{end}: {head.steps_done:,} of {planned} planned steps are done, "
        f"and the harness is at version {head.version}."
    )


def _split_sentence(split: ProbeSplit) -> str:
    text = f"{split.name} tasks: seed-rubric reward {_moved(split.reward)}"
    if split.quality.change is None:
        return f"{text}; oracle quality is not known."
    text += f", oracle quality {_moved(split.quality)}"
    return f"{text}: {_verdict(split.reward.direction, split.quality.direction)}."


def _moved(change: Change) -> str:
    difference = change.change
    assert difference is not None
    shown = round(difference, 3)
    verb = "rose" if shown > 0 else "fell" if shown < 0 else "stayed"
    text = f"{verb} from {number(change.before)} to {number(change.after)} ({signed(difference)})"
    if shown and not change.direction:
        text += ", inside the spread over tasks"
    return text


def _verdict(reward: int, quality: int) -> str:
    if quality < 0:
        return "more reward, but worse responses" if reward > 0 else "the responses got worse"
    if quality > 0:
        return "both improved" if reward > 0 else "better responses, without more reward"
    if reward > 0:
        return "more reward, without clearly better responses"
    return "less reward, no clear change in quality" if reward < 0 else "no clear change"


def _decision_sentence(tally: Sequence[Tally], any_decision: bool) -> str:
    if not any_decision:
        return "No update of the harness was proposed."
    accepted, total = (
        sum(t.accepted for t in tally),
        sum(t.accepted + t.rejected for t in tally),
    )
    parts = ", ".join(f"{t.interface} {t.accepted} of {t.accepted + t.rejected}" for t in tally)
    spent = plural(sum(t.rollouts for t in tally), "fresh rollout")
    return (
        f"The critic accepted {accepted:,} of {plural(total, 'proposed update')} ({parts}), "
        f"measured on {spent}."
    )


def _signal_sentence(steps: Sequence[StepMetrics]) -> list[str]:
    """Signal rate at the start and at the end: the first and the last third of its steps."""
    rates = [rate for step in steps if (rate := step.get("signal_rate")) is not None]
    third = len(rates) // 3
    if third == 0:
        return []
    first, last = fmean(rates[:third]), fmean(rates[-third:])
    return [
        f"The signal rate averaged {number(first)} over the first {plural(third, 'step')} that "
        f"have one and {number(last)} over the last {third:,}."
    ]


def _probe_tasks(before: Measured, after: Measured) -> list[ProbeTask]:
    old, new = before.per_task if before else {}, after.per_task if after else {}
    absent = (None, None)
    return [
        ProbeTask(
            task_id,
            Change(old.get(task_id, absent)[0], new.get(task_id, absent)[0]),
            Change(old.get(task_id, absent)[1], new.get(task_id, absent)[1]),
        )
        for task_id in {**old, **new}
    ]


def _audit(before: Probe | None, after: Probe | None) -> str | None:
    """Both probes of a time carry the same audit."""
    shares = [
        f"{probe.oracle_accuracy:.0%} {probe.when} training"
        for probe in (before, after)
        if probe is not None and probe.oracle_accuracy is not None
    ]
    if not shares:
        return None
    return f"Of pairs whose better response is beyond doubt the oracle saw {' and '.join(shares)}."


def _change(before: Measured, after: Measured, field: str, tasks: Sequence[Change]) -> Change:
    paired = [task.change for task in tasks if task.change is not None]
    spread = None
    if len(paired) >= _MIN_TASKS:
        spread = 2 * stdev(paired) / math.sqrt(len(paired))
    return Change(
        getattr(before, field) if before else None,
        getattr(after, field) if after else None,
        spread,
    )


def _seconds(steps: Sequence[StepMetrics], phases: Sequence[str]) -> float | None:
    """Seconds in these phases over all surviving steps; None when no step has them."""
    known = [step.seconds[p] for step in steps for p in phases if p in step.seconds]
    return sum(known) if known else None
