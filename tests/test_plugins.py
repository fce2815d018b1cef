"""Checks of other packages: installed ones, broken ones, and packages that are no longer there.

A distribution here is what an installer leaves behind: a module beside its `.dist-info`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted  # noqa: F401  (the profile of hypothesis)
import tiny
import yaml
from harnessrl.agents.roles.client import Role
from harnessrl.agents.scoring import plugins
from harnessrl.agents.scoring.checks import Verdict, missing_resource, run_check
from harnessrl.agents.scoring.extract import Extract, Part, check_extracts
from harnessrl.agents.scoring.judge import Judge as JudgeOf
from harnessrl.agents.scoring.verdictcache import VerdictCache
from harnessrl.agents.usage import Usage
from harnessrl.specs.checks import PluginCheck
from harnessrl.specs.loader import SpecError, load_harness_file, load_task_file, load_update
from harnessrl.specs.schema import Judge
from harnessrl.trainer.data.rows import read_rows
from hypothesis import given
from hypothesis import strategies as st
from scripted_endpoint import ScriptedEndpoint, copying

MODULE = """
import os
from dataclasses import dataclass

calls = 0


@dataclass(frozen=True)
class Ends:
    word: str
    times: int = 1

    def __post_init__(self):
        if self.times < 1:
            raise ValueError("times must be 1 or more,\\nnot %r" % self.times)

    def __call__(self, prompt, response):
        global calls
        calls += 1
        if calls == int(os.environ.get("KILLED_AT_CALL", 0)):
            os._exit(9)
        return response.rstrip(".").endswith(self.word * self.times)


def answers(**args):
    '''Says what it is told to say, whatever the response.'''
    return lambda prompt, response: args["say"]


def raises(error="ValueError"):
    def check(prompt, response):
        raise {"ValueError": ValueError, "SystemExit": SystemExit, "KeyError": KeyError}[error](prompt)
    return check


def changes(words):
    words.append("more")
    return lambda prompt, response: len(words) == 2


def no_data():
    raise FileNotFoundError("the word list is not here")


def no_check():
    return "met"


def odd():
    import numpy
    return lambda prompt, response: numpy.array([1, 2]).sum() > len(response)


not_callable = 3
"""
POINTS = {
    "ends": "rhymes_for_tests:Ends",
    "answers": "rhymes_for_tests:answers",
    "raises": "rhymes_for_tests:raises",
    "changes": "rhymes_for_tests:changes",
    "no-data": "rhymes_for_tests:no_data",
    "no-check": "rhymes_for_tests:no_check",
    "odd": "rhymes_for_tests:odd",
    "not-callable": "rhymes_for_tests:not_callable",
    "no-attribute": "rhymes_for_tests:Begins",
    "no-module": "rhymes_that_are_not_there:Ends",
    "exits": "exits_for_tests:Ends",
}
ALLOWED = ", ".join(sorted(POINTS))


def distribution(
    folder: Path, name: str, points: dict[str, str], version: str = "1.2", **modules: str
) -> Path:
    """Put a distribution into `folder`, as an installer would."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{plugins.GROUP}]", *lines]) + "\n")
    for module, text in modules.items():
        (folder / f"{module}.py").write_text(text)
    return folder


def package(folder: Path) -> Path:
    modules = {"rhymes_for_tests": MODULE, "exits_for_tests": "raise SystemExit(4)\n"}
    return distribution(folder, "rhymes", POINTS, **modules)


def look_again() -> None:
    """As in a new process."""
    importlib.invalidate_caches()
    for cached in (plugins._declared, plugins._factory, plugins._made, plugins.version):
        cached.cache_clear()


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What may be put on sys.path for a test."""
    look_again()
    yield monkeypatch
    monkeypatch.undo()
    look_again()


@pytest.fixture
def installed(tmp_path: Path, path: pytest.MonkeyPatch) -> None:
    path.syspath_prepend(str(package(tmp_path / "site")))


def plugin(name: str, **args: Any) -> PluginCheck:
    return PluginCheck(kind="plugin", name=name, args=args)


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("installed")
def test_an_installed_check_decides() -> None:
    assert run_check(plugin("ends", word="ay"), "p", "Every day.") == Verdict(True)
    assert run_check(plugin("ends", word="ay"), "p", "Every night.") == Verdict(False)
    assert run_check(plugin("ends", word="ha", times=3), "p", "Aha haha") == Verdict(False)
    assert run_check(plugin("ends", word="ha", times=3), "p", "hahaha") == Verdict(True)
    assert run_check(plugin("ends", word="ay"), "p", " \n") == Verdict(False), "a blank response"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        (plugin("answers", say=True), Verdict(True)),
        (plugin("answers", say=False), Verdict(False)),
        (plugin("odd"), Verdict(False)),  # numpy's False
        (plugin("answers", say="no rhyme\ndictionary"), Verdict(None, "answers: no rhyme dictionary")),
        (plugin("answers", say=" "), Verdict(None, "answers: cannot tell, and does not say why")),
        (plugin("answers", say=None), Verdict(None, "answers: no verdict: NoneType")),
        (plugin("answers", say=1), Verdict(None, "answers: no verdict: int")),
        (plugin("answers", say=0.0), Verdict(None, "answers: no verdict: float")),
        (plugin("answers", say=[]), Verdict(None, "answers: no verdict: list")),
        (plugin("answers"), Verdict(None, "answers: KeyError: 'say'")),
        (plugin("raises"), Verdict(None, "raises: ValueError: the prompt")),
        (plugin("raises", error="SystemExit"), Verdict(None, "raises: SystemExit: the prompt")),
    ],
)
def test_what_is_no_verdict_is_unscored_with_its_cause(check: PluginCheck, verdict: Verdict) -> None:
    assert run_check(check, "the\nprompt", "some words") == verdict
    assert missing_resource(check) is None, "it may say something else about another response"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("check", "cause"),
    [
        (plugin("ends"), "ends: needs word (arguments: word, times)"),
        (
            plugin("ends", word="x", times=0),
            "ends: refuses its arguments: times must be 1 or more",
        ),
        (plugin("no-data"), "no-data: FileNotFoundError: the word list is not here"),
        (plugin("no-check"), "makes no check: str is not callable"),
        (plugin("not-callable"), "is no check: int is not callable"),
        (plugin("no-attribute"), "rhymes 1.2 cannot be loaded: AttributeError"),
        (plugin("no-module"), "rhymes 1.2 cannot be loaded: ModuleNotFoundError"),
        (plugin("exits"), "rhymes 1.2 cannot be loaded: SystemExit: 4"),
        (plugin("end"), f"no installed package declares this check; allowed: {ALLOWED}"),
    ],
)
def test_a_check_that_cannot_be_had_is_unscored_on_every_response(check: PluginCheck, cause: str) -> None:
    for response in ("some words", ""):
        verdict = run_check(check, "p", response)
        assert verdict.met is None and cause in verdict.cause, verdict
        assert verdict.cause == missing_resource(check)


@pytest.mark.usefixtures("installed")
def test_a_package_cannot_change_the_spec() -> None:
    check = plugin("changes", words=["one"])
    assert [run_check(check, "p", "x").met for _ in range(3)] == [True] * 3
    assert check.args == {"words": ["one"]}


def test_another_version_of_a_package_decides_anew(tmp_path: Path, path: pytest.MonkeyPatch) -> None:
    """What was extracted under the old one is not taken over from the cache of verdicts."""
    extracts = [Extract(Part("p", "It is x.", "the letter"), plugin("letter"))]
    found = []
    with ScriptedEndpoint(copying(lambda response, part: "x")) as endpoint:
        spec = Judge(base_urls=(endpoint.base_url,), model="scripted")
        for version, letter in (("1.2", "x"), ("1.2", "x"), ("1.3", "y")):
            site, module = tmp_path / str(len(found)), f"letter_for_tests_{letter}"
            code = f"def check():\n    return lambda prompt, response: response == {letter!r}\n"
            points = {"letter": f"{module}:check"}
            with path.context() as patch:
                distribution(site, "letters", points, version, **{module: code})
                patch.syspath_prepend(str(site))
                look_again()
                role, cache = Role("judge", spec, Usage()), VerdictCache(tmp_path / "v.sqlite", 10)
                with contextlib.closing(role), contextlib.closing(cache):
                    found += check_extracts(JudgeOf(role, spec, cache), extracts, "train")
        assert len(endpoint.bodies) == 2
    assert [verdict.met for verdict in found] == [True, True, False]


@pytest.mark.usefixtures("path")
def test_without_any_package_the_cause_says_so() -> None:
    assert run_check(plugin("ends", word="x"), "p", "x") == Verdict(
        None, "ends: no installed package declares a check (entry points `harnessrl.checks`)"
    )


def test_two_packages_of_one_name_are_told_apart(tmp_path: Path, path: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        module = f"{name}_for_tests"
        code = "def check():\n    return lambda prompt, response: True\n"
        distribution(tmp_path, name, {"same": f"{module}:check"}, **{module: code})
    path.syspath_prepend(str(tmp_path))
    verdict = run_check(plugin("same"), "p", "x")
    assert verdict.met is None
    assert verdict.cause == "same: several installed packages declare this check: first 1.2, second 1.2"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package for all examples of a test; what is looked up is forgotten after the last one."""
    look_again()
    yield package(tmp_path_factory.mktemp("shared"))
    look_again()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(), SCALARS, max_size=3)


@given(st.dictionaries(st.text(), JSON, max_size=3), st.text(), st.text())
def test_no_arguments_and_no_text_let_anything_escape(
    shared: Path, args: dict[str, Any], prompt: str, response: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(shared))
        for name in (*POINTS, "missing"):
            check = PluginCheck(kind="plugin", name=name, args=args)
            verdict = run_check(check, prompt, response)
            assert (verdict.met is None) == bool(verdict.cause) and "\n" not in verdict.cause
            fault = plugins.fault(name, None) or plugins.fault(name, args)
            assert not fault or verdict.met is None


# --- in files -------------------------------------------------------------------------------------

TASKS = """\
shared_pool:
  criteria:
    - {text: a, points: 1, check: {kind: plugin, name: end, args: {word: x}}}
train:
  - id: t
    domain: d
    prompt: p
    rubric:
      - {text: a, points: 1, check: {kind: plugin, name: ends, args: {wrod: x}}}
      - {text: b, points: 1, check: {kind: plugin, name: ends}}
      - {text: c, points: 1, check: {kind: plugin, name: ends, args: {word: x, times: 0}}}
      - {text: d, points: 1, check: {kind: plugin, name: no-module}}
      - {text: e, points: 1, check: {kind: plugin, name: ends, args: [x]}}
      - {text: f, points: 1, check: {kind: plugin, nam: ends}}
      - {text: g, points: 1, check: {kind: plugin, name: ends, args: {word: x}}}
      - {text: h, points: 1, check: {kind: plugin, name: no-data}}
"""
PROBLEMS = [
    "tasks.yaml:3:56: shared_pool.criteria[0].check.name: end (did you mean ends?): no installed "
    f"package declares this check; allowed: {ALLOWED}",
    "tasks.yaml:9:70: train[0].rubric[0].check.args: ends: no argument wrod (did you mean word?); "
    "needs word (arguments: word, times)",
    "tasks.yaml:10:37: train[0].rubric[1].check.args: ends: needs word (arguments: word, times)",
    "tasks.yaml:11:70: train[0].rubric[2].check.args: ends: refuses its arguments: times must be 1 or "
    "more, not 0",
    "tasks.yaml:12:58: train[0].rubric[3].check.name: no-module: rhymes 1.2 cannot be loaded: "
    "ModuleNotFoundError: No module named 'rhymes_that_are_not_there'",
    "tasks.yaml:13:70: train[0].rubric[4].check.args: must be a mapping, not a list",
    "tasks.yaml:14:52: train[0].rubric[5].check.nam: unknown key nam (did you mean name?); allowed "
    "here: kind, name, args",
]


def problems(load: Any, file: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(file, plugins.fault)
    return [str(problem).removeprefix(f"{file.parent}/") for problem in caught.value.problems]


@pytest.mark.usefixtures("installed")
def test_names_and_arguments_are_told_with_their_places(tmp_path: Path) -> None:
    file = tmp_path / "tasks.yaml"
    file.write_text(TASKS)
    assert problems(load_task_file, file) == PROBLEMS


@pytest.mark.usefixtures("installed")
def test_a_check_is_validated_wherever_a_person_may_write_one(tmp_path: Path) -> None:
    check = "{text: a, points: 1, check: {kind: plugin, name: end}}"
    update = tmp_path / "update.yaml"
    update.write_text(f"update: {{op: add, task_ids: [t], rationale: r, criterion: {check}}}\n")
    harness = tmp_path / "harness.yaml"
    added = f"{{criterion: {check}, how: add, parents: [], version: 1}}"
    harness.write_text(f"version: 1\ntasks: {{t: {{c: {{added: [{added}]}}}}}}\n")
    for load, file in ((load_update, update), (load_harness_file, harness)):
        (problem,) = problems(load, file)
        assert "check.name: end (did you mean ends?): no installed package" in problem
        load(file)  # as a run folder is read


@pytest.mark.usefixtures("installed")
def test_a_row_is_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    good = {"kind": "plugin", "name": "ends", "args": {"word": "x"}}
    checks = [good, good | {"name": "end"}, good | {"args": {"word": "x", "times": 0}}]
    rubrics = [[{"text": "a", "points": 1, "check": check}] for check in checks]
    file.write_text("".join(json.dumps({"prompt": "p", "rubric": r}) + "\n" for r in rubrics))
    first, *refused = [row.task for row in read_rows(file)]
    assert not isinstance(first, str) and first.rubric[0].check == plugin("ends", word="x")
    assert "no installed package declares this check" in str(refused[0])
    assert "times must be 1 or more" in str(refused[1])

    file.write_text(json.dumps({"prompt": "p", "response": "box", "rubric": rubrics[1]}) + "\n")
    done = tiny.invoke("judge", file)
    assert done.exit_code == 2 and "rows.jsonl:1:1: check.plugin.name" in done.output
    file.write_text(json.dumps({"prompt": "p", "response": "box", "rubric": rubrics[0]}) + "\n")
    done = tiny.invoke("judge", file)
    assert done.exit_code == 0 and "score 1.000" in done.output


# --- in processes ---------------------------------------------------------------------------------


def processes_with(folder: Path) -> dict[str, str]:
    """The environment of a process that has the package."""
    return {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def write_run(folder: Path, *criteria: dict[str, Any]) -> Path:
    """A spec of the simulated engine with one task."""
    task = {"id": "t", "domain": "d", "prompt": "Write about rain.", "rubric": list(criteria)}
    (folder / "tasks.yaml").write_text(yaml.safe_dump({"train": [task]}))
    spec = folder / "run.yaml"
    content = {
        "name": "tried",
        "tasks": {"files": ["tasks.yaml"]},
        "roles": {"policy": {"model": "none"}},
        "engine": {"kind": "sim", "steps": 3, "tasks_per_step": 1, "group_size": 4},
        "logging": {"folder": str(folder / "runs"), "checkpoint_every": 1},
    }
    spec.write_text(yaml.safe_dump(content))
    return spec


WORDS = {"text": "Has a word.", "points": 9, "check": {"kind": "words", "min": 1}}


def rhymes(**about: Any) -> dict[str, Any]:
    check = {"kind": "plugin", "name": "ends", "args": {"word": "x"}} | about
    return {"text": "Ends with x.", "points": 1, "check": check}


def test_validate_goes_by_what_is_installed(tmp_path: Path) -> None:
    env = processes_with(package(tmp_path / "site"))
    good = write_run(tmp_path, rhymes(), WORDS)
    assert tiny.harnessrl("validate", good, **env).returncode == 0
    without = tiny.harnessrl("validate", good)
    assert without.returncode == 2 and "Traceback" not in without.stderr
    assert "tasks.yaml:8:7: " not in without.stderr
    assert "train[0].rubric[0].check.name: ends: no installed package declares a check" in without.stderr
    bad = write_run(tmp_path, rhymes(name="ands"), WORDS)
    done = tiny.harnessrl("validate", bad, **env)
    assert done.returncode == 2 and "ands (did you mean ends?)" in done.stderr
    added = json.dumps([{"criterion": rhymes(name="ands")}])
    (tmp_path / "start.yaml").write_text(f"version: 1\ntasks: {{t: {{c: {{added: {added}}}}}}}\n")
    spec = write_run(tmp_path, rhymes(), WORDS)
    spec.write_text(spec.read_text() + "start: start.yaml\n")
    done = tiny.harnessrl("validate", spec, **env)
    assert done.returncode == 2 and "start.yaml:2:" in done.stderr
    assert 'check.name: "ands" (did you mean ends?)' in done.stderr
    here = write_run(tmp_path, rhymes(name="no-data", args={}), WORDS)
    done = tiny.harnessrl("validate", here, **env)
    assert done.returncode == 2
    assert "cannot be scored on this machine: no-data: FileNotFoundError" in done.stderr


def test_a_run_resumes_where_the_package_is_missing(tmp_path: Path) -> None:
    """The criterion is unscored there: never unmet, and no crash."""
    env = processes_with(package(tmp_path / "site"))
    spec = write_run(tmp_path, rhymes(), WORDS)
    env["KILLED_AT_CALL"] = "6"  # in the second step, with four rollouts a step
    first = tiny.harnessrl("train", spec, "--recipe", "grpo", "--no-probe", **env)
    assert first.returncode == 9, first.stdout + first.stderr
    run = tmp_path / "runs" / "tried"
    assert [row["unscored_share"] for row in tiny.rows(run / "metrics.jsonl")] == [0.0]

    update = tmp_path / "update.yaml"
    about = {"op": "add", "task_ids": ["t"], "rationale": "r", "criterion": rhymes()}
    update.write_text(yaml.safe_dump({"update": about}))
    done = tiny.harnessrl("harness", "apply", run, update)
    assert done.returncode == 2 and "check.name: ends: no installed package" in done.stderr

    second = tiny.harnessrl("train", "--resume", run)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Traceback" not in second.stderr
    after = tiny.rows(run / "metrics.jsonl")
    assert [row["unscored_share"] for row in after[1:]] == [0.5, 0.5]
    cause = "ends: no installed package declares a check (entry points `harnessrl.checks`)"
    assert after[1]["unscored_causes"] == {cause: 4}
    rollouts = [row for file in sorted((run / "rollouts").iterdir()) for row in tiny.rows(file)]
    mets = [list(row["verdicts"].values()) for row in rollouts]
    assert mets[:4] == [[False, True]] * 4 and mets[4:] == [[None, True]] * 8
    assert {row["reward"] for row in rollouts[4:]} == {1.0}, "the criterion was dropped"


def test_nothing_is_looked_up_before_a_plugin_check_is_met() -> None:
    code = (
        "import sys, harnessrl.trainer.data.load as load, harnessrl.agents.scoring.plugins as plugins\n"
        "from pathlib import Path\n"
        "load.load_resolved(Path(sys.argv[1]))\n"
        "assert not plugins._declared.cache_info().currsize\n"
        "load.load_task_file(Path(sys.argv[1]), plugins.fault)\n"
        "assert not plugins._declared.cache_info().currsize\n"
    )
    starter = Path(plugins.__file__).parents[2] / "specs" / "tasks" / "starter.yaml"
    subprocess.run([sys.executable, "-c", code, str(starter)], check=True, timeout=60)


BLOCKS = ("python", "toml", "yaml")


def test_the_check_of_the_docs_works_as_told(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "judging.md").read_text()
    text = page.split("## A check of your own\n")[1].split("\n## ")[0]
    code, point, spec = (
        text.split(f"```{kind}\n")[1].split("```")[0] for kind in ("python", "toml", "yaml")
    )
    declared = tomllib.loads(point)["project"]["entry-points"][plugins.GROUP]
    env = processes_with(distribution(tmp_path / "site", "mine", declared, my_checks=code))
    (criterion,) = yaml.safe_load(spec)
    texts = ("So I said ha ha ha.", "Haha", "d\u00e9j\u00e0 ha ha")
    rows = [{"prompt": "p", "response": text, "rubric": [criterion]} for text in texts]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = tiny.harnessrl("judge", file, **env)
    assert done.returncode == 0, done.stderr
    mets = [row["verdicts"][0]["met"] for row in tiny.rows(tmp_path / "rows.judged.jsonl")]
    assert mets == [True, False, None]
    assert "unscored: 1 x ends: only plain ASCII can be told" in done.stderr


def test_a_check_needs_nothing_of_this_project(tmp_path: Path) -> None:
    package(tmp_path)
    code = "import sys, rhymes_for_tests; assert 'harnessrl' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=tmp_path)
