"""g: guidance fields, which rollouts of a group they are shown to, and how they fade."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from pydantic import Field

from .strict import AtLeastOne, Strict
from .tasks import Criterion
from .texts import is_unspaced, units

if TYPE_CHECKING:
    import numpy as np

GuidanceField = Literal["checklist", "outline", "pitfalls", "skill", "exemplar"]
FIELDS: tuple[GuidanceField, ...] = get_args(GuidanceField)


class SigmoidFade(Strict):
    """Falls off like a cliff at one point of the run: 1 / (1 + exp(k (x - x0))).

    RuscaRL's schedule (arXiv 2508.16949): x = (t - 1) / (T - 1) at step t of T, steps from 1.
    """

    kind: Literal["sigmoid"]
    x0: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Where half is left, as a share of the run."""
    k: Annotated[float, Field(gt=0.0)] = 125.0
    """Steepness."""


class LinearFade(Strict):
    """Falls evenly to nothing over so many steps from the mounting on."""

    kind: Literal["linear"]
    steps: Annotated[int, Field(ge=1)]
    """Steps from full strength to none."""


class SuccessFade(Strict):
    """Goes, for good, once the task is solved without it."""

    kind: Literal["success"]
    reward: Annotated[float, Field(ge=0.0, le=1.0)] = 0.8
    """Mean reward of unguided rollouts (clipped to 0..1) that counts as solved."""
    groups: Annotated[int, Field(ge=1)] = 2
    """Successive groups of the task that have to reach it."""


Fade = Annotated[SigmoidFade | LinearFade | SuccessFade, Field(discriminator="kind")]

#: A share of a group's rollouts that carry every line; or `ramp`: rollout i of G carries a random
#: (G - 1 - i) / (G - 1) of the lines, so that the first has them all and the last has none.
Dose = Annotated[float, Field(gt=0.0, lt=1.0)] | Literal["ramp"]
#: What is shown; `rubric`: the criteria in force when the group is rolled out.
Lines = AtLeastOne[str] | Literal["rubric"]


class StartGuidance(Strict):
    """Guidance that every task carries from the first step on."""

    field: GuidanceField
    """What kind of text it is: this chooses the words that introduce it."""
    lines: Lines
    """Its lines; `rubric`: the task's criteria in force, to be met or (points below zero) avoided."""
    share: Dose = 0.5
    """Share of a group's rollouts that carry it, or `ramp`: more of its lines on some than on others."""
    fade: Fade | None = None
    """How it goes away; default: it stays."""

    def mounted(self) -> Guidance:
        """As a part of the harness."""
        return Guidance(self.field, self.lines, self.share, self.fade)


@dataclass(frozen=True)
class Guidance:
    """One guidance field as it is mounted on a task."""

    field: GuidanceField
    lines: tuple[str, ...] | Literal["rubric"]
    share: float | Literal["ramp"]
    fade: Fade | None = None
    since: int = 0  # the first step it can act in


def in_order(guidance: Iterable[Guidance]) -> tuple[Guidance, ...]:
    """At most one a field (the last one given), in the order of `FIELDS`."""
    by_field = {g.field: g for g in guidance}
    return tuple(by_field[name] for name in FIELDS if name in by_field)


@dataclass(frozen=True)
class Shown:
    """Lines of one field as a rollout sees them. `avoid`: the penalties among a rubric's criteria."""

    field: GuidanceField
    lines: tuple[str, ...]
    avoid: tuple[str, ...] = ()

    def as_lines(self) -> list[str]:
        """For the rollout's record."""
        kind = "" if self.field == "checklist" else f"{self.field}: "
        return [f"{kind}{line}" for line in self.lines] + [f"avoid: {line}" for line in self.avoid]


def strength(guidance: Guidance, step: int, steps: int, plain_rewards: Sequence[float | None]) -> float:
    """How much of the guidance is left at `step` (from 0) of a run of `steps`, in [0, 1].

    `plain_rewards`: mean clipped reward of the unguided rollouts of each of the task's groups since
    the mounting, oldest first; None where nothing was scored.
    """
    match guidance.fade:
        case SigmoidFade(x0=x0, k=k):
            x = step / max(1, steps - 1)
            return 1.0 / (1.0 + math.exp(min(k * (x - x0), 700.0)))
        case LinearFade(steps=length):
            return min(1.0, max(0.0, 1.0 - (step - guidance.since) / length))
        case SuccessFade(reward=wanted, groups=needed):
            run = 0  # solved once is solved: a later dip does not bring the guidance back
            for reward in plain_rewards:
                run = run + 1 if reward is not None and reward >= wanted else 0
                if run >= needed:
                    return 0.0
    return 1.0


def show(
    guidance: Sequence[Guidance],
    strengths: Sequence[float],
    rubric: Sequence[Criterion],
    size: int,
    rng: np.random.Generator,
) -> list[tuple[Shown, ...]]:
    """What each of a group's `size` rollouts is shown: one `Shown` a field, () for a plain rollout.

    A share is rounded down, so that some rollouts stay plain; the ramp leaves at least the last one.
    """
    rollouts: list[tuple[Shown, ...]] = [()] * size
    for mounted, left in zip(guidance, strengths, strict=True):
        every = rubric if mounted.lines == "rubric" else mounted.lines
        for i in range(size):
            if mounted.share == "ramp":
                ratio = (size - 1 - i) / (size - 1) if size > 1 else 1.0
                n = round(len(every) * ratio * left)
                picks = sorted(rng.choice(len(every), n, replace=False).tolist())
            else:
                carries = i < math.floor(mounted.share * left * size + 1e-6)
                picks = list(range(len(every))) if carries else []
            if picks:
                rollouts[i] += (_shown(mounted.field, [every[k] for k in picks]),)
    return rollouts


def everything(guidance: Sequence[Guidance], rubric: Sequence[Criterion]) -> tuple[Shown, ...]:
    """What a rollout is shown at the most: every line of every field."""
    return tuple(_shown(g.field, rubric if g.lines == "rubric" else g.lines) for g in guidance)


def _shown(field: GuidanceField, lines: Sequence[Criterion | str]) -> Shown:
    aims = [line if isinstance(line, str) else line.text for line in lines if not _penalty(line)]
    avoid = [line.text for line in lines if isinstance(line, Criterion) and line.points < 0]
    return Shown(field, tuple(aims), tuple(avoid))


def _penalty(line: Criterion | str) -> bool:
    return isinstance(line, Criterion) and line.points < 0


#: Answers that many prompts share: to mention one gives none away.
_COMMON = frozenset("true false none unknown both neither positive negative neutral 正确 错误".split())


def overlap(lines: Sequence[str], reference: str, prompt: str = "", n: int = 4) -> float:
    """Leak check: share of the guidance's runs of `n` words that occur in the reference response.

    Two characters count as a word in scripts without spaces. A line too short for a run counts as one
    run, which occurs where the line gives the answer away: it stands in the reference, but not in the
    `prompt`, and has a number or makes up half of the reference. The share is 1 where a line holds the
    whole of a reference that the prompt does not say.

    A reference too short for a run stands in many an innocent line, so it is the share of the lines that
    hold it. Nothing is found where it is one word of less than three characters (`B`, `42`), one of small
    letters alone (`sentence`) or one that many prompts share (`True`). An answer in other words, or in
    another script, is not found either.
    """
    whole = _Words(reference, n)
    if not whole.runs and not _is_an_answer(whole.units, reference):
        return 0.0
    known = frozenset(whole.runs)
    found: list[bool] = []
    for line in lines:
        mine = _words(line, n)
        told = mine.hold(whole) and not _words(prompt, n).hold(whole)
        if told and known:
            return 1.0
        if known and mine.runs:
            found += [run in known for run in mine.runs]
        else:
            found.append(told or (_tells_of(mine, whole) and not _words(prompt, n).hold(mine)))
    return sum(found) / len(found) if found else 0.0


def mentions_guidance(response: str, prompt: str, shown: Sequence[Shown], n: int = 5) -> bool:
    """Does a guided response give its guidance away: name the field, or quote `n` words in a row?

    What the plain `prompt` says itself gives nothing away.
    """
    if any(_names(response, part.field) and not _names(prompt, part.field) for part in shown):
        return True
    lines = [line for part in shown for line in (*part.lines, *part.avoid)]
    quoted = {run for line in lines for run in _words(line, n).runs} & {*_Words(response, n).runs}
    return not quoted <= {*_words(prompt, n).runs}


def _names(text: str, field: str) -> bool:
    return re.search(rf"(?<![^\W_]){field}(?![^\W_])", text, re.IGNORECASE) is not None


class _Words:
    """The units of a text, and the runs of `n` words in it."""

    def __init__(self, text: str, n: int) -> None:
        self.units = units(text)
        self.runs = _ngrams(self.units, n)
        self._joined = f" {' '.join(self.units)} "

    def hold(self, other: _Words) -> bool:
        """Do all units of the other text, at least one, stand in this one in a row?"""
        return bool(other.units) and other._joined in self._joined


_words = lru_cache(maxsize=1024)(_Words)  # the same lines are held against every task's reference


def _is_an_answer(reference: Sequence[str], written: str) -> bool:
    """Does a reference too short for a run say enough for a line that holds it to give it away?"""
    text = "".join(reference)
    if len(reference) == 1 and (len(text) < 3 or (text.isalpha() and written.islower())):
        return False
    return text not in _COMMON


def _tells_of(line: _Words, reference: _Words) -> bool:
    """Is a line a part of the reference that says much of it?"""
    numbers = any(any(map(str.isdigit, unit)) for unit in line.units)
    return (numbers or 2 * len(line.units) >= len(reference.units)) and reference.hold(line)


def _ngrams(text: Sequence[str], n: int) -> list[tuple[str, ...]]:
    """The runs of `n` words, two characters of scripts without spaces for each."""
    weights = [1 if is_unspaced(unit) else 2 for unit in text]
    grams: list[tuple[str, ...]] = []
    weight, end = 0, 0
    for start in range(len(text)):
        while weight < 2 * n and end < len(text):
            weight += weights[end]
            end += 1
        if weight < 2 * n:
            break
        grams.append(tuple(text[start:end]))
        weight -= weights[start]
    return grams
