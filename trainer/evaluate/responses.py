"""Every response with what was asked and what was said of it, one a line, for people to look at."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...specs.ood import OodTask
from ...specs.tasks import Task
from .policies import Reply
from .run import Answered, Response


def write_responses(out: Path, everyone: Sequence[tuple[str, str, Sequence[Answered]]]) -> None:
    """Write `responses.jsonl` of (policy, identity, responses). Raises `OSError`."""
    out.mkdir(parents=True, exist_ok=True)
    scratch = out / ".responses.jsonl"
    with scratch.open("w", encoding="utf-8", errors="replace") as file:
        for name, _, found in everyone:
            for a in found:
                for n, response in enumerate(a.responses):
                    line = {"policy": name, "set": a.set_name, **_task(a.task), **_response(n, response)}
                    file.write(json.dumps(line) + "\n")
    scratch.replace(out / "responses.jsonl")


def _task(task: Task) -> dict[str, Any]:
    """What a response is to be held against; only what the task has."""
    told: dict[str, Any] = {"task": task.id, "domain": task.domain, "prompt": task.prompt}
    if task.reference:
        told["reference"] = task.reference
    if isinstance(task, OodTask) and task.references:
        told["references"] = list(task.references)
    if isinstance(task, OodTask) and task.answer:
        told["answer"] = {"label": task.answer.correct, "text": task.answer.choices[task.answer.correct]}
    return told


def _response(n: int, response: Response) -> dict[str, Any]:
    """`sample` 0 is the greedy one."""
    reply = response.reply
    return {
        "sample": n,
        "mode": response.mode,
        "response": reply.text if isinstance(reply, Reply) else None,
        "cut": isinstance(reply, Reply) and not reply.finished,
        "missing": None if isinstance(reply, Reply) else reply,
        "scores": {metric: score.value for metric, score in response.scores.items()},
        "unscored": {m: s.cause for m, s in response.scores.items() if s.value is None},
        "verdicts": [
            {"criterion": v.criterion.text, "points": v.criterion.points, "met": v.met, "reason": v.said}
            for v in response.verdicts
        ],
        **response.detail,
    }
