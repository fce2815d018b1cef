"""The LLM proposer against a scripted endpoint: good, bad, invalid and injected proposals."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Accepted, AnyRecord, Decision, NoProposal
from scripted_endpoint import Body, Reply, ScriptedEndpoint, question

SPECS = Path(__file__).parent.parent / "specs"
#: Two words of each task's subject, which its seed rubric does not look for.
SUBJECTS = "gravity sun cloud drops gas dough boil cup brain memory distance air steer speed weight gears"
MENTIONS = {"kind": "mentions", "terms": SUBJECTS.split()}


def says(op: str, **fields: Any) -> Reply:
    return Reply(json.dumps({"rationale": "because", "op": op, **fields}))


def criterion(points: float = 2, text: str = "It names the cause.", **fields: Any) -> dict[str, Any]:
    return {"text": text, "points": points, "check": MENTIONS, **fields}


def run(
    folder: Path, answer: Callable[[Body], Reply], propose: str = "", steps: int = 10
) -> tuple[list[AnyRecord], list[Body]]:
    """Train the simulated policy with a scripted evolver; the log, and what the evolver was sent."""
    with ScriptedEndpoint(answer) as endpoint:
        spec = folder / "llm.yaml"
        spec.write_text(
            f"extends: {SPECS / 'sim.yaml'}\n"
            f"engine: {{steps: {steps}}}\n"
            "roles:\n"
            f"  evolver: {{base_urls: ['{endpoint.base_url}'], model: scripted, retries: 0}}\n"
            f"evolver: {{propose: {{role: evolver{propose}}}}}\n"
        )
        done = tiny.invoke("train", spec, "--folder", folder / "runs", "--no-probe")
        assert done.exit_code == 0, done.output
        return list(read_log(folder / "runs" / "sim" / "events.jsonl")), endpoint.bodies


def reasons(records: list[AnyRecord]) -> str:
    return "\n".join(r.reason for r in records if isinstance(r, NoProposal | Decision))


def test_what_helps_is_measured_and_accepted(tmp_path: Path) -> None:
    records, bodies = run(tmp_path, lambda _: says("add", criterion=criterion()), steps=16)
    decisions = [r for r in records if isinstance(r, Decision)]
    assert all(d.update.op == "add" for d in decisions)
    assert any(d.accepted and d.measured for d in decisions)
    assert all(d.measured for d in decisions if d.accepted)
    assert all(body["response_format"]["type"] == "json_schema" for body in bodies)


BAD: dict[str, tuple[Reply, str]] = {
    "prose": (Reply("You should add a criterion."), "not valid"),
    "cut off": (Reply('{"rationale": "x", "op": "ad', finish="length"), "not valid"),
    "empty": (Reply(""), "not valid"),
    "an unknown op": (says("delete_everything"), "not valid"),
    "an unknown field": (says("add", criterion=criterion(), task_ids=["tea"]), "not valid"),
    "a criterion without points": (says("add", criterion={"text": "x"}), "not valid"),
    "points of nothing": (says("add", criterion=criterion(points=0)), "not valid"),
    "a criterion that is not there": (says("retire", criterion_id="c-none"), "cannot be applied"),
    "another interface": (says("boost"), "the diagnosis calls for"),
    "huge points, as a rollout may ask": (says("add", criterion=criterion(1000)), "at most 3"),
    "a whole page": (says("add", criterion=criterion(text="x" * 5000)), "characters"),
    "no check and no judge": (says("add", criterion={"text": "x", "points": 1}), "no judge"),
    "an extract and no judge": (says("add", criterion=criterion(extract="the end")), "no judge"),
    "a check that nobody has": (
        says("add", criterion=criterion(check={"kind": "plugin", "name": "none-such"})),
        "not valid",
    ),
    "nothing": (says("none"), "proposes nothing"),
    "a server error": (Reply(status=500), "no answer"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_used_is_on_record_and_the_run_goes_on(name: str, tmp_path: Path) -> None:
    reply, told = BAD[name]
    records, _ = run(tmp_path, lambda _: reply, steps=6)
    assert told in reasons(records)
    assert not any(isinstance(r, Accepted) for r in records)


def test_a_refused_candidate_is_shown_with_its_reason_and_not_measured_again(tmp_path: Path) -> None:
    useless = criterion(text="It says hello.", check={"kind": "mentions", "terms": ["hello"]})
    records, bodies = run(tmp_path, lambda _: says("add", criterion=useless), steps=12)
    rejected = Counter(d.task_id for d in records if isinstance(d, Decision) and not d.accepted)
    assert rejected and set(rejected.values()) == {1}  # max_staleness 8 covers most of the run
    assert "was refused before" in reasons(records)
    assert any("did not help" in question(body) and "It says hello." in question(body) for body in bodies)


def test_rollouts_are_quoted_as_data(tmp_path: Path) -> None:
    _, bodies = run(tmp_path, lambda _: says("none"), steps=6)
    text = question(bodies[0])
    mark = text.split("lines that hold ")[1].split(", and ")[0]
    assert len(mark) == 18 and text.count(f"{mark} RESPONSE") == text.count(f"{mark} END OF RESPONSE") > 1


def test_the_budget_bounds_what_is_asked(tmp_path: Path) -> None:
    records, bodies = run(tmp_path, lambda _: says("none"), propose=", budget: 3", steps=10)
    assert len(bodies) == 3
    assert "evolver.propose.budget 3 is spent" in reasons(records)


def test_a_prompt_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("Repair {{ prompt }}. {{ sentence }}")
    _, bodies = run(tmp_path, lambda _: says("none"), propose=", prompt: mine.md", steps=6)
    assert question(bodies[0]).startswith("Repair ")


def test_a_prompt_that_needs_what_there_is_not_is_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "mine.md").write_text("{{ no_such_thing }}")
    spec = tmp_path / "llm.yaml"
    spec.write_text(
        f"extends: {SPECS / 'sim.yaml'}\n"
        "roles: {evolver: {base_urls: ['http://localhost:1/v1'], model: x}}\n"
        "evolver: {propose: {role: evolver, prompt: mine.md}}\n"
    )
    done = tiny.invoke("validate", spec)
    assert done.exit_code == 2 and "no_such_thing" in done.output


def test_a_role_without_an_endpoint_is_an_error_of_the_spec(tmp_path: Path) -> None:
    spec = tmp_path / "llm.yaml"
    spec.write_text(f"extends: {SPECS / 'sim.yaml'}\nevolver: {{propose: {{role: evolver}}}}\n")
    done = tiny.invoke("validate", spec)
    assert done.exit_code == 2 and "roles.evolver names no endpoint" in done.output
