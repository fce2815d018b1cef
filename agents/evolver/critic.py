"""The just-in-time critic: measures a candidate on the frozen current policy before it may act.

A c-update judges the same fresh rollouts under both rubrics (paired). A g-update compares groups under
today's guidance (or none) with groups under the new one: samples of their own, beside plain ones. A
p-update is scored on what it would draw, from recorded rollouts. A change of g or c for several tasks is
measured on each of them (`decision.accept_on_all`). Shapes: N fresh rollouts of a kind (the same
guidance), R bootstrap replicates, M drawn groups of G, K criteria.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...memory.records import Group, Measurement
from ...prompts import fullest_prompt, guided_prompt
from ...specs.guidance import Shown, overlap, show
from ...specs.harness import HarnessState, UpdateError, apply
from ...specs.sampling import effective_tasks, probabilities, stream
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, TrainTask
from ...specs.updates import MOST_MEASURED, Edit, Mount, Update, replaced
from ..policy import Policy, PolicyError, PromptError, Request
from ..scoring.diagnosis import agreement, group_signals, pool
from ..scoring.reward import Floats
from ..scoring.scorer import Scorer
from .attribute import group_arrays, informative_share
from .decision import Guard, Outcome, Replicates, Seen, accept, accept_on_all
from .evidence import Memory

REPLICATES = 400  # bootstrap replicates R
GROUPS = 32  # random groups of G drawn in each
POINT_GROUPS = 2048  # ... and for the point estimate


class StalePolicyError(Exception):
    """The policy to measure on is not the one the evolver was triggered at."""


class UnmeasurableError(Exception):
    """The candidate cannot be measured; the message says why."""


@dataclass(frozen=True)
class Verdict:
    """What became of a candidate. `measured` is None where nothing was."""

    accepted: bool
    reason: str
    measured: Measurement | None


class Critic:
    """Measures candidates and decides (`decision.accept`); changes nothing."""

    def __init__(self, policy: Policy, scorer: Scorer, memory: Memory, spec: RunSpec) -> None:
        self.policy = policy
        self.scorer = scorer
        self.memory = memory
        self.spec = spec
        rules = spec.evolver
        # Bonferroni: a candidate and its revisions get at most two looks each.
        looks = 1 if rules.critic.extended_rollouts == rules.critic.rollouts else 2
        self.alpha = rules.alpha / (looks * (1 + rules.max_revisions))

    def decide(
        self,
        update: Update,
        harness: HarnessState,
        step: int,
        revision: int | str,
        test: bool,
        cost: Callable[[int, int], None] = lambda *_: None,
    ) -> Verdict:
        """Accept or reject a candidate; without a `test`, whatever can be applied is accepted.

        `cost` hears beforehand of how many tasks how many fresh rollouts will be sampled at first.
        Raises `StalePolicyError`.
        """
        try:
            if not test:
                self.check(update, harness, step)
                return Verdict(True, "not measured", None)
            outcome = self.judge(update, harness, step, revision, cost)
        except UpdateError as error:
            return Verdict(False, f"cannot be applied: {error}", None)
        except UnmeasurableError as error:
            return Verdict(False, f"cannot be measured: {error}", None)
        return Verdict(outcome.accepted, outcome.reason, outcome.measured)

    def judge(
        self,
        update: Update,
        harness: HarnessState,
        step: int,
        revision: int | str,
        cost: Callable[[int, int], None] = lambda *_: None,
    ) -> Outcome:
        """Measure one candidate on fresh rollouts, once more with more of them if that is open.

        Raises `UpdateError` when it cannot be applied, `UnmeasurableError`, and `StalePolicyError`
        when the policy has not taken just the steps 0 to `step`.
        """
        if self.policy.version != step + 1:
            raise StalePolicyError(
                f"the critic was asked about the policy after step {step}, "
                f"but the policy has taken {self.policy.version} steps"
            )
        after = self.check(update, harness, step)
        if update.interface == "p":
            return self._judge_p(update, harness, after, step)
        if len(update.task_ids) > MOST_MEASURED:
            told = f"a change of g or c is measured on {MOST_MEASURED} tasks at most, not on"
            raise UnmeasurableError(f"{told} {len(update.task_ids)}")
        trials = []
        for task_id in update.task_ids:
            with _naming(task_id, update):
                trials.append(_Trial(self, update, task_id, harness, after, step, revision))
        rules = self.spec.evolver.critic
        cost(len(trials), rules.rollouts * sum(len(trial.kinds) for trial in trials))
        outcome = self._look(trials, rules.rollouts)
        if outcome.open and rules.extended_rollouts > rules.rollouts:
            outcome = self._look(trials, rules.extended_rollouts)
        return outcome

    def _look(self, trials: Sequence[_Trial], n: int) -> Outcome:
        """Decide on `n` fresh rollouts of every kind on each task. Raises `UnmeasurableError`."""
        seen = {}
        for trial in trials:
            with _naming(trial.task.id, trial.update):
                seen[trial.task.id] = trial.look(n)
        margin = self.spec.evolver.critic.margin
        if len(seen) > 1:
            return accept_on_all(seen, self.alpha, margin)
        (one,) = seen.values()
        return accept(one.signal, one.guards, self.alpha, margin, one.rollouts)

    def _judge_p(self, update: Update, harness: HarnessState, after: HarnessState, step: int) -> Outcome:
        """Expected signal sum p(x) s(x) of the domains the update touches, before and after."""
        domains = {harness.tasks[i].domain for i in update.task_ids}
        ids = [i for i, task in harness.tasks.items() if task.domain in domains]
        p_before = self._p(harness)
        p_after = self._p(after)
        share = sum(p_before[i] for i in ids)
        before_X = np.array([p_before[i] / share for i in ids])
        after_X = np.array([p_after[i] / share for i in ids])
        staleness = self.spec.evolver.horizon
        groups_by_task = {
            i: [g for g in self.memory.current_groups(harness, step, staleness, i) if _known_pairs(g)]
            for i in harness.tasks
        }
        every = [g for groups in groups_by_task.values() for g in groups]
        average = informative_share(pool(g.pairs for g in every))
        rng = stream(self.spec.seed, "critic-p", step, *update.task_ids)
        s_X, s_RX = np.full(len(ids), average), np.full((REPLICATES, len(ids)), average)
        for x, task_id in enumerate(ids):
            if groups := groups_by_task[task_id]:  # a task without evidence counts as average
                s_X[x] = informative_share(pool(g.pairs for g in groups))
                s_RX[:, x] = _bootstrap_share(group_arrays(groups), rng)
        signal = Replicates(float(before_X @ s_X), float(after_X @ s_X), s_RX @ before_X, s_RX @ after_X)
        floor = self.spec.interfaces.p.min_effective_tasks
        floor = min(floor, effective_tasks(list(p_before.values())))
        guards = {"effective tasks": Guard(floor, effective_tasks(list(p_after.values())))}
        return accept(signal, guards, self.alpha, self.spec.evolver.critic.margin, rollouts=0)

    def check(self, update: Update, harness: HarnessState, step: int) -> HarnessState:
        """The harness with the update, or `UpdateError`: it does not fit, or a rule forbids it."""
        after = apply(harness, [update], step)
        g, c = self.spec.interfaces.g, self.spec.interfaces.c
        for task_id in update.task_ids:
            task = harness.tasks[task_id]
            if c.anchored and (touched := replaced(update) & {k.id for k in task.rubric}):
                raise UpdateError(
                    f"{update.op}: {', '.join(sorted(touched))} is a seed criterion of {task_id}, and "
                    "interfaces.c.anchored keeps those"
                )
            if isinstance(update, Mount | Edit) and update.lines != "rubric" and task.reference:
                share = overlap(update.lines, task.reference, task.prompt)
                if share > g.max_overlap:
                    raise UpdateError(
                        f"{update.op}: a leak, {share:.0%} of it (by 4-word runs) is in the reference of "
                        f"{task_id} (interfaces.g.max_overlap {g.max_overlap:g})"
                    )
            try:
                self.policy.check_prompt(fullest_prompt(after, task_id))
            except PromptError as error:
                raise UpdateError(f"{update.op}: {error}") from None
        return after

    def mix(self, harness: HarnessState, task: TrainTask, step: int) -> Mix:
        """The kinds of rollouts in a group of `task` at `step`, the most guided first.

        Raises `UnmeasurableError` where every rollout of every group is of a kind of its own.
        """
        mounted = harness.of(task.id).guidance
        if any(g.share == "ramp" for g in mounted):
            raise UnmeasurableError("a ramp shows each rollout other lines")
        left = self.memory.strengths(harness, task.id, step, self.spec.engine.steps)
        rng = stream(self.spec.seed, "critic-guidance", step, task.id)  # a ramp's; nothing is drawn
        size = self.spec.engine.group_size
        return Counter(show(mounted, left, harness.rubric(task.id), size, rng))

    def _p(self, harness: HarnessState) -> dict[str, float]:
        p = self.spec.interfaces.p
        return probabilities(harness, p.domain_shares, p.paused_weight)


@contextmanager
def _naming(task_id: str, update: Update) -> Iterator[None]:
    """Let an `UnmeasurableError` say which of an update's tasks it is about."""
    try:
        yield
    except UnmeasurableError as error:
        if len(update.task_ids) == 1:
            raise
        raise UnmeasurableError(f"{task_id}: {error}") from None


#: What a rollout is shown; () is a plain one. Rollouts that are shown the same are of one kind.
Kind = tuple[Shown, ...]
#: How many of a group's G rollouts are of each kind.
Mix = dict[Kind, int]


@dataclass(frozen=True)
class _Fresh:
    """Fresh rollouts of one kind: responses, oracle quality, and verdicts on every criterion."""

    quality_N: Floats
    met_NK: Floats

    def and_more(self, more: _Fresh) -> _Fresh:
        """These and then those."""
        return _Fresh(
            np.concatenate([self.quality_N, more.quality_N]),
            np.concatenate([self.met_NK, more.met_NK]),
        )


class _Trial:
    """One candidate of g or c on one task: a growing set of fresh rollouts of every kind it involves."""

    def __init__(
        self,
        critic: Critic,
        update: Update,
        task_id: str,
        harness: HarnessState,
        after: HarnessState,
        step: int,
        revision: int | str,
    ) -> None:
        self.critic = critic
        self.key = (step, task_id, revision)
        self.update = update
        self.task: TrainTask = harness.tasks[task_id]
        self.rubric = harness.rubric(self.task.id)
        self.rubric_after = after.rubric(self.task.id)
        every = {c.id: c for c in (*self.rubric, *self.rubric_after)}
        self.criteria = list(every.values())
        size = critic.spec.engine.group_size
        self.mix: Mix = {(): size}  # a c-update is measured on plain rollouts
        self.mix_after: Mix = {(): size}
        if update.interface == "g":
            self.mix = critic.mix(harness, self.task, step + 1)
            self.mix_after = critic.mix(after, self.task, step + 1)
            if self.mix == self.mix_after:
                raise UnmeasurableError("the next step's rollouts would be the same")
        # Plain ones are always there: the guards compare with them.
        self.kinds: list[Kind] = list(dict.fromkeys(((), *self.mix, *self.mix_after)))
        self._fresh: list[_Fresh] | None = None
        self._resolution = 0.0

    def look(self, n: int) -> Seen:
        """Bring the fresh rollouts of every kind up to `n`, and measure. Raises `UnmeasurableError`."""
        fresh = self._bring_up_to(n)
        for rubric in (self.rubric, self.rubric_after):
            self._can_score(rubric, fresh)
        rng = stream(self.critic.spec.seed, "critic-draw", *self.key, n)
        drawn = {
            kind: _Drawn(np.arange(n)[None], rng.integers(n, size=(REPLICATES, n))) for kind in self.kinds
        }
        # The same groups before and after where the guidance is the same: a paired comparison.
        groups_before = self._groups(self.mix, drawn, rng)
        groups_after = groups_before
        if self.mix_after != self.mix:
            groups_after = self._groups(self.mix_after, drawn, rng)
        before, before_R = self._rates(self.rubric, groups_before, fresh)
        after, after_R = self._rates(self.rubric_after, groups_after, fresh)
        return Seen(
            Replicates(before, after, before_R, after_R),
            self._guards(dict(zip(self.kinds, fresh, strict=True))),
            rollouts=n * len(self.kinds),
        )

    def _can_score(self, rubric: Sequence[Criterion], fresh: Sequence[_Fresh]) -> None:
        """A silent judge is no evidence, for or against. Raises `UnmeasurableError`."""
        columns = [self.criteria.index(criterion) for criterion in rubric]
        met_NK = np.concatenate([kind.met_NK for kind in fresh])[:, columns]
        share = float(np.isnan(met_NK).any(axis=1).mean())
        if share > self.critic.spec.reward.max_unscored:
            raise UnmeasurableError(f"{share:.0%} of the fresh rollouts have unscored verdicts")

    def _bring_up_to(self, n: int) -> list[_Fresh]:
        """The first `n` fresh rollouts of every kind; those of an earlier look are not scored again.

        The new ones of all kinds go to the oracle together. It sees the plain prompt and not who was
        guided, and where it compares, guided and plain responses meet each other and the same anchors: so
        their qualities can be compared. Raises `UnmeasurableError`.
        """
        have = 0 if self._fresh is None else len(self._fresh[0].quality_N)
        texts = [self._sample(kind, have, n) for kind in self.kinds]
        every = [text for kind in texts for text in kind]
        plain = [not kind for kind in self.kinds for _ in range(have, n)]
        scorer = self.critic.scorer
        found = scorer.quality(self.task, every, "critic", plain)
        quality = np.split(found.q_N, len(self.kinds))
        if any(np.isnan(quality_N).all() for quality_N in quality):
            why = f" ({found.causes[0]})" if found.causes else ""
            raise UnmeasurableError(f"the oracle says nothing about {self.task.id}{why}")
        met = np.split(scorer.verdicts(self.task, self.criteria, every, "critic"), len(self.kinds))
        new = [_Fresh(quality_N, met_NK) for quality_N, met_NK in zip(quality, met, strict=True)]
        if self._fresh is not None:
            new = [old.and_more(more) for old, more in zip(self._fresh, new, strict=True)]
        self._fresh = new
        self._resolution = max(self._resolution, found.resolution)
        return new

    def _sample(self, kind: Kind, start: int, end: int) -> list[str]:
        """Fresh rollouts number `start` up to `end` of a kind."""
        prompt = guided_prompt(self.task.prompt, kind)
        key = ("critic", *self.key, self.kinds.index(kind))
        requests = [Request(prompt, (*key, i)) for i in range(start, end)]
        try:
            samples = self.critic.policy.sample(requests, self.critic.spec.seed)
        except (PromptError, PolicyError) as error:
            raise UnmeasurableError(str(error)) from None
        return [sample.text for sample in samples]

    def _groups(
        self, mix: Mix, drawn: dict[Kind, _Drawn], rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Random groups of G for the point estimate (1, M, G) and for every replicate (R, M, G).

        A rollout's number counts over all kinds, in the order of `kinds`.
        """
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        for k, kind in enumerate(self.kinds):
            if count := mix.get(kind, 0):
                first = k * drawn[kind].point.shape[1]
                point = _subsets(rng, drawn[kind].point, POINT_GROUPS, count) + first
                replicates = _subsets(rng, drawn[kind].replicates, GROUPS, count) + first
                parts.append((point, replicates))
        return (
            np.concatenate([point for point, _ in parts], axis=-1),
            np.concatenate([replicates for _, replicates in parts], axis=-1),
        )

    def _rates(
        self,
        rubric: Sequence[Criterion],
        groups: tuple[np.ndarray, np.ndarray],
        fresh: Sequence[_Fresh],
    ) -> tuple[float, Floats]:
        """Signal rate of the drawn groups: the point estimate and its replicates."""
        columns = [self.criteria.index(criterion) for criterion in rubric]
        met_NK = np.concatenate([kind.met_NK for kind in fresh])[:, columns]
        quality_N = np.concatenate([kind.quality_N for kind in fresh])
        rates = []
        for origin_MG in groups:
            score_MG = self.critic.scorer.rewards(rubric, met_NK[origin_MG])
            signals = group_signals(score_MG, quality_N[origin_MG], origin_MG, self._resolution)
            rates.append(signals.rate())
        return float(rates[0][0]), rates[1]

    def _guards(self, fresh: dict[Kind, _Fresh]) -> dict[str, Guard]:
        """c: agreement with quality not down. g: guided rollouts no worse, and at their best better."""
        plain = fresh[()]
        if self.update.interface == "c":
            columns = [self.criteria.index(c) for c in self.rubric]
            columns_after = [self.criteria.index(c) for c in self.rubric_after]
            rewards = self.critic.scorer.rewards
            before_N = rewards(self.rubric, plain.met_NK[:, columns])
            after_N = rewards(self.rubric_after, plain.met_NK[:, columns_after])
            agrees, agrees_after = (
                agreement(s_N, plain.quality_N, self._resolution) for s_N in (before_N, after_N)
            )
            return {"agreement with quality": Guard(agrees, agrees_after)}
        most_guided = next(iter(self.mix_after))  # that of the group's first rollout
        if not most_guided:
            return {}
        plain_N, guided_N = plain.quality_N, fresh[most_guided].quality_N
        return {
            "mean quality": Guard(float(np.nanmean(plain_N)), float(np.nanmean(guided_N))),
            "top-quartile quality": Guard(_top(plain_N), _top(guided_N), strict=True),
        }


@dataclass(frozen=True)
class _Drawn:
    """Rollout numbers to draw groups from: all of them once, and bootstrap samples of them."""

    point: np.ndarray  # (1, N)
    replicates: np.ndarray  # (R, N)


def _subsets(rng: np.random.Generator, numbers_RN: np.ndarray, groups: int, size: int) -> np.ndarray:
    """`groups` random subsets of each row of `numbers_RN`, shape (R, groups, size)."""
    n_rows, n = numbers_RN.shape
    places = rng.random((n_rows, groups, n)).argsort(axis=-1)[..., :size]
    return np.take_along_axis(numbers_RN[:, None, :], places, axis=2)


def _known_pairs(group: Group) -> int:
    return sum(n for name, n in group.pairs.items() if name != "unknown")


def _bootstrap_share(groups: Sequence[tuple[Floats, Floats, float]], rng: np.random.Generator) -> Floats:
    """Replicates of s = informative / all pairs over groups, rollouts resampled within each."""
    top_R, bottom_R = np.zeros(REPLICATES), np.zeros(REPLICATES)
    for score_G, quality_G, resolution in groups:
        origin_RG = rng.integers(len(score_G), size=(REPLICATES, len(score_G)))
        signals = group_signals(score_G[origin_RG], quality_G[origin_RG], origin_RG, resolution)
        top_R += signals.informative
        bottom_R += signals.pairs
    return np.divide(top_R, bottom_R, out=np.zeros_like(top_R), where=bottom_R > 0)


def _top(quality_N: Floats) -> float:
    """Mean of the best quarter."""
    known = np.sort(quality_N[~np.isnan(quality_N)])
    return float(known[-max(1, len(known) // 4) :].mean()) if len(known) else 0.0
