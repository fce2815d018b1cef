"""The command line: bad input before any model is touched, help, exit codes, and the small commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tiny
import typer
from filelock import FileLock
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Decision, Diagnosis
from harnessrl.trainer.cli import app

HEAVY = ("torch", "transformers", "chromadb", "langgraph", "matplotlib", "datasets", "onnxruntime")


# --- bad input ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A mistake in one of the two files, and what must be said: where, and which words."""

    file: str
    old: str
    new: str
    at: str  # the text that starts where the message must point
    says: tuple[str, ...]


SPEC, TASKS = "tiny.yaml", "texts/animals.yaml"
CASES = {
    "unknown key": Case(SPEC, "seed: 3", "sed: 3", "sed: 3", ("unknown key sed", "did you mean seed")),
    "unknown nested key": Case(
        SPEC, "group_size: 4", "group_sise: 4", "group_sise", ("unknown key group_sise", "allowed here")
    ),
    "wrong type": Case(SPEC, "steps: 6", "steps: six", "six", ("whole number", "six")),
    "a number out of range": Case(SPEC, "steps: 6", "steps: 0", "0\n", ("steps", "greater than")),
    "a string for a number": Case(SPEC, "seed: 3", 'seed: "3"', '"3"', ("whole number",)),
    "a missing task file": Case(
        SPEC, "[texts/animals.yaml]", "[texts/animal.yaml]", "texts/animal.yaml]", ("does not exist",)
    ),
    "no task files": Case(SPEC, "[texts/animals.yaml]", "[]", "[]", ("at least 1",)),
    "a weight of NaN": Case(
        SPEC,
        "p: {min_effective_tasks: 1.5}",
        "p: {domain_shares: {animals: .nan, writing: 1}}",
        ".nan",
        ("finite number", ".nan"),
    ),
    "a threshold of infinity": Case(SPEC, "margin: 0.0", "margin: .inf", ".inf", ("finite",)),
    "an unknown engine": Case(SPEC, "kind: local", "kind: lokal", "lokal", ("allowed: local",)),
    "an unknown advantage": Case(
        SPEC,
        "logging:",
        "reward: {advantage: gnorm}\nlogging:",
        "gnorm",
        ("group_norm", "dr_grpo"),
    ),
    "no model": Case(SPEC, "roles:\n  policy: {model: MODEL}\n", "", "name: tiny", ("roles", "required")),
    "not YAML": Case(SPEC, "seed: 3", "seed: [3", "", ()),
    "a key twice": Case(SPEC, "seed: 3", "seed: 3\nseed: 4", "seed: 4", ("duplicate key seed",)),
    "a model that is not there": Case(
        SPEC, "name: tiny", "name: tiny", "MODEL", ("roles.policy.model", "no such folder")
    ),
    "an unknown check": Case(
        TASKS, "kind: words, min: 3", "kind: wrds, min: 3", "wrds", ("words", "regex")
    ),
    "an unknown IFEval check": Case(
        TASKS,
        "kind: regex, pattern: a",
        "kind: ifeval, id: no_comma",
        "no_comma",
        ("unknown IFEval instruction", "punctuation:no_comma"),
    ),
    "a pattern that does not compile": Case(
        TASKS, "pattern: s}", "pattern: '(s'}", "'(s'", ("not a regular expression",)
    ),
    "points of NaN": Case(TASKS, "points: 1, check", "points: .nan, check", ".nan", ("number",)),
    "points of zero": Case(TASKS, "points: -1", "points: 0", "0,", ("other than 0",)),
    "points whose sum would overflow": Case(
        TASKS, "points: 1, check", "points: 1e308, check", "1e308", ("0.000001 to 1,000,000",)
    ),
    "a task twice": Case(
        TASKS, "id: dog", "id: fox", "fox\n    domain: animals\n    prompt: Is", ("fox",)
    ),
    "no prompt": Case(TASKS, "    prompt: Is the dog lazy?\n", "", "id: dog", ("prompt", "required")),
    "an empty rubric": Case(
        TASKS,
        "prompt: Write words.\n    rubric: *rubric",
        "prompt: Write words.\n    rubric: []",
        "[]",
        (),
    ),
    "an impossible check": Case(
        TASKS, "kind: words, min: 3", "kind: words, min: 3, max: 2", "", ("min 3 is above max 2",)
    ),
    "no training task": Case(TASKS, "train:", "held_out: []\nextra:", "extra", ("unknown key extra",)),
}

#: Runs many command lines in one process, then says which heavy modules were imported for them.
RUNNER = f"""
import contextlib, io, json, os, sys
from harnessrl.trainer.cli import app
out = []
for folder, args in json.load(sys.stdin):
    os.chdir(folder)
    err, printed = io.StringIO(), io.StringIO()
    code = None
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(printed):
        try:
            app(args)
        except SystemExit as stop:
            code = stop.code
        except Exception as error:
            code = repr(error)
    out.append([code, err.getvalue(), printed.getvalue()])
heavy = [name for name in {HEAVY!r} if name in sys.modules]
print(json.dumps([out, heavy]))
"""


def run_many(commands: list[tuple[Path, list[str]]]) -> tuple[list[Any], list[str]]:
    """[exit code, stderr, stdout] of each command line, and the heavy modules imported by any."""
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps([(str(folder), args) for folder, args in commands]),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    results, heavy = json.loads(done.stdout)
    return results, heavy


def position(text: str, piece: str) -> str:
    index = text.index(piece)
    line = text.count("\n", 0, index) + 1
    return f"{line}:{index - text.rfind(chr(10), 0, index)}"


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """Every case through `train` and `validate`, in one process. The model folder does not exist."""
    commands, names = [], []
    for name, case in CASES.items():
        folder = tmp_path_factory.mktemp("case")
        tiny.write_spec(folder, "/no/such/MODEL")
        path = folder / case.file
        old = case.old.replace("MODEL", "/no/such/MODEL")
        text = path.read_text()
        assert old in text, name
        path.write_text(text.replace(old, case.new, 1))
        for command in ("train", "validate"):
            commands.append((folder, [command, SPEC]))
            names.append((name, command))
    results, heavy = run_many(commands)
    found = {
        (name, command): (*result, folder)
        for (name, command), result, (folder, _) in zip(names, results, commands, strict=True)
    }
    return found, heavy


@pytest.mark.parametrize("command", ["train", "validate"])
@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_placed_and_explained(name: str, command: str, outcomes: Any) -> None:
    case = CASES[name]
    code, err, out, folder = outcomes[0][name, command]
    assert code == 2, (code, err, out)
    first = err.splitlines()[0]
    text = (folder / case.file).read_text()
    if name == "no prompt":
        assert first.startswith(f"{folder / case.file}:") or first.startswith(f"{case.file}:")
    elif case.at:
        at = case.at.replace("MODEL", "/no/such/MODEL")
        # Task files are named by their whole path, the spec as it was given.
        prefix = case.file if case.file == SPEC else str(folder / case.file)
        assert first.startswith(f"{prefix}:{position(text, at)}: "), first
    else:
        where = first.removeprefix(str(folder) + "/").split(": ")[0].split(":")
        assert where[0] == case.file
        assert all(part.isdigit() for part in where[1:3]), first
    for words in case.says:
        assert words in err, err
    assert "Traceback" not in err
    assert out == ""
    files = [str(path.relative_to(folder)) for path in folder.rglob("*")]
    assert sorted(files) == ["texts", TASKS, SPEC]  # no run folder was made


def test_bad_input_is_found_before_anything_heavy_is_imported(outcomes: Any) -> None:
    assert outcomes[1] == []


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    paths = tiny.write_spec(tmp_path, "/no/such/model")
    text = paths.spec.read_text().replace("seed: 3", "seed: x").replace("steps: 6", "stps: 6")
    paths.spec.write_text(text.replace("[texts/animals.yaml]", "[other.yaml]"))
    done = tiny.invoke("validate", paths.spec)
    assert done.exit_code == 2
    assert len(done.output.splitlines()) == 3


OPTIONS: list[tuple[list[str], str]] = [
    (["train"], "give a spec"),
    (["train", "none.yaml"], "none.yaml:1:1: the file does not exist"),
    (["validate", "none.yaml"], "none.yaml:1:1: the file does not exist"),
    (["train", "."], ".:1:1: this is a folder"),
    (["train", SPEC, "--recipe", "grop"], "did you mean grpo"),
    (["train", SPEC, "--steps", "0"], "engine.steps"),
    (["train", SPEC, "--steps", "-3"], "engine.steps"),
    (["train", SPEC, "--steps", "many"], "--steps"),
    (["train", SPEC, "--seed", "-1"], "seed"),
    (["train", SPEC, "--name", "../up"], "name"),
    (["train", SPEC, "--tasks", "none.jsonl"], "none.jsonl"),
    (["train", SPEC, "--tasks", "empty.jsonl"], "no task to train on"),
    (["train", SPEC, "--tasks", "bad.jsonl"], "bad.jsonl:2:"),
    (["train", SPEC, "--tasks", "judged.jsonl"], "not a known schema"),
    (["train", SPEC, "--stepz", "3"], "--stepz"),
    (["train", "--resume", "nowhere"], "nowhere is not a run folder"),
    (["report", "nowhere"], "nowhere is not a run folder"),
    (["report", SPEC], f"{SPEC} is not a run folder"),
    (["diagnose", "nowhere"], "nowhere is not a run folder"),
    (["diagnose", ".", "--by", "seed"], "'seed' is not one of"),
    (["diagnose", ".", "--last", "0"], "--last"),
    (["memory", "rebuild", "nowhere"], "nowhere is not a run folder"),
    (["memory", "search", "nowhere", "x"], "nowhere is not a run folder"),
    (["memory", "search", "nowhere", "x", "--limit", "0"], "--limit"),
    (["init", SPEC], SPEC),
    (["init", "taken"], "quickstart.yaml exists already"),
    (["nonsense"], "nonsense"),
]


def test_bad_options_exit_with_two_and_import_nothing_heavy(tmp_path: Path) -> None:
    tiny.write_spec(tmp_path, "/no/such/model")
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "bad.jsonl").write_text('{"rubrics": []}\n{"key": \n')
    (tmp_path / "judged.jsonl").write_text('{"rubrics": ["is kind"]}\n')
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "quickstart.yaml").write_text("mine")
    before = sorted(p.name for p in tmp_path.iterdir())
    results, heavy = run_many([(tmp_path, args) for args, _ in OPTIONS])
    wrong = [
        (args, code, err)
        for (args, says), (code, err, _) in zip(OPTIONS, results, strict=True)
        if code != 2 or says not in err or "Traceback" in err
    ]
    assert wrong == []
    assert heavy == []
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert (tmp_path / "taken" / "quickstart.yaml").read_text() == "mine"


# --- help -----------------------------------------------------------------------------------------


def leaves(command: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        return [path]
    found = []
    for name, child in command.commands.items():
        found += leaves(child, (*path, name))
    return found


COMMANDS = leaves(typer.main.get_command(app))


def test_all_commands_are_there() -> None:
    wanted = {
        ("init",),
        ("validate",),
        ("train",),
        ("report",),
        ("diagnose",),
        ("memory", "rebuild"),
        ("memory", "search"),
    }
    assert wanted <= set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example(path: tuple[str, ...]) -> None:
    done = tiny.invoke(*path, "--help")
    assert done.exit_code == 0
    assert "Example" in done.output
    assert f"harnessrl {' '.join(path)}" in done.output
    top = tiny.invoke(*path[:-1], "--help")
    assert path[-1] in top.output


def test_examples_keep_their_lines() -> None:
    """Wrapped into one paragraph, the four examples of `train` could not be copied."""
    lines = [line.strip() for line in tiny.invoke("train", "--help").output.splitlines()]
    assert "harnessrl train specs/quickstart.yaml" in lines
    assert "harnessrl train --resume runs/quickstart" in lines


def test_help_answers_at_once() -> None:
    script = Path(sys.executable).parent / "harnessrl"
    command = [str(script)] if script.exists() else tiny.command()
    times = []
    for _ in range(3):
        started = time.monotonic()
        done = subprocess.run([*command, "--help"], capture_output=True, text=True)
        times.append(time.monotonic() - started)
        assert done.returncode == 0
        assert "train" in done.stdout
    assert min(times) < 0.7, times


def test_version_and_no_arguments() -> None:
    done = tiny.invoke("--version")
    assert done.exit_code == 0
    assert done.output.startswith("harnessrl 0.")
    assert "Usage" in tiny.invoke().output


# --- init and validate ----------------------------------------------------------------------------


def test_init_writes_a_spec_that_validates(tmp_path: Path) -> None:
    done = tiny.invoke("init", tmp_path / "my run")
    assert done.exit_code == 0
    spec = tmp_path / "my run" / "quickstart.yaml"
    assert str(spec) in done.output
    assert (tmp_path / "my run" / "tasks" / "starter.yaml").is_file()
    told = tiny.invoke("validate", spec)
    assert told.exit_code == 0
    assert "12 training tasks, 12 held out" in told.output
    for recipe in ("grpo", "harnessrl"):
        assert tiny.invoke("validate", spec, "--recipe", recipe).exit_code == 0
    assert tiny.invoke("init", tmp_path / "my run").exit_code == 2  # nothing is overwritten


def test_validate_tells_what_will_not_be_seen(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")  # a model folder; it is not loaded
    paths = tiny.write_spec(tmp_path, model)
    told = tiny.invoke("validate", paths.spec)
    assert told.exit_code == 0
    assert "4 training tasks, 1 held out" in told.output
    assert "never diagnosed" not in told.output
    tasks = paths.folder / TASKS
    tasks.write_text(
        tasks.read_text().replace(
            "prompt: Write words.\n    rubric: *rubric\n    quality: *quality",
            "prompt: Write words.\n    rubric: *rubric",
        )
    )
    assert "never diagnosed: words" in tiny.invoke("validate", paths.spec).output
    paths.spec.write_text(paths.spec.read_text() + "oracle: {kind: none}\n")
    assert "spurious reward will not" in tiny.invoke("validate", paths.spec).output


# --- report and memory ----------------------------------------------------------------------------


@pytest.fixture
def run(finished: tiny.Finished, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished.run, tmp_path / "run"))


def wanted(run: Path) -> int:
    """Diagnoses and decisions on record: what the index holds."""
    return len([r for r in read_log(run / "events.jsonl") if isinstance(r, Diagnosis | Decision)])


def test_report_writes_the_page_again(run: Path) -> None:
    before = (run / "report.html").read_text()
    (run / "report.html").unlink()
    done = tiny.invoke("report", run)
    assert done.exit_code == 0
    assert str(run / "report.html") in done.output
    assert len((run / "report.html").read_text()) == pytest.approx(len(before), rel=0.05)


def test_memory_can_be_rebuilt_and_searched(run: Path) -> None:
    first = tiny.invoke("memory", "search", run, "the letter z occurs", "--limit", "3")
    assert first.exit_code == 0
    assert len(first.output.splitlines()) == 3
    shutil.rmtree(run / "chroma")
    done = tiny.invoke("memory", "rebuild", run)
    assert done.exit_code == 0
    assert f"indexed {wanted(run)} " in done.output
    again = tiny.invoke("memory", "search", run, "the letter z occurs", "--limit", "3")
    assert again.output == first.output
    everything = tiny.invoke("memory", "search", run, "fox", "--limit", "1000")
    assert len(everything.output.splitlines()) == wanted(run)
    similarities = [float(line.split()[0]) for line in everything.output.splitlines()]
    assert similarities == sorted(similarities, reverse=True)


def test_searching_a_memory_without_its_index_says_so(run: Path) -> None:
    """Silence would read as: nothing was ever diagnosed."""
    shutil.rmtree(run / "chroma")
    done = tiny.invoke("memory", "search", run, "the letter z occurs")
    assert "rebuild" in done.output or len(done.output.splitlines()) > 1


@pytest.mark.parametrize("args", [("rebuild",), ("search",)])
def test_memory_of_a_run_in_progress(args: tuple[str, ...], run: Path) -> None:
    more = ("x",) if args == ("search",) else ()
    with FileLock(run / ".lock"):
        done = tiny.invoke("memory", *args, run, *more)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code in (1, 2)
    assert "another process" in done.output


@pytest.mark.parametrize("args", [("memory", "rebuild"), ("report",), ("diagnose",)])
def test_a_damaged_log_is_named(args: tuple[str, ...], run: Path) -> None:
    log = run / "events.jsonl"
    log.write_text("{}\n" + log.read_text())
    done = tiny.invoke(*args, run)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert done.exit_code == 2
    assert f"{log}:1:1" in done.output


def test_the_small_commands_do_not_import_torch(finished: tiny.Finished, tmp_path: Path) -> None:
    """Looking into a run is quick: neither reports nor memory need the engine."""
    run = shutil.copytree(finished.run, tmp_path / "run")
    program = (
        "import sys; from harnessrl.trainer.cli import app\n"
        "try:\n    app(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    for args in (["memory", "search", str(run), "fox"], ["report", str(run)], ["diagnose", str(run)]):
        done = subprocess.run(
            [sys.executable, "-c", program, *args], capture_output=True, text=True, env=os.environ
        )
        assert done.stderr.splitlines()[-1] == "False", args
