"""The strict loader: what is read, what is rejected, and where each problem is said to stand."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from harnessrl.specs import yamlnodes
from harnessrl.specs.loader import (
    RECIPES,
    LoadedSpec,
    SpecError,
    dump_yaml,
    load_harness_file,
    load_run_spec,
    load_task_file,
    load_update,
)
from harnessrl.specs.tasks import TaskFile
from harnessrl.specs.updates import Gate, Pause
from hypothesis import given, settings
from hypothesis import strategies as st

SPEC = """\
name: small
seed: 7
tasks:
  files: [tasks.yaml]
roles:
  policy: {model: smollm2-wheel}
engine:
  kind: local
  steps: 3
  learning_rate: 1e-5
interfaces:
  p:
    domain_shares: {news: 1, "on": 2.5}
"""

TASKS = """\
shared_pool:
  criteria:
    - {text: Says thanks, points: 1}
train:
  - id: t1
    domain: news
    prompt: "Write it down: now"
    rubric: &rubric
      - text: At most 40 words
        points: 2
        check: {kind: words, max: 40}
      - {text: Repeats, points: -1.5, check: {kind: repetition, max_share: 0.2}}
  - id: t2
    domain: news
    prompt: |
      Two lines,
      one prompt.
    rubric: *rubric
    quality: {topic: [[rain, storm], [sun]], asks: {max_words: 40}}
    pool: {checklists: [[be short, be kind]]}
held_out:
  - {id: h1, domain: other, prompt: Hm, rubric: [{text: 'Ends, well', points: 1}]}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs in its own folder, so files have short relative names."""
    monkeypatch.chdir(tmp_path)
    Path("tasks.yaml").write_text(TASKS)


@pytest.fixture(params=["libyaml", "python"])
def _both_parsers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(yamlnodes, "LOADER", yaml.SafeLoader)
    elif yamlnodes.LOADER is yaml.SafeLoader:
        pytest.skip("PyYAML was built without libyaml")


def run_spec(text: str | bytes, **options: Any) -> LoadedSpec:
    data = text.encode() if isinstance(text, str) else text
    Path("run.yaml").write_bytes(data)
    return load_run_spec(Path("run.yaml"), **options)


def task_file(text: str | bytes) -> TaskFile:
    Path("t.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    return load_task_file(Path("t.yaml"))


def spec_problems(text: str | bytes, **options: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        run_spec(text, **options)
    assert str(caught.value) == "\n".join(map(str, caught.value.problems))
    return str(caught.value).split("\n")


def task_problems(text: str | bytes) -> list[str]:
    with pytest.raises(SpecError) as caught:
        task_file(text)
    return str(caught.value).split("\n")


def with_check(check: str) -> str:
    """A task file with one criterion, whose check stands on line 2 from column 70."""
    start = "train:\n- {id: a, domain: d, prompt: p, rubric: [{text: a, points: 1, check: "
    return f"{start}{check}}}]}}\n"


def plain(text: str) -> Any:
    node, problems = yamlnodes.read(text, "x")
    assert not problems
    return node.plain()


# --- what is read -------------------------------------------------------------------------------


def test_a_spec(tmp_path: Path) -> None:
    loaded = run_spec(SPEC)
    assert loaded.recipe == ""
    assert loaded.task_files == (tmp_path.resolve() / "tasks.yaml",)
    assert loaded.spec.seed == 7
    assert loaded.spec.engine.learning_rate == 1e-5
    assert loaded.spec.interfaces.p.domain_shares == {"news": 1.0, "on": 2.5}
    problem = loaded.problem(("interfaces", "p", "domain_shares", "on"), "no such domain")
    assert str(problem) == "run.yaml:13:36: interfaces.p.domain_shares.on: no such domain"
    assert loaded.problem(("reward", "baseline"), "x").line == 1


@pytest.mark.usefixtures("_both_parsers")
def test_a_task_file() -> None:
    tasks = task_file(TASKS)
    assert [task.id for task in tasks.train] == ["t1", "t2"]
    assert tasks.train[0].rubric == tasks.train[1].rubric
    assert tasks.train[1].prompt == "Two lines,\none prompt.\n"
    assert tasks.held_out[0].rubric[0].text == "Ends, well"
    assert task_file("train: []").train == ()
    assert task_file("\ufefftrain: []\r\nheld_out: []\r\n") == TaskFile()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[(text, None) for text in ("", "~", "null", "Null", "NULL")],
        *[(text, True) for text in ("true", "True", "TRUE")],
        *[(text, False) for text in ("false", "False", "FALSE")],
        *[("0", 0), ("-12", -12), ("+3", 3), ("0o17", 15), ("0xfF", 255)],
        *[("1e-3", 1e-3), ("1E5", 1e5), ("1.", 1.0), ("-.5", -0.5), ("0.1e+2", 10.0)],
        *[(text, text) for text in ("yes", "no", "on", "off", "y", "tRUE", "nUll", "=")],
        *[(text, text) for text in ("012", "-01", "01.5", "1_000", "1:30", "0b1", "0xg", "1e")],
        *[(text, text) for text in ("2020-01-01", ".", "+", "-.", "e5", "inf", "nan", "٣")],
        *[('"1"', "1"), ("'true'", "true"), ('""', ""), ("'~'", "~")],
    ],
)
def test_scalars_are_yaml_1_2(text: str, value: object) -> None:
    read = plain(f"a: {text}")["a"]
    assert read == value and type(read) is type(value)


# --- positions and messages ---------------------------------------------------------------------


def test_every_problem_of_a_spec_at_once_and_in_order() -> None:
    text = """\
# a comment
name: run one
sede: 3
tasks:
  files: [task.yaml, 3]
  files: []
roles:
  policy: {modl: x}
engine:
  kind: lokal
  steps: yes
  temperature: .inf
  group_size: true
  clip: 1_000
interfaces:
  p: {domain_shares: {a: 0, 2024: 1}, min_effective_tasks: 2}
  g: {train_on: plane, share: !!float 1}
  c:
reward:
  <<: {advantage: x}
"""
    allowed = (
        "name, seed, tasks, start, interfaces, reward, roles, oracle, evolver, engine, logging, extends"
    )
    assert spec_problems(text) == [
        "run.yaml:2:7: name: must match pattern '^[A-Za-z0-9][A-Za-z0-9._-]*$', not run one",
        f"run.yaml:3:1: sede: unknown key sede (did you mean seed?); allowed here: {allowed}",
        "run.yaml:5:11: tasks.files[0]: task.yaml does not exist (did you mean tasks.yaml?)",
        'run.yaml:5:22: tasks.files[1]: must be a string, not 3; quote it: "3"',
        "run.yaml:6:3: tasks.files: duplicate key files, first at line 5, column 3",
        "run.yaml:8:12: roles.policy.modl: unknown key modl (did you mean model?); "
        "allowed here: model, chat_template_kwargs",
        "run.yaml:10:9: engine.kind: lokal is not allowed (did you mean local?); "
        "allowed: local, openrlhf, sim",
        "run.yaml:11:10: engine.steps: must be a whole number, not yes",
        "run.yaml:12:16: engine.temperature: .inf is not allowed: must be a finite number",
        "run.yaml:13:15: engine.group_size: must be a whole number, not true",
        "run.yaml:14:9: engine.clip: must be a number, not 1_000",
        "run.yaml:16:26: interfaces.p.domain_shares.a: must be greater than 0, not 0",
        'run.yaml:16:29: interfaces.p.domain_shares: a key must be a string, not 2024; quote it: "2024"',
        "run.yaml:17:17: interfaces.g.train_on: plane is not allowed (did you mean plain?); "
        "allowed: plain, guided",
        "run.yaml:17:31: interfaces.g.share: the tag !!float is not supported: "
        "leave it out (and quote text)",
        "run.yaml:18:5: interfaces.c: must be a mapping, not empty",
        "run.yaml:20:3: reward: merge keys (<<) are not supported: write the keys out",
    ]


def test_every_problem_of_a_task_file_at_once_and_in_order() -> None:
    text = """\
train:
  - id: t1
    domain: d
    prompt: p
    rubric:
      - {text: a, points: .nan}
      - {text: b, points: true, check: {kind: wrods}}
      - {text: c, points: 1, check: {max: 3}}
      - {text: d, points: 1, check: {kind: words, max: 0, words: 1}}
      - {text: e, points: 1, check: {kind: regex, pattern: "(", present: 1}}
      - {text: f, points: 0, check: {kind: words}}
      - {text: g, points: x, check: words}
  - id: t1
    domain: ""
    prompt: 12
    rubric: []
    quality: {topic: [[]]}
  - {id: 7, domain: d, prompt: p, rubric: [{text: a}]}
held_out:
  - {id: t1, domain: d, prompt: p, rubric: [{text: a, points: 1}, {points: 1, text: a}]}
shared_pool: [a]
"""
    kinds = "allowed: ifeval, regex, words, mentions, repetition, plugin"
    assert task_problems(text) == [
        "t.yaml:6:27: train[0].rubric[0].points: .nan is not allowed: must be a finite number",
        "t.yaml:7:27: train[0].rubric[1].points: must be a number, not true",
        "t.yaml:7:47: train[0].rubric[1].check.kind: wrods is not allowed "
        f"(did you mean words?); {kinds}",
        "t.yaml:8:37: train[0].rubric[2].check.kind: the key kind is required, but missing; " + kinds,
        "t.yaml:9:56: train[0].rubric[3].check.max: must be greater than or equal to 1, not 0",
        "t.yaml:9:59: train[0].rubric[3].check.words: unknown key words; allowed here: kind, min, max",
        't.yaml:10:60: train[0].rubric[4].check.pattern: "(": not a regular expression '
        "(missing ) at position 1)",
        "t.yaml:10:74: train[0].rubric[4].check.present: must be true or false, not 1",
        "t.yaml:11:27: train[0].rubric[5].points: 0: points must be a finite number other than 0 "
        "(negative = penalty), in size from 0.000001 to 1,000,000",
        "t.yaml:11:37: train[0].rubric[5].check: needs `min`, `max` or both (words)",
        "t.yaml:12:27: train[0].rubric[6].points: must be a number, not x",
        "t.yaml:12:37: train[0].rubric[6].check: must be a mapping, not words",
        "t.yaml:13:9: train[1].id: t1 is the id of train[0] already (line 2, column 9)",
        't.yaml:14:13: train[1].domain: must have at least 1 character, not ""',
        't.yaml:15:13: train[1].prompt: must be a string, not 12; quote it: "12"',
        "t.yaml:16:13: train[1].rubric: must have at least 1 item, but has 0",
        "t.yaml:17:23: train[1].quality.topic[0]: must have at least 1 item, but has 0",
        't.yaml:18:10: train[2].id: must be a string, not 7; quote it: "7"',
        "t.yaml:18:44: train[2].rubric[0].points: the key points is required, but missing",
        "t.yaml:20:10: held_out[0].id: t1 is the id of train[0] already (line 2, column 9)",
        "t.yaml:20:67: held_out[0].rubric[1]: the rubric lists the same criterion twice",
        "t.yaml:21:14: shared_pool: must be a mapping, not a list",
    ]


def test_near_miss_of_an_ifeval_id() -> None:
    (problem,) = task_problems(with_check("{kind: ifeval, id: 'keywords:existance'}"))
    start = "t.yaml:2:89: train[0].rubric[0].check.id: 'keywords:existance' (did you mean "
    assert problem.startswith(start + "keywords:existence?): unknown IFEval instruction; allowed: ")


def test_a_wrong_value_behind_aliases_is_reported_once_where_it_is_written() -> None:
    rubric = "rubric: &r [{text: a, points: x}]"
    text = f"train:\n- {{id: a, domain: d, prompt: p, {rubric}}}\n"
    text += "".join(f"- {{id: b{i}, domain: d, prompt: p, rubric: *r}}\n" for i in range(3))
    place = "t.yaml:2:63: train[0].rubric[0].points: "
    assert task_problems(text) == [place + "must be a number, not x"]


def test_not_finite_numbers_are_rejected_where_any_value_is_allowed() -> None:
    check = "{kind: ifeval, id: 'keywords:existence', args: {keywords: [-.inf]}}"
    (problem,) = task_problems(with_check(check))
    assert problem.startswith("t.yaml:2:")
    assert problem.endswith(
        "train[0].rubric[0].check.args.keywords[0]: -.inf is not allowed: must be a finite number"
    )


def test_arguments_an_instruction_does_not_take_are_named() -> None:
    check = "{kind: ifeval, id: 'length_constraints:number_words', args: {number: 3}}"
    (problem,) = task_problems(with_check(check))
    assert "no argument number; needs num_words, relation" in problem


@pytest.mark.usefixtures("_both_parsers")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "t.yaml:1:1: the file is empty"),
        ("# only this\n", "t.yaml:1:1: the file is empty"),
        ("---\n...\n", "t.yaml:1:1: the file is empty"),
        ("# c\n- a\n", "t.yaml:1:1: the file must hold a mapping (key: value), not a list"),
        ("just text", "t.yaml:1:1: the file must hold a mapping (key: value), not just text"),
        (b"train: \xff", "t.yaml:1:1: not UTF-8 text: invalid start byte at byte 8"),
        ("a: 1".encode("utf-16"), "t.yaml:1:1: not UTF-8 text: invalid start byte at byte 1"),
        ("train:\n\t- a\n", "t.yaml:2:1: not valid YAML: found character"),
        ("train: [1\nheld_out: 2\n", "t.yaml:2:9: not valid YAML: "),
        ("train: a: b", "t.yaml:1:9: not valid YAML: mapping values are not allowed"),
        ("train: 'a", "t.yaml:1:10: not valid YAML: found unexpected end of stream"),
        ("train: []\nüb: a\x07b", "t.yaml:2:6: character U+0007 is not allowed in YAML"),
        ("train: []\n---\na: 1\n", "t.yaml:2:1: a second document starts here"),
        ("train: *x", "t.yaml:1:8: train: no anchor &x"),
        ("train: &x [*x]", "t.yaml:1:12: train[0]: *x stands inside &x"),
        ("train: !Foo []", "t.yaml:1:8: train: the tag !Foo is not supported"),
        ("train: ! []", "t.yaml:1:8: train: the tag ! is not supported"),
        ("<<: {train: []}", "t.yaml:1:1: merge keys (<<) are not supported"),
        ("? [a]\n: 1", "t.yaml:1:3: a key must be a string, not a list"),
        ("null: 1", 't.yaml:1:1: a key must be a string, not null; quote it: "null"'),
        ("train: []\ntrain: []", "t.yaml:2:1: train: duplicate key train, first at line 1, col"),
        ("train: 1e400", "t.yaml:1:8: train: 1e400 is not allowed: must be a finite number"),
        ("train: " + "9" * 5000, "t.yaml:1:8: train: " + "9" * 59 + "… is not allowed: must be a"),
        ("train: 0x8000000000000000", "t.yaml:1:8: train: 0x8000000000000000 is not allowed: must"),
        ("- " * 5000, "t.yaml:1:203: [0][0][0][0][0][0][0][0]: nested more than 100 levels deep"),
        ("train: 1\n" + "a: " + "{a: " * 9000, "t.yaml:2:"),
    ],
)
def test_broken_files(text: str | bytes, expected: str) -> None:
    (problem,) = task_problems(text)
    assert problem.startswith(expected)


@pytest.mark.usefixtures("_both_parsers")
def test_syntax_error_comes_after_what_was_found_before_it() -> None:
    assert [p[:12] for p in task_problems("a: 1\na: 2\nb: }")] == ["t.yaml:2:1: ", "t.yaml:3:4: "]


@pytest.mark.usefixtures("_both_parsers")
@pytest.mark.parametrize("escape", [r"\ud800", r"\U00110000", r"\UFFFFFFFF"])
def test_escapes_of_no_character(escape: str) -> None:
    assert task_problems(f'train: "{escape}"')[0].startswith("t.yaml:1:")


@pytest.mark.usefixtures("_both_parsers")
def test_alias_bombs() -> None:
    names = "abcdefghijkl"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise(names)
    )
    (problem,) = task_problems(bomb)
    assert problem.startswith("t.yaml:6:") and "aliases repeat more than 300,000 values" in problem
    # Each level of aliases adds depth that no single place in the text has.
    tower = f"a0: &a0 {'[' * 60}{']' * 60}\na1: &a1 {'[' * 60}*a0{']' * 60}\n"
    (problem,) = task_problems(tower)
    assert problem.startswith("t.yaml:2:69: ") and problem.endswith("more than 100 levels deep")


def test_a_regular_expression_too_deep_for_its_compiler() -> None:
    assert len(task_problems(with_check("{kind: regex, pattern: '" + "(?:" * 5000 + "'}"))) == 1


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("task.yaml", "tasks.yaml"),
        ("tasks.yml", "tasks.yaml"),
        ("Tasks.yaml", "tasks.yaml"),
        ("rowz.jsonl", "rows.jsonl"),
        ("runs.yaml", "run.yml"),  # run.yaml is the file that names it
        ("fast.yaml", None),  # like base.yaml in its suffix alone
        ("tasks.jsonl", None),  # of another kind
        ("folders.yaml", None),  # folder.yaml is no file
        ("tasks", None),
        ("base.yamll", "base.yaml"),  # no kind at all
        ("base.md", None),
    ],
)
def test_only_a_file_of_the_same_kind_and_nearly_the_same_name_is_suggested(
    name: str, guess: str | None
) -> None:
    Path("folder.yaml").mkdir()
    for there in ("base.yaml", "rows.jsonl", "run.yml"):
        Path(there).touch()
    (problem,) = spec_problems(SPEC.replace("tasks.yaml", name))
    told = f" (did you mean {guess}?)" if guess else ""
    assert problem == f"run.yaml:4:11: tasks.files[0]: {name} does not exist{told}"


def test_files_that_cannot_be_read() -> None:
    Path("folder.yaml").mkdir()
    Path("rows.jsonl").touch()
    for name, message in {
        "tusks.yaml": "the file does not exist (did you mean tasks.yaml?)",
        "no/such.yaml": "the file does not exist",
        "folder.yaml": "this is a folder, not a file",
        "rows.jsonl": "a .jsonl file holds rows of data (`harnessrl data` looks at it); this takes YAML",
        "tasks.yaml/x.yaml": "the file cannot be read: Not a directory",
        "a\0b": "the file cannot be read: embedded null byte",
    }.items():
        for load in (load_task_file, load_run_spec):
            with pytest.raises(SpecError) as caught:
                load(Path(name))
            assert str(caught.value) == f"{name}:1:1: {message}"


# --- layers -------------------------------------------------------------------------------------


def test_extends_merges_deeply_and_the_child_wins(tmp_path: Path) -> None:
    Path("base").mkdir()
    Path("base/t1.yaml").write_text(TASKS)
    Path("base/base.yaml").write_text(SPEC.replace("[tasks.yaml]", "[t1.yaml, ../tasks.yaml]"))
    Path("middle.yaml").write_text("extends: base/base.yaml\nengine: {steps: 9, clip: 0.3}\n")
    loaded = run_spec("extends: middle.yaml\nengine: {steps: 11}\nname: child\n")
    assert loaded.spec.name == "child" and loaded.spec.seed == 7
    assert (loaded.spec.engine.steps, loaded.spec.engine.clip) == (11, 0.3)
    assert loaded.spec.engine.learning_rate == 1e-5
    root = tmp_path.resolve()
    assert loaded.task_files == (root / "base/t1.yaml", root / "tasks.yaml")
    replaced = run_spec("extends: base/base.yaml\ntasks: {files: [tasks.yaml]}\n")
    assert replaced.task_files == (root / "tasks.yaml",)


def test_problems_of_a_chain_point_into_the_file_that_holds_the_value() -> None:
    Path("base.yaml").write_text(SPEC.replace("steps: 3", "steps: 0\n  steps: 1") + "oracle: {}\n")
    assert spec_problems(
        "extends: base.yaml\nengine: {clip: 2}\nroles: {policy: {}}\noracle: {share: 2}\n"
        "evolver: {critic: {rollouts: 100}}\n"
    ) == [
        "run.yaml:2:16: engine.clip: must be less than 1, not 2",
        "run.yaml:4:17: oracle.share: must be less than or equal to 1, not 2",
        "run.yaml:5:30: evolver.critic.rollouts: 100: extended_rollouts 64 is below rollouts 100",
        "base.yaml:9:10: engine.steps: must be greater than or equal to 1, not 0",
        "base.yaml:10:3: engine.steps: duplicate key steps, first at line 9, column 3",
    ]
    Path("base.yaml").write_text("name: a\nroles: {policy: {}}\n")
    assert spec_problems("extends: base.yaml\nroles: {policy: {}}\n") == [
        "run.yaml:1:1: tasks: the key tasks is required, but missing",
        "run.yaml:1:1: engine: the key engine is required, but missing",
        "run.yaml:2:17: roles.policy.model: the key model is required, but missing",
    ]


def test_a_chain_that_breaks_off_or_closes() -> None:
    Path("a.yaml").write_text("extends: sub/../b.yaml\n")
    Path("b.yaml").write_text("seed: 1\nextends: a.yaml\n")
    Path("sub").mkdir()
    # The rest of the file is checked, but nothing is called missing.
    assert spec_problems("extends: a.yaml\nseed: -1\n") == [
        "run.yaml:2:7: seed: must be greater than or equal to 0, not -1",
        "sub/../b.yaml:2:10: extends: the chain is a circle: "
        "run.yaml -> a.yaml -> sub/../b.yaml -> sub/../a.yaml",
    ]
    for text, expected in {
        "extends: run.yaml": "run.yaml:1:10: extends: the chain is a circle: run.yaml -> run.yaml",
        "extends: task.yaml": "run.yaml:1:10: extends: task.yaml does not exist "
        "(did you mean tasks.yaml?)",
        "extends: sub": "run.yaml:1:10: extends: sub is a folder, not a file",
        "extends: [a]": "run.yaml:1:10: extends: must be the path of another spec, not a list",
        "extends:": "run.yaml:1:9: extends: must be the path of another spec, not empty",
        "extends: empty.yaml": "empty.yaml:1:1: the file is empty",
        "extends: broken.yaml": "broken.yaml:1:5: not valid YAML: ",
    }.items():
        Path("empty.yaml").write_text("")
        Path("broken.yaml").write_text("a: b: c")
        (problem,) = spec_problems(text)
        assert problem.startswith(expected)


def test_recipes() -> None:
    text = SPEC + "  g: {share: 0.25, evolve: true}\n"
    grpo = run_spec(text, recipe="grpo")
    assert grpo.recipe == "grpo" and not grpo.spec.evolves
    assert grpo.spec.interfaces.g.share == 0.25
    static = "".join(f"  {name}: {{evolve: false}}\n" for name in "gc")
    assert not run_spec(SPEC + static).spec.interfaces.g.evolve
    full = run_spec(SPEC + static, recipe="harnessrl").spec.interfaces
    assert full.p.evolve and full.g.evolve and full.c.evolve
    available = ", ".join(sorted(file.stem for file in RECIPES.glob("*.yaml")))
    for name, guess in {
        "grop": " (did you mean grpo?)",
        "../grpo": " (did you mean grpo?)",
    }.items():
        assert spec_problems(text + "  d: 1\n", recipe=name) == [
            "run.yaml:15:3: interfaces.d: unknown key d; allowed here: p, g, c",
            f"command line: recipe: there is no recipe {name}{guess}; available: {available}",
        ]


def test_overrides(tmp_path: Path) -> None:
    Path("sub").mkdir()
    Path("sub/run.yaml").write_text(SPEC.replace("tasks.yaml", "../tasks.yaml"))
    options: dict[str, Any] = {"engine": {"steps": 2}, "seed": 1}
    loaded = load_run_spec(
        Path("sub/run.yaml"), "grpo", options | {"interfaces": {"p": {"evolve": True}}}
    )
    assert (loaded.spec.engine.steps, loaded.spec.seed, loaded.spec.evolves) == (2, 1, True)
    assert loaded.spec.engine.learning_rate == 1e-5
    for name in ("tasks.yaml", str(tmp_path / "tasks.yaml")):
        loaded = load_run_spec(Path("sub/run.yaml"), None, {"tasks": {"files": (name,)}})
        assert loaded.task_files == (tmp_path.resolve() / "tasks.yaml",)


def test_problems_of_overrides() -> None:
    deep: Any = 1
    for _ in range(3000):
        deep = {"a": deep}
    overrides = {
        "engine": {"steps": 0, "stepz": 1, "clip": float("nan")},
        "name": "a\udcffb",
        "seed": "1",
        "tasks": {"files": ["x.jsonl"]},
        "logging": {"probe_samples": True},
    }
    assert spec_problems(SPEC.replace("  kind: local\n", ""), overrides=overrides) == [
        "run.yaml:8:3: engine.kind: the key kind is required, but missing",
        "command line: engine.clip: NaN is not allowed: must be a finite number",
        r"command line: name: a\udcffb is not allowed: half of a surrogate pair is not text",
        "command line: seed: must be a whole number, not 1",
        "command line: engine.steps: must be greater than or equal to 1, not 0",
        "command line: engine.stepz: unknown key stepz (did you mean steps?); allowed here: "
        "steps, tasks_per_step, group_size, max_new_tokens, max_prompt_tokens, temperature, "
        "learning_rate, schedule, warmup_steps, clip, kl_coef, epochs, max_grad_norm, kind, threads",
        "command line: logging.probe_samples: must be a whole number, not true",
        "command line: tasks.files[0]: x.jsonl does not exist",
    ]
    assert "nested more than 100 levels deep" in spec_problems(SPEC, overrides={"a": deep})[0]


def test_task_files_must_be_files() -> None:
    Path("sub.yaml").mkdir()
    text = SPEC.replace("[tasks.yaml]", '\n  - tasks.yaml\n  - "sub.yaml"\n  - ""\n  - "a\\0b"\n')
    Path("suite").mkdir()
    Path("suite/train.jsonl").touch()
    assert spec_problems(SPEC.replace("[tasks.yaml]", "[suite]")) == [
        "run.yaml:4:11: tasks.files[0]: suite is a folder, not a file; name its files: suite/train.jsonl"
    ]
    assert spec_problems(text) == [
        'run.yaml:6:5: tasks.files[1]: "sub.yaml" is a folder, not a file',
        "run.yaml:7:5: tasks.files[2]: must be the path of a file, not empty",
        'run.yaml:8:5: tasks.files[3]: "a\0b" does not exist',
    ]


# --- robustness ---------------------------------------------------------------------------------

TOKENS = [
    *["- ", ": ", "? ", "[", "]", "{", "}", ",", "#", "&a ", "*a", "!t ", "!!int ", "|", ">-", "%"],
    *["'", '"', "\\", "\t", "\n", "\n---\n", "\n...\n", "<<: ", "~", "null", "true", "yes", ".nan"],
    *[
        "-.inf",
        "1e-3",
        "1e999",
        "012",
        "-1",
        "0",
        "2020-01-01",
        "9" * 30,
        "kind",
        "train",
        "id: t1",
    ],
    *[
        "\0",
        "\x07",
        "\x85",
        "\u2028",
        "\ufeff",
        "é",
        "😀",
        "\r",
        "\r\n",
        "(",
        "  ",
        "extends: run.yaml",
    ],
]


def mutated(text: str, rng: random.Random) -> str:
    for _ in range(rng.randint(1, 4)):
        lines, at = text.split("\n"), rng.randrange(len(text) + 1)
        line = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                del lines[line]
                text = "\n".join(lines)
            case 1:
                lines.insert(rng.randrange(len(lines) + 1), lines[line])
                text = "\n".join(lines)
            case 2:
                lines[line] = " " * rng.randrange(9) + lines[line].lstrip()
                text = "\n".join(lines)
            case 3:
                text = text[:at] + text[at + rng.randint(1, 8) :]
            case 4:
                text = text[:at] + rng.choice(TOKENS) + text[at:]
            case 5:
                text = text[:at] + rng.choice(TOKENS) + text[at + rng.randint(1, 8) :]
            case 6:
                words = text.split(" ")
                words[rng.randrange(len(words))] = rng.choice(TOKENS)
                text = " ".join(words)
    return text


def outcomes(text: str, load: Any, tries: int) -> Iterator[SpecError | None]:
    for seed in range(tries):
        changed = mutated(text, random.Random(seed))
        try:
            load(changed)
        except SpecError as error:
            yield error
        else:
            yield None


@pytest.mark.usefixtures("_both_parsers")
@pytest.mark.parametrize(("text", "load"), [(SPEC, run_spec), (TASKS, task_file)])
def test_mutated_files_load_or_raise_spec_errors(text: str, load: Any) -> None:
    results = list(outcomes(text, load, 500))
    errors = [error for error in results if error is not None]
    assert 100 < len(errors) < 500
    for error in errors:
        assert error.problems and len(set(error.problems)) == len(error.problems)
        files = {problem.file for problem in error.problems}
        assert len(files) == 1
        places = [(problem.line, problem.column) for problem in error.problems]
        assert places == sorted(places) and places[0] >= (1, 1)


def test_mutated_bytes() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        data = bytearray(TASKS.encode())
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            task_file(bytes(data))
        except SpecError as error:
            assert error.problems


def test_many_tasks_load_in_seconds() -> None:
    one = TASKS.split("train:\n")[1].split("  - id: t2")[0].replace("&rubric", "")
    text = "train:\n" + "".join(one.replace("t1", f"t{i}") for i in range(2000))
    assert len(task_file(text).train) == 2000


# --- writing ------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([token.strip("\n") for token in TOKENS]),
    st.text("-+.0123456789_xobeE: \n\x85\u2028", max_size=8),
)
KEYS = st.text(max_size=4)
DATA = st.dictionaries(
    KEYS,
    SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(KEYS, st.lists(SCALARS), max_size=2),
    max_size=4,
)


@settings(max_examples=300, deadline=None)
@given(DATA)
def test_written_yaml_reads_back_the_same(data: dict[str, Any]) -> None:
    # As JSON, because 1, 1.0 and True are equal in Python.
    assert json.dumps(plain(dump_yaml(data))) == json.dumps(data)


def test_written_yaml_is_readable() -> None:
    shared = ["é", "yes"]
    data = {"z": shared, "a": shared, "n": ["1e-3", "012", "0o7", 1e-3, 12], "long": "word " * 30}
    text = dump_yaml(data)
    assert text.startswith(
        "z:\n- é\n- 'yes'\na:\n- é\n- 'yes'\nn:\n- '1e-3'\n- '012'\n- '0o7'\n- 0.001\n- 12\n"
    )
    assert max(map(len, text.split("\n"))) <= 105
    assert plain(text) == data


def test_a_resolved_spec_can_be_written_and_loaded() -> None:
    loaded = run_spec(SPEC)
    again = run_spec(dump_yaml(loaded.spec.model_dump(mode="json")))
    assert again.spec == loaded.spec


# --- harness files and updates ------------------------------------------------------------------


def test_a_spec_may_start_from_a_harness_file(tmp_path: Path) -> None:
    """It is looked for beside the file that names it, as task files are."""
    assert run_spec(SPEC).start_file is None
    Path("sub").mkdir()
    Path("sub/first.yaml").write_text("version: 3\n")
    Path("sub/base.yaml").write_text("start: first.yaml\n")
    loaded = run_spec("extends: sub/base.yaml\n" + SPEC)
    assert loaded.start_file == tmp_path.resolve() / "sub" / "first.yaml"
    (problem,) = spec_problems(SPEC + "start: frist.yaml\n")
    assert problem.startswith("run.yaml:14:8: start: frist.yaml does not exist")
    assert spec_problems(SPEC + "start: [a]\n") == ["run.yaml:14:8: start: must be a string, not a list"]


def test_guidance_to_start_with_names_each_field_once() -> None:
    one = "{field: skill, lines: [be kind], share: 0.5}"
    two = "{field: skill, lines: rubric, share: ramp, fade: {kind: linear, steps: 3}}"
    text = SPEC + "  g: {start: [%s]}\n"
    assert run_spec(text % one).spec.interfaces.g.start[0].lines == ("be kind",)
    (problem,) = spec_problems(text % f"{one}, {two}")
    assert problem == (
        "run.yaml:14:69: interfaces.g.start[1].field: skill: start[0] is of this field already"
    )
    for wrong, column in (
        ("lines: []", 37),
        ("lines: kind", 37),
        ("lines: [a], share: 1", 49),
        ("lines: [a], share: slope", 49),
        ("lines: [a], fade: {kind: slow}", 55),
    ):
        problems = spec_problems(text % f"{{field: skill, {wrong}}}")
        assert {problem.split(": ")[0] for problem in problems} == {f"run.yaml:14:{column}"}
        assert all(": interfaces.g.start[0]." in problem for problem in problems)


def test_a_policy_folder_is_found_beside_the_file_that_names_it(tmp_path: Path) -> None:
    Path("sub/model").mkdir(parents=True)
    Path("sub/base.yaml").write_text("roles: {policy: {model: model}}\n")
    rest = SPEC.replace("roles:\n  policy: {model: smollm2-wheel}\n", "")
    loaded = run_spec("extends: sub/base.yaml\n" + rest)
    assert loaded.spec.roles.policy.model == str(tmp_path.resolve() / "sub" / "model")
    assert run_spec(SPEC).spec.roles.policy.model == "smollm2-wheel"  # no folder: as it is


def test_a_harness_file_is_read_or_every_problem_told() -> None:
    Path("h.yaml").write_text(
        "version: 4\ntasks:\n  t1:\n    p: {boost: 2.0}\n"
        "    g: [{field: outline, lines: [a], share: ramp, since: 3}]\n"
    )
    entry = load_harness_file(Path("h.yaml")).tasks["t1"]
    assert (entry.p.boost, entry.g[0].field, entry.g[0].since, entry.c.added) == (2.0, "outline", 3, ())
    Path("h.yaml").write_text("tasks:\n  t1:\n    p: {boost: 0.0}\n    h: 1\n    g: [{field: hint}]\n")
    with pytest.raises(SpecError) as caught:
        load_harness_file(Path("h.yaml"))
    places = [(problem.line, problem.column) for problem in caught.value.problems]
    assert places == [(3, 16), (4, 5), (5, 9), (5, 17)]


def update_problems(text: str) -> list[str]:
    Path("u.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_update(Path("u.yaml"))
    return str(caught.value).split("\n")


def test_an_update_is_read_or_every_problem_told() -> None:
    Path("u.yaml").write_text(
        "update:\n  op: gate\n  task_ids: [t1]\n  rationale: why\n  criterion_id: c-1\n  cap: null\n"
    )
    about: dict[str, Any] = {"task_ids": ("t1",), "rationale": "why"}
    assert load_update(Path("u.yaml")) == Gate(criterion_id="c-1", cap=None, **about)
    Path("u.yaml").write_text("update: {op: pause, domains: [news], rationale: why}\n")
    assert load_update(Path("u.yaml")) == Pause(domains=("news",), rationale="why")
    (nobody,) = update_problems("update: {op: pause, rationale: why}\n")
    assert nobody.startswith("u.yaml:1:9: update: names no task: give task_ids")
    (unknown,) = update_problems("update: {op: paus, task_ids: [t1], rationale: why}\n")
    assert unknown.startswith("u.yaml:1:14: update.op: ") and "pause" in unknown
    missing, extra = update_problems(
        "update: {op: mount, task_ids: [t1], lines: [a], share: 0.5, x: 1}\n"
    )
    assert "update.rationale: the key rationale is required" in missing
    assert extra.startswith("u.yaml:1:61: update.x: unknown key x")


def test_specs_import_nothing_heavy() -> None:
    code = "import sys, harnessrl.specs.loader as _; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "yaml" in modules
    assert not modules & {"torch", "chromadb", "langgraph", "transformers"}
