"""Responses that are hard to read, in a table; and that no response takes long."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from harnessrl.trainer.evaluate.choice import chosen

TABLE: list[dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("choice_responses.yaml").read_text(encoding="utf-8")
)
CASES = [
    (line, said, question["choices"])
    for question in TABLE
    for said, lines in question["said"].items()
    for line in lines.splitlines()
]
OPTIONS: dict[str, str] = TABLE[0]["choices"]

#: Repeated up to 200,000 characters, each is a bad case of some pattern. `_` is a space.
UNITS = """\
The answer is A and_
(((((**
A)_
A,_
A. B._
*A*
| A_
\u9009C
so C._
wait,_
based on a_
Inhibition of serotonin (
the patient presents with a fever, so the answer would not be C if it is (B)._
$\\boxed{
<think>
</think>
Q: C||
it is A is right_
-_
_
||
"""


@pytest.mark.parametrize(("line", "said", "choices"), CASES, ids=[line for line, _, _ in CASES])
def test_what_a_response_commits_to(line: str, said: str | None, choices: dict[str, str]) -> None:
    assert chosen(line.replace(" || ", "\n"), choices) == said


@pytest.mark.parametrize("unit", UNITS.splitlines())
def test_no_response_takes_long(unit: str) -> None:
    """40 ms where it was written; a pattern that tries all ways would take minutes."""
    unit = unit.replace("||", "\n").replace("_", " ")
    text = unit * (200_000 // len(unit))
    taken = []
    for _ in range(5):
        started = time.process_time()
        chosen(text, OPTIONS)
        taken.append(time.process_time() - started)
    assert min(taken) < 0.25


@pytest.mark.parametrize(
    "before", ["", "Answer: A. " * 5000, "A, " * 60_000, "<think>" + "x " * 90_000 + "</think>"]
)
def test_what_a_long_response_ends_with_decides(before: str) -> None:
    assert chosen(f"{before}\n\nAnswer: C", OPTIONS) == "C"
