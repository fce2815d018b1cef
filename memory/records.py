"""What the event log holds, one record a line. Record ids are deterministic.

Every record carries the step and the harness version it was made under. Rollout text is not here:
a group names its rollouts file, `rollouts/step-NNNNNN.jsonl`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ..specs.guidance import StartGuidance
from ..specs.harnessfile import HarnessFile
from ..specs.updates import Update

#: Failure classes of rollout pairs. `blind_*` count pairs of collapsed groups;
#: `blind_spread` are ties inside a group that does spread, reported apart.
PairClass = Literal[
    "informative",
    "spurious",
    "inversion",
    "blind_low",
    "blind_mid",
    "blind_high",
    "blind_spread",
    "neutral",
    "unknown",
]
Collapse = Literal["collapsed-low", "collapsed-mid", "collapsed-high", "spread", "unscored"]
Interval = tuple[float, float]


class Record(BaseModel):
    """Common part of every record. `step` is the training step the record belongs to.

    What a look came to belongs to the step it began after; what it accepted, to the step it was applied
    after. Beside training (`evolver.mode: async`) that is a later one, and both are logged there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    step: int
    harness_version: int


class RunStarted(Record):
    """First line of a log: what is being run."""

    type: Literal["run_started"] = "run_started"
    name: str
    seed: int
    recipe: str
    task_ids: list[str]
    harness: HarnessFile = HarnessFile()  # what version 0 changes about single tasks
    guidance: list[StartGuidance] = []  # ... and what every task carries


class Probe(Record):
    """Mean seed-rubric reward and oracle quality on the fixed probe set (plain prompt, seed rubric)."""

    type: Literal["probe"] = "probe"
    when: Literal["before", "after"]
    split: Literal["train", "held_out"]
    samples: int  # rollouts a task
    reward: float | None  # None: nothing could be scored
    quality: float | None  # None: no oracle
    per_task: dict[str, tuple[float | None, float | None]]  # task id -> (reward, quality)
    oracle_accuracy: float | None = None  # share of known orders that an asked oracle saw
    words: float  # mean response length
    seconds: float  # wall time


class Evaluation(Record):
    """Validation tasks after a step (`step` -1: before the first): plain prompt, full seed rubric."""

    type: Literal["evaluation"] = "evaluation"
    steps_done: int
    samples: int  # rollouts a task
    reward: float | None  # R_raw, clipped, averaged over tasks; None: nothing could be scored
    quality: float | None  # None: no oracle
    training_reward: float | None  # mean R of the step's own rollouts, under the harness
    per_task: dict[str, tuple[float | None, float | None]]  # task id -> (reward, quality)
    words: float  # mean response length
    seconds: float  # wall time


class Group(Record):
    """The G rollouts of one task at one step. Lists are in sample order; None is unscored / unasked."""

    type: Literal["group"] = "group"
    slot: int
    task_id: str
    domain: str
    rewards: list[float | None]
    quality: list[float | None]
    resolution: float = 0.0  # differences of quality below it say nothing (0 is a tie)
    guided: list[bool]
    met: dict[str, list[bool | None]]  # criterion id -> verdicts
    collapse: Collapse
    pairs: dict[PairClass, int]
    #: Its rewards tied and its slot was filled again (`interfaces.p.redraws`): evidence, but in no loss.
    #: Such groups of a step have the slots S, S + 1, ...
    set_aside: bool = False


class Attribution(BaseModel):
    """Who said whose a failure is, where the evolver was asked, and what statistics alone had said."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    by: Literal["statistics", "evolver"]  # statistics: the evolver's answer could not be used
    rationale: str  # one line: the evolver's, or why it did not decide
    failure: str  # what statistics alone concluded
    interfaces: list[Literal["p", "g", "c"]]  # ... and their order


class Diagnosis(Record):
    """What the pooled evidence says about one task."""

    type: Literal["diagnosis"] = "diagnosis"
    task_id: str
    domain: str
    failure: str  # a pair class, or what else holds: see agents/evolver/attribute.py
    interfaces: list[Literal["p", "g", "c"]]  # who can repair it, in order of preference
    signal_rate: float | None
    interval: Interval | None
    pairs: dict[PairClass, int]
    evidence: list[str]  # group ids
    sentence: str
    rival: str | None = None  # another failure class, which the pairs do not tell from the largest one
    attribution: Attribution | None = None  # None: nobody but statistics was asked

    @property
    def attributed(self) -> str:
        """Who attributed and why, on one line; empty where statistics alone were asked."""
        said = self.attribution
        if said is None:
            return ""
        order = ", ".join(said.interfaces)
        if said.by == "statistics":
            return f"left to statistics ({order}): {said.rationale}"
        meant = f"{said.failure}: {order}" if said.failure != self.failure else order
        return f"{self.interfaces[0]} first, says the evolver (statistics: {meant}): {said.rationale}"


class Measurement(BaseModel):
    """What the critic measured. Signals are signal rates (c, g) or expected signal (p), in [0, 1]."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    before: float
    after: float
    gain: float
    interval: Interval  # bootstrap, two-sided, of the gain
    p_no_gain: float  # share of bootstrap draws without a gain
    alpha: float  # what p_no_gain has to stay below at this look
    margin: float
    rollouts: int  # fresh rollouts measured on (0 for p: recorded rollouts)
    guards: dict[str, tuple[float, float]]  # guard -> (before, after) or (plain, guided)
    #: Where it was measured on several tasks: what was seen on each. Above, signals, gain and guards are
    #: then means over the tasks (and what failed on one of them, "... on TASK"), the rollouts a sum.
    tasks: dict[str, Measurement] = {}


class Decision(Record):
    """A proposal and what became of it. One record a revision."""

    type: Literal["decision"] = "decision"
    diagnosis_id: str | None  # None: a person asked for it
    task_id: str
    revision: int
    update: Update
    accepted: bool
    reason: str
    measured: Measurement | None  # None: refused before it was measured
    retrieved: list[str]  # record ids the proposer was shown
    author: str = "evolver"
    request: str | None = None  # a person's request that this answers (trainer/requests.py)


class NoProposal(Record):
    """A diagnosis for which the proposer had nothing left to try."""

    type: Literal["no_proposal"] = "no_proposal"
    diagnosis_id: str
    task_id: str
    reason: str


class RefusedProposal(Record):
    """A proposal that could not be read, or that breaks a rule: it did not get to the critic."""

    type: Literal["refused_proposal"] = "refused_proposal"
    diagnosis_id: str
    task_id: str
    revision: int
    proposed: str  # one line: the change, or what was answered instead of one
    reason: str


class Accepted(Record):
    """A new harness version (`harness_version`): its updates act from the step after `step` on."""

    type: Literal["accepted"] = "accepted"
    decision_ids: list[str] = []
    updates: list[Update] = []
    author: str = "evolver"
    request: str | None = None  # a person's request that this answers
    rolled_back_to: int | None = None  # a version whose content this one has; then no updates


class Refused(Record):
    """A person's request that could not be looked at."""

    type: Literal["refused"] = "refused"
    author: str
    request: str
    reason: str


class StepSummary(Record):
    """One training step is complete; `metrics` is the line of metrics.jsonl without its seconds."""

    type: Literal["step"] = "step"
    metrics: dict[str, Any]


class Resumed(Record):
    """What was logged before this line is void from the first record of a step >= `step` on: that
    attempt was cut short."""

    type: Literal["resumed"] = "resumed"


class RunFinished(Record):
    """The last step is done, and the probe after it. Totals by purpose, as in the metrics."""

    type: Literal["run_finished"] = "run_finished"
    rollouts: dict[str, int]
    tokens: dict[str, int]
    judge_calls: dict[str, int]
    roles: dict[str, dict[str, dict[str, float | None]]] = {}  # role -> purpose -> what it took


AnyRecord = Annotated[
    RunStarted
    | Probe
    | Evaluation
    | Group
    | Diagnosis
    | Decision
    | NoProposal
    | RefusedProposal
    | Accepted
    | Refused
    | StepSummary
    | Resumed
    | RunFinished,
    Field(discriminator="type"),
]
RECORD: TypeAdapter[AnyRecord] = TypeAdapter(AnyRecord)
