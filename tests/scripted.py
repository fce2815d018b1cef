"""Small worlds for tests: scripted policies, plain-text quality, tasks, specs and recorded groups.

A scripted response starts with its quality, and its other words are what criteria look for:
``"0.70 alpha beta"`` has quality 0.7 and meets the criteria "says alpha" and "says beta".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harnessrl.agents.evolver.evidence import Memory
from harnessrl.agents.policy import Request, Sample
from harnessrl.agents.scoring.diagnosis import collapse, pair_classes
from harnessrl.agents.scoring.quality import Quality
from harnessrl.agents.scoring.scorer import Scorer
from harnessrl.agents.usage import Usage
from harnessrl.memory.records import AnyRecord, Decision, Diagnosis, Group, Measurement
from harnessrl.memory.rollouts import Rollout, RolloutStore
from harnessrl.specs.checks import MentionsCheck
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.sampling import stream
from harnessrl.specs.schema import (
    Attribute,
    CriticNode,
    Evolver,
    GuidanceInterface,
    Interfaces,
    LocalEngine,
    Oracle,
    PolicyRole,
    Roles,
    RubricInterface,
    RunSpec,
    SamplingInterface,
    Tasks,
)
from harnessrl.specs.tasks import Criterion, Pool, Task, TrainTask
from harnessrl.specs.tasks import Quality as TaskQuality
from harnessrl.specs.updates import Update
from hypothesis import HealthCheck, settings

# The same examples in every run, and no clock: other work may share the machine.
settings.register_profile(
    "scripted",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("scripted")

Write = Callable[[Request, np.random.Generator], str]
NONE = float("nan")


# --- policies ------------------------------------------------------------------------------------


class ScriptedPolicy:
    """A policy whose texts a function writes, from the request and a stream of its own.

    It keeps the protocol: draws depend on the seed and the request's key only. `requests` holds
    everything it was asked, in order, and `seeds` the seed of every call.
    """

    def __init__(self, write: Write, version: int = 1) -> None:
        self.write = write
        self.version = version
        self.requests: list[Request] = []
        self.seeds: list[int] = []

    def check_prompt(self, prompt: str) -> None:
        pass

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        self.requests += requests
        self.seeds.append(seed)
        texts = [self.write(r, stream(seed, "scripted", *r.key)) for r in requests]
        return [Sample(text, tuple(range(len(text.split()))), True) for text in texts]

    def asked(self, kind: int) -> list[Request]:
        """The critic's requests of one kind: 0 is plain, the guided ones count from 1."""
        return [r for r in self.requests if r.key[0] == "critic" and r.key[-2] == kind]


def by_index(plain: Sequence[str], guided: Sequence[str] = ()) -> Write:
    """Response number i of a kind is entry i of its list (which starts over at its end).

    Without a list of their own, guided responses are like plain ones.
    """

    def write(request: Request, rng: np.random.Generator) -> str:
        is_guided = request.key[0] == "critic" and request.key[-2] != 0
        texts = guided if guided and is_guided else plain
        return texts[int(request.key[-1]) % len(texts)]

    return write


class PlainScorer(Scorer):
    """The real scorer, but a response's quality is its first word (no number: NaN, unknown)."""

    def __init__(self, max_dropped: float = 0.2) -> None:
        super().__init__(Oracle(), Usage(), max_dropped)

    def quality(
        self, task: Task, responses: Sequence[str], purpose: Any = "train", plain: Any = None
    ) -> Quality:
        return Quality(np.array([_first_number(r) for r in responses]))


def _first_number(text: str) -> float:
    try:
        return float(text.split()[0])
    except (ValueError, IndexError):
        return NONE


# --- tasks, specs, updates -----------------------------------------------------------------------


def says(word: str, points: float = 1.0) -> Criterion:
    """A criterion that is met when the response says `word`."""
    check = MentionsCheck(kind="mentions", terms=(word,))
    return Criterion(text=f"The response says {word}.", points=points, check=check)


def make_task(
    task_id: str = "t",
    domain: str = "d",
    rubric: Sequence[Criterion] = (),
    criteria: Sequence[Criterion] = (),
    checklists: Sequence[tuple[str, ...]] = (),
    quality: TaskQuality | None = None,
) -> TrainTask:
    """A training task; its rubric looks for `alpha` unless told otherwise."""
    return TrainTask(
        id=task_id,
        domain=domain,
        prompt=f"Write about {task_id}.",
        rubric=tuple(rubric) or (says("alpha"),),
        quality=quality,
        pool=Pool(criteria=tuple(criteria), checklists=tuple(checklists)),
    )


def harness_of(*tasks: TrainTask) -> HarnessState:
    """The seed harness over some tasks."""
    return HarnessState({task.id: task for task in tasks})


#: The rules the tests reckon with, whatever the defaults of a run become.
EVOLVER: dict[str, Any] = {
    "every": 2,
    "tasks_per_look": 2,
    "min_groups": 2,
    "max_staleness": 12,
    "healthy_signal": 0.7,
    "alpha": 0.1,
    "margin": 0.05,
    "rollouts": 32,
    "extended_rollouts": 64,
    "max_revisions": 1,
}
SAMPLING: dict[str, Any] = {"paused_weight": 0.1, "min_effective_tasks": 6.0}


def make_spec(
    seed: int = 0,
    group_size: int = 8,
    p: Mapping[str, Any] | None = None,
    g: Mapping[str, Any] | None = None,
    c: Mapping[str, Any] | None = None,
    **evolver: Any,
) -> RunSpec:
    """A run spec; keyword arguments go to `evolver` and its nodes, `p`, `g` and `c` to `interfaces`."""
    rules = EVOLVER | evolver
    nodes = {
        "attribute": Attribute(**{k: rules.pop(k) for k in ("min_groups", "healthy_signal")}),
        "critic": CriticNode(**{k: rules.pop(k) for k in ("margin", "rollouts", "extended_rollouts")}),
    }
    return RunSpec(
        name="scripted",
        seed=seed,
        tasks=Tasks(files=("tasks.yaml",)),
        interfaces=Interfaces(
            p=SamplingInterface(**(SAMPLING | dict(p or {}))),
            g=GuidanceInterface(**(g or {})),
            c=RubricInterface(**(c or {})),
        ),
        roles=Roles(policy=PolicyRole(model="nowhere")),
        evolver=Evolver(**rules, **nodes),
        engine=LocalEngine(kind="local", group_size=group_size),
    )


# --- memory --------------------------------------------------------------------------------------


class NoIndex:
    """Stands where the Chroma index stands, and finds nothing."""

    def add(self, records: Iterable[AnyRecord]) -> None:
        pass

    def search(self, text: str, limit: int, **_: Any) -> list[Any]:
        return []


def make_memory(folder: Path, index: Any = None) -> Memory:
    """An empty memory in a folder, without semantic search unless an index is given."""
    return Memory(RolloutStore(folder / "rollouts"), index or NoIndex(), PlainScorer())


def group_record(
    task: TrainTask,
    rewards: Sequence[float | None],
    quality: Sequence[float | None],
    step: int = 0,
    slot: int = 0,
    met: Mapping[str, list[bool | None]] | None = None,
) -> Group:
    """The record of a group under the seed rubric (unless `met` says otherwise)."""
    reward_G = np.array([NONE if r is None else r for r in rewards])
    quality_G = np.array([NONE if q is None else q for q in quality])
    return Group(
        id=f"g-{step:06d}-{slot}",
        step=step,
        harness_version=0,
        slot=slot,
        task_id=task.id,
        domain=task.domain,
        rewards=list(rewards),
        quality=list(quality),
        guided=[False] * len(rewards),
        met=dict(met or {c.id: [None] * len(rewards) for c in task.rubric}),
        collapse=collapse(reward_G),
        pairs=pair_classes(reward_G, quality_G),
    )


def record_texts(
    memory: Memory,
    harness: HarnessState,
    step: int,
    texts: Mapping[str, Sequence[str]],
    scorer: Scorer | None = None,
) -> list[Group]:
    """One training step: each task's responses are scored, stored, and remembered as a group."""
    scorer = scorer or PlainScorer()
    rollouts: list[Rollout] = []
    groups: list[Group] = []
    for slot, (task_id, responses) in enumerate(texts.items()):
        task, rubric = harness.tasks[task_id], harness.rubric(task_id)
        met_GK = scorer.verdicts(task, rubric, responses, "train")
        rewards = _known(scorer.rewards(rubric, met_GK))
        quality = _known(scorer.quality(task, responses).q_N)
        met = {c.id: [bool(m) for m in met_GK[:, k]] for k, c in enumerate(rubric)}
        groups.append(group_record(task, rewards, quality, step, slot, met))
        rollouts += [
            Rollout(
                step=step,
                slot=slot,
                sample=i,
                task_id=task_id,
                harness_version=harness.version,
                guided=False,
                guidance=(),
                gave_away=False,
                response=response,
                tokens=1,
                finished=True,
                reward=rewards[i],
                advantage=0.0,
                quality=quality[i],
                verdicts={c.id: bool(met_GK[i, k]) for k, c in enumerate(rubric)},
            )
            for i, response in enumerate(responses)
        ]
    memory.rollouts.write(step, rollouts)
    memory.add(groups)
    return groups


def _known(values: np.ndarray) -> list[float | None]:
    return [None if np.isnan(v) else float(v) for v in values]


def make_diagnosis(
    task: TrainTask, failure: str, interfaces: Sequence[str], step: int = 1, **more: Any
) -> Diagnosis:
    """A diagnosis as given, with a neutral rest."""
    rest: dict[str, Any] = {"signal_rate": 0.2, "interval": (0.1, 0.3), "pairs": {}, "evidence": []}
    return Diagnosis(
        id=f"d-{step:06d}-{task.id}",
        step=step,
        harness_version=0,
        task_id=task.id,
        domain=task.domain,
        failure=failure,
        interfaces=list(interfaces),
        sentence=f"{failure} on {task.id}",
        **(rest | more),
    )


def make_decision(
    update: Update,
    gain: float | None = 0.0,
    accepted: bool = False,
    step: int = 1,
    revision: int = 0,
    diagnosis_id: str | None = None,
) -> Decision:
    """A decision on `update`; with `gain` None it was never measured."""
    task_id = update.task_ids[0]
    measured = None
    if gain is not None:
        measured = Measurement(
            before=0.4,
            after=0.4 + gain,
            gain=gain,
            interval=(gain - 0.1, gain + 0.1),
            p_no_gain=0.3,
            alpha=0.025,
            margin=0.05,
            rollouts=32,
            guards={},
        )
    return Decision(
        id=f"u-{step:06d}-{task_id}-{revision}",
        step=step,
        harness_version=0,
        diagnosis_id=diagnosis_id or f"d-{step:06d}-{task_id}",
        task_id=task_id,
        revision=revision,
        update=update,
        accepted=accepted,
        reason="scripted",
        measured=measured,
        retrieved=[],
    )
