"""The LLM proposer: one typed update from an evolver model, read strictly and held to the rules."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from ...memory.records import Decision
from ...memory.rollouts import Rollout
from ...prompts import render
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, TrainTask
from ...specs.updates import UPDATE, Update, brought_in, describe
from ..roles.client import NoAnswer, Question, Role, answer_alone
from ..scoring.plugins import fault
from .evidence import Memory
from .proposers import BOOST_FACTOR, Case, NoCandidate, content_key

#: Recorded responses a proposal is based on: the best and the worst by quality.
SHOWN = 6
MAX_TEXT = 300  # characters of a new criterion or a line of guidance
MAX_LINES = 8

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


class LlmProposer:
    """Asks the evolver role. What it answers is untrusted: it is checked here, and measured after."""

    def __init__(self, role: Role, memory: Memory, spec: RunSpec) -> None:
        self.role = role
        self.memory = memory
        self.spec = spec

    def propose(self, case: Case) -> Update | NoCandidate:
        """The model's candidate, or why there is none that may be measured."""
        task = case.harness.tasks[case.diagnosis.task_id]
        used, budget = self.role.usage.get("propose"), self.spec.evolver.propose.budget
        if budget is not None and used is not None and used.calls >= budget:
            return NoCandidate(f"evolver.propose.budget {budget} is spent")
        text = self._prompt(case, task)
        schema = _schema(case.diagnosis.interfaces)
        message = {"role": "user", "content": text}
        (answer,) = self.role.ask([Question([message], schema, "update", strict=False)], "propose")
        if isinstance(answer, NoAnswer):
            return NoCandidate(f"the evolver gave no answer: {answer.cause}")
        try:
            said = _Said.model_validate_json(answer_alone(answer))
            if said.op == "none":
                return NoCandidate(f"the evolver proposes nothing: {_line(said.rationale)}")
            update = self._update(said, case)
        except (ValidationError, ValueError) as error:
            return NoCandidate(f"the evolver's proposal is not valid: {_why(error)}")
        if fault := self._fault(update, case):
            return NoCandidate(f"the evolver's proposal breaks a rule: {fault}")
        return update

    def _prompt(self, case: Case, task: TrainTask) -> str:
        rollouts = self._recorded(case)
        content = repr([task.prompt, [rollout.response for rollout in rollouts]])
        mark = hashlib.sha256(content.encode(errors="backslashreplace")).hexdigest()[:16]
        known = case.harness.all_criteria(task.id)
        return render(
            "propose",
            self.spec.evolver.propose.prompt,
            fence=f"[{mark}]",
            prompt=task.prompt,
            rubric=case.harness.rubric(task.id),
            guidance=[
                line
                for mounted in case.harness.of(task.id).guidance
                for line in (["the criteria"] if mounted.lines == "rubric" else mounted.lines)
            ],
            sentence=case.diagnosis.sentence,
            responses=[
                {"reward": _figure(r.reward), "quality": _figure(r.quality), "text": r.response}
                for r in rollouts
            ],
            refused=[_told(decision, known) for decision in case.refused],
            similar=[_told(decision, known) for decision in case.similar],
            interfaces=case.diagnosis.interfaces,
            most_points=f"{self._most_points(case):g}",
            judged=self.spec.roles.judge is not None,
        )

    def _recorded(self, case: Case) -> list[Rollout]:
        """The best and the worst recorded responses by quality, best first."""
        wanted = set(case.diagnosis.evidence)
        groups = self.memory.groups(case.diagnosis.step, 10**9, case.diagnosis.task_id)
        rollouts = [r for g in groups if g.id in wanted for r in self.memory.responses(g)]
        known = [r for r in rollouts if r.quality is not None]
        ranked = sorted(known, key=lambda r: -(r.quality or 0.0)) if known else rollouts
        half = SHOWN // 2
        return ranked if len(ranked) <= SHOWN else [*ranked[:half], *ranked[-half:]]

    def _update(self, said: _Said, case: Case) -> Update:
        about: dict[str, Any] = {
            "op": said.op,
            "task_ids": (case.diagnosis.task_id,),
            "rationale": _line(said.rationale),
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
                about |= {"lines": said.lines, "share": self.spec.interfaces.g.share}
            case "boost" | "dampen":
                about["factor"] = BOOST_FACTOR if said.op == "boost" else 1 / BOOST_FACTOR
        return UPDATE.validate_python(about, context=fault)

    def _fault(self, update: Update, case: Case) -> str | None:
        """What no measurement could excuse."""
        if update.interface not in case.diagnosis.interfaces:
            allowed = ", ".join(case.diagnosis.interfaces)
            return f"{update.op} changes {update.interface}; the diagnosis calls for {allowed}"
        if content_key(update) in {content_key(d.update) for d in case.refused}:
            return f"{describe(update)} was refused before"
        most = self._most_points(case)
        for criterion in brought_in(update):
            if abs(criterion.points) > most:
                return f"{criterion.points:+g} points; allowed: at most {most:g} either way"
            if len(criterion.text) > MAX_TEXT:
                return f"a criterion of {len(criterion.text)} characters; allowed: {MAX_TEXT}"
            if criterion.needs_judge and self.spec.roles.judge is None:
                return "a criterion without a check, or with an extract, and there is no judge"
        if update.op == "mount" and update.lines != "rubric":
            if len(update.lines) > MAX_LINES:
                return f"{len(update.lines)} lines of guidance; allowed: {MAX_LINES}"
            longest = max(len(line) for line in update.lines)
            if longest > MAX_TEXT:
                return f"a line of {longest} characters; allowed: {MAX_TEXT}"
        return None

    @staticmethod
    def _most_points(case: Case) -> float:
        """A new criterion may weigh as much as the heaviest one in force, or 3 points."""
        rubric: Sequence[Criterion] = case.harness.rubric(case.diagnosis.task_id)
        return max(3.0, *(abs(criterion.points) for criterion in rubric))


def _schema(interfaces: Sequence[Literal["p", "g", "c"]]) -> dict[str, Any]:
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


def _told(decision: Decision, known: Sequence[Criterion]) -> str:
    return f"{describe(decision.update, known)}: {decision.reason}"


def _figure(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_TEXT]


def _why(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"])
        return _line(f"{where}: {first['msg']}")
    return _line(str(error))
