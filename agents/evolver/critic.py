"""The just-in-time critic: measures a candidate on the frozen current policy before it may act.

A c-update judges the same fresh rollouts under both rubrics (paired). A g-update compares groups under
today's guidance (or none) with groups under the new one: samples of their own, beside plain ones. A
p-update is scored on what it would draw, from recorded rollouts. A change of g or c is measured on each
of its tasks (`trial`, `decision.accept_on_all`). Shapes: X tasks, R bootstrap replicates, groups of G.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ...memory.records import Group, Measurement
from ...prompts import fullest_prompt
from ...specs.guidance import show
from ...specs.harness import HarnessState, UpdateError, apply
from ...specs.rules import RAMP, forbidden, ramps
from ...specs.sampling import effective_tasks, probabilities, stream
from ...specs.schema import RunSpec
from ...specs.tasks import TrainTask
from ...specs.updates import MOST_MEASURED, Update
from ..policy import Policy, PromptError
from ..scoring.diagnosis import group_signals, pool
from ..scoring.reward import Floats
from ..scoring.scorer import Scorer
from .attribute import group_arrays, informative_share
from .decision import Guard, Outcome, Replicates, accept, accept_on_all
from .evidence import Memory
from .trial import REPLICATES, Mix, Trial, UnmeasurableError


class StalePolicyError(Exception):
    """The policy to measure on is not the one the evolver was triggered at."""


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
                trials.append(self._trial(update, task_id, harness, after, step, revision))
        rules = self.spec.evolver.critic
        cost(len(trials), rules.rollouts * sum(len(trial.kinds) for trial in trials))
        outcome = self._look(trials, rules.rollouts)
        if outcome.open and rules.extended_rollouts > rules.rollouts:
            outcome = self._look(trials, rules.extended_rollouts)
        return outcome

    def _trial(
        self,
        update: Update,
        task_id: str,
        harness: HarnessState,
        after: HarnessState,
        step: int,
        revision: int | str,
    ) -> Trial:
        """A candidate on one of its tasks. Raises `UnmeasurableError`."""
        task = harness.tasks[task_id]
        plain: Mix = {(): self.spec.engine.group_size}  # a c-update is measured on plain rollouts
        mixes = plain, plain
        if update.interface == "g":
            mixes = self.mix(harness, task, step + 1), self.mix(after, task, step + 1)
            if mixes[0] == mixes[1]:
                raise UnmeasurableError("the next step's rollouts would be the same")
        rubrics = harness.rubric(task_id), after.rubric(task_id)
        key = (step, task_id, revision)
        return Trial(update, task, rubrics, mixes, key, self.policy, self.scorer, self.spec)

    def _look(self, trials: Sequence[Trial], n: int) -> Outcome:
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
        for broken in forbidden(update, harness.tasks, self.spec.interfaces):
            raise UpdateError(broken.message)
        for task_id in update.task_ids:
            try:
                self.policy.check_prompt(fullest_prompt(after, task_id))
            except PromptError as error:
                raise UpdateError(f"{update.op}: {error}") from None
        return after

    def mix(self, harness: HarnessState, task: TrainTask, step: int) -> Mix:
        """The kinds of rollouts in a group of `task` at `step`, the most guided first.

        Raises `UnmeasurableError` where every rollout of every group is of a kind of its own.
        """
        if ramps(harness, task.id):
            raise UnmeasurableError(RAMP)
        mounted = harness.of(task.id).guidance
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
