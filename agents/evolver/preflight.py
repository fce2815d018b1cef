"""Does an evolver model work, before anything is spent on it: a made-up case, asked as a run asks."""

from __future__ import annotations

from collections.abc import Iterator

from ...memory.records import Diagnosis
from ...memory.rollouts import Rollout
from ...specs.checks import MentionsCheck
from ...specs.harness import HarnessState, misfits
from ...specs.schema import RunSpec
from ...specs.tasks import Criterion, TrainTask
from ...specs.updates import describe
from ..roles.client import Role
from ..scoring.preflight import Finding, called
from .attribute import WORDS
from .attributor import ask_for_interface
from .llm import Declined, ask_for_update
from .proposers import Case, NoCandidate

#: Both responses meet the only criterion, and one of them answers nothing.
TASK = TrainTask(
    id="preflight",
    domain="preflight",
    prompt="Why is the sky blue?",
    rubric=(
        Criterion(
            text="The response mentions the sky.",
            points=1.0,
            check=MentionsCheck(kind="mentions", terms=("sky",)),
        ),
    ),
)
RESPONSES = (
    (1.0, "The sky is blue because air scatters short waves of sunlight more than long ones."),
    (0.1, "The sky is blue because it is blue."),
)


CASE = Case(
    Diagnosis(
        id="d-preflight",
        step=0,
        harness_version=0,
        task_id=TASK.id,
        domain=TASK.domain,
        failure="blind_high",
        interfaces=["c", "p"],
        signal_rate=0.0,
        interval=(0.0, 0.0),
        pairs={"blind_high": 1},
        evidence=[],
        sentence=WORDS["blind_high"],
    ),
    HarnessState({TASK.id: TASK}),
    similar=(),
    refused=(),
)
ROLLOUTS = [
    Rollout(
        step=0,
        slot=0,
        sample=i,
        task_id=TASK.id,
        harness_version=0,
        guided=False,
        guidance=(),
        gave_away=False,
        response=response,
        tokens=0,
        finished=True,
        reward=1.0,
        advantage=0.0,
        quality=quality,
        verdicts={TASK.rubric[0].id: True},
    )
    for i, (quality, response) in enumerate(RESPONSES)
]


def look_at_evolver(role: Role, spec: RunSpec) -> Iterator[Finding]:
    """Does it answer in the form asked for, and with what a run would take? One question a node that asks
    it. A model that proposes no change answers in that form too."""
    nodes = spec.evolver
    if nodes.attribute.role == "evolver":
        found = ask_for_interface(role, spec, CASE, ("c", "p"), ROLLOUTS, "preflight")
        said = found.attribution
        yield Finding(
            f"{called(role)} attribution", bool(said and said.by == "evolver"), found.attributed
        )
    if nodes.propose.role == "evolver" or nodes.attribute.role != "evolver":
        update = ask_for_update(role, spec, CASE, ROLLOUTS, "preflight")
        if isinstance(update, NoCandidate):
            yield Finding(f"{called(role)} proposal", isinstance(update, Declined), update.reason)
        else:
            wrong = next((misfit.message for misfit in misfits(CASE.harness, update)), None)
            told = wrong or describe(update, TASK.rubric)
            yield Finding(f"{called(role)} proposal", wrong is None, told)
