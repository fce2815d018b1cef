"""The LLM proposer: one typed update from an evolver model, read strictly and held to the rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...memory.rollouts import Rollout
from ...prompts import render
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion
from ...specs.updates import UPDATE, Update, brought_in, describe
from ..roles.client import NoAnswer, Question, Role
from ..roles.reading import answer_alone, read_json
from ..scoring.plugins import fault
from .asking import MAX_TEXT, is_spent, one_line, recorded, shown, why
from .attribute import Interface
from .evidence import Memory
from .proposers import BOOST_FACTOR, Case, NoCandidate, content_key

MAX_LINES = 8  # of guidance

_OPS: dict[str, tuple[str, ...]] = {
    "p": ("pause", "resume", "boost", "dampen"),
    "g": ("mount", "unmount"),
    "c": ("add", "retire", "rewrite"),
}


class _Said(BaseModel):
    """What the model says; which fields an op needs is the update's own business."""

    model_config = ConfigDict(extra="forbid", strict=True)
    rationale: str
    op: str
    criterion: dict[str, Any] | None = None
    criterion_id: str | None = None
    lines: list[str] | None = None


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
    text = render(
        "propose",
        spec.evolver.propose.prompt,
        **shown(case, rollouts),
        interfaces=offered,
        most_points=f"{_most_points(case):g}",
        judged=spec.roles.judge is not None,
    )
    message = {"role": "user", "content": text}
    (answer,) = role.ask([Question([message], _schema(offered), "update", strict=False)], purpose)
    if isinstance(answer, NoAnswer):
        return NoCandidate(f"the evolver gave no answer: {answer.cause}")
    try:
        said = read_json(_Said, answer_alone(answer))
        if said.op == "none":
            return Declined(f"the evolver proposes nothing: {one_line(said.rationale)}")
        update = _update(said, case, spec)
    except ValueError as error:
        return NoCandidate(f"the evolver's proposal is not valid: {why(error)}")
    if broken := _broken_rule(update, offered, case, spec):
        return NoCandidate(f"the evolver's proposal breaks a rule: {broken}")
    return update


def _offered(case: Case) -> list[Interface]:
    """The interfaces a proposal may change: all of the diagnosis' or, where the evolver attributed it,
    its first one, and one more with every revision."""
    interfaces = case.diagnosis.interfaces
    said = case.diagnosis.attribution
    if said is None or said.by == "statistics":
        return interfaces
    revision = sum(d.diagnosis_id == case.diagnosis.id for d in case.refused)
    return interfaces[: revision + 1]


def _update(said: _Said, case: Case, spec: RunSpec) -> Update:
    about: dict[str, Any] = {
        "op": said.op,
        "task_ids": (case.diagnosis.task_id,),
        "rationale": one_line(said.rationale),
        "evidence": (case.diagnosis.id, *case.diagnosis.evidence),
    }
    match said.op:
        case "add" | "rewrite":
            about["criterion"] = said.criterion
            if said.op == "rewrite":
                about["criterion_id"] = said.criterion_id
        case "retire":
            about["criterion_id"] = said.criterion_id
        case "mount":
            about |= {"lines": said.lines, "share": spec.interfaces.g.share}
        case "boost" | "dampen":
            about["factor"] = BOOST_FACTOR if said.op == "boost" else 1 / BOOST_FACTOR
    return UPDATE.validate_python(about, context=fault)


def _broken_rule(update: Update, offered: Sequence[Interface], case: Case, spec: RunSpec) -> str | None:
    """What no measurement could excuse."""
    if update.interface not in offered:
        allowed = ", ".join(offered)
        return f"{update.op} changes {update.interface}; the diagnosis calls for {allowed}"
    if content_key(update) in {content_key(d.update) for d in case.refused}:
        return f"{describe(update)} was refused before"
    most = _most_points(case)
    for criterion in brought_in(update):
        if abs(criterion.points) > most:
            return f"{criterion.points:+g} points; allowed: at most {most:g} either way"
        if len(criterion.text) > MAX_TEXT:
            return f"a criterion of {len(criterion.text)} characters; allowed: {MAX_TEXT}"
        if criterion.needs_judge and spec.roles.judge is None:
            return "a criterion without a check, or with an extract, and there is no judge"
    if update.op == "mount" and update.lines != "rubric":
        if len(update.lines) > MAX_LINES:
            return f"{len(update.lines)} lines of guidance; allowed: {MAX_LINES}"
        longest = max(len(line) for line in update.lines)
        if longest > MAX_TEXT:
            return f"a line of {longest} characters; allowed: {MAX_TEXT}"
    return None


def _most_points(case: Case) -> float:
    """A new criterion may weigh as much as the heaviest one in force, or 3 points."""
    rubric: Sequence[Criterion] = case.harness.rubric(case.diagnosis.task_id)
    return max(3.0, *(abs(criterion.points) for criterion in rubric))


def _schema(interfaces: Sequence[Interface]) -> dict[str, Any]:
    ops = [op for interface in interfaces for op in _OPS[interface]]
    return {
        "type": "object",
        "properties": {
            "rationale": {"type": "string"},
            "op": {"enum": [*ops, "none"]},
            "criterion": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "points": {"type": "number"},
                    "check": {"type": "object"},
                },
                "required": ["text", "points"],
            },
            "criterion_id": {"type": "string"},
            "lines": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["rationale", "op"],
    }
