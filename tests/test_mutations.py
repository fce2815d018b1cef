"""Whatever becomes of a valid file, it loads or every problem is told as `file:line:col: ...`.

Ten thousand mutations of small files that use most of the language, from a seeded generator: number n
of a kind is the same on every machine, so that a failure repeats.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.specs.errors import Problem
from harnessrl.specs.loader import (
    SpecError,
    load_harness_file,
    load_run_spec,
    load_task_file,
    load_update,
)
from harnessrl.specs.plainyaml import UnusualError, read_plain
from harnessrl.specs.yamlnodes import read
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.data.rows import read_rows

SPEC = """\
# yaml-language-server: $schema=harness.schema.json
extends: base.yaml
name: small
seed: 7
tasks:
  files: [tasks.yaml]   # only one
start: harness.yaml
interfaces:
  p: {domain_shares: {news: 1, "on": 2.5}, paused_weight: 0.2}
  g:
    share: 0.5
    start:
      - field: checklist
        lines: rubric
        share: ramp
        fade: {kind: sigmoid, x0: 0.2, k: 125}
      - {field: skill, lines: ["be short", 'be kind'], fade: {kind: linear, steps: 4}}
  c: {evolve: true, anchored: false}
reward: {advantage: dr_grpo}
evolver:
  every: 2
  critic:
    rollouts: 32
    margin: 0.05
"""
BASE = """\
roles:
  policy: {model: smollm2-wheel}
engine:
  kind: local
  steps: 3
  learning_rate: 1e-5
  threads: ~
seed: 1
"""
TASKS = """\
shared_pool:
  criteria:
    - {text: Says thanks, points: 1}
    - {text: Says when, points: 1, check: {kind: words, max: 3}, extract: the date}
train:
  - id: t1
    domain: news
    prompt: "Write it down: now"
    tags: [a, b]
    rubric: &rubric
      - text: At most 40 words
        points: 2
        gate: 0.5
        check: {kind: words, max: 40}
      - {text: Repeats, points: -1.5, check: {kind: repetition, max_share: 0.2}}
      - {text: Sun, points: 1, check: {kind: regex, pattern: '(?i)^sun\\b', present: false}}
  - id: t2
    domain: "on"
    prompt: |
      Two lines,
      one prompt.
    rubric: *rubric
    reference: It rains.
    quality: {topic: [[rain, storm], [sun]], asks: {max_words: 40}}
    pool: {checklists: [[be short, be kind]]}
held_out:
  - id: h1
    domain: other
    prompt: >-
      Hm
    rubric:
      - text: 'Ends, well'
        points: 1
        check:
          kind: ifeval
          id: 'length_constraints:number_words'
          args: {num_words: 17, relation: less than}
      - {text: Sun, points: 1, check: {kind: mentions, terms: [sun, moon], at_least: 1}}
"""
HARNESS = """\
version: 3
tasks:
  t1:
    p: {boost: 2.0, paused: true}
    g:
      - field: checklist
        lines: [be short, be kind]
        share: 0.5
        fade: {kind: linear, steps: 5}
        since: 4
      - {field: skill, lines: rubric, share: ramp}
    c:
      added:
        - criterion: {text: It is named, points: 2, check: {kind: mentions, terms: [it]}}
          how: add
          parents: []
          version: 2
      retired: []
  t2:
    p: {boost: 0.5}
"""
UPDATES = (
    """\
update:
  op: add
  task_ids: [t1, t2]
  rationale: Answers leave the scattering out.
  criterion:
    text: The answer names scattering.
    points: 2
    check: {kind: mentions, terms: [scatter]}
""",
    """\
update:
  op: mount
  interface: g
  task_ids: [t1]
  rationale: Help.
  expected: 0.25
  field: outline
  lines: [first, "second: more"]
  share: 0.5
  fade: {kind: success, reward: 0.8, groups: 2}
""",
    """\
update:
  op: boost
  domains: [news]
  tags: [a]
  rationale: >-
    More
    of it.
  factor: 2.0
""",
    """\
update:
  op: split
  task_ids: [t1]
  rationale: Two things.
  criterion_id: c-0123456789
  criteria:
    - {text: a, points: 1, check: {kind: plugin, name: dated, args: {year: 1999}}, extract: x}
    - {text: b, points: 1.5, gate: 0.25}
""",
)
ROWS = tiny.join(
    [
        json.dumps(
            {
                "key": 1,
                "prompt": "Describe the river Nile.",
                "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
                "kwargs": [{}, {"num_words": 9, "relation": "less than"}],
            }
        ),
        json.dumps(
            {
                "prompt": "Describe the Rhine.",
                "rubric": [{"text": "t", "points": 1, "check": {"kind": "words", "min": 2}}],
                "quality": {"topic": [["river"]]},
                "tags": ["a"],
            }
        ),
    ]
)
FILES = {
    "run.yaml": SPEC,
    "base.yaml": BASE,
    "tasks.yaml": TASKS,
    "harness.yaml": HARNESS,
    "rows.jsonl": ROWS,
    **{f"update{n}.yaml": text for n, text in enumerate(UPDATES)},
}

#: What no file of ours holds, in the syntax of YAML, JSON, regular expressions and numbers.
ODD: tuple[str, ...] = (
    *("&a ", "*a", "*rubric", "&rubric ", "!!x ", "!!binary ", "!!python/object/apply:os.system "),
    *("\t", "\0", "\x07", "\r", "\n", "\r\n", "\ufeff", "\u2028", "\x85", "é", "😀", "\ud800"),
    *("1e999", "-0", "9" * 30, "9" * 5000, "0x" + "f" * 40, "0o7", "1" * 400 + ".5"),
    *(".inf", "-.inf", ".nan", "~", "null", "true", "2001-01-01", "1_000", "012", "1", "0", "-1", "0.5"),
    *("{", "}", "[", "]", "[" * 50, "[" * 200, "{a: " * 150, "- " * 150, "[]", "{}", "''", "{a: b}"),
    *("? ", "---\n", "...\n", "%YAML 1.1\n", "<<: *a\n", "<<: {a: 1}\n", "|\n", ">\n", "# ", "@", "`"),
    *('"', "'", '"\\x00"', '"\\ud800"', '"\\U00110000"', '"\\q"', ": ", ", ", " ", "  ", "-", "- "),
    *("(" * 2000, "(?<=", "[[:foo:]]", "(?P<a>", "a{99999999999}"),
    *("extends: run.yaml\n", "extends: tasks.yaml\n", "extends: [a]\n", "files: [/]\n", "start: .\n"),
    *("kind: words\n", "kind: ", "op: ", "op: gate\n", "cap: null\n", "lines: rubric\n", "share: ramp\n"),
)
WORD = re.compile(r"[^\s,:\[\]{}]+")


def mutate(text: str, rng: random.Random) -> str:
    """`text` after one change, or a few."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        text = rng.choice(CHANGES)(text, rng)
    return text


def change_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[i]
        case 1:
            lines.insert(j, lines[i])
        case _:
            lines[i], lines[j] = lines[j], lines[i]
    return "\n".join(lines)


def change_indentation(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    i = rng.randrange(len(lines))
    content = lines[i].lstrip(" ")
    width = len(lines[i]) - len(content) + rng.choice((-4, -2, -1, 1, 2, 4))
    lines[i] = " " * max(0, width) + content
    return "\n".join(lines)


def change_characters(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    if rng.random() < 0.5:
        return text[:at] + text[at + rng.randrange(1, 5) :]
    highest = rng.choice((0x7F, 0x100, 0x10000))
    return text[:at] + chr(rng.randrange(highest)) + text[at + 1 :]


def insert_odd(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(ODD) + text[at:]


def change_word(text: str, rng: random.Random) -> str:
    """A value or a key becomes something odd, or a word of another file."""
    words = list(WORD.finditer(text))
    if not words:
        return text
    word = rng.choice(words)
    other = WORD.findall(rng.choice(list(FILES.values())))
    return text[: word.start()] + rng.choice((*ODD, *rng.sample(other, 8))) + text[word.end() :]


def insert_lines(text: str, rng: random.Random) -> str:
    """Lines of this file or another one, where they do not belong."""
    lines, others = text.split("\n"), rng.choice(list(FILES.values())).split("\n")
    at, start = rng.randrange(len(lines)), rng.randrange(len(others))
    lines[at:at] = others[start : start + rng.randrange(1, 6)]
    return "\n".join(lines)


CHANGES: tuple[Callable[[str, random.Random], str], ...] = (
    change_lines,
    change_lines,
    change_indentation,
    change_characters,
    insert_odd,
    insert_odd,
    change_word,
    change_word,
    insert_lines,
)


def whole_run() -> None:
    load_tasks(load_run_spec(Path("run.yaml")))


#: Kind: the files that are mutated, how they are read, and how many mutations.
KINDS: dict[str, tuple[tuple[str, ...], Callable[[str], Any], int]] = {
    "spec": (("run.yaml", "base.yaml"), lambda _: load_run_spec(Path("run.yaml")), 2500),
    "tasks": (("tasks.yaml",), lambda name: load_task_file(Path(name)), 2500),
    "update": (tuple(f"update{n}.yaml" for n in range(4)), lambda name: load_update(Path(name)), 2000),
    "harness": (("harness.yaml",), lambda name: load_harness_file(Path(name)), 1500),
    "rows": (("rows.jsonl",), lambda name: list(read_rows(Path(name))), 500),
    "run": (("run.yaml", "base.yaml", "tasks.yaml", "harness.yaml"), lambda _: whole_run(), 1000),
}
assert sum(count for _, _, count in KINDS.values()) == 10_000


def mutations(kind: str) -> Iterator[tuple[str, str]]:
    """(file name, its mutated text), always the same ones."""
    names, _, count = KINDS[kind]
    rng = random.Random(f"mutations of {kind}")
    for _ in range(count):
        name = rng.choice(names)
        yield name, mutate(FILES[name], rng)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")


def is_placed(problem: Problem) -> bool:
    """Does it print as one line, `file:line:col: ...`, with a file and a place that are there?"""
    told = re.fullmatch(r"([^\n:]+):([1-9]\d*):([1-9]\d*): ([^\n]*\S[^\n]*)", str(problem))
    if not told:
        return False
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", Path(told[1]).read_bytes().decode(errors="replace"))
    return int(told[2]) <= len(lines) + 1


def test_the_files_are_valid_to_begin_with() -> None:
    for names, load, _ in KINDS.values():
        for name in names:
            load(name)
    assert len(load_tasks(load_run_spec(Path("run.yaml"))).held_out) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_loads_or_says_where_it_is_wrong(kind: str) -> None:
    outcomes: Counter[str] = Counter()
    for n, (name, text) in enumerate(mutations(kind)):
        Path(name).write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            KINDS[kind][1](name)
            outcomes["loads"] += 1
        except SpecError as error:
            outcomes["refused"] += 1
            assert error.problems
            wrong = [str(p) for p in error.problems if not is_placed(p)]
            assert not wrong, f"{kind} {n}, {name}:\n{text}\nsays: {wrong}"
        except Exception as error:
            raise AssertionError(f"{kind} {n}, {name}: {error!r}\n{text}") from error
        Path(name).write_text(FILES[name], encoding="utf-8")
    # A generator that breaks every file, or none, would show nothing.
    assert min(outcomes["loads"], outcomes["refused"]) > 0.04 * outcomes.total(), outcomes


# --- found by mutations ---------------------------------------------------------------------------


def test_a_model_name_may_be_longer_than_a_file_name() -> None:
    Path("base.yaml").write_text(BASE.replace("smollm2-wheel", "x" * 5000))
    assert load_run_spec(Path("run.yaml")).spec.roles.policy.model == "x" * 5000


LINES = '[first, "second: more"]'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("share: 0.5", "share: half", "9:10: update.share: must be a number, not half"),
        ("share: 0.5", "share: 1.5", "9:10: update.share: must be less than 1, not 1.5"),
        ("share: 0.5", "share: rmp", "9:10: update.share: must be a number, not rmp"),
        (LINES, "first", "8:10: update.lines: must be a list, not first"),
        (LINES, "[]", "8:10: update.lines: must have at least 1 item"),
        ("share: 0.5", "share: {a: b}", "9:10: update.share: must be a number, not a mapping"),
        (LINES, "{a: b}", "8:10: update.lines: must be a list, not a mapping"),
        (LINES, "[first, 2]", "8:18: update.lines[1]: must be a string, not 2"),
    ],
)
def test_a_value_of_two_kinds_has_one_problem_at_its_own_place(old: str, new: str, says: str) -> None:
    """A share is a number or `ramp`, lines are a list or `rubric`."""
    path = Path("update1.yaml")
    path.write_text(UPDATES[1].replace(old, new))
    with pytest.raises(SpecError) as caught:
        load_update(path)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"update1.yaml:{says}")


def test_what_is_read_without_places_is_what_is_read_with_them() -> None:
    read_fast = 0
    for kind in ("spec", "tasks", "update", "harness"):
        for _, text in mutations(kind):
            try:
                data = read_plain(text)
            except UnusualError:
                continue
            read_fast += 1
            node, problems = read(text, "x")
            assert not problems and repr(node.plain()) == repr(data), text
    assert read_fast > 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing",
        "a: 1\n---\nb: 1",
        "a: 1\na: 2",
        "1: a",
        "<<: {}",
        "a: .inf",
        f"a: {100 * '['}{100 * ']'}",
    ],
)
@pytest.mark.parametrize("more", ["", "\nb: &x 1", "\nb: !!str 1", "\nb: [", "\nb: \x07"])
def test_what_is_wrong_is_never_read_without_places(text: str, more: str) -> None:
    with pytest.raises(UnusualError):
        read_plain(text + more)
