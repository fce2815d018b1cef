"""Whole runs whose oracle stands behind a scripted endpoint, on the simulated and on the tiny policy."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import yaml
from harnessrl.agents.scoring.audit import KNOWN_ORDERS
from harnessrl.agents.scoring.oracle import measure_quality
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Accepted, Decision, Diagnosis, Group, Probe, RunFinished
from harnessrl.specs.loader import load_task_file
from harnessrl.trainer import train
from harnessrl.trainer.report.build import build_report
from scripted_endpoint import Body, Reply, ScriptedEndpoint, compared, comparing, opinion

SPECS = Path(__file__).parent.parent / "specs"


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing a report takes longer than training here."""
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")


def as_measured(file: Path) -> Callable[[Body], Reply]:
    """An oracle that compares by what the embedded one measures, and knows the audit's orders."""
    tasks = load_task_file(file)
    by_prompt = {task.prompt: task for task in (*tasks.train, *tasks.held_out)}
    better = {known.better for known in KNOWN_ORDERS}

    def answer(body: Body) -> Reply:
        it = compared(body)
        task = by_prompt.get(it.request)
        if task is None:
            return comparing(lambda text: float(text in better))(body)
        assert task.quality is not None
        quality = task.quality
        return comparing(lambda text: measure_quality(quality, task.prompt, text).total)(body)

    return answer


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint(as_measured(SPECS / "tasks" / "sim.yaml")) as serving:
        yield serving


def write_sim(folder: Path, endpoint: ScriptedEndpoint, steps: int = 12, **oracle: Any) -> Path:
    """A spec of the simulated policy whose oracle compares."""
    spec = folder / "spec.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    at = {"base_urls": [endpoint.base_url], "model": "scripted", "retries": 0, "timeout": 10.0}
    critic = {"rollouts": 16, "extended_rollouts": 16}
    content = {
        "extends": str(SPECS / "sim.yaml"),
        "roles": {"oracle": at},
        "oracle": {"kind": "pairwise", "opponents": 2, **oracle},
        "engine": {"kind": "sim", "steps": steps},
        "logging": {"checkpoint_every": 4, "probe_samples": 4},
        "evolver": {"max_staleness": 12, "alpha": 0.3, "critic": critic},
    }
    spec.write_text(yaml.safe_dump(content))
    return spec


def run(spec: Path, folder: Path, *args: str) -> Path:
    done = tiny.invoke("train", spec, "--folder", folder, "--name", "run", *args)
    assert done.exit_code == 0, done.output + repr(done.exception)
    return folder / "run"


def of(root: Path, kind: type[Any]) -> list[Any]:
    return [record for record in read_log(root / "events.jsonl") if isinstance(record, kind)]


def metrics(root: Path) -> list[dict[str, Any]]:
    return tiny.rows(root / "metrics.jsonl")


# --- a run ----------------------------------------------------------------------------------------


def test_the_evolver_acts_on_what_an_asked_oracle_says(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    root = run(write_sim(tmp_path, endpoint, steps=7), tmp_path)
    groups = of(root, Group)
    known = [q for group in groups for q in group.quality if q is not None]
    assert len(known) == 7 * 4 * 8, "every rollout has a quality"
    assert all(0.0 < q < 1.0 for q in known)
    assert any(group.resolution > 0 for group in groups)
    assert sum(group.pairs["unknown"] for group in groups) > 0
    assert sum(group.pairs["informative"] + group.pairs["inversion"] for group in groups) > 0
    assert any(d.interfaces for d in of(root, Diagnosis))
    measured = [d for d in of(root, Decision) if d.measured is not None]
    assert measured and any(d.update.interface in ("c", "g") for d in measured)
    assert of(root, Accepted)
    (end,) = of(root, RunFinished)
    by_purpose = end.roles["oracle"]
    assert by_purpose.keys() == {"probe", "train", "critic"}
    calls = sum(used["calls"] for used in by_purpose.values())
    assert calls == len(endpoint.bodies), "everything that was asked is counted"
    anchors = {row["task"]: row["anchors"] for row in tiny.rows(root / "anchors.jsonl")}
    tasks = load_task_file(SPECS / "tasks" / "sim.yaml")
    assert anchors.keys() == {task.id for task in (*tasks.train, *tasks.held_out)}
    assert all(0 < len(texts) <= 3 for texts in anchors.values())
    accuracies = {(p.when, p.oracle_accuracy) for p in of(root, Probe)}
    assert accuracies == {("before", 1.0), ("after", 1.0)}
    page = build_report(root).read_text()
    told = "beyond doubt the oracle saw 100% before training and 100% after training."
    assert told in " ".join(page.split())


def test_quality_follows_the_true_one_over_the_whole_run(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    """Anchors make groups of different steps comparable."""
    root = run(write_sim(tmp_path, endpoint, steps=8), tmp_path, "--recipe", "grpo")
    tasks = {task.id: task for task in load_task_file(SPECS / "tasks" / "sim.yaml").train}
    found: dict[str, list[tuple[float, float]]] = {}
    for path in sorted((root / "rollouts").iterdir()):
        for row in tiny.rows(path):
            task = tasks[row["task_id"]]
            assert task.quality is not None
            true = measure_quality(task.quality, task.prompt, row["response"]).total
            found.setdefault(task.id, []).append((row["quality"], true))
    several = [pairs for pairs in found.values() if len(pairs) >= 16]
    assert len(several) > 3
    taus = []
    for pairs in several:
        ours, true = np.array(pairs).T
        i, j = np.triu_indices(len(ours), 1)
        apart = true[i] != true[j]
        taus.append((np.sign(ours[i] - ours[j]) == np.sign(true[i] - true[j]))[apart].mean())
    assert np.mean(taus) > 0.75


def test_an_oracle_that_prefers_a_place_changes_nothing(tmp_path: Path) -> None:
    with ScriptedEndpoint(lambda body: opinion("A")) as endpoint:
        root = run(write_sim(tmp_path, endpoint, steps=8), tmp_path)
    for group in of(root, Group):
        assert np.array(group.quality) == pytest.approx(np.full(8, 0.5), abs=1e-5)
        # But for equal texts, which are equally good whatever anybody says.
        assert sum(group.pairs.values()) == group.pairs["unknown"] + group.pairs["neutral"]
    assert {p.oracle_accuracy for p in of(root, Probe)} == {0.0}
    assert not [d for d in of(root, Decision) if d.accepted and d.update.interface == "g"]


# --- resuming -------------------------------------------------------------------------------------


def test_a_resumed_run_asks_nothing_twice_and_keeps_its_anchors(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    root = run(write_sim(tmp_path, endpoint, steps=6), tmp_path, "--no-probe")
    anchors = (root / "anchors.jsonl").read_text()
    events, asked = tiny.surviving(root / "events.jsonl"), len(endpoint.bodies)
    questions = [json.dumps(body["messages"]) for body in endpoint.bodies]
    assert len(set(questions)) == len(questions) > 0
    for checkpoint in (root / "checkpoints").iterdir():
        (checkpoint / "COMPLETE").unlink()
    done = tiny.invoke("train", "--resume", root)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert (root / "anchors.jsonl").read_text() == anchors
    assert len(endpoint.bodies) == asked
    again = tiny.surviving(root / "events.jsonl")
    same = ("group", "decision", "diagnosis", "accepted")
    assert [e for e in again if e["type"] in same] == [e for e in events if e["type"] in same]


def test_the_same_seed_and_oracle_give_the_same_run(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        folder = tmp_path / name
        root = run(write_sim(folder, endpoint, steps=4), folder, "--no-probe")
        found.append([tiny.surviving(root / "events.jsonl"), tiny.timeless(metrics(root))])
    assert found[0] == found[1]


# --- silence and spend ----------------------------------------------------------------------------


def test_a_dead_oracle_is_told_and_training_goes_on(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    endpoint.answer = lambda body: Reply(status=503)
    spec = write_sim(tmp_path, endpoint, steps=4)
    done = tiny.invoke("train", spec, "--folder", tmp_path, "--name", "run")
    assert done.exit_code == 0, done.output + repr(done.exception)
    root = tmp_path / "run"
    assert " ".join(done.output.split()).count("alarm: the oracle answers nothing") == 1
    for row in metrics(root):
        assert row["quality_mean"] is None and row["signal_rate"] is None
        assert row["oracle_causes"].keys() == {"oracle: HTTP 503"}
        assert row["reward_mean"] is not None
        assert [a["where"] for a in row["alarms"] if a["kind"] == "oracle"] == ["silent"]
    for group in of(root, Group):
        assert set(group.quality) == {None} and group.pairs["unknown"] == 28
    assert not of(root, Accepted)
    assert {p.oracle_accuracy for p in of(root, Probe)} == {None}


def test_a_spent_budget_is_told_once_and_quality_unknown_from_there(
    endpoint: ScriptedEndpoint, tmp_path: Path
) -> None:
    spec = write_sim(tmp_path, endpoint, steps=6, budget=400)
    done = tiny.invoke("train", spec, "--folder", tmp_path, "--name", "run", "--no-probe")
    assert done.exit_code == 0, done.output + repr(done.exception)
    root = tmp_path / "run"
    assert " ".join(done.output.split()).count("alarm: oracle.budget has no room") == 1
    assert 300 < len(endpoint.bodies) <= 400
    groups = of(root, Group)
    assert None not in groups[0].quality and set(groups[-1].quality) == {None}
    assert "oracle.budget 400 has no room for it" in metrics(root)[-1]["oracle_causes"]


def test_the_oracle_looks_at_its_share(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    spec = write_sim(tmp_path, endpoint, steps=6, share=0.4)
    root = run(spec, tmp_path, "--no-probe", "--recipe", "grpo")
    asked = [any(q is not None for q in group.quality) for group in of(root, Group)]
    assert 3 < sum(asked) < 20
    requests = {compared(body).request for body in endpoint.bodies}
    assert len(requests) <= sum(asked)


# --- the tiny policy ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pairwise", "reference"])
def test_the_tiny_policy_trains_with_an_oracle(kind: str, tmp_path: Path, tiny_model: Path) -> None:
    paths = tiny.write_spec(tmp_path, tiny_model, steps=3)
    tasks = yaml.safe_load(tiny.TASKS_YAML)
    for task in [*tasks["train"], *tasks["held_out"]]:
        task["reference"] = f"A fine answer to {task['id']}."
        task.pop("quality")
    (tmp_path / "texts" / "animals.yaml").write_text(yaml.safe_dump(tasks, sort_keys=False))
    with ScriptedEndpoint(comparing(lambda text: len(text) % 11 / 10)) as endpoint:
        content = yaml.safe_load(paths.spec.read_text())
        content["roles"]["oracle"] = {"base_urls": [endpoint.base_url], "model": "scripted"}
        content["oracle"] = {"kind": kind}
        paths.spec.write_text(yaml.safe_dump(content))
        done = tiny.invoke("validate", paths.spec)
        assert done.exit_code == 0 and "never diagnosed" not in done.output, done.output
        root = run(paths.spec, tmp_path)
    groups = of(root, Group)
    assert all(None not in group.quality for group in groups)
    assert {group.resolution > 0 for group in groups} == {kind == "pairwise"}
    assert any(d.measured for d in of(root, Decision))
    with contextlib.closing(sqlite3.connect(root / "comparisons.sqlite")) as connection:
        (kept,) = connection.execute("SELECT count(*) FROM verdicts").fetchone()
    assert kept > 0
    if kind == "pairwise":
        rows = tiny.rows(root / "anchors.jsonl")
        assert {row["anchors"][0] for row in rows} >= {"A fine answer to fox."}
    else:
        assert not (root / "anchors.jsonl").exists()


# --- validate -------------------------------------------------------------------------------------


def test_the_preflight_asks_the_oracle(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    spec = write_sim(tmp_path, endpoint)
    done = tiny.invoke("validate", spec, "--preflight")
    assert done.exit_code == 0, done.output
    assert done.output.count(f"ok    oracle {endpoint.base_url} known order") == len(KNOWN_ORDERS)
    assert (
        f"oracle {endpoint.base_url} structured output: {len(KNOWN_ORDERS)} of {len(KNOWN_ORDERS)}"
        in done.output
    )
    endpoint.answer = lambda body: opinion("A")
    done = tiny.invoke("validate", spec, "--preflight")
    assert done.exit_code == 1
    assert done.output.count(f"FAIL  oracle {endpoint.base_url} known order") == len(KNOWN_ORDERS)
    assert done.output.count("is as good as") == len(KNOWN_ORDERS)


def test_what_a_person_would_rather_know(endpoint: ScriptedEndpoint, tmp_path: Path) -> None:
    done = tiny.invoke("validate", write_sim(tmp_path, endpoint, kind="embedded"))
    assert "roles.oracle is never asked: oracle.kind is embedded" in done.output
    done = tiny.invoke("validate", write_sim(tmp_path, endpoint, kind="reference"))
    assert "no `reference`, so never diagnosed: tides, rain" in done.output
    own = tmp_path / "own.md"
    own.write_text("{{ nothing_of_this_name }}")
    done = tiny.invoke("validate", write_sim(tmp_path, endpoint, prompt=str(own)))
    assert done.exit_code == 2 and "nothing_of_this_name" in done.output
