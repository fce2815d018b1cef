"""Scoring recorded responses with a rubric, and comparing two judges on the same verdicts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from ..agents.scoring.checks import Verdict
from ..agents.scoring.plugins import fault
from ..agents.scoring.reward import dataset_mean
from ..specs.errors import Problem, SpecError
from ..specs.tasks import Criterion, Task
from .data.converters.common import read_criterion
from .data.readers import parse_row
from .judges import PURPOSE, Rater

#: Responses judged at once: enough to keep an endpoint busy, few enough to show progress.
CHUNK = 64
NO_AXIS = "-"


@dataclass(frozen=True)
class ResponseRow:
    """One response with its rubric, entry by entry as it stands in the file: one that is listed twice
    counts twice, as in HealthBench's formula. `axes` are the entries' `axis:` tags."""

    id: str
    task: Task
    rubric: tuple[Criterion, ...]
    response: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class ScoredRow:
    """A verdict for each entry of the rubric, and R_raw (None: too few verdicts) of one response."""

    row: ResponseRow
    verdicts: tuple[Verdict, ...]
    reward: float | None

    @property
    def met(self) -> tuple[bool | None, ...]:
        """The verdicts alone (None: unscored)."""
        return tuple(verdict.met for verdict in self.verdicts)

    def as_json(self) -> str:
        """A line of the output file."""
        verdicts = [
            {"criterion": criterion.text, "points": criterion.points, "met": verdict.met} | _why(verdict)
            for criterion, verdict in zip(self.row.rubric, self.verdicts, strict=True)
        ]
        return json.dumps({"id": self.row.id, "reward": self.reward, "verdicts": verdicts})


def _why(verdict: Verdict) -> dict[str, str]:
    """The cause where there is no verdict, else the judge's reason if it gave one."""
    if verdict.met is None:
        return {"cause": verdict.cause}
    return {"reason": verdict.reason} if verdict.reason else {}


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
    if "rubric" in row or "rubrics" in row:
        entries = row["rubric"] if "rubric" in row else row["rubrics"]
    else:
        entries = row["reward_model"]["rubrics"]
    if not isinstance(entries, list) or not entries:
        raise ValueError("the rubric is no list of criteria")
    response = row["response"] if "response" in row else row["completion"]
    if not isinstance(response, str):
        raise ValueError("the response is not a string")
    rubric = tuple(map(_criterion, entries))
    name = str(row.get("id") or row.get("prompt_id") or f"{path.stem}-{number}")
    task = Task(
        id=f"row-{number}",
        domain="judged",
        prompt=_text(row["prompt"]),
        rubric=tuple({criterion.id: criterion for criterion in rubric}.values()),
    )
    return ResponseRow(name, task, rubric, response, tuple(map(_axis, rubric)))


def _criterion(entry: Any) -> Criterion:
    """In this project's own words (with a `text`) a key that there is not is a mistake."""
    if isinstance(entry, dict) and "text" in entry and "criterion" not in entry:
        return Criterion.model_validate(entry, context=fault)
    return read_criterion(entry)


def _axis(criterion: Criterion) -> str:
    axes = [tag.removeprefix("axis:") for tag in criterion.tags or () if tag.startswith("axis:")]
    return axes[0] if axes else NO_AXIS


def _text(prompt: Any) -> str:
    """A prompt as one text; of several messages each is named by its role."""
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, list) or not prompt:
        raise ValueError("the prompt is neither text nor chat messages")
    if len(prompt) == 1:
        return _said(prompt[0])
    return "\n\n".join(f"{message['role']}: {_said(message)}" for message in prompt)


def _said(message: Any) -> str:
    """The text of a chat message, which may stand in parts of the type `text`."""
    content = message["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part["text"] for part in parts if part["type"] == "text" and isinstance(part["text"], str)]
    if not texts or len(texts) < len(parts):
        raise ValueError("the content of a chat message is no text")
    return "\n\n".join(texts)


def score(
    rows: Sequence[ResponseRow],
    rater: Rater,
    progress: Callable[[int, int], None] = lambda verdicts, responses: None,
) -> list[ScoredRow]:
    """The rows scored, in order; `progress` hears how many verdicts and responses are done."""
    out: list[ScoredRow] = []
    done = counted = 0

    def arrived(count: int) -> None:
        progress(done + count - counted, len(out))

    rater.verdicts.heard = arrived
    for start in range(0, len(rows), CHUNK):
        part = rows[start : start + CHUNK]
        counted = rater.verdicts.count
        decided = rater.scorer.decided([(row.task, row.rubric, row.response) for row in part], PURPOSE)
        out += [_scored(row, verdicts, rater) for row, verdicts in zip(part, decided, strict=True)]
        done += sum(map(len, decided))
        progress(done, len(out))
    return out


def _scored(row: ResponseRow, verdicts: Sequence[Verdict], rater: Rater) -> ScoredRow:
    met_K = np.array([np.nan if one.met is None else float(one.met) for one in verdicts])
    reward = float(rater.scorer.rewards(row.rubric, met_K[None])[0])
    return ScoredRow(row, tuple(verdicts), None if np.isnan(reward) else reward)


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
