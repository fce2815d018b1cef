"""`evolver.mode: async`: looks beside training repeat, come on time, and survive whatever ends a run."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.agents.evolver.beside import Beside
from harnessrl.agents.evolver.evolver import Evolver, Look
from harnessrl.agents.policy import Request, Sample
from harnessrl.agents.roles.client import Role
from harnessrl.agents.scoring.examiner import Examiner, Pair
from harnessrl.agents.scoring.verdictcache import VerdictCache
from harnessrl.agents.usage import RoleUsage, Usage
from harnessrl.memory.events import before_step, read_log
from harnessrl.memory.index import MemoryIndex
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Diagnosis
from harnessrl.specs.engines import LocalEngine as LocalSpec
from harnessrl.specs.engines import SimEngine as SimSpec
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.schema import Endpoint, Oracle
from harnessrl.specs.updates import Mount, Pause, Unmount
from harnessrl.trainer import train
from harnessrl.trainer.controller import Controller
from harnessrl.trainer.engine import Example
from harnessrl.trainer.local.engine import Engine
from harnessrl.trainer.local.model import load
from harnessrl.trainer.local.sampler import Sampler
from harnessrl.trainer.requests import UpdateRequest, hand_in
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint
from harnessrl.trainer.sim.engine import SimEngine
from harnessrl.trainer.slots import Slots
from scripted import make_diagnosis, make_memory, make_task, says
from scripted_endpoint import Body, Reply, ScriptedEndpoint, judging, opinion
from test_resume import Killed, interrupting, killing

STEPS = 7
SIM = Path(__file__).parent.parent / "specs" / "sim.yaml"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


def write_spec(
    folder: Path, model: Path | str, every: int = 2, lag: int = 1, mode: str = "async", test: str = "none"
) -> tiny.Paths:
    """The tiny run with looks beside training; without a test whatever is proposed is accepted."""
    paths = tiny.write_spec(folder, model, steps=STEPS)
    text = paths.spec.read_text()
    for old, new in {
        "every: 1": f"every: {every}\n  mode: {mode}\n  apply_lag: {lag}",
        "margin: 0.0": f"margin: 0.0, test: {test}",
        "checkpoint_every: 2": "checkpoint_every: 3",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    paths.spec.write_text(text)
    return paths


def trained(paths: tiny.Paths, *more: str) -> Path:
    done = tiny.invoke("train", paths.spec, "--no-probe", *more)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return paths.run


def resume(run: Path) -> None:
    done = tiny.invoke("train", "--resume", run)
    assert done.exit_code == 0, done.output + repr(done.exception)


def of(run: Path, kind: type[Any]) -> list[Any]:
    return [record for record in read_log(run / "events.jsonl") if isinstance(record, kind)]


def assert_equal_runs(run: Path, other: Path) -> None:
    ours, theirs = tiny.content(run), tiny.content(other)
    for part in theirs:
        assert ours[part] == theirs[part], part


Kinds = dict[str, dict[str, Any]]
#: Looks that accept everything unmeasured, that measure, and that wait as long as they may.
KINDS: Kinds = {"untested": {}, "measured": {"test": "measure"}, "late": {"lag": 2}}


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, Path]:
    """An uninterrupted run of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_report", lambda root: root / "report.html")
        return {
            name: trained(write_spec(tmp_path_factory.mktemp(name), tiny_model, **kind))
            for name, kind in KINDS.items()
        }


# --- repeating ------------------------------------------------------------------------------------


def slowed(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return call(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("slow", ["the look", "training"])
def test_whoever_is_faster_the_run_is_the_same(
    kind: str,
    slow: str,
    wholes: dict[str, Path],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where: Any = Evolver if slow == "the look" else Slots
    what = "look" if slow == "the look" else "advantages"
    monkeypatch.setattr(where, what, slowed(getattr(where, what), 0.3))
    assert_equal_runs(trained(write_spec(tmp_path, tiny_model, **KINDS[kind])), wholes[kind])


def test_a_look_measures_as_it_would_have_while_training_waited(
    wholes: dict[str, Path], tmp_path: Path, tiny_model: Path
) -> None:
    """The first look of both modes sees the same, and measures the same on the same weights."""
    waiting = trained(write_spec(tmp_path, tiny_model, mode="sync", test="measure"))
    first = [
        [r for r in of(run, Diagnosis | Decision) if r.step == 1]  # type: ignore[arg-type]
        for run in (waiting, wholes["measured"])
    ]
    assert first[0] == first[1]
    assert any(isinstance(r, Decision) and r.measured and r.measured.rollouts for r in first[0])


# --- on time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "lag"), [("untested", 1), ("late", 2)])
def test_what_a_look_accepts_acts_from_the_step_after_the_lag_on(
    kind: str, lag: int, wholes: dict[str, Path]
) -> None:
    run = wholes[kind]
    decisions = {d.id: d for d in of(run, Decision)}
    accepted = of(run, Accepted)
    assert [a.harness_version for a in accepted] == list(range(1, len(accepted) + 1))
    assert len(accepted) >= 2
    acts = {}
    for version in accepted:
        for decision in (decisions[i] for i in version.decision_ids):
            assert decision.step + lag == version.step
            assert decision.step % 2 == 1  # every other step
        acts[version.step + 1] = version.harness_version
    now = 0
    for row in tiny.rows(run / "metrics.jsonl"):
        now = acts.get(row["step"], now)
        assert row["harness_version"] == now
    # A look whose outcome could not act any more is not begun.
    looks = {int(thread.split("-")[1]) for thread in tiny.threads(run)}
    assert looks == {step for step in (1, 3, 5) if step + lag + 1 < STEPS}


def test_a_look_knows_what_was_on_record_when_it_began(wholes: dict[str, Path]) -> None:
    for record in of(wholes["untested"], Diagnosis):
        assert record.evidence
        assert all(int(group.split("-")[1]) <= record.step for group in record.evidence)
    last: dict[int, int] = {}
    for record in of(wholes["untested"], Decision):
        last[record.step] = record.harness_version
    versions = {a.step: a.harness_version for a in of(wholes["untested"], Accepted)}
    for step, version in last.items():
        assert version == max((v for s, v in versions.items() if s <= step), default=0)


# --- whatever ends a run --------------------------------------------------------------------------

#: what, and which use of it (from 1) ends in a kill
PLACES: dict[str, tuple[Any, str, int, bool]] = {
    "before a look begins": (Beside, "start", 2, False),
    "while it is on its way": (Beside, "start", 2, True),
    "before it is applied": (Beside, "take", 2, False),
    "after it was applied": (Controller, "_conclude", 2, True),
    "before a checkpoint": (train, "_save", 1, False),
    "after a checkpoint": (train, "_save", 1, True),
    "after the second one": (train, "_save", 2, True),
    "before the end": (train, "_save", 3, False),
}


@pytest.mark.parametrize("kind", ["untested", "late"])
@pytest.mark.parametrize("place", PLACES)
def test_killed_at_every_seam(
    kind: str,
    place: str,
    wholes: dict[str, Path],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Checkpoints are after 3, 6 and 7 steps: with a lag of 2 the first one holds a look that is over."""
    paths = write_spec(tmp_path, tiny_model, **KINDS[kind])
    where, what, at, after = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, what, killing(getattr(where, what), at, after))
        with pytest.raises(Killed):
            tiny.invoke("train", paths.spec, "--no-probe")
    resume(paths.run)
    assert_equal_runs(paths.run, wholes[kind])


@pytest.mark.parametrize("kind", ["measured", "late"])
@pytest.mark.parametrize("at", range(1, STEPS))
def test_stopped_after_any_step_it_goes_on(
    kind: str,
    at: int,
    wholes: dict[str, Path],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paths = write_spec(tmp_path, tiny_model, **KINDS[kind])
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "step_done", interrupting(Controller.step_done, at))
        trained(paths)
    saved = latest_checkpoint(RunFolder(paths.run))
    assert saved is not None and saved[0] == at
    look = json.loads((saved[1] / "controller.json").read_text()).get("look")
    lag = 2 if kind == "late" else 1
    begun = next((s for s in range(at - lag, at) if s in (1, 3, 5) and s + lag + 1 < STEPS), None)
    assert (look["step"] if isinstance(look, dict) else look) == begun
    assert isinstance(look, dict) == (begun is not None and begun < at - 1)
    resume(paths.run)
    assert_equal_runs(paths.run, wholes[kind])


def test_a_log_is_cut_where_the_step_began() -> None:
    """A look after step 1 that was applied after step 3 is void for who goes back to 3 steps done."""

    def accepted(step: int, version: int = 0) -> AnyRecord:
        return Accepted(id=f"h-{step}-{version}", step=step, harness_version=version)

    log = [accepted(0), accepted(1), accepted(2), accepted(3), accepted(1, 1), accepted(4)]
    assert before_step(log, 3) == log[:3]
    assert before_step(log, 4) == log[:5]
    assert before_step(log, 0) == []


def test_a_failure_in_a_look_ends_the_run_as_one_in_training_does(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Look:
        raise failure

    monkeypatch.setattr(Evolver, "look", fail)
    paths = write_spec(tmp_path, tiny_model)
    failure: Exception = RuntimeError("a look went wrong")
    assert tiny.invoke("train", paths.spec, "--no-probe").exception is failure
    failure = sqlite3.OperationalError("database or disk is full")  # which a user is told about
    done = tiny.invoke("train", paths.spec, "--no-probe", "--name", "other")
    assert done.exit_code == 1 and "disk is full" in done.output
    assert tiny.n_lines(paths.run / "metrics.jsonl") == 2


def test_a_run_that_fails_does_not_wait_for_its_look(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def endless(self: Sampler, requests: Sequence[Request], seed: int) -> list[Sample]:
        if requests[0].key[0] != "critic":
            return sample(self, requests, seed)
        asked.append(time.monotonic())
        time.sleep(0.2)  # rollouts are not broken off, but no more of them are begun
        return sample(self, requests, seed)

    sample = Sampler.sample
    monkeypatch.setattr(Sampler, "sample", endless)
    monkeypatch.setattr(Beside, "take", killing(Beside.take, 1))
    with pytest.raises(Killed):
        tiny.invoke("train", write_spec(tmp_path, tiny_model, test="measure").spec, "--no-probe")
    before = len(asked)
    time.sleep(0.5)
    assert len(asked) == before


# --- people ---------------------------------------------------------------------------------------


def test_an_update_that_does_not_fit_any_more_is_rejected_with_the_reason(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look would pause what a person has paused by the time it is applied."""

    def look(self: Evolver, step: int, harness: HarnessState, say: Any) -> Look:
        if step != 1:
            return Look([], [])
        about: dict[str, Any] = {"rationale": "told to"}
        updates = [
            Pause(task_ids=("fox",), **about),
            Mount(task_ids=("dog",), lines=("bark",), share=0.5, **about),
            Unmount(task_ids=("dog",), field="checklist", **about),
        ]
        decisions = [
            Decision(
                id=f"u-{n}",
                step=step,
                harness_version=harness.version,
                diagnosis_id="d",
                task_id=update.task_ids[0],
                revision=0,
                update=update,
                accepted=True,
                reason="told to",
                measured=None,
                retrieved=[],
            )
            for n, update in enumerate(updates)
        ]
        return Look([*decisions], decisions)

    paths = write_spec(tmp_path, tiny_model, lag=2)
    ask = UpdateRequest(
        id="1", author="ann", update=Pause(task_ids=("fox",), rationale=""), force=True, after_step=2
    )

    def begin(self: Beside, *args: Any) -> None:
        start(self, *args)
        if args[0] == 1:
            hand_in(RunFolder(paths.run).requests, ask)

    start = Beside.start
    monkeypatch.setattr(Beside, "start", begin)
    monkeypatch.setattr(Evolver, "look", look)
    run = trained(paths)
    by_id = {d.id: d for d in of(run, Decision)}
    assert not by_id["u-0"].accepted
    assert "after step 3 it cannot be applied any more" in by_id["u-0"].reason
    assert "fox is paused already" in by_id["u-0"].reason
    assert by_id["u-1"].accepted and by_id["u-2"].accepted  # each fits after the one before it
    assert [(a.step, a.author, a.decision_ids) for a in of(run, Accepted)] == [
        (2, "ann", ["u-000002-1"]),
        (3, "evolver", ["u-1", "u-2"]),
    ]


# --- time, and other engines ----------------------------------------------------------------------


def propose_nothing(after: float) -> Callable[[Body], Reply]:
    def answer(body: Body) -> Reply:
        return Reply(json.dumps({"rationale": "nothing helps", "op": "none"}), after=after)

    return answer


def sim_spec(folder: Path, mode: str, url: str, steps: int = 12) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{mode}.yaml"
    path.write_text(
        f"""\
extends: {SIM}
engine: {{steps: {steps}}}
roles: {{evolver: {{base_urls: ["{url}"], model: scripted}}}}
evolver: {{mode: {mode}, apply_lag: 2, propose: {{role: evolver}}}}
logging: {{folder: {folder}, probe_samples: 0}}
"""
    )
    return path


def seconds(run: Path) -> list[dict[str, float]]:
    return [row["seconds"] for row in tiny.rows(run / "metrics.jsonl")]


def test_training_waits_for_a_late_look_and_says_for_how_long(tmp_path: Path) -> None:
    with ScriptedEndpoint(propose_nothing(after=0.2)) as endpoint:
        spec = sim_spec(tmp_path, "async", endpoint.base_url)
        done = tiny.invoke("train", spec, "--name", "late")
    assert done.exit_code == 0, done.output
    parts = seconds(tmp_path / "late")
    looks = [part["evolve"] for part in parts if "evolve" in part]
    assert len(looks) == 4 and max(looks) >= 0.2  # after steps 2, 4, 6, 8 at the least
    assert sum(part["evolve_wait"] for part in parts) < sum(looks)
    waited = [part["evolve_wait"] for part in parts if "evolve" in part]
    assert max(waited) > 0.1  # two steps of the simulation take less
    assert "beside training, which waited" in done.output


def test_the_simulation_repeats(tmp_path: Path) -> None:
    logs = []
    for after in (0.0, 0.15):
        with ScriptedEndpoint(propose_nothing(after)) as endpoint:
            spec = sim_spec(tmp_path / str(after), "async", endpoint.base_url)
            done = tiny.invoke("train", spec, "--name", "run")
        assert done.exit_code == 0, done.output
        logs.append(tiny.surviving(tmp_path / str(after) / "run" / "events.jsonl"))
    assert logs[0] == logs[1]
    last = logs[0][-2]["metrics"]
    assert last["roles"]["evolver"]["propose"]["calls"] > 0


@pytest.mark.parametrize("make", ["local", "sim"])
def test_a_frozen_policy_stays_as_it_is(make: str, tiny_model: Path) -> None:
    engine: Any
    if make == "sim":
        task = make_task("t", rubric=[says("alpha")])
        engine = SimEngine({"t": task}, SimSpec(kind="sim"), seed=0)
        prompt, ids = task.prompt, (0,)
    else:
        engine = Engine(*load(tiny_model), LocalSpec(kind="local", threads=1, learning_rate=1e-2))
        prompt, ids = "Why?", (40, 41)
    requests = [Request(prompt, ("critic", i)) for i in range(8)]
    frozen, before = engine.frozen(), engine.sample(requests, 1)
    engine.train([Example(prompt, ids, 4.0)] * 2, 2.0)
    assert (frozen.version, engine.version) == (0, 1)
    assert frozen.sample(requests, 1) == before != engine.sample(requests, 1)


# --- what a look counts and finds out by itself ---------------------------------------------------


def test_a_looks_usage_is_what_it_took() -> None:
    usage = Usage()
    usage.roles["judge"] = {"train": RoleUsage(calls=3, cost=0.5), "critic": RoleUsage(calls=1)}
    apart, before = usage.copy(), usage.copy()
    apart.rollouts["critic"] += 8
    apart.roles["judge"]["critic"].add(RoleUsage(calls=2, tokens_in=7, cost=0.25))
    apart.roles["evolver"] = {"propose": RoleUsage(calls=1)}
    usage.rollouts["train"] += 4  # meanwhile
    usage.roles["judge"]["train"].calls += 1
    took = apart.since(before)
    assert took.rollouts == {"train": 0, "critic": 8, "probe": 0}
    usage.add(Usage.from_dict(json.loads(json.dumps(took.as_dict()))))
    assert usage.rollouts == {"train": 4, "critic": 8, "probe": 0}
    assert usage.roles["judge"]["train"] == RoleUsage(calls=4, cost=0.5)
    assert usage.roles["judge"]["critic"] == RoleUsage(calls=3, tokens_in=7, cost=0.25)
    assert usage.roles["evolver"]["propose"] == RoleUsage(calls=1)


def test_neither_side_knows_what_the_other_asked_meanwhile(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path / "verdicts.sqlite", limit=100)
    cache.put([(b"old", 1)])
    branch = cache.branch()
    cache.put([(b"training", 1)])
    branch.put([(b"look", 0)])
    every = [b"old", b"training", b"look"]
    assert branch.get(every) == {b"old": 1, b"look": 0}
    assert cache.get(every) == {b"old": 1, b"training": 1}
    branch.merge()
    assert cache.get(every) == {b"old": 1, b"training": 1, b"look": 0}
    assert cache.branch().get(every) == cache.get(every)
    cache.close()


def test_a_look_has_half_of_what_the_oracle_may_be_asked() -> None:
    spec = Oracle(kind="pairwise", budget=10)
    with ScriptedEndpoint(lambda body: opinion("A")) as endpoint:
        role = Role("oracle", Endpoint(base_urls=(endpoint.base_url,), model="m"), Usage())
        ours = Examiner(role, spec, None)
        ours.ask([Pair("p", "a", "b")], "train")
        apart = Usage()
        theirs = Examiner(role.counted_in(apart), spec, None)
        theirs.left = ours.lend()
        assert (ours.left, theirs.left) == (5, 4)
        theirs.ask([Pair("p", "a", "c")], "critic")
        assert [o.value for o in theirs.ask([Pair("p", "a", str(i)) for i in range(4)], "critic")] == [
            None
        ] * 4
        ours.take_back(theirs.left)
        assert ours.left == 8
        assert apart.roles["oracle"]["critic"].calls == 1 and "critic" not in role.usage
        role.close()


def test_search_finds_what_was_known_when_the_look_began(tmp_path: Path) -> None:
    index = MemoryIndex(tmp_path / "chroma")
    memory = make_memory(tmp_path, index)
    memory.lazy = True
    task = make_task("t", rubric=[says("alpha")])
    memory.add([make_diagnosis(task, "inversion", ["c"], step=1)])
    apart = memory.snapshot(memory.scorer)
    apart.catch_up()
    memory.add([make_diagnosis(task, "inversion", ["c"], step=2)])
    ids = [hit.record_id for hit in apart.index.search("inversion", 5)]
    assert ids == ["d-000001-t"] and len(apart.records) == 1 and len(memory.records) == 2
    memory.catch_up()
    assert len(index.search("inversion", 5)) == 2
    memory.lazy = False
    memory.add([make_diagnosis(task, "inversion", ["c"], step=3)])
    assert len(index.search("inversion", 5)) == 3
    index.close()


def test_a_lag_longer_than_the_looks_are_apart_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    paths = write_spec(tmp_path, tiny_model, every=2, lag=3)
    line = paths.spec.read_text().splitlines().index("  apply_lag: 3") + 1
    done = tiny.invoke("validate", paths.spec)
    assert done.exit_code == 2
    assert f"{paths.spec}:{line}:14: evolver.apply_lag: " in done.output
    assert "at most evolver.every 2" in done.output


# --- an evolver with a judge ----------------------------------------------------------------------


def judged_spec(folder: Path, model: Path, url: str) -> tiny.Paths:
    paths = write_spec(folder, model, test="measure")
    text = paths.spec.read_text()
    role = f"{{base_urls: ['{url}'], model: scripted}}"
    paths.spec.write_text(text.replace("interfaces:", f"  judge: {role}\ninterfaces:"))
    file = folder / "texts" / "animals.yaml"
    judged = file.read_text().replace(
        "- {text: The letter e occurs., points: 1, check: {kind: regex, pattern: e}}",
        "- {text: The letter e occurs., points: 1}",
    )
    assert judged != file.read_text()
    file.write_text(judged)
    return paths


@pytest.mark.parametrize("slow", [False, True])
def test_with_a_judge_what_was_asked_repeats_too(slow: bool, tmp_path: Path, tiny_model: Path) -> None:
    decide = judging(lambda response, criterion: "e" in response)
    asked = 0

    def answer(body: Body) -> Reply:
        nonlocal asked
        asked += 1
        reply = decide(body)
        reply.after = 0.02 if slow and asked % 3 == 0 else 0.0
        return reply

    runs = []
    for name in ("one", "other"):
        with ScriptedEndpoint(answer) as endpoint:
            runs.append(trained(judged_spec(tmp_path / name, tiny_model, endpoint.base_url)))
        slow = False
    calls = tiny.rows(runs[0] / "metrics.jsonl")[-1]["roles"]["judge"]
    assert calls["critic"]["calls"] > 0 and calls["train"]["calls"] > 0
    assert_equal_runs(runs[0], runs[1])
