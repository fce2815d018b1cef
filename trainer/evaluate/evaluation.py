"""A whole evaluation: one or two policies on the same tasks, and what comes of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from ...agents.roles.client import Role
from ...agents.scoring.judge import Judge
from ...agents.scoring.quality import asked_oracle
from ...agents.scoring.scorer import Scorer
from ...agents.scoring.verdictcache import VerdictCache
from ...agents.usage import Usage
from ...specs.schema import RunSpec
from . import tables
from .graded import GradeMeasure
from .instructions import InstructionMeasure
from .measures import ChoiceMeasure, Measure, OverlapMeasure, QualityMeasure, RubricMeasure
from .policies import Evaluated, Reply
from .roles import role_rubric
from .run import Answered, Progress, Settings, answer_all
from .sets import SetTasks
from .store import ResponseStore

#: Verdicts, grades and comparisons that are kept in an evaluation's folder.
_CACHED = 5_000_000


class FolderBusyError(Exception):
    """Another process evaluates into this folder."""


@dataclass(frozen=True)
class PolicyResult:
    """One policy's figures."""

    name: str
    identity: str
    sampling: list[tables.Sampling]
    rows: list[tables.Row]
    axes: list[tables.Row]
    criteria: list[tables.CriterionRow]


@dataclass(frozen=True)
class Evaluation:
    """Everything that is reported. Of two policies the first is compared with the second."""

    name: str
    settings: Settings
    judge: str | None
    oracle: str | None
    policies: list[PolicyResult]
    comparison: list[tables.PairedRow]
    refused: list[str]


def evaluate(
    spec: RunSpec,
    tasks: SetTasks,
    refused: Sequence[str],
    open_policies: Sequence[Callable[[], Evaluated]],
    settings: Settings,
    out: Path,
    progress: Callable[[str], Progress],
) -> Evaluation:
    """Evaluate each policy in turn; what was asked before, into the same folder, is not asked again.

    Raises `FolderBusyError`, `KeyMissingError`, `OSError`, and what opening a policy does.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(out))
        measures = stack.enter_context(_measures(spec, out))
        store = ResponseStore(out / "responses.sqlite")
        stack.callback(store.close)
        everyone: list[tuple[str, str, list[Answered]]] = []
        for open_one in open_policies:
            with contextlib.closing(open_one()) as policy:
                found = answer_all(policy, tasks, measures, settings, store, progress(policy.name))
                everyone.append((policy.name, policy.identity, found))
    _write_responses(out, everyone)
    seed = settings.seed
    return Evaluation(
        spec.name,
        settings,
        spec.roles.judge.model if spec.roles.judge else None,
        _oracle_name(spec),
        [
            PolicyResult(
                name,
                identity,
                tables.sampling(found),
                tables.rows(found, seed),
                tables.axis_rows(found, seed),
                tables.criterion_rows(found),
            )
            for name, identity, found in everyone
        ],
        tables.compare(everyone[0][2], everyone[1][2], seed) if len(everyone) > 1 else [],
        list(refused),
    )


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    out.mkdir(parents=True, exist_ok=True)
    lock = FileLock(out / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise FolderBusyError(f"{out}: another process is evaluating here") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _measures(spec: RunSpec, out: Path) -> Iterator[list[Measure]]:
    """Every measure, around the spec's judge and oracle."""
    with contextlib.ExitStack() as stack:

        def cache(name: str) -> VerdictCache:
            made = VerdictCache(out / f"{name}.sqlite", _CACHED)
            stack.callback(made.close)
            return made

        usage = Usage()
        role = judge = asked = None
        if spec.roles.judge is not None:
            role = Role("judge", spec.roles.judge, usage)
            stack.callback(role.close)
            judge = Judge(role, spec.roles.judge, cache("verdicts"))
        if spec.roles.oracle is not None and spec.oracle.asks:
            oracle = Role("oracle", spec.roles.oracle, usage)
            stack.callback(oracle.close)
            asked = asked_oracle(oracle, spec.oracle, cache("comparisons"), out / "anchors.jsonl")
        scorer = Scorer(spec.oracle, usage, spec.reward.max_dropped, judge, asked)
        yield [
            RubricMeasure(scorer, role_rubric),
            QualityMeasure(scorer),
            ChoiceMeasure(),
            InstructionMeasure(),
            OverlapMeasure(),
            GradeMeasure(role, cache("grades") if role else None),
        ]


def _oracle_name(spec: RunSpec) -> str | None:
    if spec.oracle.asks and spec.roles.oracle:
        return f"{spec.roles.oracle.model} ({spec.oracle.kind})"
    return None if spec.oracle.kind == "none" else spec.oracle.kind


def _write_responses(out: Path, everyone: Sequence[tuple[str, str, Sequence[Answered]]]) -> None:
    """Every response with its scores, one a line, for people to look at."""
    scratch = out / ".responses.jsonl"
    with scratch.open("w", encoding="utf-8", errors="replace") as file:
        for name, _, found in everyone:
            for a in found:
                for response in a.responses:
                    is_reply = isinstance(response.reply, Reply)
                    line = {
                        "policy": name,
                        "set": a.set_name,
                        "task": a.task.id,
                        "mode": response.mode,
                        "response": response.reply.text if isinstance(response.reply, Reply) else None,
                        "missing": None if is_reply else response.reply,
                        "scores": {m: s.value for m, s in response.scores.items()},
                        "verdicts": [
                            {"criterion": v.criterion.text, "points": v.criterion.points, "met": v.met}
                            for v in response.verdicts
                        ],
                        **response.detail,
                    }
                    file.write(json.dumps(line) + "\n")
    scratch.replace(out / "responses.jsonl")
