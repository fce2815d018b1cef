"""A whole evaluation: one or two policies on the same tasks, and what comes of it."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ...agents.roles.client import Role
from ...agents.scoring.judge import Judge
from ...agents.scoring.preflight import look_at_endpoints
from ...agents.scoring.quality import asked_oracle
from ...agents.scoring.scorer import Scorer
from ...agents.scoring.verdictcache import VerdictCache
from ...agents.usage import Usage
from ...specs.ood import OodTask
from ...specs.schema import Endpoint, RunSpec
from ...specs.tasks import Task
from . import tables
from .criteria import CriterionRow, WorstRow, axis_rows, criterion_rows, worst_rows
from .graded import GradeMeasure
from .instructions import InstructionMeasure
from .measures import ChoiceMeasure, Measure, OverlapMeasure, QualityMeasure, RubricMeasure
from .policies import Found
from .responses import write_responses
from .roles import role_rubric
from .run import Answered, Progress, Settings, answer_all
from .seen import Seen
from .sets import SetTasks
from .store import ReasonStore, ResponseStore
from .tables import by

#: Where everything that was sampled is kept, and what was said of it: verdicts, grades, comparisons.
RESPONSES = "responses.sqlite"
VERDICTS = ("verdicts", "grades", "comparisons")
#: Most answers in each of the latter.
_CACHED = 5_000_000
#: How a server that keeps no list of its models answers.
NO_LIST = ("HTTP 404", "HTTP 405", "HTTP 501", "sent no list")


class FolderBusyError(Exception):
    """Another process evaluates into this folder."""


class EndpointMissingError(Exception):
    """A judge or an oracle that the tasks need is not there; the message says why."""


@dataclass(frozen=True)
class Question:
    """What is evaluated, and how: the same question has the same answer."""

    spec: RunSpec
    tasks: SetTasks
    policies: Sequence[Found]
    settings: Settings

    def as_data(self) -> dict[str, Any]:
        """Everything that results depend on, to hold other results against."""
        sets = by(self.tasks, lambda one: one[0])
        return {
            "policies": [policy.identity for policy in self.policies],
            **asdict(self.settings),
            "judge": _judge_name(self.spec),
            "oracle": _oracle_name(self.spec),
            "sets": {name: f"{len(some)} tasks {_digest(some)}" for name, some in sets.items()},
        }


@dataclass(frozen=True)
class PolicyResult:
    """One policy's figures."""

    name: str
    identity: str
    sampling: list[tables.Sampling]
    rows: list[tables.Row]
    unscored: list[tables.Unscored]
    axes: list[tables.Row]
    criteria: list[CriterionRow]
    worst: list[WorstRow]


@dataclass(frozen=True)
class Evaluation:
    """Everything that is reported. Of two policies the first is compared with the second."""

    name: str
    settings: Settings
    judge: str | None
    oracle: str | None
    policies: list[PolicyResult]
    comparison: list[tables.PairedRow]
    seen: list[Seen]
    """Sets with tasks that the spec trains on."""
    refused: list[str]
    asked: dict[str, Any]
    """`Question.as_data`."""


def evaluate(
    question: Question,
    seen: Sequence[Seen],
    refused: Sequence[str],
    caches: Path,
    out: Path,
    progress: Callable[[str], Progress],
) -> Evaluation:
    """Evaluate each policy in turn; what was asked before, with the same `caches`, is not asked again.
    The responses are written into `out`.

    Raises `FolderBusyError`, `EndpointMissingError`, `KeyMissingError`, `OSError`, and what opening a
    policy does.
    """
    spec, settings = question.spec, question.settings
    everyone: list[tuple[str, str, list[Answered]]] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(_locked(caches))
        measures = stack.enter_context(_measures(spec, asked_roles(spec, question.tasks), caches))
        store = ResponseStore(caches / RESPONSES)
        stack.callback(store.close)
        for found in question.policies:
            with contextlib.closing(found.open()) as policy:
                answered = answer_all(
                    policy, question.tasks, measures, settings, store, progress(found.name)
                )
                everyone.append((found.name, found.identity, answered))
    write_responses(out, everyone)
    seed = settings.seed
    return Evaluation(
        spec.name,
        settings,
        spec.roles.judge.model if spec.roles.judge else None,
        _oracle_name(spec),
        [_result(name, identity, answered, seed) for name, identity, answered in everyone],
        tables.compare(everyone[0][2], everyone[1][2], seed) if len(everyone) > 1 else [],
        list(seen),
        list(refused),
        question.as_data(),
    )


def _result(name: str, identity: str, answered: Sequence[Answered], seed: int) -> PolicyResult:
    every = criterion_rows(answered)
    return PolicyResult(
        name,
        identity,
        tables.sampling(answered),
        tables.rows(answered, seed),
        tables.unscored_rows(answered),
        axis_rows(answered, seed),
        every,
        worst_rows(every),
    )


def kept(question: Question, caches: Path) -> tuple[int, int, int]:
    """Of a stopped evaluation: responses that are kept, out of how many, and verdicts in the folder."""
    asks = [ask for _, task in question.tasks for ask in question.settings.asks(task)]
    responses = 0
    if (caches / RESPONSES).is_file():
        with contextlib.closing(ResponseStore(caches / RESPONSES)) as store:
            responses = sum(
                store.get(policy.identity, ask) is not None
                for policy in question.policies
                for ask in asks
            )
    verdicts = 0
    for name in VERDICTS:
        if (file := caches / f"{name}.sqlite").is_file():
            with contextlib.closing(VerdictCache(file, _CACHED)) as cache:
                verdicts += len(cache)
    return responses, len(asks) * len(question.policies), verdicts


def asked_roles(spec: RunSpec, tasks: SetTasks) -> list[str]:
    """The roles that have to answer for these tasks to be measured, of those that the spec has."""
    names = []
    everyone = [task for _, task in tasks]
    if spec.roles.judge is not None and any(_needs_judge(task) for task in everyone):
        names.append("judge")
    own = any(not isinstance(task, OodTask) for task in everyone)
    if spec.roles.oracle is not None and spec.oracle.asks and own:
        names.append("oracle")
    return names


def _needs_judge(task: Task) -> bool:
    if isinstance(task, OodTask) and (task.grades or task.instructions):
        return bool(task.grades)
    return any(criterion.needs_judge for criterion in task.rubric or role_rubric(task))


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
def _measures(spec: RunSpec, names: Sequence[str], out: Path) -> Iterator[list[Measure]]:
    """Every measure, around the roles that are asked. Raises `EndpointMissingError`."""
    with contextlib.ExitStack() as stack:

        def cache(name: str) -> VerdictCache:
            made = VerdictCache(out / f"{name}.sqlite", _CACHED)
            stack.callback(made.close)
            return made

        def there(name: str, endpoint: Endpoint) -> Role:
            made = Role(name, endpoint, usage)
            stack.callback(made.close)
            _check_there(made)
            return made

        verdicts, grades, comparisons = map(cache, VERDICTS)
        reasons = ReasonStore(out / "reasons.sqlite")
        stack.callback(reasons.close)
        usage = Usage()
        role = judge = asked = None
        if spec.roles.judge is not None and "judge" in names:
            role = there("judge", spec.roles.judge)
            judge = Judge(role, spec.roles.judge, verdicts, reasons)
        if spec.roles.oracle is not None and "oracle" in names:
            oracle = there("oracle", spec.roles.oracle)
            asked = asked_oracle(oracle, spec.oracle, comparisons, out / "anchors.jsonl")
        scorer = Scorer(spec.oracle, usage, spec.reward.max_dropped, judge, asked)
        yield [
            RubricMeasure(scorer, role_rubric),
            QualityMeasure(scorer),
            ChoiceMeasure(),
            InstructionMeasure(),
            OverlapMeasure(),
            GradeMeasure(role, grades, reasons),
        ]


def _check_there(role: Role) -> None:
    """Before anything is sampled: does a replica serve the model? One that dies later leaves responses
    unscored. Raises `EndpointMissingError`."""
    looked = list(look_at_endpoints(role))
    # Some servers keep no list of models; what they are asked will show.
    if not any(one.ok or one.detail.startswith(NO_LIST) for one in looked):
        told = "; ".join(f"{one.what}: {one.detail}" for one in looked)
        raise EndpointMissingError(f"the {role.name} does not answer ({told}); nothing was asked")


def _digest(some: SetTasks) -> str:
    content = json.dumps([[task.id, task.model_dump(mode="json")] for _, task in some])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _judge_name(spec: RunSpec) -> str | None:
    """Everything that changes what a judge says."""
    judge = spec.roles.judge
    if judge is None:
        return None
    return f"{judge.model}, temperature {judge.temperature:g}, a {judge.batch} a question"


def _oracle_name(spec: RunSpec) -> str | None:
    if spec.oracle.asks and spec.roles.oracle:
        return f"{spec.roles.oracle.model} ({spec.oracle.kind})"
    return None if spec.oracle.kind == "none" else spec.oracle.kind
