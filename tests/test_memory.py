"""The event log, the rollout files, atomic writes, and what the evolver may read of them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from harnessrl.memory import files
from harnessrl.memory.events import (
    EventLog,
    LogError,
    complete_lines,
    fold_versions,
    read_jsonl,
    read_log,
)
from harnessrl.memory.files import write_atomic
from harnessrl.memory.records import (
    RECORD,
    Accepted,
    AnyRecord,
    NoProposal,
    Probe,
    Refused,
    RefusedProposal,
    Resumed,
    RunFinished,
    RunStarted,
    StepSummary,
)
from harnessrl.memory.rollouts import Rollout, RolloutStore
from harnessrl.specs.guidance import Guidance, SigmoidFade, StartGuidance, SuccessFade
from harnessrl.specs.harness import TaskHarness, UpdateError, apply
from harnessrl.specs.harnessfile import HarnessFile
from harnessrl.specs.updates import Add, Boost, Edit, Gate, Mount, Pause, SetFade, Unmount, Update
from hypothesis import given
from hypothesis import strategies as st
from scripted import (
    group_record,
    harness_of,
    make_decision,
    make_diagnosis,
    make_memory,
    make_task,
    record_texts,
    says,
)

TASK = make_task("t")
ADD = Add(task_ids=("t",), rationale="why not\n\u2028?", criterion=says("beta", -2.5))
SUCCESS = SuccessFade(kind="success", reward=0.5, groups=2)
MOUNT = Mount(task_ids=("t",), rationale="", field="outline", lines=("a",), share=0.5, fade=SUCCESS)
UNGATE = Gate(task_ids=("t",), rationale="", criterion_id="c-0", cap=None)


def summary(step: int, **metrics: float) -> StepSummary:
    return StepSummary(id=f"s-{step:06d}", step=step, harness_version=0, metrics=metrics)


def resumed(step: int) -> Resumed:
    return Resumed(id=f"r-{step:06d}", step=step, harness_version=0)


FADE = SigmoidFade(kind="sigmoid", x0=0.3)
PAUSED = HarnessFile.model_validate({"tasks": {"t": {"p": {"paused": True}}}})
RUN = RunStarted(
    id="run", step=-1, harness_version=0, name="é \U0001f408", seed=3, recipe="grpo", task_ids=["t"]
)
STARTED = RUN.model_copy(
    update={
        "harness": PAUSED,
        "guidance": [StartGuidance(field="skill", lines="rubric", share="ramp", fade=FADE)],
    }
)
EVERY: list[AnyRecord] = [
    RUN,
    STARTED,
    Probe(
        id="p-before",
        step=-1,
        harness_version=0,
        when="before",
        split="train",
        samples=8,
        reward=None,
        quality=0.25,
        per_task={"t": (None, 0.25)},
        words=7.5,
        seconds=1.25,
    ),
    group_record(TASK, [0.1 + 0.2, None, -1.5], [0.5, 0.25, None]),
    make_diagnosis(TASK, "blind_high", ["c", "p"], signal_rate=None, interval=None),
    make_decision(ADD, gain=0.1),
    make_decision(ADD, gain=None, revision=1),
    NoProposal(
        id="n-1", step=1, harness_version=0, diagnosis_id="d-1", task_id="t", reason="nothing left"
    ),
    RefusedProposal(
        id="r-1",
        step=1,
        harness_version=0,
        diagnosis_id="d-1",
        task_id="t",
        revision=1,
        proposed="prose",
        reason="no JSON",
    ),
    make_decision(MOUNT, gain=None).model_copy(update={"author": "ann", "request": "0-1"}),
    make_decision(UNGATE, gain=None).model_copy(update={"diagnosis_id": None}),
    Accepted(id="h-1", step=1, harness_version=1, decision_ids=["u-1"], updates=[ADD, MOUNT, UNGATE]),
    Accepted(id="h-2", step=1, harness_version=2, author="ann", request="0-2", rolled_back_to=0),
    Refused(id="x-1", step=1, harness_version=2, author="ann", request="0-3", reason="no version 9"),
    summary(1, reward=1e-300),
    RunFinished(id="end", step=2, harness_version=1, rollouts={"train": 3}, tokens={}, judge_calls={}),
]


# --- the log -------------------------------------------------------------------------------------


def test_every_record_comes_back_as_it_was(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "deep" / "events.jsonl")
    log.append(EVERY[:5])
    log.append(EVERY[5:])
    log.append([])
    assert read_log(log.path) == EVERY
    assert len(log.path.read_text().splitlines()) >= len(EVERY)
    assert log.path.read_bytes().count(b"\n") == len(EVERY)  # line breaks in values are escaped


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert read_log(tmp_path / "none.jsonl") == []
    assert EventLog(tmp_path / "new" / "events.jsonl").path.parent.is_dir()


def test_an_append_is_on_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    synced: list[bytes] = []
    sync = os.fsync

    def watch(handle: int) -> None:
        synced.append(log.path.read_bytes())  # already out of this process' buffers
        sync(handle)

    monkeypatch.setattr(os, "fsync", watch)
    log.append([summary(0), summary(1)])
    assert synced == [log.path.read_bytes()] and synced[0].count(b"\n") == 2


@given(st.integers(1, 200))
def test_a_half_written_last_line_is_left_out_and_repaired(cut: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "events.jsonl"
        EventLog(path).append([summary(0, a=1.0), summary(1, b=2.0)])
        whole = path.read_bytes()
        last = whole.rindex(b"\n", 0, -1) + 1
        path.write_bytes(whole[: max(last, len(whole) - cut)])  # the process died while writing
        assert read_log(path) == [summary(0, a=1.0)]
        EventLog(path).append([summary(2, c=3.0)])  # a new process goes on
        assert read_log(path) == [summary(0, a=1.0), summary(2, c=3.0)]


def test_a_first_line_cut_short_leaves_an_empty_log(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"id": "run", "st')
    assert read_log(path) == []
    EventLog(path)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"",
        b"{}",
        b"[1, 2]",
        b"null",
        b'{"type": "step", "id": "s", "step": 0}',
        b'{"type": "unheard of", "id": "s", "step": 0, "harness_version": 0}',
        b'{"type": "step", "id": "s", "step": 0, "harness_version": 0, "metrics": {}, "x": 1}',
        b'{"id": "s-0000',  # cut short, then written on: no longer the last line
        b"\xff\xfe\x00",
    ],
)
def test_a_corrupt_line_in_the_middle_is_named(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = summary(0).model_dump_json().encode()
    path.write_bytes(good + b"\n" + good + b"\n" + line + b"\n" + good + b"\n")
    with pytest.raises(LogError) as error:
        read_log(path)
    assert str(error.value).startswith(f"{path}:3:1: not a record: ")
    assert "\n" not in str(error.value)


def test_a_resumed_record_voids_the_earlier_attempt(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    start = EVERY[0]
    log.append([start, summary(0), summary(1, old=1), summary(2, old=1)])
    log.append([resumed(1), summary(1, new=1)])
    assert read_log(log.path) == [start, summary(0), resumed(1), summary(1, new=1)]
    # A second crash, later: only what stands before this line and is of steps >= 2 is void.
    log.append([summary(2, new=1), summary(3, new=1), resumed(2), summary(2, newest=1)])
    assert read_log(log.path) == [
        start,
        summary(0),
        resumed(1),
        summary(1, new=1),
        resumed(2),
        summary(2, newest=1),
    ]
    log.append([resumed(-1)])  # no checkpoint at all: everything is void
    assert read_log(log.path) == [resumed(-1)]
    assert log.path.read_bytes().count(b"\n") == 11  # and nothing was ever erased


def test_void_updates_are_no_part_of_the_harness(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "events.jsonl")
    accepted = Accepted(id="h-1", step=3, harness_version=1, decision_ids=[], updates=[ADD])
    log.append([summary(2), accepted, resumed(3)])
    assert not [r for r in read_log(log.path) if isinstance(r, Accepted)]
    log.append([accepted, resumed(4)])
    assert [r for r in read_log(log.path) if isinstance(r, Accepted)] == [accepted]


def test_records_are_strict_and_frozen() -> None:
    with pytest.raises(ValueError, match="extra"):
        RECORD.validate_python({**summary(0).model_dump(), "surprise": 1})
    with pytest.raises(ValueError, match="frozen"):
        summary(0).step = 3
    ids = {type(record).model_fields["type"].default for record in EVERY}
    assert ids == {*(r.type for r in EVERY)} and len(ids) == 11


def test_jsonl_lines_split_at_newlines_only(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [{"a": "x\u2028y\u0085z\x0b"}, {"b": "\r"}]
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), newline="")
    assert read_jsonl(path) == rows
    with path.open("ab") as file:
        file.write(b'{"c": ')
    assert read_jsonl(path) == rows and len(complete_lines(path)) == 2
    assert read_jsonl(tmp_path / "none") == []


# --- rollouts ------------------------------------------------------------------------------------


def rollout(text: str, step: int = 3, slot: int = 0, sample: int = 0) -> Rollout:
    return Rollout(
        step=step,
        slot=slot,
        sample=sample,
        task_id="t",
        harness_version=2,
        guided=sample == 0,
        guidance=("be kind", text) if sample == 0 else (),
        gave_away=sample == 0,
        response=text,
        tokens=5,
        finished=False,
        reward=None if sample else 0.1 + 0.2,
        advantage=-1.5,
        quality=None if sample else 1 / 3,
        verdicts={"c-1": True, "c-2": None, "c-3": False},
    )


HOSTILE = [
    "",
    "\n\n",
    'quote " backslash \\ brace } newline \n {"type": "resumed", "step": 0}\n',
    "carriage \r\n return, \u2028 line separator, \u2029, \x85 next line, \x0c form feed",
    "\x00 \x1b[31m \x7f \u202e \ufeff \ufffd \uffff",
    "\U0001f408\u200d\u2b1b é e\u0301 漢字",
    "</script><script>alert(1)</script>",
    "x" * 100_000,
]


def test_hostile_text_comes_back_as_it_was(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    written = [rollout(text, sample=i) for i, text in enumerate(HOSTILE)]
    store.write(3, written)
    assert store.path(3) == tmp_path / "step-000003.jsonl"
    assert store.read(3) == written
    assert store.group(3, 0) == written


def test_half_a_surrogate_pair_does_not_stop_a_run(tmp_path: Path) -> None:
    """What an endpoint returns when a limit cuts an emoji in two: valid JSON, no valid UTF-8."""
    text: str = json.loads('"cut \\ud83d"')
    store = RolloutStore(tmp_path)
    store.write(3, [rollout(text)])
    (back,) = store.read(3)
    assert back.response.startswith("cut ")


@given(st.text(), st.text())
def test_any_text_comes_back_as_it_was(one: str, two: str) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        store = RolloutStore(Path(folder))
        written = [rollout(one), rollout(two, sample=1)]
        store.write(3, written)
        assert store.read(3) == written


def test_groups_are_read_in_sample_order(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    mixed = [(1, 1), (0, 2), (1, 0), (0, 0), (0, 1)]
    store.write(3, [rollout(f"{slot}/{i}", slot=slot, sample=i) for slot, i in mixed])
    assert [r.response for r in store.group(3, 0)] == ["0/0", "0/1", "0/2"]
    assert [r.response for r in store.group(3, 1)] == ["1/0", "1/1"]
    assert store.group(3, 7) == [] and store.group(99, 0) == [] and store.read(99) == []


def test_a_step_done_again_replaces_the_earlier_attempt(tmp_path: Path) -> None:
    store = RolloutStore(tmp_path)
    store.write(3, [rollout("old", sample=i) for i in range(4)])
    store.write(3, [rollout("new")])
    assert [r.response for r in store.read(3)] == ["new"]
    assert os.listdir(tmp_path) == ["step-000003.jsonl"]


# --- atomic files --------------------------------------------------------------------------------


class DiskFullError(OSError):
    pass


@pytest.mark.parametrize("failing", ["fsync", "chmod", "replace"])
def test_a_failed_write_leaves_the_old_file(
    failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.yaml"
    write_atomic(path, "old")

    def fail(*_: object, **__: object) -> None:
        raise DiskFullError

    with monkeypatch.context() as patch:
        patch.setattr(files.os, failing, fail)
        with pytest.raises(DiskFullError):
            write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.yaml"]  # no temporary file stays behind
    write_atomic(path, "new")
    assert path.read_text() == "new"


def test_the_text_is_on_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace
    monkeypatch.setattr(files.os, "fsync", lambda h: (done.append("fsync"), sync(h)))
    monkeypatch.setattr(files.os, "replace", lambda a, b: (done.append("replace"), replace(a, b)))
    write_atomic(tmp_path / "deep" / "er" / "file", "text")
    assert done == ["fsync", "replace"]
    assert (tmp_path / "deep" / "er" / "file").read_text() == "text"


def test_written_files_can_be_read_by_others(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "é\n")
    assert (tmp_path / "file").read_bytes() == "é\n".encode()
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644


# --- what the evolver reads ----------------------------------------------------------------------


def test_groups_by_age_and_task(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    other = make_task("u")
    for step in range(6):
        memory.add([group_record(TASK, [0.0, 1.0], [0.1, 0.2], step, 0)])
        memory.add([group_record(other, [0.0, 1.0], [0.1, 0.2], step, 1)])
    assert [g.step for g in memory.groups(4, 2, "t")] == [3, 4]
    assert [(g.step, g.task_id) for g in memory.groups(5, 1)] == [(5, "t"), (5, "u")]
    assert [g.step for g in memory.groups(2, 99, "u")] == [0, 1, 2]  # none from the future
    assert memory.groups(4, 99, "v") == []


def test_current_groups_are_those_of_todays_guidance_and_sampling(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    seed = harness_of(TASK)
    for step in range(8):
        memory.add([group_record(TASK, [0.0, 1.0], [0.1, 0.2], step)])

    def accept(step: int, *updates: Update) -> None:
        memory.add(
            [Accepted(id="h", step=step, harness_version=1, decision_ids=[], updates=list(updates))]
        )

    def steps(max_staleness: int) -> list[int]:
        return [g.step for g in memory.current_groups(seed, 7, max_staleness, "t")]

    assert steps(3) == [5, 6, 7]
    accept(2, Mount(task_ids=("t",), rationale="", lines=("a",), share=0.5))
    assert steps(99) == [3, 4, 5, 6, 7]
    accept(4, Boost(task_ids=("t",), rationale="", factor=2.0))
    accept(4, Pause(task_ids=("other",), rationale=""))
    assert steps(99) == [3, 4, 5, 6, 7]
    accept(5, Pause(task_ids=("other", "t"), rationale=""))
    assert steps(99) == [6, 7]
    accept(6, ADD, UNGATE)  # what is scored changes no response
    assert steps(99) == [6, 7]


@pytest.mark.parametrize("change", ["mount", "edit", "fade", "unmount", "pause"])
def test_other_guidance_makes_earlier_groups_old(change: str, tmp_path: Path) -> None:
    about: dict[str, Any] = {"task_ids": ("t",), "rationale": ""}
    update = {
        "mount": MOUNT,
        "edit": Edit(lines=("b",), **about),
        "fade": SetFade(fade=FADE, **about),
        "unmount": Unmount(**about),
        "pause": Pause(**about),
    }[change]
    memory = make_memory(tmp_path)
    for step in range(4):
        memory.add([group_record(TASK, [0.0, 1.0], [0.1, 0.2], step)])
    memory.add([Accepted(id="h", step=1, harness_version=1, updates=[update])])
    assert [g.step for g in memory.current_groups(harness_of(TASK), 3, 99, "t")] == [2, 3]


def test_groups_from_before_a_rollback_of_guidance_are_not_of_today(tmp_path: Path) -> None:
    """Guided since step 1, plain again after step 3: steps 2 and 3 say nothing about today."""
    memory = make_memory(tmp_path)
    for step in range(6):
        memory.add([group_record(TASK, [0.0, 1.0], [0.1, 0.2], step)])
    memory.add([Accepted(id="h-1", step=1, harness_version=1, updates=[MOUNT])])
    memory.add([Accepted(id="h-2", step=3, harness_version=2, rolled_back_to=0)])
    assert [g.step for g in memory.current_groups(harness_of(TASK), 5, 99, "t")] == [4, 5]


def test_guidance_fades_with_what_plain_rollouts_earned_since_it_was_mounted(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    mounted = apply(harness_of(TASK), [MOUNT], after_step=2)  # 2 groups at 0.5

    def record(step: int, *rewards: float | None) -> None:
        """A group of which the first rollout is guided."""
        group = group_record(TASK, rewards, [0.5] * len(rewards), step)
        memory.add([group.model_copy(update={"guided": [True] + [False] * (len(rewards) - 1)})])

    def left(step: int) -> float:
        (strength,) = memory.strengths(mounted, "t", step, 28)
        return strength

    for step in range(3):
        record(step, 0.0, 1.0)  # before the mounting
    assert left(3) == 1.0
    record(3, 0.0, 0.9, 0.1)  # plain ones earn 0.5
    record(4, 1.0, 0.4)  # and here 0.4, whatever the guided one does
    record(5, 0.0, 5.0, -4.0)  # 0.5: single rewards count as 0 to 1
    assert left(6) == 1.0
    record(6, 0.0, None, 0.6)
    assert left(6) == 1.0  # a step does not know its own groups
    assert left(7) == 0.0
    record(7, 0.0, 0.0)
    assert left(8) == 0.0  # it does not come back
    assert memory.strengths(harness_of(TASK), "t", 8, 28) == []


def test_version_0_is_what_the_run_started_with() -> None:
    (version,) = fold_versions({"t": TASK}, [STARTED])
    skill = Guidance("skill", "rubric", "ramp", FADE)
    assert version.version == 0 and version.of("t").paused
    assert version.start == TaskHarness(guidance=(skill,))
    other = make_task("u")
    (both,) = fold_versions({"t": TASK, "u": other}, [STARTED])
    assert both.of("u").guidance == (skill,)
    assert fold_versions({"t": TASK}, [RUN]) == fold_versions({"t": TASK}, []) == [harness_of(TASK)]
    with pytest.raises(UpdateError, match="no training task 't'"):
        fold_versions({"u": other}, [STARTED])


def test_groups_of_an_earlier_rubric_are_scored_again_by_todays(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    seed = harness_of(TASK)
    texts = ["0.1 x", "0.2 beta", "0.3 alpha", "0.4 alpha beta"]
    (before,) = record_texts(memory, seed, 0, {"t": texts})
    assert before.rewards == [0.0, 0.0, 1.0, 1.0]
    beta = Add(task_ids=("t",), rationale="", criterion=says("beta"))
    after = apply(seed, [beta])  # one more criterion of equal points
    assert memory.current_groups(seed, 0, 9, "t") == [before]
    (again,) = memory.current_groups(after, 0, 9, "t")
    assert again.rewards == [0.0, 0.5, 0.5, 1.0]
    assert again.pairs["informative"] == 5 and again.pairs["blind_spread"] == 1
    assert again.id == before.id and again.quality == before.quality
    assert memory.records == [before]  # what was logged stays as it was


def test_decisions_and_responses(tmp_path: Path) -> None:
    memory = make_memory(tmp_path)
    mine, other = make_decision(ADD), make_decision(ADD.model_copy(update={"task_ids": ("u",)}))
    memory.add([mine, make_diagnosis(TASK, "spurious", ["c"]), other])
    assert memory.decisions("t") == [mine] and memory.decisions() == [mine, other]
    harness = harness_of(TASK, make_task("u"))
    groups = record_texts(memory, harness, 4, {"t": ["0.1 a", "0.2 b"], "u": ["0.3 c"]})
    assert [r.response for r in memory.responses(groups[0])] == ["0.1 a", "0.2 b"]
    assert [r.response for r in memory.responses(groups[1])] == ["0.3 c"]
