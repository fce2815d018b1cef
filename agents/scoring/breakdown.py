"""The diagnosis in detail: failure classes and signal rate for each criterion, task, domain or step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ...memory.records import Collapse, Group, Interval, PairClass
from ...specs.sampling import stream
from ...specs.tasks import Criterion
from .diagnosis import (
    COLLAPSES,
    LEVEL,
    Counts,
    Scored,
    as_floats,
    by_class,
    class_counts,
    collapse_codes,
    criterion_score,
    signal_interval,
    signal_rate,
    stacks,
)
from .reward import Floats

By = Literal["criterion", "task", "domain", "step"]
BYS: tuple[By, ...] = get_args(By)


@dataclass(frozen=True)
class Row:
    """What the groups of one criterion, task, domain or step say about the score.

    The score is the whole reward; for a criterion it is what that criterion alone says.
    """

    key: str  # a criterion's id, a task's id, a domain, or a step
    task_ids: tuple[str, ...]  # whose groups these are, sorted
    groups: int
    judged: int  # groups with a pair whose score and quality are known
    collapse: dict[Collapse, int]  # groups
    pairs: dict[PairClass, int]
    signal_rate: float | None  # None: no pair could have carried a signal
    interval: Interval | None  # two-sided bootstrap, rollouts resampled within groups

    @property
    def known(self) -> int:
        """Pairs with known score and quality."""
        return sum(self.pairs.values()) - self.pairs["unknown"]

    def share(self, *names: PairClass) -> float | None:
        """Share of the known pairs that are of these classes; None without any."""
        return sum(self.pairs[name] for name in names) / self.known if self.known else None


def breakdown(
    groups: Sequence[Group],
    by: By,
    criteria: Mapping[str, Criterion],
    seed: int,
    level: float = LEVEL,
) -> list[Row]:
    """One row for each criterion, task, domain or step that has groups.

    Steps come in order, everything else with the lowest signal rate first (what has none, last).
    `criteria` says by id what a criterion's verdicts are worth; those it does not hold are left out. A
    row's interval depends on the seed and on the row's groups alone.
    """
    parts: dict[str, list[tuple[Group, Floats, Floats]]] = {}
    for group in groups:
        quality_G = as_floats(group.quality)
        for key, score_G in _scores(group, by, criteria):
            parts.setdefault(key, []).append((group, score_G, quality_G))
    rows = [_row(key, part, stream(seed, "breakdown", by, key), level) for key, part in parts.items()]
    if by == "step":
        return sorted(rows, key=lambda row: int(row.key))
    return sorted(rows, key=_worst_first)


def criterion_counts(groups: Sequence[Group], criteria: Mapping[str, Criterion]) -> dict[str, Counts]:
    """Pairs by class of each criterion's verdicts, one row a group: shape (M, len(CLASSES)).

    By the ids of the `criteria` that were scored, sorted.
    """
    parts: dict[str, list[Scored]] = {}
    for group in groups:
        quality_G = as_floats(group.quality)
        for key, score_G in _scores(group, "criterion", criteria):
            parts.setdefault(key, []).append((score_G, quality_G, group.resolution))
    return {key: _counts(parts[key]) for key in sorted(parts)}


def _scores(group: Group, by: By, criteria: Mapping[str, Criterion]) -> Iterator[tuple[str, Floats]]:
    """Which rows a group belongs to, and its scores there."""
    if by == "criterion":
        for name, verdicts in group.met.items():
            if name in criteria:
                yield name, criterion_score(as_floats(verdicts), criteria[name].points)
    else:
        key = {"task": group.task_id, "domain": group.domain, "step": str(group.step)}[by]
        yield key, as_floats(group.rewards)


def _row(
    key: str, part: Sequence[tuple[Group, Floats, Floats]], rng: np.random.Generator, level: float
) -> Row:
    arrays = [(score_G, quality_G, group.resolution) for group, score_G, quality_G in part]
    judged, collapses = 0, np.zeros(len(COLLAPSES), dtype=int)
    for score_MG, quality_MG, _ in stacks(arrays):
        known_MG = ~np.isnan(score_MG) & ~np.isnan(quality_MG)
        judged += int((known_MG.sum(-1) >= 2).sum())
        collapses += np.bincount(collapse_codes(score_MG), minlength=len(COLLAPSES))
    pairs = by_class(_counts(arrays))
    return Row(
        key=key,
        task_ids=tuple(sorted({group.task_id for group, _, _ in part})),
        groups=len(part),
        judged=judged,
        collapse=dict(zip(COLLAPSES, collapses.tolist(), strict=True)),
        pairs=pairs,
        signal_rate=signal_rate(pairs),
        interval=signal_interval(arrays, rng, level),
    )


def _counts(arrays: Sequence[Scored]) -> Counts:
    return np.concatenate([class_counts(*stack) for stack in stacks(arrays)])


def _worst_first(row: Row) -> tuple[bool, float, int, str]:
    """By signal rate; of two that have the same, the one with more misleading pairs first."""
    misleads = row.pairs["spurious"] + row.pairs["inversion"]
    return row.signal_rate is None, row.signal_rate or 0.0, -misleads, row.key
