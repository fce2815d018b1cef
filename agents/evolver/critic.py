"""The just-in-time critic: measures a candidate on the frozen current policy before it may act.

A c-update judges the same fresh rollouts under both rubrics (paired). A g-update compares plain groups
with groups that carry the guidance (two independent samples). A p-update is scored on what it would
draw, from recorded rollouts. Shapes: N fresh rollouts, R bootstrap replicates, M drawn groups of G.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...prompts import guided_prompt
from ...specs.harness import Guidance, HarnessState, apply
from ...specs.sampling import effective_tasks, probabilities, stream
from ...specs.schema import RunSpec
from ...specs.tasks import TrainTask
from ...specs.updates import Mount, Unmount, Update
from ..policy import Policy, Request
from ..scoring.diagnosis import agreement, group_signals, pool
from ..scoring.judge import Scorer
from ..scoring.reward import Floats
from .attribute import group_arrays, informative_share
from .decision import Guard, Outcome, Replicates, accept
from .evidence import Memory

REPLICATES = 400  # bootstrap replicates R
GROUPS = 32  # random G-subsets drawn in each, and 16 times as many for the point estimate


class StalePolicyError(Exception):
    """The policy to measure on is not the one the evolver was triggered at."""


@dataclass(frozen=True)
class Drawn:
    """Indices of G-subsets: `origin` numbers rollouts, shape (..., M, G)."""

    point: np.ndarray
    replicates: np.ndarray


class Critic:
    """Measures candidates and decides (`decision.accept`); changes nothing."""

    def __init__(self, policy: Policy, scorer: Scorer, memory: Memory, spec: RunSpec) -> None:
        self.policy = policy
        self.scorer = scorer
        self.memory = memory
        self.spec = spec
        rules = spec.evolver
        # Bonferroni: a candidate and its revisions get at most two looks each.
        looks = 1 if rules.extended_rollouts == rules.rollouts else 2
        self.alpha = rules.alpha / (looks * (1 + rules.max_revisions))

    def judge(self, update: Update, harness: HarnessState, step: int, revision: int) -> Outcome:
        """Measure one candidate on fresh rollouts, once more with more of them if that is open.

        Raises `StalePolicyError` when the policy's weights are not those after `step` steps + 1.
        """
        if self.policy.version != step + 1:
            raise StalePolicyError(
                f"the critic was asked about the policy after step {step}, "
                f"but the policy has taken {self.policy.version} steps"
            )
        if update.interface == "p":
            return self._judge_p(update, harness, step)
        trial = _Trial(self, update, harness, (step, update.task_ids[0], revision))
        outcome = trial.look(self.spec.evolver.rollouts)
        if outcome.open and self.spec.evolver.extended_rollouts > self.spec.evolver.rollouts:
            outcome = trial.look(self.spec.evolver.extended_rollouts)
        return outcome

    def _judge_p(self, update: Update, harness: HarnessState, step: int) -> Outcome:
        """Expected signal sum p(x) s(x) of the domains the update touches, before and after."""
        after = apply(harness, [update])
        domains = {harness.tasks[i].domain for i in update.task_ids}
        ids = [i for i, task in harness.tasks.items() if task.domain in domains]
        p_before = self._p(harness)
        p_after = self._p(after)
        share = sum(p_before[i] for i in ids)
        before_X = np.array([p_before[i] / share for i in ids])
        after_X = np.array([p_after[i] / share for i in ids])
        recorded = self.memory.groups(step, self.spec.evolver.max_staleness)
        average = informative_share(pool(g.pairs for g in recorded))
        rng = stream(self.spec.seed, "critic-p", step, *update.task_ids)
        s_X, s_RX = np.full(len(ids), average), np.full((REPLICATES, len(ids)), average)
        for x, task_id in enumerate(ids):
            groups = [g for g in recorded if g.task_id == task_id]
            if groups:  # a task without evidence counts as an average one
                s_X[x] = informative_share(pool(g.pairs for g in groups))
                s_RX[:, x] = _bootstrap_share(group_arrays(groups), rng)
        signal = Replicates(float(before_X @ s_X), float(after_X @ s_X), s_RX @ before_X, s_RX @ after_X)
        floor = self.spec.interfaces.p.min_effective_tasks
        floor = min(floor, effective_tasks(list(p_before.values())))
        guards = {"effective tasks": Guard(floor, effective_tasks(list(p_after.values())))}
        return accept(signal, guards, self.alpha, self.spec.evolver.margin, rollouts=0)

    def _p(self, harness: HarnessState) -> dict[str, float]:
        p = self.spec.interfaces.p
        return probabilities(harness, p.domain_shares, p.paused_weight)


class _Trial:
    """One candidate on a growing set of fresh rollouts, plain and (for g) guided."""

    def __init__(
        self, critic: Critic, update: Update, harness: HarnessState, key: tuple[int, str, int]
    ) -> None:
        self.critic = critic
        self.update = update
        self.key = key
        self.task: TrainTask = harness.tasks[update.task_ids[0]]
        self.rubric = harness.rubric(self.task.id)
        self.rubric_after = apply(harness, [update]).rubric(self.task.id)
        mounted = harness.of(self.task.id).guidance
        self.guidance: Guidance | None = None
        match update:
            case Mount():
                self.guidance = Guidance(update.checklist, update.share)
            case Unmount():
                self.guidance = mounted
        self._texts: dict[bool, list[str]] = {True: [], False: []}

    def look(self, n: int) -> Outcome:
        """Bring the fresh rollouts up to `n` (of each kind) and measure."""
        if self.guidance is None:
            return self._look_c(n)
        return self._look_g(n, self.guidance)

    def _fresh(self, n: int, guided: bool) -> list[str]:
        """The first `n` fresh responses; earlier ones are kept, so a second look only adds."""
        have = self._texts[guided]
        prompt = self.task.prompt
        if guided and self.guidance is not None:
            prompt = guided_prompt(prompt, self.guidance.checklist)
        kind = "guided" if guided else "plain"
        requests = [Request(prompt, ("critic", *self.key, kind, i)) for i in range(len(have), n)]
        samples = self.critic.policy.sample(requests, self.critic.spec.seed)
        have += [sample.text for sample in samples]
        return have

    def _draw(self, n: int, size: int, *more: int | str) -> Drawn:
        """Random `size`-subsets of `n` rollouts: for the point estimate, and of bootstrap samples."""
        rng = stream(self.critic.spec.seed, "critic-draw", *self.key, n, *more)
        point = _subsets(rng, (1, GROUPS * 16), n, size)
        sample_RN = rng.integers(n, size=(REPLICATES, n))
        places = _subsets(rng, (REPLICATES, GROUPS), n, size)
        chosen = np.take_along_axis(sample_RN[:, None, :], places, axis=2)
        return Drawn(point, chosen)

    def _look_c(self, n: int) -> Outcome:
        scorer, texts = self.critic.scorer, self._fresh(n, guided=False)
        quality_N = scorer.quality(self.task, texts)
        both = list({c.id: c for c in (*self.rubric, *self.rubric_after)}.values())
        met_NK = scorer.verdicts(self.task, both, texts, "critic")
        column = {c.id: k for k, c in enumerate(both)}
        before_N, after_N = (
            scorer.rewards(rubric, met_NK[:, [column[c.id] for c in rubric]])
            for rubric in (self.rubric, self.rubric_after)
        )
        drawn = self._draw(n, self.critic.spec.engine.group_size)
        signal = _paired(before_N, after_N, quality_N, drawn)
        guards = {
            "agreement with quality": Guard(agreement(before_N, quality_N), agreement(after_N, quality_N))
        }
        return self._accept(signal, guards, n)

    def _look_g(self, n: int, guidance: Guidance) -> Outcome:
        scorer = self.critic.scorer
        texts = [*self._fresh(n, guided=False), *self._fresh(n, guided=True)]
        quality = scorer.quality(self.task, texts)
        score = scorer.rewards(self.rubric, scorer.verdicts(self.task, self.rubric, texts, "critic"))
        size = self.critic.spec.engine.group_size
        n_guided = guided_count(guidance, size)
        plain = self._draw(n, size, "plain")
        mixed_plain = self._draw(n, size - n_guided, "mixed")
        mixed_guided = self._draw(n, n_guided, "guided")

        def rates(plain_MG: np.ndarray, mixed_MG: np.ndarray) -> tuple[Floats, Floats]:
            every = (plain_MG, mixed_MG)
            found = [group_signals(score[o], quality[o], o).rate() for o in every]
            return found[0], found[1]

        point = rates(plain.point, np.concatenate([mixed_plain.point, mixed_guided.point + n], axis=-1))
        spread = rates(
            plain.replicates,
            np.concatenate([mixed_plain.replicates, mixed_guided.replicates + n], axis=-1),
        )
        plain_q, guided_q = quality[:n], quality[n:]
        if isinstance(self.update, Unmount):
            signal = Replicates(float(point[1][0]), float(point[0][0]), spread[1], spread[0])
            return self._accept(signal, {}, 2 * n)
        signal = Replicates(float(point[0][0]), float(point[1][0]), spread[0], spread[1])
        guards = {
            "mean quality": Guard(float(np.nanmean(plain_q)), float(np.nanmean(guided_q))),
            "top-quartile quality": Guard(_top(plain_q), _top(guided_q), strict=True),
        }
        return self._accept(signal, guards, 2 * n)

    def _accept(self, signal: Replicates, guards: dict[str, Guard], rollouts: int) -> Outcome:
        margin = self.critic.spec.evolver.margin
        return accept(signal, guards, self.critic.alpha, margin, rollouts)


def guided_count(guidance: Guidance | None, group_size: int) -> int:
    """How many of a group's rollouts carry the guidance: rounded down, so some stay unguided."""
    return 0 if guidance is None else int(guidance.share * group_size)


def _subsets(rng: np.random.Generator, shape: tuple[int, int], n: int, size: int) -> np.ndarray:
    """Random subsets of {0..n-1} without repetition, shape (*shape, size)."""
    return rng.random((*shape, n)).argsort(axis=-1)[..., :size]


def _paired(before_N: Floats, after_N: Floats, quality_N: Floats, drawn: Drawn) -> Replicates:
    """Signal rates of the same drawn groups under both scores, pooled over the M groups."""

    def rate(score_N: Floats, origin: np.ndarray) -> Floats:
        return group_signals(score_N[origin], quality_N[origin], origin).rate()

    return Replicates(
        float(rate(before_N, drawn.point)[0]),
        float(rate(after_N, drawn.point)[0]),
        rate(before_N, drawn.replicates),
        rate(after_N, drawn.replicates),
    )


def _bootstrap_share(groups: list[tuple[Floats, Floats]], rng: np.random.Generator) -> Floats:
    """Replicates of s = informative / all pairs over groups, rollouts resampled within each."""
    top_R, bottom_R = np.zeros(REPLICATES), np.zeros(REPLICATES)
    for score_G, quality_G in groups:
        origin_RG = rng.integers(len(score_G), size=(REPLICATES, len(score_G)))
        signals = group_signals(score_G[origin_RG], quality_G[origin_RG], origin_RG)
        top_R += signals.informative
        bottom_R += signals.pairs
    return np.divide(top_R, bottom_R, out=np.zeros_like(top_R), where=bottom_R > 0)


def _top(quality_N: Floats) -> float:
    """Mean of the best quarter."""
    known = np.sort(quality_N[~np.isnan(quality_N)])
    return float(known[-max(1, len(known) // 4) :].mean()) if len(known) else 0.0
