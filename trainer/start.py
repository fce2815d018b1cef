"""Putting a run together: from a spec and a run folder, fresh or at its newest checkpoint."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from langgraph.checkpoint.sqlite import SqliteSaver

from ..agents.evolver.beside import Beside, Outcome
from ..agents.evolver.critic import Critic
from ..agents.evolver.evidence import Memory
from ..agents.evolver.evolver import look_of
from ..agents.evolver.graph import build_graph
from ..agents.policy import Freezable, Policy
from ..agents.roles.client import Role
from ..agents.scoring.judge import Judge
from ..agents.scoring.quality import AskedOracle, asked_oracle
from ..agents.scoring.scorer import Scorer
from ..agents.scoring.verdictcache import VerdictCache
from ..agents.usage import CountedPolicy, Usage
from ..memory.events import EventLog, before_step, complete_lines, fold_versions, read_jsonl, read_log
from ..memory.files import write_atomic
from ..memory.index import MemoryIndex
from ..memory.records import AnyRecord, Evaluation, Probe, Resumed, StepSummary
from ..memory.rollouts import RolloutStore
from ..specs.engines import LocalEngine as LocalSpec
from ..specs.engines import SimEngine as SimSpec
from ..specs.harness import HarnessState
from ..specs.harnessfile import to_file
from ..specs.loader import dump_yaml
from ..specs.schema import RunSpec
from .chat import check_task_prompts
from .controller import Controller
from .data.load import Tasks
from .engine import TrainingEngine
from .local.engine import Engine
from .local.model import load, resolve
from .looks import Looks, make_evolver
from .requests import handed_in
from .runfolder import RunFolder, latest_checkpoint
from .sim.engine import SimEngine
from .slots import Runner, judge_now
from .stored import run_started
from .tensorboard import Scalars


@dataclass(frozen=True)
class Parts:
    """A run, ready to take step number `steps_done` (counting from 0)."""

    policy: Policy
    controller: Controller
    scorer: Scorer
    usage: Usage
    memory: Memory
    log: EventLog
    metrics: list[dict[str, Any]]
    scalars: Scalars
    steps_done: int

    def cursors(self, steps: int, with_weights: bool) -> dict[str, Any]:
        """What a checkpoint after `steps` steps keeps beside the weights.

        A look beside training that began just now can be made again, where the checkpoint has the very
        weights that it measures on. An earlier one is waited for; raises what went wrong in it.
        """
        cursors: dict[str, Any] = {"steps": steps, "usage": self.usage.as_dict()}
        beside = self.controller.beside
        if with_weights and beside is not None and beside.step == steps - 1:
            cursors["look"] = beside.step
        elif (outcome := self.controller.settle()) is not None:
            cursors["look"] = outcome.model_dump(mode="json")
        return cursors

    def record(self, record: AnyRecord) -> None:
        """Log a record that is for reporting only: the evolver's memory never sees it."""
        self.log.append([record])


@dataclass(frozen=True)
class Past:
    """What a run folder holds that still counts."""

    records: list[AnyRecord]
    versions: list[HarnessState]
    metrics: list[dict[str, Any]]
    usage: Usage
    steps_done: int
    checkpoint: Path | None
    look: Outcome | int | None = None
    """A look beside training that is to be applied yet, or (the step it began after) to be made again."""


@contextlib.contextmanager
def assemble(
    spec: RunSpec, tasks: Tasks, run: RunFolder, past: Past, policy: Policy, judge: Runner = judge_now
) -> Iterator[Parts]:
    """Build every part of a run around a policy, until the block ends. The run has to be `locked`.

    `judge` runs the judging of complete groups. Raises `PromptError`, `KeyMissingError`.
    """
    with contextlib.ExitStack() as stack:
        check_task_prompts(policy.check_prompt, past.versions[-1])
        judge_role = _judge(spec, past.usage, run, stack)
        oracle = _oracle(spec, past.usage, run, stack)
        scorer = Scorer(spec.oracle, past.usage, spec.reward.max_dropped, judge_role, oracle)
        index = MemoryIndex(run.chroma)
        stack.callback(index.close)
        index.rebuild(past.records)
        # Held-out and validation tasks are no business of the evolver's.
        unseen = (Probe, Evaluation)
        evidence: list[AnyRecord] = [record for record in past.records if not isinstance(record, unseen)]
        memory = Memory(RolloutStore(run.rollouts), index, scorer, evidence)
        critic = Critic(CountedPolicy(policy, past.usage, "critic"), scorer, memory, spec)
        evolver, beside = None, None
        if spec.evolves:
            begun = past.look if isinstance(past.look, int) else past.steps_done
            graph = build_graph(stack.enter_context(_graph_store(run, begun)))
            role = _evolver_role(spec, past.usage, stack)
            if spec.evolver.mode == "sync":
                evolver = make_evolver(spec, graph, memory, scorer, critic, role)
            else:
                assert isinstance(policy, Freezable)
                looks = Looks(spec, graph, policy, past.usage, memory, judge_role, oracle, role)
                memory.lazy = True  # it is searched in looks alone, and the next one indexes what is new
                stack.callback(memory.catch_up)
                beside = Beside(looks)
                stack.callback(beside.close)
                if isinstance(past.look, int):
                    beside.start(past.look, past.versions[-1], lambda _: None)
                elif past.look is not None:
                    beside.resume(past.look)
        log = EventLog(run.events)
        controller = Controller(
            spec,
            past.versions,
            scorer,
            past.usage,
            memory,
            log,
            critic,
            evolver,
            lambda: handed_in(run.requests),
            _exporter(run),
            judge,
            beside,
        )
        scalars = Scalars(run.tensorboard, past.steps_done)
        stack.callback(scalars.close)
        yield Parts(
            policy,
            controller,
            scorer,
            past.usage,
            memory,
            log,
            past.metrics,
            scalars,
            past.steps_done,
        )


def begin_or_resume(
    spec: RunSpec, recipe: str, tasks: Tasks, run: RunFolder, resume: Literal["no", "checkpoint", "log"]
) -> Past:
    """Where a run stands: at its beginning, at its newest checkpoint, or after its last logged step.

    `log` is for an engine that outlived its controller: its weights are those after the last step.
    """
    log = EventLog(run.events)
    past = None
    if resume == "checkpoint":
        past = _at_checkpoint(log, tasks, run)
    elif resume == "log":
        past = _after_log(log, spec, tasks, run)
    return past or _beginning(log, recipe, spec, tasks, run)


def _beginning(log: EventLog, recipe: str, spec: RunSpec, tasks: Tasks, run: RunFolder) -> Past:
    started = run_started(run.root.name, recipe, spec, tasks)
    log.append([started])
    versions = fold_versions(tasks.train, [started])
    _exporter(run)(versions[0])
    return Past([started], versions, [], Usage(), 0, None)


def _at_checkpoint(log: EventLog, tasks: Tasks, run: RunFolder) -> Past | None:
    """The state at the newest complete checkpoint; None if there is none (then all is void)."""
    found = latest_checkpoint(run)
    if found is None:
        _void(log, tasks, run, -1)
        return None
    steps_done, folder = found
    cursors = json.loads((folder / "controller.json").read_text())
    records, versions, rows = _void(log, tasks, run, steps_done)
    usage = Usage.from_dict(cursors["usage"])
    look = cursors.get("look")
    if isinstance(look, dict):
        look = Outcome.model_validate(look)
    return Past(records, versions, rows, usage, steps_done, folder, look)


def _after_log(log: EventLog, spec: RunSpec, tasks: Tasks, run: RunFolder) -> Past | None:
    """The state after the last step on record; what was logged of an unfinished one is void.

    A look beside training that had just begun is made again if it measures nothing: the weights it would
    measure on are not served any more.
    """
    summaries = [record for record in read_log(run.events) if isinstance(record, StepSummary)]
    if not summaries:
        _void(log, tasks, run, -1)
        return None
    last = summaries[-1]
    usage = {name: last.metrics[name] for name in asdict(Usage())}
    records, versions, rows = _void(log, tasks, run, last.step + 1)
    again = spec.evolver.mode == "async" and spec.evolver.critic.test == "none"
    look = last.step if again and spec.looks_after(last.step) else None
    return Past(records, versions, rows, Usage.from_dict(usage), last.step + 1, None, look)


def _void(
    log: EventLog, tasks: Tasks, run: RunFolder, steps_done: int
) -> tuple[list[AnyRecord], list[HarnessState], list[dict[str, Any]]]:
    """Records, versions and metrics of the steps done; what comes later counts no more."""
    records = before_step(read_log(run.events), steps_done)
    versions = fold_versions(tasks.train, records)
    n = len(complete_lines(run.events))  # tells one resume at a step from the next
    resumed = Resumed(id=f"r-{steps_done:06d}-{n}", step=steps_done, harness_version=versions[-1].version)
    log.append([resumed])
    records.append(resumed)
    rows: dict[int, dict[str, Any]] = {row["step"]: row for row in read_jsonl(run.metrics)}
    # A process that was killed between the two files has no row of a step that is on record.
    steps = [record for record in records if isinstance(record, StepSummary)]
    every = [rows.get(one.step) or {**one.metrics, "seconds": {}} for one in steps]
    return records, versions, every


def make_engine(spec: RunSpec, tasks: Tasks, past: Past) -> TrainingEngine:
    """The engine with the checkpoint's weights and optimizer, or with the policy's own.

    Raises `PolicyNotFoundError`.
    """
    if isinstance(spec.engine, SimSpec):
        every = {**tasks.train, **tasks.held_out, **tasks.validation}
        sim = SimEngine(every, spec.engine, spec.seed, past.steps_done)
        if past.checkpoint is not None:
            sim.load_optimizer(past.checkpoint)
        return sim
    if not isinstance(spec.engine, LocalSpec):
        raise TypeError(f"engine.kind {spec.engine.kind} does not run in this process")
    template_kwargs = spec.roles.policy.chat_template_kwargs
    if past.checkpoint is None:
        model, tokenizer = load(resolve(spec.roles.policy.model))
        return Engine(model, tokenizer, spec.engine, template_kwargs=template_kwargs)
    model, tokenizer = load(past.checkpoint / "policy")
    reference = None
    if spec.engine.kl_coef > 0:
        reference, _ = load(resolve(spec.roles.policy.model))
    engine = Engine(model, tokenizer, spec.engine, past.steps_done, reference, template_kwargs)
    engine.load_optimizer(past.checkpoint)
    return engine


def _evolver_role(spec: RunSpec, usage: Usage, stack: contextlib.ExitStack) -> Role | None:
    """The evolver model, where a node of the evolver asks it."""
    asked = "evolver" in (spec.evolver.attribute.role, spec.evolver.propose.role)
    if spec.roles.evolver is None or not asked:
        return None
    role = Role("evolver", spec.roles.evolver, usage)
    stack.callback(role.close)
    return role


def _judge(spec: RunSpec, usage: Usage, run: RunFolder, stack: contextlib.ExitStack) -> Judge | None:
    if spec.roles.judge is None:
        return None
    role = Role("judge", spec.roles.judge, usage)
    stack.callback(role.close)
    cache = None
    if spec.roles.judge.cache:
        cache = VerdictCache(run.verdicts, spec.roles.judge.cache)
        stack.callback(cache.close)
    return Judge(role, spec.roles.judge, cache)


#: Answers of the oracle that are kept on disk.
_COMPARISONS = 500_000


def _oracle(
    spec: RunSpec, usage: Usage, run: RunFolder, stack: contextlib.ExitStack
) -> AskedOracle | None:
    if spec.roles.oracle is None or not spec.oracle.asks:
        return None
    role = Role("oracle", spec.roles.oracle, usage)
    stack.callback(role.close)
    cache = VerdictCache(run.comparisons, _COMPARISONS)
    stack.callback(cache.close)
    return asked_oracle(role, spec.oracle, cache, run.anchors)


@contextlib.contextmanager
def _graph_store(run: RunFolder, begun: int) -> Iterator[SqliteSaver]:
    """LangGraph's SQLite saver, without the threads of looks that a resume makes again."""
    with contextlib.closing(sqlite3.connect(run.graph, check_same_thread=False)) as connection:
        saver = SqliteSaver(connection)
        saver.setup()
        threads = connection.execute("SELECT DISTINCT thread_id FROM checkpoints").fetchall()
        for (thread,) in threads:
            if look_of(thread)[0] >= begun:
                saver.delete_thread(thread)
        yield saver


def _exporter(run: RunFolder) -> Callable[[HarnessState], None]:
    def export(harness: HarnessState) -> None:
        content = to_file(harness).model_dump(mode="json", exclude_none=True)
        write_atomic(run.harness(harness.version), dump_yaml(content))

    return export


@contextlib.contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C or SIGTERM asks for a stop after the current step; a second one is final."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        say("finishing this step, then saving; Ctrl-C again stops at once and loses unsaved steps")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
