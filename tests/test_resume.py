"""Stopping and going on: whatever cuts a run short, the resumed run equals the uninterrupted one."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import signal
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import tiny
from filelock import FileLock
from harnessrl.memory.events import EventLog, read_log
from harnessrl.memory.records import Accepted, Group
from harnessrl.memory.rollouts import RolloutStore
from harnessrl.specs.loader import load_harness_file, load_run_spec
from harnessrl.specs.updates import Pause
from harnessrl.trainer import train
from harnessrl.trainer.controller import Controller
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.provenance import provenance
from harnessrl.trainer.requests import UpdateRequest, hand_in
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint
from harnessrl.trainer.slots import Slots
from harnessrl.trainer.stored import differences, read_stored, run_started, write_start
from pyarrow import parquet


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a report takes longer than training here; processes of their own draw it."""
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


class Killed(BaseException):
    """Stands in for kill -9 at a chosen place: nothing in the code may handle it."""


def resume(run: Path, *more: str | Path) -> tiny.Result:
    done = tiny.invoke("train", "--resume", run, *more)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done


def assert_equal_runs(run: Path, other: Path) -> None:
    ours, theirs = tiny.content(run), tiny.content(other)
    for part in theirs:
        assert ours[part] == theirs[part], part


# --- kill -9 --------------------------------------------------------------------------------------


def test_a_killed_run_goes_on_as_if_nothing_had_happened(
    finished: tiny.Finished, small: tiny.Paths
) -> None:
    process = tiny.start("train", small.spec)
    tiny.wait_until(lambda: tiny.n_lines(small.run / "metrics.jsonl") >= 3, process)
    process.kill()
    process.wait()
    assert tiny.n_lines(small.run / "metrics.jsonl") < 6, "it was over before it could be killed"
    resume(small.run)
    assert_equal_runs(small.run, finished.run)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Three steps with a checkpoint after the second, and the probes."""
    paths = tiny.write_spec(tmp_path_factory.mktemp("reference"), tiny_model, steps=3)
    assert tiny.invoke("train", paths.spec).exit_code == 0
    return paths.run


@pytest.fixture
def short(tmp_path: Path, tiny_model: Path) -> tiny.Paths:
    return tiny.write_spec(tmp_path / "short", tiny_model, steps=3)


def killing(call: Callable[..., Any], at: int, after: bool = False) -> Callable[..., Any]:
    """`call`, but its `at`-th use (from 1) ends in a kill, before or after it did its work."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at and not after:
            raise Killed
        result = call(*args, **kwargs)
        if calls == at:
            raise Killed
        return result

    return wrapped


#: where, what, which use of it (from 1), and whether it is killed after it instead of before
PLACES: dict[str, tuple[Any, str, int, bool]] = {
    "in the probe before training": (train, "probe_run", 1, False),
    "between rollouts and records": (RolloutStore, "write", 2, True),
    "while the harness evolves": (Controller, "_evolve", 2, False),
    "before a checkpoint": (train, "_save", 1, False),
    "between a checkpoint and the metrics": (train, "_save", 1, True),
    "after the metrics": (RunFolder, "write_metrics", 2, True),
    "between the last checkpoint and the metrics": (train, "_save", 2, True),
    "in the probe after training": (train, "probe_run", 2, False),
    "before the report": (train, "build_report", 1, False),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed_at_every_seam(
    place: str, reference: Path, short: tiny.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, what, at, after = PLACES[place]
    with monkeypatch.context() as patch:
        patch.setattr(where, what, killing(getattr(where, what), at, after))
        with pytest.raises(Killed):
            tiny.invoke("train", short.spec)
    told = resume(short.run)
    if place == "before the report":
        assert "finished already" in told.output
    assert_equal_runs(short.run, reference)


def test_killed_twice(reference: Path, short: tiny.Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    for where, what, at in ((Controller, "_evolve", 2), (train, "_save", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, killing(getattr(where, what), at))
            args = ("train", "--resume", short.run) if short.run.exists() else ("train", short.spec)
            with pytest.raises(Killed):
                tiny.invoke(*args)
    resume(short.run)
    assert_equal_runs(short.run, reference)


# --- a harness that changes -----------------------------------------------------------------------


def changing(folder: Path, model: Path) -> tiny.Paths:
    """Four steps that start from a harness file and with a ramp that fades, and accept everything."""
    paths = tiny.write_spec(folder, model, steps=4)
    (folder / "texts" / "first.yaml").write_text("tasks: {letters: {p: {boost: 3.0}}}\n")
    text = paths.spec.read_text()
    for old, new in (
        ("seed: 3", "seed: 3\nstart: texts/first.yaml"),
        ("margin: 0.0", "margin: 0.0, test: none"),
        ("max_prompt_tokens: 160", "max_prompt_tokens: 400"),
        ("  p: {", f"  g: {{start: [{RAMP}]}}\n  p: {{"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    paths.spec.write_text(text)
    return paths


RAMP = "{field: skill, lines: rubric, share: ramp, fade: {kind: linear, steps: 3}}"


@pytest.mark.parametrize("at", [1, 3])  # before the first checkpoint, and after it
def test_a_harness_that_changes_goes_on_where_it_was(
    at: int, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its start, its versions and its fades are those of the uninterrupted run."""
    whole, cut = (changing(tmp_path / name, tiny_model) for name in ("whole", "cut"))
    assert tiny.invoke("train", whole.spec).exit_code == 0
    assert len([r for r in read_log(whole.run / "events.jsonl") if isinstance(r, Accepted)]) > 1
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "_evolve", killing(Controller._evolve, at, after=True))
        with pytest.raises(Killed):
            tiny.invoke("train", cut.spec)
    shutil.rmtree(cut.folder / "texts")  # all that a run needs lies in its folder
    resume(cut.run)
    assert_equal_runs(cut.run, whole.run)


def test_what_people_asked_of_a_stopped_run_is_answered_when_it_goes_on(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """... and again, when the step of the answer was cut short."""
    paths = tiny.write_spec(tmp_path / "asked", tiny_model, steps=4)
    with monkeypatch.context() as patch:
        patch.setattr(train, "_save", killing(train._save, 1, after=True))
        with pytest.raises(Killed):
            tiny.invoke("train", paths.spec)
    pause = Pause(domains=("animals",), rationale="")
    request = UpdateRequest(id="1", author="ann", update=pause, force=True)
    hand_in(RunFolder(paths.run).requests, request)
    with monkeypatch.context() as patch:
        patch.setattr(Controller, "_evolve", killing(Controller._evolve, 1))
        with pytest.raises(Killed):
            tiny.invoke("train", "--resume", paths.run)
    resume(paths.run)
    told = (paths.run / "events.jsonl").read_text().splitlines()
    assert len([line for line in told if '"type":"accepted"' in line and '"author":"ann"' in line]) == 2
    records = [r for r in read_log(paths.run / "events.jsonl") if isinstance(r, Accepted)]
    (accepted,) = [r for r in records if r.author == "ann"]
    assert (accepted.step, accepted.request) == (2, "1")
    harness = load_harness_file(RunFolder(paths.run).harness(accepted.harness_version))
    assert harness.tasks["fox"].p.paused and harness.tasks["dog"].p.paused


# --- Ctrl-C ---------------------------------------------------------------------------------------


def test_ctrl_c_saves_and_says_how_to_go_on(finished: tiny.Finished, small: tiny.Paths) -> None:
    process = tiny.start("train", small.spec)
    tiny.wait_until(lambda: tiny.n_lines(small.run / "metrics.jsonl") >= 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert f"harnessrl train --resume {small.run}" in output
    assert "Traceback" not in output
    saved = latest_checkpoint(RunFolder(small.run))
    assert saved is not None
    assert saved[0] == tiny.n_lines(small.run / "metrics.jsonl")
    assert saved[0] < 6
    assert (small.run / "report.html").is_file()
    resume(small.run)
    assert_equal_runs(small.run, finished.run)


def interrupting(
    call: Callable[..., Any], at: int, times: int = 1, number: int = signal.SIGINT
) -> Callable[..., Any]:
    """`call`, with Ctrl-C pressed (`times` times) right after its `at`-th use."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        result = call(*args, **kwargs)
        calls += 1
        if calls == at:
            for _ in range(times):
                os.kill(os.getpid(), number)
        return result

    return wrapped


@pytest.mark.parametrize(
    ("where", "what", "at"),
    [
        (train, "probe_run", 1),
        (Controller, "step_done", 1),
        (RunFolder, "write_metrics", 1),  # the step is over, its checkpoint was not due
        (train, "_save", 1),
    ],
    ids=lambda value: str(value) if isinstance(value, int | str) else "",
)
def test_whenever_ctrl_c_comes_what_is_said_to_be_saved_is(
    where: Any,
    what: str,
    at: int,
    reference: Path,
    short: tiny.Paths,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(where, what, interrupting(getattr(where, what), at))
        done = tiny.invoke("train", short.spec)
    assert done.exit_code == 0, done.output
    (line,) = [text for text in done.output.splitlines() if text.startswith("stopped after ")]
    steps = int(line.split()[2])
    saved = latest_checkpoint(RunFolder(short.run))
    assert steps == (saved[0] if saved else 0)
    resume(short.run)
    assert_equal_runs(short.run, reference)


def test_being_told_to_terminate_is_like_ctrl_c(
    reference: Path, short: tiny.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        call = interrupting(Slots.submit, 1, number=signal.SIGTERM)
        patch.setattr(Slots, "submit", call)
        done = tiny.invoke("train", short.spec)
    assert done.exit_code == 0, done.output
    assert "stopped after 1 steps" in done.output
    resume(short.run)
    assert_equal_runs(short.run, reference)


def test_a_second_ctrl_c_is_final(
    reference: Path, short: tiny.Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Slots, "submit", interrupting(Slots.submit, 2, times=2))
        done = tiny.invoke("train", short.spec)
    assert done.exit_code == 1
    assert f"harnessrl train --resume {short.run}" in done.output
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resume(short.run)
    assert_equal_runs(short.run, reference)


# --- what a resume refuses ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> tiny.Paths:
    """A run that was cut short after its checkpoint at step 2."""
    paths = tiny.write_spec(tmp_path_factory.mktemp("stopped") / "spec", tiny_model, steps=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "_save", killing(train._save, 2))
        with pytest.raises(Killed):
            tiny.invoke("train", paths.spec)
    return paths


@pytest.fixture
def stopped(stopped_once: tiny.Paths, tmp_path: Path) -> tiny.Paths:
    """A copy of it."""
    folder = Path(shutil.copytree(stopped_once.folder, tmp_path / "stopped"))
    return tiny.Paths(folder, folder / stopped_once.spec.name, folder / "runs")


def refused(*args: str | Path) -> str:
    done = tiny.invoke("train", *args)
    assert done.exit_code == 2, done.output
    assert isinstance(done.exception, SystemExit)
    return done.output


def test_a_changed_spec_is_refused_with_what_changed(stopped: tiny.Paths) -> None:
    before = (stopped.run / "events.jsonl").read_bytes()
    stopped.spec.write_text(
        stopped.spec.read_text()
        .replace("learning_rate: 1e-3", "learning_rate: 2e-3")
        .replace("alpha: 0.45", "alpha: 0.4")
    )
    told = refused(stopped.spec, "--resume", stopped.run)
    assert "engine.learning_rate: 0.001 in the run, 0.002 now" in told
    assert "evolver.alpha: 0.45 in the run, 0.4 now" in told
    assert len(told.splitlines()) == 4  # what, the two changes, and how to go on all the same
    assert (stopped.run / "events.jsonl").read_bytes() == before  # nothing was touched


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--seed", "9", "seed: 3 in the run, 9 now"),
        ("--steps", "5", "engine.steps: 3 in the run, 5 now"),
        ("--recipe", "grpo", "interfaces.p.evolve: True in the run, False now"),
    ],
)
def test_options_that_change_the_spec_are_refused(
    option: str, value: str, says: str, stopped: tiny.Paths
) -> None:
    assert says in refused(stopped.spec, "--resume", stopped.run, option, value)
    assert "give a SPEC to change it" in refused("--resume", stopped.run, option, value)


def test_a_run_goes_on_under_another_spec_when_told_to(reference: Path, tmp_path: Path) -> None:
    """Three steps, finished, and one more: the weights go on, and the change is on record.

    (In one go the evolver would have looked after the third step too: it was not the last then.)
    """
    run = Path(shutil.copytree(reference, tmp_path / "run"))
    model = load_run_spec(run / "spec.yaml").spec.roles.policy.model
    paths = tiny.write_spec(tmp_path / "longer", model, steps=4)
    assert "steps: 3 in the run, 4 now" in refused(paths.spec, "--resume", run)
    resume(run, paths.spec, "--accept-changes")
    assert tiny.invoke("train", paths.spec).exit_code == 0
    ours, four = (tiny.rows(folder / "metrics.jsonl") for folder in (run, paths.run))
    assert [row["step"] for row in ours] == [0, 1, 2, 3]
    assert [row["loss"] for row in ours[:3]] == [row["loss"] for row in four[:3]]
    assert latest_checkpoint(RunFolder(run))[0] == 4  # type: ignore[index]
    about = json.loads((run / "provenance.json").read_text())
    assert about["changes"] == ["engine.steps: 3 in the run, 4 now"]


def test_tasks_that_the_harness_has_changed_cannot_be_taken_out(stopped: tiny.Paths) -> None:
    """The log's updates no longer apply, and that is said in a line."""
    log = EventLog(stopped.run / "events.jsonl")
    task_id = next(r for r in read_log(log.path) if isinstance(r, Group)).task_id
    pause = Pause(task_ids=(task_id,), rationale="")
    log.append([Accepted(id="h-000009", step=1, harness_version=9, decision_ids=[], updates=[pause])])
    tasks = stopped.folder / "texts" / "animals.yaml"
    tasks.write_text(tasks.read_text().replace(f"id: {task_id}\n", f"id: another-{task_id}\n"))
    told = refused(stopped.spec, "--resume", stopped.run, "--accept-changes")
    assert f"no training task {task_id!r}" in told


def test_changed_tasks_are_refused_with_what_changed(stopped: tiny.Paths) -> None:
    tasks = stopped.folder / "texts" / "animals.yaml"
    tasks.write_text(tasks.read_text().replace("Is the dog lazy?", "Is the dog awake?"))
    told = refused(stopped.spec, "--resume", stopped.run)
    assert "tasks" in told
    assert "dog" in told, "which task changed is not said"


def test_the_same_spec_is_accepted(stopped: tiny.Paths, reference: Path) -> None:
    resume(stopped.run, stopped.spec)
    assert_equal_runs(stopped.run, reference)


def test_dates_and_the_like_of_a_parquet_file_are_no_change(small: tiny.Paths) -> None:
    about = {
        "day": datetime.date(2024, 2, 29),
        "at": datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC),
        "time": datetime.time(1, 2, 3),
        "took": datetime.timedelta(seconds=1.5),
        "price": Decimal("1.50"),
        "bytes": b"abc",
    }
    rubric = [{"text": "Is kind.", "points": 1.0, "check": {"kind": "words", "min": 1}}]
    row = {"id": "a", "prompt": "Hm?", "rubric": rubric, "origin": {"row": "1", "more": about}}
    data = small.spec.with_name("rows.parquet")
    parquet.write_table(pyarrow.Table.from_pylist([row]), data)
    small.spec.write_text(small.spec.read_text().replace("texts/animals.yaml", data.name))
    loaded = load_run_spec(small.spec)
    tasks = load_tasks(loaded)
    folder = RunFolder(small.run)
    write_start(folder, loaded.spec, tasks, provenance(0, "", probe=False))
    EventLog(folder.events).append([run_started("tiny", "", loaded.spec, tasks)])
    assert differences(read_stored(folder), loaded.spec, load_tasks(loaded)) == []
    other = row | {"origin": {"row": "1", "more": about | {"day": datetime.date(2024, 3, 1)}}}
    parquet.write_table(pyarrow.Table.from_pylist([other]), data)
    assert differences(read_stored(folder), loaded.spec, load_tasks(loaded)) == ["task a: changed"]


def test_a_finished_run_says_so(finished: tiny.Finished, tmp_path: Path) -> None:
    run = Path(shutil.copytree(finished.run, tmp_path / "copy"))
    before = (run / "events.jsonl").read_bytes()
    for args in ((), (finished.spec,)):
        told = resume(run, *args).output
        assert "finished already" in told
        assert "report.html" in told
    assert (run / "events.jsonl").read_bytes() == before


def test_one_process_at_a_time(stopped: tiny.Paths) -> None:
    with FileLock(stopped.run / ".lock"):
        told = refused("--resume", stopped.run)
    assert "another process" in told
    resume(stopped.run)  # and the lock goes with its holder


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    assert "is not a run folder" in refused("--resume", tmp_path)
    assert "is not a run folder" in refused("--resume", tmp_path / "none")


def test_a_log_that_is_damaged_is_named(stopped: tiny.Paths) -> None:
    log = stopped.run / "events.jsonl"
    lines = log.read_text().splitlines()
    lines[2] = lines[2][:30]
    log.write_text(tiny.join(lines))
    assert f"{log}:3:1: not a record" in refused("--resume", stopped.run)


@pytest.mark.parametrize("name", ["spec.yaml", "tasks.yaml", "provenance.json"])
def test_a_missing_file_is_named(name: str, stopped: tiny.Paths) -> None:
    (stopped.run / name).unlink()
    told = refused("--resume", stopped.run)
    assert name in told


def test_half_a_line_at_the_end_of_the_log(stopped: tiny.Paths, reference: Path) -> None:
    with (stopped.run / "events.jsonl").open("a") as log:
        log.write('{"id":"g-0000')
    resume(stopped.run)
    assert_equal_runs(stopped.run, reference)


def test_the_index_may_be_lost(stopped: tiny.Paths, reference: Path) -> None:
    """The log is the source of truth: the index over it is made anew."""
    shutil.rmtree(stopped.run / "chroma")
    resume(stopped.run)
    assert_equal_runs(stopped.run, reference)


def test_a_damaged_checkpoint_does_not_stop_a_resume(stopped: tiny.Paths, reference: Path) -> None:
    """It does not exist, so the run begins again, and comes to the same end."""
    os.truncate(stopped.run / "checkpoints/step-000002/optimizer/adamw.pt", 100)
    resume(stopped.run)
    assert_equal_runs(stopped.run, reference)
