"""Alarms over recorded groups: scores that collapse, and rewards that part from quality.

Each alarm is one plain sentence with its numbers. Groups of a window are split into an older and a newer
half; a change counts when it is larger than `SIGMAS` standard errors of the difference of the two means.
Hacking is a score that rises while the oracle's quality of the same groups falls. It is looked for in the
whole reward and in every criterion, over the run and in each domain. Where the whole reward shows it, its
alarm names the criteria that do too, and these get no alarm of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ...memory.records import Collapse, Group
from ...specs.tasks import Criterion
from .breakdown import criterion_counts
from .diagnosis import CLASSES

WINDOW = 16  # steps that an alarm looks back on
MIN_GROUPS = 6  # in a half; with fewer nothing is said
SIGMAS = 2.0
COLLAPSED = 0.5  # share of groups without any spread that is too many
#: Concordance of a criterion's verdicts with quality below which it rewards the worse response.
AGAINST = -0.2
MIN_PAIRS = 60
MOST = 3  # criteria that are named, or get an alarm of their own, at a time
MAX_NAME = 80  # characters of a criterion that is named among others

Kind = Literal["collapse", "hacking", "criterion", "oracle", "redraw"]


@dataclass(frozen=True)
class Alarm:
    """One thing that is going wrong.

    `where` is a domain, a criterion's id, both (`domain/id`), or `run`.
    """

    kind: Kind
    where: str
    sentence: str


def alarms(groups: Sequence[Group], criteria: Mapping[str, Criterion]) -> list[Alarm]:
    """What is wrong over a window of groups (oldest first). `criteria` are those in force, by id."""
    seen = [_seen(group, criteria) for group in groups]
    scopes = {"run": seen}
    for domain in sorted({one.domain for one in seen}):
        scopes[domain] = [one for one in seen if one.domain == domain]
    found: list[Alarm] = []
    alone: list[_Gamed] = []  # criteria that no wider alarm names
    named: set[str] = set()
    for where, scope in scopes.items():
        found += _collapsed(where, scope)
        gamed = list(_gamed(where, scope, criteria))
        if hacked := _hacked(where, scope, gamed):
            found.append(hacked)
            named |= {one.criterion.id for one in gamed}
        else:
            alone += gamed
    found += _of_their_own([one for one in alone if one.criterion.id not in named])
    return [*found, *_against(groups, criteria)]


def oracle_alarms(groups: Sequence[Group], causes: Mapping[str, int]) -> Iterator[Alarm]:
    """Is the oracle silent? `groups` are a step's; `causes` why it had no answer, and how often."""
    if not causes:
        return
    if any(cause.startswith("oracle.budget") for cause in causes):
        told = "oracle.budget has no room for what is to be asked: quality is unknown from here on"
        yield Alarm("oracle", "budget", f"{told}, and nothing is diagnosed any more")
    elif all(q is None for group in groups for q in group.quality):
        told = ", ".join(f"{n} x {cause}" for cause, n in list(causes.items())[:3])
        yield Alarm("oracle", "silent", f"the oracle answers nothing, so nothing is diagnosed: {told}")


def tied_alarms(tied_T: Sequence[int], slots: int, redraws: int) -> Iterator[Alarm]:
    """Did slots stay tied after all their redraws? `tied_T`: how many of `slots`, in each of T steps."""
    if n := sum(tied_T):
        told = f"in the last {len(tied_T)} steps {n} of {len(tied_T) * slots} slots still tied"
        yield Alarm("redraw", "run", f"{told} after {redraws} redraws: they stay, and teach nothing")


@dataclass(frozen=True)
class _Seen:
    """Means of one group; None where nothing was scored, or the oracle not asked."""

    step: int
    domain: str
    collapse: Collapse
    reward: float | None
    quality: float | None
    earned: dict[str, float | None]  # criterion id -> share of the verdicts that earn


def _seen(group: Group, criteria: Mapping[str, Criterion]) -> _Seen:
    earned: dict[str, float | None] = {}
    for name in group.met.keys() & criteria.keys():
        met = _mean(group.met[name])
        # A penalty is earned by not meeting it.
        earned[name] = 1 - met if met is not None and criteria[name].points < 0 else met
    quality = _mean(group.quality)
    return _Seen(group.step, group.domain, group.collapse, _mean(group.rewards), quality, earned)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _middle(steps: Sequence[int]) -> float:
    """What is before it is older, the rest newer."""
    return (min(steps) + max(steps) + 1) / 2 if steps else 0.0


def _title(where: str) -> str:
    return "the whole run" if where == "run" else f"domain {where}"


def _collapsed(where: str, scope: Sequence[_Seen]) -> Iterator[Alarm]:
    middle = _middle([one.step for one in scope])
    newer = [one for one in scope if one.step >= middle]
    if len(newer) < MIN_GROUPS:
        return
    for end, meaning in (("high", "every response earns everything"), ("low", "none earns anything")):
        n = sum(one.collapse == f"collapsed-{end}" for one in newer)
        if n > COLLAPSED * len(newer):
            told = f"in {n} of the last {len(newer)} groups {meaning}, so they teach nothing"
            yield Alarm("collapse", where, f"{_title(where)}: {told}")


# --- a score that rises while quality falls ---------------------------------------------------------

_Row = tuple[int, float | None, float | None]  # step, score and quality of a group


@dataclass(frozen=True)
class _Change:
    before: float
    after: float
    sigmas: float  # the difference in standard errors

    def __str__(self) -> str:
        return f"{self.before:.2f} to {self.after:.2f}"


@dataclass(frozen=True)
class _Gamed:
    """A criterion that more responses earn while the quality of the same groups falls."""

    where: str  # a domain, or `run`
    criterion: Criterion
    earned: _Change
    quality: _Change

    @property
    def rise(self) -> float:
        """Points that an average response earns more than before."""
        return abs(self.criterion.points) * (self.earned.after - self.earned.before)

    @property
    def name(self) -> str:
        """Its text, cut, and how many responses met it before and meet it now."""
        text = self.criterion.text
        cut = text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."
        return f"{cut!r} (met by {self._met})"

    @property
    def sentence(self) -> str:
        """What is going on, with its numbers."""
        kind, more, means = (
            ("penalty", "is run into by fewer", "avoiding it")
            if self.criterion.points < 0
            else ("criterion", "is met by more", "meeting it")
        )
        at = "" if self.where == "run" else f"{_title(self.where)}, "
        told = f"{kind} {self.criterion.text!r} {more} responses ({self._met})"
        fell = f"the quality of the same groups fell from {self.quality}"
        return f"{at}{told} while {fell}: {means} no longer goes with better responses"

    @property
    def _met(self) -> str:
        shares = self.earned.before, self.earned.after
        before, after = shares if self.criterion.points > 0 else (1 - shares[0], 1 - shares[1])
        return f"{before:.0%} before, {after:.0%} now"


def _hacked(where: str, scope: Sequence[_Seen], gamed: Sequence[_Gamed]) -> Alarm | None:
    """The alarm of the whole reward; it names the criteria that rise while quality falls, too."""
    parted = _parted([(one.step, one.reward, one.quality) for one in scope])
    if parted is None:
        return None
    reward, quality = parted
    rose = f"reward rose from {reward} while quality fell from {quality}"
    sentence = f"{_title(where)}: {rose}: the rubric no longer pays for better responses"
    if gamed:
        names = [one.name for one in _by_rise(gamed)]
        more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
        sentence += f"; criteria that go with it: {', '.join(names[:MOST])}{more}"
    return Alarm("hacking", where, sentence)


def _gamed(where: str, scope: Sequence[_Seen], criteria: Mapping[str, Criterion]) -> Iterator[_Gamed]:
    rows: dict[str, list[_Row]] = {}
    for one in scope:
        for name, earned in one.earned.items():
            rows.setdefault(name, []).append((one.step, earned, one.quality))
    for name in sorted(rows):
        if parted := _parted(rows[name]):
            yield _Gamed(where, criteria[name], *parted)


def _of_their_own(gamed: Sequence[_Gamed]) -> Iterator[Alarm]:
    """Alarms of the `MOST` criteria that rose most. One that shows over the run needs no domain's."""
    everywhere = {one.criterion.id for one in gamed if one.where == "run"}
    kept = [one for one in gamed if one.where == "run" or one.criterion.id not in everywhere]
    for n, one in enumerate(_by_rise(kept)[:MOST], 1):
        where = one.criterion.id if one.where == "run" else f"{one.where}/{one.criterion.id}"
        more = f" ({len(kept) - n} more like it)" if n == MOST < len(kept) else ""
        yield Alarm("hacking", where, one.sentence + more)


def _by_rise(gamed: Sequence[_Gamed]) -> list[_Gamed]:
    return sorted(gamed, key=lambda one: (-one.rise, one.criterion.id, one.where))


def _parted(rows: Sequence[_Row]) -> tuple[_Change, _Change] | None:
    """How score and quality changed, where the score rose and quality fell."""
    middle = _middle([step for step, _, _ in rows])
    older, newer = [row for row in rows if row[0] < middle], [row for row in rows if row[0] >= middle]
    score = _change([row[1] for row in older], [row[1] for row in newer])
    quality = _change([row[2] for row in older], [row[2] for row in newer])
    if score and quality and score.sigmas > SIGMAS and quality.sigmas < -SIGMAS:
        return score, quality
    return None


def _change(older: Iterable[float | None], newer: Iterable[float | None]) -> _Change | None:
    """Of the mean over groups; None where a half has too few groups with a value."""
    before, after = (np.array([v for v in half if v is not None]) for half in (older, newer))
    if min(len(before), len(after)) < MIN_GROUPS:
        return None
    error = np.sqrt(before.var(ddof=1) / len(before) + after.var(ddof=1) / len(after))
    difference = float(after.mean() - before.mean())
    if error > 0:
        sigmas = difference / error
    else:  # nothing varies inside a half: any difference between them is certain
        sigmas = 0.0 if np.isclose(difference, 0.0) else np.copysign(np.inf, difference)
    return _Change(float(before.mean()), float(after.mean()), float(sigmas))


# --- a criterion that pays for the worse response ---------------------------------------------------


def _against(groups: Sequence[Group], criteria: Mapping[str, Criterion]) -> Iterator[Alarm]:
    """Over all groups that a criterion was scored in. (One that is scored no more is no alarm.)"""
    for name, counts in criterion_counts(groups, criteria).items():
        better_M, worse_M = (counts[:, CLASSES.index(c)] for c in ("informative", "inversion"))
        worse, told_apart = int(worse_M.sum()), int((better_M + worse_M).sum())
        if told_apart < MIN_PAIRS:
            continue
        concordance = 1 - 2 * worse / told_apart
        # The pairs of a group are not independent: the error is that of a ratio over groups.
        residual_M = better_M - worse_M - concordance * (better_M + worse_M)
        error = np.sqrt((residual_M**2).sum()) / told_apart
        if concordance <= AGAINST and concordance < -SIGMAS * error:
            told = f"in {worse} of {told_apart} pairs that it tells apart it pays for the worse response"
            yield Alarm("criterion", name, f"criterion {criteria[name].text!r}: {told}")
