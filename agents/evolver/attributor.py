"""The evolver model as attributor: it orders the interfaces that statistics leave open, and no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...memory.records import Diagnosis
from ...memory.rollouts import Rollout
from ...prompts import render
from ...specs.printable import short_line
from ...specs.schema import RunSpec
from ..roles.client import NoAnswer, Question, Role
from ..roles.reading import answer_alone, read_json
from .asking import is_spent, recorded, shown, why
from .attribute import WORDS, Interface, attributed, left_to_statistics, open_interfaces
from .evidence import Memory
from .proposers import Case


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    rationale: str
    interface: str


class Attributor:
    """Asks the evolver role where more than one interface is open. Its answer is untrusted: it orders
    what is open, and can add nothing to it."""

    def __init__(self, role: Role, memory: Memory, spec: RunSpec) -> None:
        self.role = role
        self.memory = memory
        self.spec = spec
        self._spent = False

    def attribute(self, case: Case, say: Callable[[str], None]) -> Diagnosis:
        """The case's diagnosis in the order the model chose, or in that of statistics and why.

        `say` hears how it went; that the budget is spent, only once.
        """
        diagnosis = case.diagnosis
        choice = open_interfaces(diagnosis, case.harness, self.spec)
        if len(choice) < 2:
            return diagnosis
        budget = self.spec.evolver.attribute.budget
        if is_spent(self.role, "attribute", budget):
            found = left_to_statistics(diagnosis, f"evolver.attribute.budget {budget} is spent")
            if not self._spent:
                say(f"attribution from now on {found.attributed}")
            self._spent = True
            return found
        say(f"asking whose {diagnosis.task_id} is: {', '.join(choice)}")
        rollouts = recorded(self.memory, case)
        found = ask_for_interface(self.role, self.spec, case, choice, rollouts, "attribute")
        say(f"attribution of {diagnosis.task_id}: {found.attributed}")
        return found


def ask_for_interface(
    role: Role,
    spec: RunSpec,
    case: Case,
    choice: Sequence[Interface],
    rollouts: Sequence[Rollout],
    purpose: str,
) -> Diagnosis:
    """One question to the evolver role: which interface of a choice comes first, and why."""
    diagnosis = case.diagnosis
    text = render(
        "attribute",
        spec.evolver.attribute.prompt,
        **shown(case, rollouts, spec),
        pairs=[(name.replace("_", " "), n) for name, n in diagnosis.pairs.items()],
        rival=WORDS[diagnosis.rival] if diagnosis.rival else None,
        interfaces=choice,
    )
    message = {"role": "user", "content": text}
    (answer,) = role.ask([Question([message], _schema(choice), "attribution")], purpose)
    if isinstance(answer, NoAnswer):
        return left_to_statistics(diagnosis, f"the evolver gave no answer: {answer.cause}")
    try:
        said = read_json(_Said, answer_alone(answer))
    except ValueError as error:
        return left_to_statistics(diagnosis, f"the evolver's answer is not valid: {why(error)}")
    chosen = next((interface for interface in choice if interface == said.interface), None)
    if chosen is None:
        named = short_line(said.interface)
        reason = f"the evolver says {named!r}; what is open: {', '.join(choice)}"
        return left_to_statistics(diagnosis, reason)
    return attributed(diagnosis, chosen, short_line(said.rationale), case.harness, spec)


def _schema(choice: Sequence[Interface]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "rationale": {"type": "string"},
            "interface": {"type": "string", "enum": list(choice)},
        },
        "required": ["rationale", "interface"],
        "additionalProperties": False,
    }
