"""A candidate of g or c on one task: fresh rollouts of every kind it involves, and what they say.

Shapes: N fresh rollouts of a kind (the same guidance), R bootstrap replicates, M drawn groups of G, K
criteria.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...prompts import guided_prompt
from ...specs.guidance import Shown
from ...specs.sampling import stream
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, TrainTask
from ...specs.updates import Update
from ..policy import Policy, PolicyError, PromptError, Request
from ..scoring.diagnosis import agreement, group_signals
from ..scoring.reward import Floats
from ..scoring.scorer import Scorer
from .decision import Guard, Replicates, Seen

REPLICATES = 400  # bootstrap replicates R
GROUPS = 32  # random groups of G drawn in each
POINT_GROUPS = 2048  # ... and for the point estimate

#: What a rollout is shown; () is a plain one. Rollouts that are shown the same are of one kind.
Kind = tuple[Shown, ...]
#: How many of a group's G rollouts are of each kind.
Mix = dict[Kind, int]


class UnmeasurableError(Exception):
    """The candidate cannot be measured; the message says why."""


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


class Trial:
    """One candidate of g or c on one task: a growing set of fresh rollouts of every kind it involves."""

    def __init__(
        self,
        update: Update,
        task: TrainTask,
        rubrics: tuple[Sequence[Criterion], Sequence[Criterion]],
        mixes: tuple[Mix, Mix],
        key: tuple[int | str, ...],
        policy: Policy,
        scorer: Scorer,
        spec: RunSpec,
    ) -> None:
        """`rubrics` and `mixes` are those before and after the update; `key` names the draws."""
        self.update = update
        self.task = task
        self.rubric, self.rubric_after = rubrics
        self.mix, self.mix_after = mixes
        self.key = key
        self.policy = policy
        self.scorer = scorer
        self.spec = spec
        self.criteria = list({c.id: c for rubric in rubrics for c in rubric}.values())
        # Plain ones are always there: the guards compare with them.
        self.kinds: list[Kind] = list(dict.fromkeys(((), *self.mix, *self.mix_after)))
        self._fresh: list[_Fresh] | None = None
        self._resolution = 0.0

    def look(self, n: int) -> Seen:
        """Bring the fresh rollouts of every kind up to `n`, and measure. Raises `UnmeasurableError`."""
        fresh = self._bring_up_to(n)
        for rubric in (self.rubric, self.rubric_after):
            self._can_score(rubric, fresh)
        rng = stream(self.spec.seed, "critic-draw", *self.key, n)
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
        if share > self.spec.reward.max_unscored:
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
        scorer = self.scorer
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
            samples = self.policy.sample(requests, self.spec.seed)
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
            score_MG = self.scorer.rewards(rubric, met_NK[origin_MG])
            signals = group_signals(score_MG, quality_N[origin_MG], origin_MG, self._resolution)
            rates.append(signals.rate())
        return float(rates[0][0]), rates[1]

    def _guards(self, fresh: dict[Kind, _Fresh]) -> dict[str, Guard]:
        """c: agreement with quality not down. g: guided rollouts no worse, and at their best better."""
        plain = fresh[()]
        if self.update.interface == "c":
            columns = [self.criteria.index(c) for c in self.rubric]
            columns_after = [self.criteria.index(c) for c in self.rubric_after]
            rewards = self.scorer.rewards
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


def _top(quality_N: Floats) -> float:
    """Mean of the best quarter."""
    known = np.sort(quality_N[~np.isnan(quality_N)])
    return float(known[-max(1, len(known) // 4) :].mean()) if len(known) else 0.0
