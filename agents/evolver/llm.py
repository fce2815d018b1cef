"""The LLM proposer: one typed update from an evolver model, read strictly and held to the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import regex
from pydantic import BaseModel, ConfigDict

from ...memory.rollouts import Rollout
from ...prompts import render
from ...specs.guidance import FIELDS
from ...specs.printable import short_line
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion
from ...specs.updates import UPDATE, Update, brought_in, describe, replaced
from ..roles.client import NoAnswer, Question, Role
from ..roles.reading import answer_alone, read_json
from ..scoring.checks import missing_resource
from ..scoring.plugins import fault
from .asking import MAX_TEXT, is_spent, recorded, shown, why
from .attribute import Interface
from .evidence import Memory
from .proposers import BOOST_FACTOR, Case, NoCandidate, Unusable, content_key

MAX_PARTS = 8  # lines of guidance, or criteria of a split
MAX_CRITERION = 2000  # characters of a whole criterion in JSON, its check included
CRITERION = ("text", "points", "check")  # what the model says of a criterion
#: Controls, separators of lines, and what has no width, less what letters and emoji need.
UNSEEN = regex.compile(r"[[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{DI}]--[\u200c\u200d\ufe0e\ufe0f]]", regex.V1)

#: Every op, and what the model says of it beside `op` and `rationale`. The rest is the run's: the task,
#: the share of rollouts that carry guidance, the factor of a boost.
OPS: dict[Interface, dict[str, tuple[str, ...]]] = {
    "p": {"pause": (), "resume": (), "boost": (), "dampen": ()},
    "g": {
        "mount": ("lines", "field", "fade"),
        "edit": ("lines", "field"),
        "fade": ("fade", "field"),
        "unmount": ("field",),
    },
    "c": {
        "add": ("criterion",),
        "rewrite": ("criterion_id", "criterion"),
        "split": ("criterion_id", "criteria"),
        "merge": ("criterion_ids", "criterion"),
        "reweight": ("criterion_id", "points"),
        "gate": ("criterion_id", "cap"),
        "retire": ("criterion_id",),
        "restore": ("criterion_id",),
    },
}


class _Said(BaseModel):
    """What the model says; what an op needs, and of which kind, is the update's own business."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rationale: str
    op: str
    criterion: dict[str, Any] | None = None
    criteria: list[dict[str, Any]] | None = None
    criterion_id: str | None = None
    criterion_ids: list[str] | None = None
    points: float | None = None
    cap: float | None = None
    lines: list[str] | None = None
    field: str | None = None
    fade: dict[str, Any] | None = None


class Declined(NoCandidate):
    """The model itself says that no change is likely to help."""


class LlmProposer:
    """Asks the evolver role. What it answers is untrusted: it is checked here, and measured after."""

    def __init__(self, role: Role, memory: Memory, spec: RunSpec) -> None:
        self.role = role
        self.memory = memory
        self.spec = spec

    def propose(self, case: Case) -> Update | NoCandidate:
        """The model's candidate, or why there is none that may be measured."""
        budget = self.spec.evolver.propose.budget
        if is_spent(self.role, "propose", budget):
            return NoCandidate(f"evolver.propose.budget {budget} is spent")
        return ask_for_update(self.role, self.spec, case, recorded(self.memory, case), "propose")


def ask_for_update(
    role: Role, spec: RunSpec, case: Case, rollouts: Sequence[Rollout], purpose: str
) -> Update | NoCandidate:
    """One question to the evolver role, about a case and some of its responses, best first."""
    offered = _offered(case)
    ops = _ops(offered, case, spec)
    harness, task_id = case.harness, case.diagnosis.task_id
    text = render(
        "propose",
        spec.evolver.propose.prompt,
        **shown(case, rollouts, spec),
        interfaces=offered,
        ops=ops,
        retired=[c for c in harness.all_criteria(task_id) if c.id in harness.of(task_id).retired],
        kept=_kept(case, spec),
        unusable=[f"{one.proposed}: {one.reason}" for one in case.unusable],
        most_points=f"{_most_points(case):g}",
        judged=spec.roles.judge is not None,
    )
    message = {"role": "user", "content": text}
    (answer,) = role.ask([Question([message], _schema(ops), "update", strict=False)], purpose)
    if isinstance(answer, NoAnswer):
        return NoCandidate(f"the evolver gave no answer: {answer.cause}")
    try:
        said = read_json(_Said, answer_alone(answer))
        if said.op == "none":
            return Declined(f"the evolver proposes nothing: {short_line(said.rationale)}")
        update = _update(said, case, spec)
    except (ValueError, RecursionError) as error:  # the latter: a pattern that is nested deeply
        cut = " (cut off)" if answer.finish == "length" else ""
        reason = f"the evolver's proposal is not valid{cut}: {why(error)}"
        return Unusable(reason, short_line(answer_alone(answer)))
    if broken := _broken_rule(update, offered, case, spec):
        proposed = short_line(describe(update, harness.all_criteria(task_id)))
        return Unusable(f"the evolver's proposal breaks a rule: {broken}", proposed)
    return update


def _offered(case: Case) -> list[Interface]:
    """The interfaces a proposal may change: all of the diagnosis' or, where the evolver attributed it,
    its first one, and one more with every rejection. An unusable proposal says nothing against those."""
    interfaces = case.diagnosis.interfaces
    said = case.diagnosis.attribution
    if said is None or said.by == "statistics":
        return interfaces
    rejected = sum(d.diagnosis_id == case.diagnosis.id for d in case.refused)
    return interfaces[: rejected + 1]


def _ops(offered: Sequence[Interface], case: Case, spec: RunSpec) -> list[str]:
    """The ops of some interfaces, without those that the task's harness has nothing for."""
    change = case.harness.of(case.diagnosis.task_id)
    rubric = case.harness.rubric(case.diagnosis.task_id)
    free = len(rubric) - len(_kept(case, spec))
    idle = {"pause" if change.paused else "resume"}
    if not change.guidance:
        idle |= {"edit", "fade", "unmount"}
    if free < 1:
        idle |= {"rewrite", "split", "reweight", "gate", "retire"}
    if free < 2:
        idle.add("merge")
    if len(rubric) < 2:
        idle.add("retire")
    if not change.retired:
        idle.add("restore")
    return [op for interface in offered for op in OPS[interface] if op not in idle]


def _kept(case: Case, spec: RunSpec) -> list[str]:
    """Ids of the criteria in force that no update may change."""
    seed = case.harness.tasks[case.diagnosis.task_id].rubric if spec.interfaces.c.anchored else ()
    return [c.id for c in case.harness.rubric(case.diagnosis.task_id) if c in seed]


def _update(said: _Said, case: Case, spec: RunSpec) -> Update:
    """The typed update. Raises `ValueError` for what is missing, of the wrong kind, or said beside it."""
    takes = next((ops[said.op] for ops in OPS.values() if said.op in ops), None)
    if takes is None:
        raise ValueError(f"there is no op {said.op!r}")
    given = said.model_dump(exclude={"rationale", "op"}, exclude_unset=True)
    # Where every field of the schema is filled, an empty one says nothing.
    if surplus := [name for name, value in given.items() if name not in takes and not _is_empty(value)]:
        told = f"{said.op} takes {' and '.join(takes) or 'nothing'}"
        raise ValueError(f"{told}, and this one names {', '.join(surplus)} too")
    for criterion in (said.criterion or {}, *(said.criteria or ())):
        if surplus := [k for k, value in criterion.items() if k not in CRITERION and value is not None]:
            told = f"a criterion takes {' and '.join(CRITERION)}"
            raise ValueError(f"{told}, and this one has {', '.join(surplus)} too")
    # ... but no cap takes a gate off.
    kept = [name for name in takes if name == "cap" or given.get(name) is not None]
    about: dict[str, Any] = {name: given[name] for name in kept if name in given}
    if said.op == "mount":
        about["share"] = spec.interfaces.g.share
    if said.op in ("boost", "dampen"):
        about["factor"] = BOOST_FACTOR if said.op == "boost" else 1 / BOOST_FACTOR
    about |= {
        "op": said.op,
        "task_ids": (case.diagnosis.task_id,),
        "rationale": short_line(said.rationale),
        "evidence": (case.diagnosis.id, *case.diagnosis.evidence),
    }
    return UPDATE.validate_python(about, context=fault)


def _is_empty(value: Any) -> bool:
    """Is there nothing in it, however many keys it has?"""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(_is_empty, parts)) if parts else not value


def _broken_rule(update: Update, offered: Sequence[Interface], case: Case, spec: RunSpec) -> str | None:
    """What no measurement could excuse."""
    if update.interface not in offered:
        allowed = ", ".join(offered)
        return f"{update.op} changes {update.interface}; the diagnosis calls for {allowed}"
    known = {criterion.id for criterion in case.harness.all_criteria(case.diagnosis.task_id)}
    named = {update.criterion_id} if update.op == "restore" else replaced(update)
    if unknown := named - known:
        return short_line(f"there is no criterion {min(unknown)!r}")
    if content_key(update) in {content_key(d.update) for d in case.refused}:
        return f"{describe(update)} was refused before"
    most = _most_points(case)
    criteria = brought_in(update)
    points = [update.points] if update.op == "reweight" else [one.points for one in criteria]
    if too_many := [p for p in points if abs(p) > most]:
        return f"{too_many[0]:+g} points; allowed: at most {most:g} either way"
    if len(criteria) > MAX_PARTS:
        return f"{len(criteria)} criteria; allowed: {MAX_PARTS}"
    for criterion in criteria:
        if not criterion.text.strip():
            return "a criterion without a text"
        texts = _texts(criterion.model_dump(mode="json"))
        if broken := next((b for text in texts if (b := _broken_text("a criterion", text))), None):
            return broken
        if (size := len(criterion.model_dump_json())) > MAX_CRITERION:
            return f"a criterion of {size} characters with its check; allowed: {MAX_CRITERION}"
        if criterion.needs_judge and spec.roles.judge is None:
            return "a criterion without a check, and there is no judge"
        if criterion.check is not None and (missing := missing_resource(criterion.check)):
            return f"a check that cannot be scored here: {missing}"
    if update.op in ("mount", "edit") and update.lines != "rubric":
        if len(update.lines) > MAX_PARTS:
            return f"{len(update.lines)} lines of guidance; allowed: {MAX_PARTS}"
        if not all(line.strip() for line in update.lines):
            return "a line without a text"
        return next((b for line in update.lines if (b := _broken_text("a line", line))), None)
    return None


def _texts(value: Any) -> Iterator[str]:
    """Every string in what JSON can hold, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)


def _broken_text(what: str, text: str) -> str | None:
    """Text of the model that the harness keeps is short, and holds nothing that a terminal obeys or that
    reads otherwise than it is: what turns the direction around, ends a line, or has no width."""
    if len(text) > MAX_TEXT:
        return f"{what} with a text of {len(text)} characters; allowed: {MAX_TEXT}"
    if found := UNSEEN.search(text):
        return f"{what} with a control character (U+{ord(found[0]):04X})"
    return None


def _most_points(case: Case) -> float:
    """A new criterion may weigh as much as the heaviest one in force, or 3 points."""
    rubric: Sequence[Criterion] = case.harness.rubric(case.diagnosis.task_id)
    return max(3.0, *(abs(criterion.points) for criterion in rubric))


def _schema(ops: Sequence[str]) -> dict[str, Any]:
    """What may be said. A key that not every op takes may be null: some models fill all there are."""
    text, number, null = {"type": "string"}, {"type": "number"}, {"type": "null"}
    criterion = {
        "type": "object",
        "properties": {"text": text, "points": number, "check": {"anyOf": [{"type": "object"}, null]}},
        "required": ["text", "points"],
    }
    fields: dict[str, Any] = {
        "criterion": criterion,
        "criteria": {"type": "array", "items": criterion},
        "criterion_id": text,
        "criterion_ids": {"type": "array", "items": text},
        "points": number,
        "cap": number,
        "lines": {"type": "array", "items": text},
        "field": {"enum": list(FIELDS)},
        "fade": {"type": "object"},
    }
    taken = {name for of_interface in OPS.values() for op in ops for name in of_interface.get(op, ())}
    return {
        "type": "object",
        "properties": {
            "rationale": text,
            "op": {"enum": [*ops, "none"]},
            **{name: {"anyOf": [kind, null]} for name, kind in fields.items() if name in taken},
        },
        "required": ["rationale", "op"],
    }
