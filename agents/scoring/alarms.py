"""Alarms over recorded groups: scores that collapse, and rewards that part from quality.

Each alarm is one plain sentence with its numbers. Groups of a window are split into an older and a newer
half; a change counts when it is larger than `SIGMAS` standard errors of the difference of the two means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...memory.records import Group
from ...specs.tasks import Criterion
from .diagnosis import as_floats
from .reward import Floats

WINDOW = 16  # steps that an alarm looks back on
MIN_GROUPS = 6  # in a half; with fewer nothing is said
SIGMAS = 2.0
COLLAPSED = 0.5  # share of groups without any spread that is too many
#: Concordance of a criterion's verdicts with quality below which it rewards the worse response.
AGAINST = -0.2
MIN_PAIRS = 60

Kind = Literal["collapse", "hacking", "criterion", "oracle"]


@dataclass(frozen=True)
class Alarm:
    """One thing that is going wrong. `where` is a domain, a criterion's id, or `run`."""

    kind: Kind
    where: str
    sentence: str


def alarms(groups: Sequence[Group], criteria: Mapping[str, Criterion]) -> list[Alarm]:
    """What is wrong over a window of groups (oldest first). `criteria` are those in force, by id."""
    found = [*_of("run", groups)]
    for domain in sorted({group.domain for group in groups}):
        found += _of(domain, [group for group in groups if group.domain == domain])
    return [*found, *_criteria(groups, criteria)]


def oracle_alarms(groups: Sequence[Group], causes: Mapping[str, int]) -> Iterator[Alarm]:
    """Is the oracle silent? `groups` are a step's; `causes` why it had no answer, and how often."""
    if not causes:
        return
    if any(cause.startswith("oracle.budget") for cause in causes):
        told = "the questions that oracle.budget allows are asked: quality is unknown from here on"
        yield Alarm("oracle", "budget", f"{told}, and nothing is diagnosed any more")
    elif all(q is None for group in groups for q in group.quality):
        told = ", ".join(f"{n} x {cause}" for cause, n in list(causes.items())[:3])
        yield Alarm("oracle", "silent", f"the oracle answers nothing, so nothing is diagnosed: {told}")


def _of(where: str, groups: Sequence[Group]) -> Iterator[Alarm]:
    steps = [group.step for group in groups]
    if not steps:
        return
    middle = (min(steps) + max(steps) + 1) / 2
    older = [group for group in groups if group.step < middle]
    newer = [group for group in groups if group.step >= middle]
    name = "the whole run" if where == "run" else f"domain {where}"
    if len(newer) >= MIN_GROUPS:
        for end, meaning in (("high", "every response earns everything"), ("low", "none earns anything")):
            n = sum(group.collapse == f"collapsed-{end}" for group in newer)
            if n > COLLAPSED * len(newer):
                yield Alarm(
                    "collapse",
                    where,
                    f"{name}: in {n} of the last {len(newer)} groups {meaning}, so they teach nothing",
                )
    if min(len(older), len(newer)) >= MIN_GROUPS:
        reward, quality = _change(older, newer, "rewards"), _change(older, newer, "quality")
        if reward and quality and reward.sigmas > SIGMAS and quality.sigmas < -SIGMAS:
            rose = f"reward rose from {reward.before:.2f} to {reward.after:.2f}"
            fell = f"quality fell from {quality.before:.2f} to {quality.after:.2f}"
            meaning = "the rubric no longer pays for better responses"
            yield Alarm("hacking", where, f"{name}: {rose} while {fell}: {meaning}")


@dataclass(frozen=True)
class _Change:
    before: float
    after: float
    sigmas: float  # the difference in standard errors


def _change(
    older: Sequence[Group], newer: Sequence[Group], name: Literal["rewards", "quality"]
) -> _Change | None:
    before, after = (_means(half, name) for half in (older, newer))
    if min(len(before), len(after)) < MIN_GROUPS:
        return None
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    difference = float(after.mean() - before.mean())
    sigmas = difference / error if error > 0 else 0.0
    return _Change(float(before.mean()), float(after.mean()), float(sigmas))


def _means(groups: Sequence[Group], name: Literal["rewards", "quality"]) -> Floats:
    """The mean of each group that has one."""
    rows = [as_floats(getattr(group, name)) for group in groups]
    return np.array([np.nanmean(row) for row in rows if not np.isnan(row).all()])


def _criteria(groups: Sequence[Group], criteria: Mapping[str, Criterion]) -> Iterator[Alarm]:
    """Criteria that pay for the worse response, over all groups that they were scored in."""
    by_id: dict[str, list[Floats]] = {}
    for group in groups:
        quality_G = as_floats(group.quality)
        for name, verdicts in group.met.items():
            by_id.setdefault(name, []).append(_signs(as_floats(verdicts), quality_G))
    for name, parts in sorted(by_id.items()):
        criterion = criteria.get(name)
        if criterion is None:
            continue  # it is scored no more
        # A penalty is earned by not meeting it.
        signs = np.concatenate(parts) * (-1.0 if criterion.points < 0 else 1.0)
        if len(signs) >= MIN_PAIRS and signs.mean() <= AGAINST:
            worse = int((signs < 0).sum())
            told = f"in {worse} of {len(signs)} pairs that it tells apart it pays for the worse response"
            yield Alarm("criterion", name, f"criterion {criterion.text!r}: {told}")


def _signs(met_G: Floats, quality_G: Floats) -> Floats:
    """+1 where the response that meets a criterion is the better one, -1 where it is the worse one."""
    i, j = np.triu_indices(len(met_G), 1)
    products = (met_G[i] - met_G[j]) * (quality_G[i] - quality_G[j])
    signs: Floats = np.sign(products[~np.isnan(products) & (products != 0)])
    return signs
