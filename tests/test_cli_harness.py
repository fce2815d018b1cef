"""`harnessrl harness`: looking at a run's harness, changing it while it trains, taking it elsewhere.

One run is told here, on a static recipe, so that every version is somebody's: a process trains, is
asked for changes, is stopped with Ctrl-C, is asked for more, and goes on to its end.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from click.testing import Result
from harnessrl.memory.events import fold_versions, read_log
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Group, Refused
from harnessrl.specs import updates
from harnessrl.specs.checks import RegexCheck
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.loader import dump_yaml, load_harness_file, load_run_spec, load_task_file
from harnessrl.specs.tasks import Criterion
from harnessrl.trainer import train
from harnessrl.trainer.data.load import load_resolved
from harnessrl.trainer.report.data import load_run
from harnessrl.trainer.report.decisions import rows
from harnessrl.trainer.requests import RollbackRequest, UpdateRequest, hand_in, handed_in
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint

BOOST = "update: {op: boost, domains: [animals], rationale: More animals., factor: 2.0}\n"
#: p stays what it is, so the critic cannot but turn it down.
BOOST_ALL = "update: {op: boost, domains: [animals, writing], rationale: More of all., factor: 2.0}\n"
MOUNT = """\
update:
  op: mount
  task_ids: [fox]
  rationale: Answers lack a plan.
  field: outline
  lines: [first the fox, then the dog]
  share: 0.5
  fade: {kind: linear, steps: 30}
"""
ADD = """\
update:
  op: add
  task_ids: [fox]
  rationale: Nobody looks for the i.
  criterion:
    text: The letter i occurs.
    points: 2
    gate: 0.5
    check: {kind: regex, pattern: i}
"""
LETTER_I = Criterion(
    text="The letter i occurs.", points=2.0, gate=0.5, check=RegexCheck(kind="regex", pattern="i")
)
DIGIT = Criterion(text="A digit occurs.", points=-1.0, check=RegexCheck(kind="regex", pattern="\\d"))
RETIRE = (
    f"update: {{op: retire, task_ids: [fox], rationale: It is never met., criterion_id: {DIGIT.id}}}\n"
)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


def harness(*args: str | Path) -> Result:
    return tiny.invoke("harness", *args)


def done(*args: str | Path) -> str:
    result = harness(*args)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.output


def refused(*args: str | Path) -> str:
    result = harness(*args)
    assert result.exit_code == 2, result.output + repr(result.exception)
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return result.output


def written(folder: Path, text: str) -> Path:
    path = folder / "update.yaml"
    path.write_text(text)
    return path


def records(run: Path) -> list[AnyRecord]:
    return read_log(run / "events.jsonl")


def versions(run: Path) -> list[HarnessState]:
    return fold_versions(load_resolved(run / "tasks.yaml").train, records(run))


def resume(run: Path) -> Result:
    result = tiny.invoke("train", "--resume", run)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result


# --- the run --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Early:
    """A run that was stopped with Ctrl-C, and what was said to those who asked it while it trained."""

    paths: tiny.Paths
    boosted: Result
    boosted_all: Result
    output: str

    @property
    def run(self) -> Path:
        return self.paths.run


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Early:
    folder = tmp_path_factory.mktemp("early")
    paths = tiny.write_spec(folder / "spec", tiny_model, steps=40)
    text = paths.spec.read_text().replace("checkpoint_every: 2", "checkpoint_every: 10")
    paths.spec.write_text(text)
    process = tiny.start("train", paths.spec, "--recipe", "grpo", "--no-probe")
    tiny.wait_until(lambda: tiny.n_lines(paths.run / "metrics.jsonl") >= 1, process)
    told = [
        harness("apply", paths.run, written(folder, text), "--author", "ann", "--wait", "120", *more)
        for text, more in ((BOOST, ["--force"]), (BOOST_ALL, []))
    ]
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert tiny.n_lines(paths.run / "metrics.jsonl") < 40, "it was over before it could be stopped"
    return Early(paths, told[0], told[1], output)


@pytest.fixture
def stopped(early: Early, tmp_path: Path) -> Path:
    """A copy of the stopped run's folder."""
    return Path(shutil.copytree(early.run, tmp_path / "stopped"))


@pytest.fixture(scope="module")
def whole(early: Early, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run after five more requests, resumed to its end. Look, do not touch."""
    folder = tmp_path_factory.mktemp("whole")
    run = Path(shutil.copytree(early.run, folder / "run"))
    for text in (MOUNT, ADD, RETIRE):
        done("apply", run, written(folder, text), "--force", "--author", "bob")
    done("rollback", run, "1", "--author", "cy")
    # What the command line would not let through, had it known better.
    hand_in(RunFolder(run).requests, RollbackRequest(id="9", author="dan", version=99))
    unknown = UpdateRequest.model_validate(
        {
            "id": "99",
            "author": "dan",
            "force": True,
            "update": {"op": "pause", "tags": ["x"], "rationale": ""},
        }
    )
    hand_in(RunFolder(run).requests, unknown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_report", lambda root: root / "report.html")
        resume(run)
    return run


# --- asking a run that trains ---------------------------------------------------------------------


def test_a_training_run_answers_between_two_steps(early: Early) -> None:
    assert early.boosted.exit_code == 0, early.boosted.output
    assert "handed in as " in early.boosted.output
    assert "accepted: not measured" in early.boosted.output
    (first,) = [r for r in records(early.run) if isinstance(r, Accepted)]
    assert (first.harness_version, first.author) == (1, "ann")
    steps = tiny.rows(early.run / "metrics.jsonl")
    assert {row["harness_version"] for row in steps[: first.step + 1]} == {0}
    assert {row["harness_version"] for row in steps[first.step + 1 :]} == {1}


def test_domains_are_spelled_out_in_the_log(early: Early) -> None:
    (decision, _) = [r for r in records(early.run) if isinstance(r, Decision)]
    assert decision.update.task_ids == ("fox", "dog")
    assert versions(early.run)[1].weight("dog", 0.1) == 2.0
    assert "of ann" in early.output  # the run tells too


def test_without_force_the_critic_decides(early: Early) -> None:
    assert early.boosted_all.exit_code == 1, early.boosted_all.output
    assert "rejected: " in early.boosted_all.output
    (_, decision) = [r for r in records(early.run) if isinstance(r, Decision)]
    assert not decision.accepted
    assert decision.measured is not None
    assert decision.measured.gain == 0
    assert (decision.author, decision.diagnosis_id, decision.retrieved) == ("ann", None, [])


def test_who_waits_for_a_run_that_stands_still_is_told(stopped: Path, tmp_path: Path) -> None:
    result = harness("rollback", stopped, "0", "--wait", "0.3")
    assert result.exit_code == 1
    assert "no answer in 0.3 s" in result.output


# --- the whole story ------------------------------------------------------------------------------


def test_every_request_acted_and_the_log_says_whose_it_was(early: Early, whole: Path) -> None:
    saved = latest_checkpoint(RunFolder(early.run))
    assert saved is not None
    since = f"from step {saved[0] + 2} on"  # they were asked for before step saved + 1
    every = done("log", whole).splitlines()
    assert any(line.startswith("rejected, ann: p boost x2") for line in every)
    lines = [line for line in every if not line.startswith("rejected, ")]
    assert lines[0].startswith("version 1, from step ")
    assert lines[0].endswith(", by ann")
    assert lines[1] == "  p boost x2 (fox, dog): More animals."
    expected = [
        f"version 2, {since}, by bob",
        "  g mount a 2-line outline on 50% (fox): Answers lack a plan.",
        f"version 3, {since}, by bob",
        "  c add 'The letter i occurs.', +2 points (fox): Nobody looks for the i.",
        f"version 4, {since}, by bob",
        f"  c retire {DIGIT.id} (fox): It is never met.",
        f"version 5, {since}, by cy",
        "  back to version 1",
        "refused, dan: there is no version 99 yet",
    ]
    assert lines[2 : 2 + len(expected)] == expected
    assert lines[2 + len(expected)].startswith("refused, dan: pause: no training task with tag 'x'")
    assert len(lines) == 3 + len(expected)


def test_the_records_and_the_files_tell_the_same_story(whole: Path) -> None:
    every = versions(whole)
    assert len(every) == 6
    assert every[5].changes == every[1].changes
    assert every[4].of("fox").field("outline") is not None
    assert DIGIT not in every[4].rubric("fox")
    requests = handed_in(RunFolder(whole).requests)
    answers = [r for r in records(whole) if isinstance(r, Decision | Refused | Accepted) and r.request]
    assert {r.request for r in answers} == {r.id for r in requests}
    for request in requests:
        mine = [r for r in answers if r.request == request.id]
        assert {r.author for r in mine} == {request.author}
        assert len(mine) == len({r.type for r in mine})  # answered once
    exported = sorted(p.name for p in (whole / "harness").iterdir())
    assert exported == [f"{n:06d}.yaml" for n in range(6)]
    assert set(load_harness_file(whole / "harness" / "000004.yaml").tasks) == {"fox", "dog"}


def test_training_went_on_under_the_last_version(early: Early, whole: Path) -> None:
    rows = tiny.rows(whole / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(40))
    before = len(tiny.rows(early.run / "metrics.jsonl"))
    assert rows[before]["harness_version"] == 1  # the step after which they were answered
    assert {row["harness_version"] for row in rows[before + 1 :]} == {5}


def test_a_forced_update_that_cannot_be_applied_any_more_is_rejected(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two people retire the same criterion: the second is told why not."""
    monkeypatch.setenv("LOGNAME", "zoe")
    for _ in range(2):
        done("apply", stopped, written(tmp_path, RETIRE), "--force")
    resume(stopped)
    first, second = [r for r in records(stopped) if isinstance(r, Decision)][2:]
    assert (first.accepted, second.accepted) == (True, False)
    assert second.reason.startswith(f"cannot be applied: retire: {DIGIT.id} is not scored on fox")
    assert {first.author, second.author} == {"zoe"}


class Killed(BaseException):
    """Stands in for kill -9."""


def killed(*args: Any) -> None:
    raise Killed


def test_an_answer_that_a_kill_voids_is_given_again(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done("apply", stopped, written(tmp_path, ADD), "--author", "eve")  # measured, so it may be refused
    done("apply", stopped, written(tmp_path, MOUNT), "--author", "eve", "--force")
    asked = [r.id for r in handed_in(RunFolder(stopped).requests)][2:]
    with monkeypatch.context() as patch:
        patch.setattr(train, "_save", killed)
        with pytest.raises(Killed):
            tiny.invoke("train", "--resume", stopped)

    def answers() -> list[dict[str, Any]]:
        found = [r for r in records(stopped) if isinstance(r, Decision | Accepted)]
        return [r.model_dump() for r in found if r.request in asked]

    voided = answers()
    assert {a["request"] for a in voided} == set(asked)
    resume(stopped)
    assert answers() == voided  # the same measurement, the same answer, once
    measured = next(a for a in voided if a["request"] == asked[0])
    assert measured["measured"]["rollouts"] >= 8
    raw = tiny.rows(stopped / "events.jsonl")
    assert sum(r["type"] == "decision" and r["request"] == asked[1] for r in raw) == 2
    assert [r["type"] for r in raw].count("resumed") == 2


# --- several tasks --------------------------------------------------------------------------------


def test_a_change_of_several_tasks_is_measured_on_each(stopped: Path, tmp_path: Path) -> None:
    update = written(tmp_path, ADD.replace("[fox]", "[fox, dog]"))
    told = done("apply", stopped, update, "--author", "ann").splitlines()
    assert told[0] == "c add 'The letter i occurs.', +2 points (fox, dog)"
    rules = load_run_spec(stopped / "spec.yaml").spec.evolver.critic
    first, most = 2 * rules.rollouts, 2 * rules.extended_rollouts
    assert told[1] == f"measuring on 2 tasks: {first} rollouts, or {most} if that leaves it open"
    output = resume(stopped).output
    assert f"of ann on 2 tasks: {first} rollouts\n" in output  # said again before they are sampled
    decision = [r for r in records(stopped) if isinstance(r, Decision)][-1]
    assert decision.measured is not None and decision.measured.rollouts in (first, most)
    assert set(decision.measured.tasks) == {"fox", "dog"}
    assert decision.reason.startswith("on 2 tasks: ")
    lines = done("log", stopped).splitlines()
    for task_id, found in decision.measured.tasks.items():
        assert any(line.startswith(f"    on {task_id}: gain {found.gain:+.2f} (") for line in lines)
    shown = rows(load_run(stopped))[-1].measured
    assert [line.split(":")[0] for line in shown if line.startswith(("fox", "dog"))] == ["fox", "dog"]
    guards = [line for line in shown if line.startswith("guard agreement with quality (")]
    assert len(guards) == 3  # on average, and on each
    assert f"on {decision.measured.rollouts} fresh rollouts" in shown


def test_a_change_of_guidance_says_what_it_costs_at_least(stopped: Path, tmp_path: Path) -> None:
    told = done("apply", stopped, written(tmp_path, MOUNT)).splitlines()
    rules = load_run_spec(stopped / "spec.yaml").spec.evolver.critic
    assert told[1].startswith(f"measuring on 1 task: at least {2 * rules.rollouts} rollouts")
    forced = done("apply", stopped, written(tmp_path, MOUNT), "--force")
    sampling = done("apply", stopped, written(tmp_path, BOOST))
    assert "measuring" not in forced + sampling


def test_a_change_of_very_many_tasks_is_not_handed_in_to_be_measured(
    stopped: Path, early: Early, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "MOST_MEASURED", 1)
    path = written(tmp_path, ADD.replace("[fox]", "[fox, dog]"))
    told = refused("apply", stopped, path)
    assert told == (
        f"{path}:3:3: update.task_ids: 2 tasks, and a change of g or c is measured on 1 at most: name "
        "fewer of them, or apply it unmeasured with --force\n"
    )
    assert nothing_handed_in(stopped, early)
    done("apply", stopped, path, "--force")


# --- what others wrote ----------------------------------------------------------------------------

FORGED = "Of use.\nversion 9, from step 1 on, by root"


def test_nobody_writes_lines_of_their_own_into_the_log(stopped: Path, tmp_path: Path) -> None:
    """Neither as an author nor in a rationale or a text; and a terminal obeys none of it."""
    update = {
        "op": "mount",
        "task_ids": ["fox"],
        "rationale": FORGED + "\x1b[2J",
        "lines": ["one\nc  c-1  +9  judge  forged\x1b]0;title\x07"],
        "share": 0.5,
    }
    forged = {"id": "9", "author": f"eve\n{FORGED}\x1b[1A", "force": True, "update": update}
    hand_in(RunFolder(stopped).requests, UpdateRequest.model_validate(forged))
    twice = {**forged, "id": "91", "update": {**update, "op": "retire", "criterion_id": "\x1b[31mc\n"}}
    for key in ("lines", "share"):
        del twice["update"][key]
    hand_in(RunFolder(stopped).requests, UpdateRequest.model_validate(twice))
    hand_in(RunFolder(stopped).requests, RollbackRequest(id="92", author=f"eve\n{FORGED}", version=77))
    output = resume(stopped).output
    told = done("log", stopped)
    shown = (
        done("show", stopped, "--task", "fox") + done("show", stopped) + done("diff", stopped, "1", "2")
    )
    for text in (output, told, shown):
        assert "\x1b" not in text and "\x07" not in text
        assert not any(line.startswith(("version 9", "c  c-1")) for line in text.splitlines())
    assert "accepted g mount a 1-line checklist on 50% (fox) of eve Of use. version 9, from" in output
    lines = told.splitlines()
    assert lines[-4].endswith("by eve Of use. version 9, from step 1 on, by root⟨U+001B⟩[1A")
    assert lines[-3].endswith(": Of use. version 9, from step 1 on, by root⟨U+001B⟩[2J")
    assert lines[-2].startswith("rejected, eve Of use. version 9")
    assert lines[-1].startswith("refused, eve Of use. version 9")
    assert "one c  c-1  +9  judge  forged⟨U+001B⟩]0;title⟨U+0007⟩" in shown


# --- show, diff -----------------------------------------------------------------------------------


def test_show_tells_a_version_at_a_glance(whole: Path) -> None:
    assert done("show", whole, "--version", "4").splitlines() == [
        "version 4: 4 tasks, 2 changed",
        "  dog: weight 2, guidance -, 3 criteria (0 added, 0 retired)",
        "  fox: weight 2, guidance outline, 3 criteria (1 added, 1 retired)",
    ]
    newest = done("show", whole)
    assert newest == done("show", whole, "--version", "5")
    assert newest.startswith("version 5: 4 tasks, 2 changed")
    assert "outline" not in newest
    assert done("show", whole, "--version", "0") == "version 0: 4 tasks, 0 changed\n"


def test_show_tells_everything_about_a_task(whole: Path) -> None:
    lines = done("show", whole, "--task", "fox", "--version", "4").splitlines()
    assert lines[:3] == [
        "fox, version 4",
        "p  weight 2",
        "g  outline on 50%, fade linear: first the fox / then the dog",
    ]
    seeds = load_resolved(whole / "tasks.yaml").train["fox"].rubric
    for criterion, line in zip([*seeds, LETTER_I], lines[3:], strict=True):
        assert line.startswith(f"c  {criterion.id}  {criterion.points:+g}")
        assert criterion.text in line
    assert lines[3].endswith("[seed]")
    assert lines[5].endswith("[seed, retired]")
    assert ", gate 0.5  regex  " in lines[6]
    assert lines[6].endswith("[add, version 3]")
    assert "g  no guidance" in done("show", whole, "--task", "words")


def test_show_tells_a_pause(stopped: Path, tmp_path: Path) -> None:
    pause = "update: {op: pause, task_ids: [dog], rationale: Solved.}\n"
    done("apply", stopped, written(tmp_path, pause), "--force")
    resume(stopped)
    assert "p  weight 0.1 (paused)" in done("show", stopped, "--task", "dog")
    assert "dog: weight 0.1 (paused)" in done("show", stopped)
    assert "  p  paused" in done("diff", stopped, "1", "2").splitlines()
    assert "  p  resumed" in done("diff", stopped, "2", "1").splitlines()


def test_diff_tells_what_came_and_what_went(whole: Path) -> None:
    outline = "outline on 50%, fade linear: first the fox / then the dog"
    new = f"{LETTER_I.id}  +2, gate 0.5  regex  The letter i occurs."
    old = f"{DIGIT.id}  -1  regex  A digit occurs."
    assert done("diff", whole, "0", "4").splitlines() == [
        "version 0 -> 4: 2 tasks differ",
        "dog",
        "  p  boost 1 -> 2",
        "fox",
        "  p  boost 1 -> 2",
        f"  g  + {outline}",
        f"  c  - {old}",
        f"  c  + {new}",
    ]
    assert done("diff", whole, "4", "1").splitlines() == [
        "version 4 -> 1: 1 tasks differ",
        "fox",
        f"  g  - {outline}",
        f"  c  - {new}",
        f"  c  + {old}",
    ]
    assert done("diff", whole, "1", "5") == "version 1 -> 5: 0 tasks differ\n"
    assert done("diff", whole, "3", "3") == "version 3 -> 3: 0 tasks differ\n"


def test_looking_does_not_write(whole: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*")}
    for args in (("show", whole), ("diff", whole, "0", "1"), ("log", whole)):
        done(*args)
    assert {p: p.stat().st_mtime_ns for p in whole.rglob("*")} == before


def test_an_unknown_task_is_guessed(whole: Path) -> None:
    assert "no training task foxx (did you mean fox?)" in refused("show", whole, "--task", "foxx")
    assert "no training task quick" in refused("show", whole, "--task", "quick")  # it is held out


@pytest.mark.parametrize(
    "args",
    [
        ("show", "RUN", "--version", "6"),
        ("diff", "RUN", "0", "6"),
        ("diff", "RUN", "6", "0"),
        ("export", "RUN", "--to", "NEW", "--version", "6"),
    ],
    ids=" ".join,
)
def test_a_version_that_is_not_there(args: tuple[str, ...], whole: Path, tmp_path: Path) -> None:
    places = {"RUN": str(whole), "NEW": str(tmp_path / "new")}
    assert "no version 6; allowed: 0 to 5" in refused(*(places.get(arg, arg) for arg in args))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "args",
    [
        ("show",),
        ("diff", "0", "1"),
        ("log",),
        ("apply", "u.yaml"),
        ("rollback", "0"),
        ("export", "--to", "x"),
    ],
    ids=lambda args: args[0],
)
def test_what_is_no_run_folder(args: tuple[str, ...], tmp_path: Path) -> None:
    assert "is not a run folder" in refused(args[0], tmp_path, *args[1:])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["events.jsonl", "tasks.yaml", "provenance.json"])
def test_a_damaged_run_folder_is_said_so(name: str, stopped: Path) -> None:
    (stopped / name).write_text("{{{\n")
    assert name in refused("show", stopped)


def test_looking_imports_nothing_heavy(whole: Path) -> None:
    program = (
        "import sys; from harnessrl.trainer.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'transformers', 'chromadb', 'langgraph'} & set(sys.modules)))"
    )
    told = subprocess.run(
        [sys.executable, "-c", program, "harness", "show", str(whole)],
        capture_output=True,
        text=True,
        env=os.environ,
    )
    assert told.stdout.splitlines()[-1] == "[]", told


# --- apply and rollback refuse --------------------------------------------------------------------


def nothing_handed_in(run: Path, early: Early) -> bool:
    return len(handed_in(RunFolder(run).requests)) == len(handed_in(RunFolder(early.run).requests))


@pytest.mark.parametrize(
    ("change", "at", "says"),
    [
        (("op: add", "op: ad"), "2:7", ("ad is not allowed", "did you mean add")),
        (("rationale:", "rational:"), "4:3", ("unknown key rational", "did you mean rationale")),
        (("points: 2", "points: two"), "7:13", ("must be a number, not two",)),
        (("kind: regex", "kind: regx"), "9:19", ("did you mean regex",)),
        (("pattern: i", "pattern: '(i'"), "9:35", ("not a regular expression",)),
        (("  task_ids: [fox]\n", ""), "2:3", ("names no task",)),
        (("task_ids: [fox]", "task_ids: fox"), "3:13", ("must be a list, not fox",)),
        (("  op: add\n", ""), "2:3", ("update.op", "required")),
        (("update:", "updates:"), "1:1", ("unknown key updates", "did you mean update")),
        (("[fox]", "[fox"), "4:12", ("not valid YAML",)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_in_the_file_is_placed_and_explained(
    change: tuple[str, str], at: str, says: tuple[str, ...], early: Early, tmp_path: Path
) -> None:
    assert change[0] in ADD
    path = written(tmp_path, ADD.replace(*change))
    told = refused("apply", early.run, path)
    assert told.startswith(f"{path}:{at}: "), told
    for words in says:
        assert words in told
    assert nothing_handed_in(early.run, early)


def test_a_file_that_is_not_there(early: Early, tmp_path: Path) -> None:
    told = refused("apply", early.run, tmp_path / "none.yaml")
    assert told.startswith(f"{tmp_path / 'none.yaml'}:1:1: the file does not exist")


C_ADD = "update: {op: add, task_ids: [fox], rationale: '', criterion: {text: t, points: 1}}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (ADD.replace("[fox]", "[fox, foks]"), "no training task 'foks'"),
        (ADD.replace("[fox]", "[quick]"), "no training task 'quick'"),  # held out
        (
            BOOST.replace("animals", "plants"),
            "no training task of domain 'plants'; allowed: animals, writing",
        ),
        (BOOST.replace("domains", "tags"), "no training task with tag 'animals'"),
        (RETIRE.replace(DIGIT.id, "c-0000000000"), "retire: c-0000000000 is not scored on fox"),
        ("update: {op: resume, task_ids: [fox], rationale: ''}", "resume: fox is not paused"),
        ("update: {op: unmount, task_ids: [fox], rationale: ''}", "fox carries no checklist"),
        (
            "update: {op: reweight, task_ids: [fox], rationale: '', "
            f"criterion_id: {DIGIT.id}, points: 1}}",
            "the same sign",
        ),
        (
            f"update: {{op: restore, task_ids: [fox], rationale: '', criterion_id: {DIGIT.id}}}",
            "is not retired on fox",
        ),
        (C_ADD, "needs a judge role"),
        (ADD.replace("[fox]", "[fox, dog, fox]"), "task_ids[2]: fox: is named twice"),
    ],
)
def test_an_update_that_does_not_fit_is_not_handed_in(
    text: str, says: str, stopped: Path, early: Early, tmp_path: Path
) -> None:
    path = written(tmp_path, text)
    told = refused("apply", stopped, path, "--force")
    assert re.match(rf"{re.escape(str(path))}:\d+:\d+: update\.\w+", told)
    assert says in told
    assert nothing_handed_in(stopped, early)


def test_all_that_does_not_fit_is_told_at_its_place(stopped: Path, early: Early, tmp_path: Path) -> None:
    text = "update:\n  op: %s\n  rationale: ''\n  task_ids: [fox, foxs]\n"
    path = written(tmp_path, text % "boost" + "  factor: 2\n  domains: [animals, animls]\n  tags: [x]\n")
    assert refused("apply", stopped, path, "--force").splitlines() == [
        f"{path}:4:19: update.task_ids[1]: foxs: boost: no training task 'foxs' (did you mean fox?)",
        f"{path}:6:22: update.domains[1]: animls (did you mean animals?): boost: no training task of "
        "domain 'animls'; allowed: animals, writing",
        f"{path}:7:10: update.tags[0]: x: boost: no training task with tag 'x'; allowed: none",
    ]
    near = DIGIT.id[:-1]
    path = written(
        tmp_path,
        text % "merge" + f"  criterion_ids: [{near}, c-0]\n  criterion: {{text: t, points: 1}}\n",
    )
    first, second, third = refused("apply", stopped, path, "--force").splitlines()
    assert first.startswith(f"{path}:4:19: update.task_ids[1]: foxs: merge: no training task")
    assert second.startswith(f"{path}:5:19: update.criterion_ids[0]: {near}: merge: {near} is not scored")
    assert second.endswith(f"(did you mean {DIGIT.id}?)")
    assert third.startswith(f"{path}:6:3: update.criterion: a criterion has no check")
    assert nothing_handed_in(stopped, early)


def test_what_needs_no_rollout_to_be_refused_is_not_handed_in(
    stopped: Path, early: Early, tmp_path: Path
) -> None:
    spec, tasks = stopped / "spec.yaml", stopped / "tasks.yaml"
    spec.write_text(spec.read_text().replace("anchored: false", "anchored: true"))
    content = yaml.safe_load(tasks.read_text())
    (fox,) = [task for task in content["train"] if task["id"] == "fox"]
    fox["reference"] = "It jumps over the lazy dog because it is in a hurry."
    tasks.write_text(dump_yaml(content))
    head = "update:\n  rationale: ''\n  task_ids: [dog, fox]\n  op: "
    lines = "  lines:\n  - %s\n"
    leak = f"mount\n  share: 0.5\n{lines % 'It jumps over the lazy dog because it is in a hurry'}"
    ramp = f"mount\n  share: ramp\n{lines % 'Be kind.'}"
    for text, at, says in (
        (f"retire\n  criterion_id: {DIGIT.id}\n", f"5:17: update.criterion_id: {DIGIT.id}", "anchored"),
        (leak, "6:3: update.lines", "a leak, 100% of it (by 4-word runs) is in the reference of fox"),
        (ramp, "5:10: update.share", "a ramp shows each rollout other lines"),
    ):
        path = written(tmp_path, head + text)
        for more in ([], ["--force"]) if text != ramp else ([],):
            told = refused("apply", stopped, path, *more).splitlines()[-1]
            assert told.startswith(f"{path}:{at}: ") and says in told
        assert nothing_handed_in(stopped, early)
    done("apply", stopped, path, "--force")


def test_an_author_that_is_not_utf_8_can_be_written_down(stopped: Path) -> None:
    done("rollback", stopped, "0", "--author", "\udcff\x1b[31m")
    assert handed_in(RunFolder(stopped).requests)[-1].author == "⟨U+DCFF⟩⟨U+001B⟩[31m"


def test_rolling_back_to_no_version(stopped: Path, early: Early) -> None:
    assert "there is no version 2; allowed: 0 to 1" in refused("rollback", stopped, "2")
    assert nothing_handed_in(stopped, early)


@pytest.mark.parametrize("command", ["apply", "rollback"])
def test_a_finished_run_refuses(command: str, whole: Path, tmp_path: Path) -> None:
    before = handed_in(RunFolder(whole).requests)
    what: str | Path = written(tmp_path, ADD) if command == "apply" else "0"
    told = refused(command, whole, what)
    assert "is finished" in told
    assert f"harnessrl harness export {whole} --to FOLDER" in told  # what can be done instead
    assert handed_in(RunFolder(whole).requests) == before


def test_apply_says_which_tasks_a_domain_reaches(stopped: Path, tmp_path: Path) -> None:
    told = done("apply", stopped, written(tmp_path, BOOST))
    assert told.splitlines()[0] == "p boost x2 (fox, dog)"


def test_requests_keep_their_order_and_a_strange_file_is_passed_over(tmp_path: Path) -> None:
    for n in (2, 1, 3):
        hand_in(tmp_path, RollbackRequest(id=f"{n}", author="ann", version=n))
    (tmp_path / "0.json").write_text("{}")
    (tmp_path / "4.json").write_text("not JSON")
    (tmp_path / "5.json").write_text((tmp_path / "1.json").read_text())  # a copy: it would act twice
    (tmp_path / "6.json").mkdir()
    assert [r.id for r in handed_in(tmp_path)] == ["1", "2", "3"]
    assert handed_in(tmp_path / "none") == []


# --- export ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Exported:
    folder: Path
    told: str


@pytest.fixture
def exported(whole: Path, tmp_path: Path) -> Exported:
    folder = tmp_path / "evolved"
    return Exported(folder, done("export", whole, "--to", folder, "--version", "4"))


def test_an_export_is_a_spec_its_tasks_and_the_harness(exported: Exported, whole: Path) -> None:
    assert "wrote version 4 to " in exported.told
    assert f"harnessrl train {exported.folder / 'spec.yaml'}" in exported.told
    assert {p.name for p in exported.folder.iterdir()} == {"spec.yaml", "tasks.yaml", "harness.yaml"}
    new = load_run_spec(exported.folder / "spec.yaml")
    old = load_run_spec(whole / "spec.yaml").spec
    assert new.spec.name == "tiny-evolved"
    assert new.task_files == ((exported.folder / "tasks.yaml").resolve(),)
    assert new.start_file == (exported.folder / "harness.yaml").resolve()
    same = {"name": old.name, "tasks": old.tasks, "start": old.start}
    assert new.spec.model_copy(update=same) == old
    # The seed rubric is untouched: what was changed is in the harness file alone.
    assert load_task_file(exported.folder / "tasks.yaml") == load_task_file(whole / "tasks.yaml")
    assert load_harness_file(exported.folder / "harness.yaml") == load_harness_file(
        whole / "harness" / "000004.yaml"
    )


def test_the_newest_version_is_exported_by_itself(whole: Path, tmp_path: Path) -> None:
    assert "wrote version 5" in done("export", whole, "--to", tmp_path / "new")
    assert load_harness_file(tmp_path / "new" / "harness.yaml").version == 5


def test_a_new_run_starts_from_an_export(exported: Exported, whole: Path, tmp_path: Path) -> None:
    assert tiny.invoke("validate", exported.folder / "spec.yaml").exit_code == 0
    result = tiny.invoke(
        "train", exported.folder / "spec.yaml", "--steps", "2", "--folder", tmp_path / "runs"
    )
    assert result.exit_code == 0, result.output + repr(result.exception)
    shutil.rmtree(exported.folder)  # the new run needs none of it any more
    run = tmp_path / "runs" / "tiny-evolved"
    start, wanted = versions(run)[0], versions(whole)[4]
    assert start.version == 0
    for task_id in wanted.tasks:
        assert start.rubric(task_id) == wanted.rubric(task_id)
        assert start.all_criteria(task_id) == wanted.all_criteria(task_id)
        assert start.weight(task_id, 0.1) == wanted.weight(task_id, 0.1)
        theirs = [(g.field, g.lines, g.share, g.fade) for g in wanted.of(task_id).guidance]
        assert [(g.field, g.lines, g.share, g.fade) for g in start.of(task_id).guidance] == theirs
        assert all(g.since == 0 for g in start.of(task_id).guidance)  # its fade begins anew
    assert load_resolved(run / "tasks.yaml").train["fox"].rubric == wanted.tasks["fox"].rubric
    # ... and it acts from the first step on.
    groups = [r for r in records(run) if isinstance(r, Group) and r.task_id == "fox"]
    assert groups
    for group in groups:
        assert LETTER_I.id in group.met
        assert DIGIT.id not in group.met
        assert group.guided == [True, True, False, False]
    shown = done("show", run, "--task", "fox", "--version", "0").splitlines()
    assert shown[1:] == done("show", whole, "--task", "fox", "--version", "4").splitlines()[1:]


def test_a_run_from_an_export_can_be_exported_again(
    exported: Exported, whole: Path, tmp_path: Path
) -> None:
    spec = exported.folder / "spec.yaml"
    assert tiny.invoke("train", spec, "--steps", "1", "--folder", tmp_path / "runs").exit_code == 0
    done("export", tmp_path / "runs" / "tiny-evolved", "--to", tmp_path / "again")
    again = load_harness_file(tmp_path / "again" / "harness.yaml").tasks
    first = load_harness_file(exported.folder / "harness.yaml").tasks
    assert again.keys() == first.keys()
    assert again["fox"].c == first["fox"].c
    assert again["fox"].p == first["fox"].p


def test_a_harness_that_does_not_fit_the_tasks_is_refused(exported: Exported) -> None:
    path = exported.folder / "harness.yaml"
    path.write_text(path.read_text().replace("  fox:", "  foxs:"))
    result = tiny.invoke("validate", exported.folder / "spec.yaml")
    assert result.exit_code == 2
    line = path.read_text().splitlines().index("  foxs:") + 1
    told = f"{path}:{line}:3: tasks.foxs: no training task 'foxs' (did you mean fox?)"
    assert told in result.output.splitlines()


def occupied(folder: Path) -> None:
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")


def a_file(folder: Path) -> None:
    folder.write_text("mine")


@pytest.mark.parametrize("make", [occupied, a_file], ids=lambda make: make.__name__)
def test_an_export_overwrites_nothing(make: Callable[[Path], None], whole: Path, tmp_path: Path) -> None:
    make(tmp_path / "taken")
    before = sorted(tmp_path.rglob("*"))
    assert "exists already; nothing was written" in refused("export", whole, "--to", tmp_path / "taken")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_may_be_filled(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done("export", whole, "--to", tmp_path / "empty")
    assert (tmp_path / "empty" / "spec.yaml").is_file()


def test_a_place_that_cannot_be_written_is_said_so(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused("export", whole, "--to", tmp_path / "file" / "below")
