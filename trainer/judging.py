"""Scoring recorded responses with a rubric, and comparing two judges on the same verdicts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ..agents.scoring.reward import dataset_mean
from ..agents.scoring.scorer import Scorer
from ..specs.errors import Problem, SpecError
from ..specs.tasks import Task
from .data.converters.common import read_criterion
from .data.readers import parse_row

#: Responses judged at once: enough to keep an endpoint busy, few enough to show progress.
CHUNK = 64
NO_AXIS = "-"


@dataclass(frozen=True)
class ResponseRow:
    """One response with its rubric. `axes` are the criteria's `axis:` tags."""

    id: str
    task: Task
    response: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class ScoredRow:
    """Verdicts (None: unscored) and R_raw (None: too few verdicts) of one response."""

    row: ResponseRow
    met: tuple[bool | None, ...]
    reward: float | None

    def as_json(self) -> str:
        """A line of the output file."""
        verdicts = [
            {"criterion": c.text, "points": c.points, "met": met}
            for c, met in zip(self.row.task.rubric, self.met, strict=True)
        ]
        return json.dumps({"id": self.row.id, "reward": self.reward, "verdicts": verdicts})


def read_responses(path: Path) -> list[ResponseRow]:
    """Rows with a prompt, a rubric and a response.

    The rubric is `rubric` (text, points, check, extract), `rubrics` or `reward_model.rubrics` (criterion,
    points, tags); the response is `response` or `completion`; a prompt may be chat messages. Raises
    `SpecError` with `file:line:col` for every row that is none.
    """
    rows: list[ResponseRow] = []
    problems: list[Problem] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                rows.append(_row(parse_row(path, number, line), path, number))
            except SpecError as error:
                problems += error.problems
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(step) for step in first["loc"])
                problems.append(Problem(str(path), number, 1, where, first["msg"]))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                told = f"no {error}" if isinstance(error, KeyError) else str(error)
                message = f"not a row with prompt, rubric and response: {told}"
                problems.append(Problem(str(path), number, 1, "", message))
    if not rows and not problems:
        problems.append(Problem(str(path), 1, 1, "", "the file holds no row"))
    if problems:
        raise SpecError(problems)
    return rows


def _row(row: dict[str, Any], path: Path, number: int) -> ResponseRow:
    entries = row.get("rubric") or row.get("rubrics") or row["reward_model"]["rubrics"]
    response = row["response"] if "response" in row else row["completion"]
    if not isinstance(response, str):
        raise ValueError("the response is not a string")
    criteria, axes = [], []
    for entry in entries:
        criterion = read_criterion(entry)
        tags = entry.get("tags") or []
        axis = [tag.removeprefix("axis:") for tag in tags if str(tag).startswith("axis:")]
        criteria.append(criterion)
        axes.append(axis[0] if axis else NO_AXIS)
    distinct = {criterion.id: (criterion, axis) for criterion, axis in zip(criteria, axes, strict=True)}
    name = str(row.get("id") or row.get("prompt_id") or f"{path.stem}-{number}")
    task = Task(
        id=f"row-{number}",
        domain="judged",
        prompt=_text(row["prompt"]),
        rubric=tuple(criterion for criterion, _ in distinct.values()),
    )
    return ResponseRow(name, task, response, tuple(axis for _, axis in distinct.values()))


def _text(prompt: Any) -> str:
    """A prompt as one text; of several messages each is named by its role."""
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1:
        return str(prompt[0]["content"])
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in prompt)


def score(
    rows: Sequence[ResponseRow], scorer: Scorer, progress: Callable[[int], None] = lambda n: None
) -> Iterator[ScoredRow]:
    """Score rows in order; `progress` hears how many are done."""
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        questions = [(row.task, row.task.rubric, row.response) for row in part]
        for row, met_K in zip(part, scorer.verdicts_of(questions, "judge"), strict=True):
            reward = float(scorer.rewards(row.task.rubric, met_K[None])[0])
            met = tuple(None if np.isnan(m) else bool(m) for m in met_K)
            yield ScoredRow(row, met, None if np.isnan(reward) else reward)
        progress(min(start + CHUNK, len(rows)))


def summary(scored: Sequence[ScoredRow]) -> list[str]:
    """What the verdicts come to, in lines."""
    rewards = [s.reward for s in scored if s.reward is not None]
    verdicts = [met for s in scored for met in s.met]
    lines = [f"{len(scored)} responses, {len(verdicts)} verdicts, {verdicts.count(None)} unscored"]
    if rewards:
        lines.append(
            f"score {dataset_mean(rewards):.3f} (mean over {len(rewards)} responses, clipped to 0..1)"
        )
    by_axis: dict[str, list[bool | None]] = defaultdict(list)
    for s in scored:
        for axis, met in zip(s.row.axes, s.met, strict=True):
            by_axis[axis].append(met)
    if set(by_axis) != {NO_AXIS}:
        for axis, column in sorted(by_axis.items()):
            known = [met for met in column if met is not None]
            share = f"{sum(known) / len(known):.2f} met" if known else "nothing scored"
            lines.append(f"  {axis}: {share} of {len(known)}")
    return lines


@dataclass(frozen=True)
class Agreement:
    """How far two judges agree on the verdicts both of them gave."""

    both: int
    agree: float | None  # share; None: no verdict of both
    kappa: float | None  # Cohen's; None: both always say the same one thing


def agreement(pairs: Sequence[tuple[bool | None, bool | None]]) -> Agreement:
    """Agreement and Cohen's kappa (Cohen 1960) of two judges' verdicts, pair by pair."""
    known = np.array([(a, b) for a, b in pairs if a is not None and b is not None], dtype=float)
    if not len(known):
        return Agreement(0, None, None)
    share = float((known[:, 0] == known[:, 1]).mean())
    p, q = known.mean(axis=0)
    chance = float(p * q + (1 - p) * (1 - q))
    return Agreement(len(known), share, None if chance == 1.0 else (share - chance) / (1 - chance))


def compare(first: Sequence[ScoredRow], second: Sequence[ScoredRow]) -> list[str]:
    """Two judges on the same rows, overall and per axis, in lines."""
    by_axis: dict[str, list[tuple[bool | None, bool | None]]] = defaultdict(list)
    for a, b in zip(first, second, strict=True):
        for axis, ours, theirs in zip(a.row.axes, a.met, b.met, strict=True):
            by_axis[axis].append((ours, theirs))
    every = [pair for pairs in by_axis.values() for pair in pairs]
    lines = [_told("all criteria", agreement(every))]
    if set(by_axis) != {NO_AXIS}:
        lines += [_told(axis, agreement(pairs)) for axis, pairs in sorted(by_axis.items())]
    rewards = [
        (a.reward, b.reward)
        for a, b in zip(first, second, strict=True)
        if a.reward is not None and b.reward is not None
    ]
    if rewards:
        gap = float(np.mean([abs(ours - theirs) for ours, theirs in rewards]))
        lines.append(f"mean difference of a response's score: {gap:.3f}")
    return lines


def _told(name: str, found: Agreement) -> str:
    if found.agree is None:
        return f"  {name}: no verdict of both"
    kappa = "-" if found.kappa is None else f"{found.kappa:.2f}"
    return f"  {name}: agreement {found.agree:.2f}, kappa {kappa} ({found.both} verdicts)"
