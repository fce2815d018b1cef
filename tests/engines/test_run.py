"""A whole run on OpenRLHF (Ray, DeepSpeed, vLLM) on the CPU: `harnessrl launch` as a user starts it.

Killed after a checkpoint and started again, it comes to its end. People ask for a change of p, g and c
before the first step, and the evolver measures candidates of its own on the frozen policy's vLLM; what
follows from the changes is read from OpenRLHF's own curves and from the rollouts that it handed in.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tiny
from conftest import python
from harnessrl.memory.events import fold_versions, read_log
from harnessrl.memory.records import (
    Accepted,
    AnyRecord,
    Decision,
    Evaluation,
    Group,
    Probe,
    RunFinished,
)
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.tasks import Criterion
from harnessrl.specs.updates import UPDATE
from harnessrl.trainer.requests import UpdateRequest, hand_in
from harnessrl.trainer.runfolder import RunFolder
from harnessrl.trainer.stored import read_stored

pytestmark = pytest.mark.engines

STEPS, SLOTS, GROUP, EVERY = 6, 4, 4, 2
LIMIT = 500  # seconds for each start
SPEC = """
name: engines
seed: 2
tasks: {{files: [texts/animals.yaml, texts/more.yaml]}}
roles: {{policy: {{model: {model}}}}}
interfaces: {{p: {{min_effective_tasks: 1.5, paused_weight: 0.02, redraws: 2}}}}
evolver:
  every: 2
  alpha: 0.45
  attribute: {{min_groups: 1, healthy_signal: 1.0}}
  critic: {{rollouts: 8, extended_rollouts: 16}}
engine:
  kind: {kind}
  steps: 6
  tasks_per_step: 4
  group_size: 4
  max_new_tokens: 16
  max_prompt_tokens: 160
  learning_rate: 1e-3
  kl_coef: 0.01
logging: {{folder: {runs}, checkpoint_every: 2, probe_samples: 2, evaluate_every: 2}}
"""
#: A task whose rewards always tie. With seed 2 the first step draws `fox`, `words`, `letters` and `tie`.
MORE = """
train:
  - id: tie
    domain: animals
    prompt: Write about a tie.
    rubric: [{text: The end., points: 1, check: {kind: mentions, terms: [no response has this]}}]
"""
ADDED = Criterion.model_validate(
    {"text": "The letter q occurs.", "points": 3, "check": {"kind": "regex", "pattern": "q"}}
)
CHANGES = [
    {"interface": "p", "op": "pause", "task_ids": ["fox"]},
    {
        "interface": "g",
        "op": "mount",
        "task_ids": ["dog"],
        "field": "checklist",
        "lines": ["name the dog"],
        "share": 0.5,
    },
    {
        "interface": "c",
        "op": "add",
        "task_ids": ["words"],
        "criterion": ADDED.model_dump(mode="json", exclude_none=True),
    },
]


@dataclass(frozen=True)
class Run:
    """A run folder, and what the two starts printed."""

    folder: RunFolder
    first: str
    second: str
    seconds: float

    @property
    def records(self) -> list[AnyRecord]:
        """What the log holds and did not void."""
        return list(read_log(self.folder.events))

    def groups(self) -> dict[int, list[Group]]:
        """The groups that each step was trained on."""
        found: dict[int, list[Group]] = defaultdict(list)
        for record in self.records:
            if isinstance(record, Group) and not record.set_aside:
                found[record.step].append(record)
        return found

    def versions(self) -> list[HarnessState]:
        """Every harness version. The evolver changes the harness too, and in each run in its own way."""
        return fold_versions(read_stored(self.folder).tasks.train, self.records)

    def curve(self, name: str) -> dict[int, float]:
        """A curve of OpenRLHF's own, by step (from 1); a resumed step's is the last one."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        points: dict[int, float] = {}
        for file in sorted(self.folder.tensorboard.glob("openrlhf*/**/events*"), key=os.path.getmtime):
            events = EventAccumulator(str(file))
            events.Reload()
            points |= {point.step: point.value for point in events.Scalars(name)}
        return points


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("engines")
    model = tiny.build_tiny_model(folder / "model")
    tiny.write_spec(folder, model)
    (folder / "texts" / "more.yaml").write_text(MORE + tiny.APART_YAML)
    spec = folder / "engines.yaml"
    spec.write_text(SPEC.format(model=model, runs=folder / "runs", kind="openrlhf"))
    script = folder / "run.sh"
    environment = os.environ | {"OPENRLHF_PYTHON": python(), "HF_HUB_OFFLINE": "1"}
    # The worker side of this checkout, for OpenRLHF's environment.
    link = folder / "package" / "harnessrl"
    link.parent.mkdir()
    link.symlink_to(Path(__file__).parents[2])
    environment["PYTHONPATH"] = str(link.parent)
    command = [sys.executable, "-m", "harnessrl.trainer.cli", "launch", str(spec)]
    command += ["--device", "cpu", "--script", str(script)]
    made = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    run = RunFolder(folder / "runs" / "engines")
    for n, change in enumerate(CHANGES):
        update = UPDATE.validate_python({**change, "rationale": "a test"})
        hand_in(run.requests, UpdateRequest(id=f"{n}", author="a tester", update=update, force=True))
    began = time.monotonic()
    first = start(script, environment, run, until_step=3)
    second = start(script, environment, run, until_step=None)
    return Run(run, first, second, time.monotonic() - began)


def start(script: Path, environment: dict[str, str], run: RunFolder, until_step: int | None) -> str:
    """Run the script to its end, or until a step is done: then training is killed."""
    log = script.with_suffix(f".{until_step}.log")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["bash", str(script)], env=environment, stdout=out, stderr=out, start_new_session=True
        )
    try:
        until = time.monotonic() + LIMIT
        while process.poll() is None and (until_step is None or steps_done(run) < until_step):
            assert time.monotonic() < until, told(log, run)
            time.sleep(0.5)
        if until_step is not None:
            assert process.poll() is None, told(log, run)  # it ended by itself: nothing is there to kill
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if until_step is None:
        assert process.returncode == 0, told(log, run)
    return log.read_text(errors="replace")


def steps_done(run: RunFolder) -> int:
    """Lines of metrics.jsonl."""
    return len(run.metrics.read_text().splitlines()) if run.metrics.exists() else 0


def told(log: Path, run: RunFolder) -> str:
    """What the processes said last."""
    logs = [log, *sorted((run.root / "logs").glob("*.log")), run.root / "policy-server.log"]
    return "\n".join(
        f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in logs if path.exists()
    )


def updates(run: Run) -> dict[str, int]:
    """Interface -> harness version at which what the people asked for was accepted."""
    by_people = [r for r in run.records if isinstance(r, Accepted) and r.author]
    return {update.interface: record.harness_version for record in by_people for update in record.updates}


def drawn_first(folder: RunFolder) -> set[str]:
    """The tasks of the first step, those of groups that were set aside among them."""
    return {r["task_id"] for r in tiny.rows(folder.events) if r["type"] == "group" and r["step"] == 0}


def test_it_comes_to_its_end_after_a_kill(run: Run) -> None:
    records = run.records
    assert isinstance(records[-1], RunFinished)
    assert [row["step"] for row in tiny.rows(run.folder.metrics)] == list(range(STEPS))
    assert sorted(run.groups()) == list(range(STEPS))
    assert all(len(groups) == SLOTS for groups in run.groups().values())
    assert run.folder.report.exists()
    assert {r.when for r in records if isinstance(r, Probe)} == {"before", "after"}
    # Each rollout counts once, whatever was done twice.
    rows = tiny.rows(run.folder.metrics)
    redrawn = sum(row["redrawn"] for row in rows)
    assert rows[-1]["rollouts"]["train"] == (STEPS * SLOTS + redrawn) * GROUP
    resumed = [r for r in tiny.rows(run.folder.events) if r["type"] == "resumed"]
    # It was killed after its third step; a fast machine may have taken one more by then.
    assert [r["step"] for r in resumed] in ([2], [4])


def test_the_trained_policy_is_a_plain_model(run: Run) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = run.folder.openrlhf / "policy"
    model = AutoModelForCausalLM.from_pretrained(folder)
    old = AutoModelForCausalLM.from_pretrained(run.folder.root.parents[1] / "model")
    pairs = zip(model.parameters(), old.parameters(), strict=True)
    assert any((ours.float() - theirs.float()).abs().max() > 1e-3 for ours, theirs in pairs)
    AutoTokenizer.from_pretrained(folder)
    # What the critic needed on the way is not kept.
    assert len(list(run.folder.openrlhf.glob("frozen-*"))) <= 1
    assert len(list((run.folder.openrlhf / "checkpoints").glob("global_step*_hf"))) <= 2


def test_p_g_and_c_changed_while_it_trained(run: Run) -> None:
    assert set(updates(run)) == {"p", "g", "c"}
    # OpenRLHF's own curve of the version that its samples carried: each step's is the controller's.
    theirs = run.curve("train/harness_version")
    for row in tiny.rows(run.folder.metrics):
        assert theirs[row["step"] + 1] == row["harness_version"]
    assert theirs[1] == 0
    assert theirs[2] >= 3


def test_p_acted_on_what_openrlhf_rolled_out(run: Run) -> None:
    assert "fox" in drawn_first(run.folder)
    versions = run.versions()
    later = [group for step in range(1, STEPS) for group in run.groups()[step]]
    assert len(later) == (STEPS - 1) * SLOTS
    paused = [group for group in later if versions[group.harness_version].of("fox").paused]
    assert len(paused) >= SLOTS  # the whole of step 1: the evolver's first look comes after it
    assert [group.task_id for group in paused].count("fox") <= 1


def test_g_acted_on_what_openrlhf_trained_on(run: Run) -> None:
    guided = run.curve("train/guided")
    assert guided[1] == 0
    for step in range(1, STEPS):
        groups = run.groups()[step]
        expected = sum(sum(group.guided) for group in groups) / (SLOTS * GROUP)
        assert guided[step + 1] == pytest.approx(expected)
    versions = run.versions()
    mounted = versions[updates(run)["g"]].of("dog").guidance
    dogs = [r for r in run.records if isinstance(r, Group) and r.task_id == "dog"]
    guided_dogs = [
        group for group in dogs if versions[group.harness_version].of("dog").guidance == mounted
    ]
    assert 1 in {group.step for group in guided_dogs}
    assert all(sum(group.guided) == GROUP // 2 for group in guided_dogs)
    assert not any(any(group.guided) for group in dogs if group.step == 0)


def test_c_acted_on_the_rewards_openrlhf_saw(run: Run) -> None:
    rewards = run.curve("train/rollout/reward_mean")
    for step, groups in run.groups().items():
        mean = np.mean([group.rewards for group in groups])
        assert rewards[step + 1] == pytest.approx(mean, abs=1e-5)
    versions = run.versions()
    groups = [record for record in run.records if isinstance(record, Group)]
    for group in groups:
        rubric = versions[group.harness_version].rubric(group.task_id)
        assert set(group.met) == {criterion.id for criterion in rubric}
    words = {step: [g for g in groups if g.task_id == "words" and g.step == step] for step in (0, 1)}
    assert words[0]
    assert not any(ADDED.id in group.met for group in words[0])
    assert words[1]
    assert all(ADDED.id in group.met for group in words[1])


def test_the_critic_measured_on_the_frozen_policy(run: Run) -> None:
    measured = [r for r in run.records if isinstance(r, Decision) and r.measured and r.measured.rollouts]
    assert measured, "no candidate was measured on fresh rollouts"
    assert tiny.rows(run.folder.metrics)[-1]["rollouts"]["critic"] >= 8
    # A look at step s is a look at the weights that came out of it.
    assert {(r.step + 1) % EVERY for r in measured} == {0}


def test_it_evaluated_on_its_way_and_kept_the_best_policy(run: Run) -> None:
    from transformers import AutoModelForCausalLM

    found = [record for record in run.records if isinstance(record, Evaluation)]
    assert [one.steps_done for one in found] == [0, 2, 4, 6]
    assert all(set(one.per_task) == {"owl"} and one.reward is not None for one in found)
    assert not any(group.task_id == "owl" for groups in run.groups().values() for group in groups)
    best = max(found, key=lambda one: (one.reward, -one.steps_done))
    about = json.loads((run.folder.best / "about.json").read_text())
    assert about == {"steps": best.steps_done, "reward": best.reward, "quality": best.quality}
    kept = AutoModelForCausalLM.from_pretrained(run.folder.best / "policy").state_dict()
    for steps, folder in ((0, run.folder.root.parents[1] / "model"), (6, run.folder.openrlhf / "policy")):
        other = AutoModelForCausalLM.from_pretrained(folder).state_dict()
        same = all(bool((kept[name].float() == other[name].float()).all()) for name in kept)
        assert same == (steps == best.steps_done)


def test_the_same_spec_on_the_local_engine_leaves_the_same(run: Run) -> None:
    """Only `engine.kind` is another."""
    folder = run.folder.root.parents[1]
    spec = folder / "local.yaml"
    spec.write_text(SPEC.format(model=folder / "model", runs=folder / "local", kind="local"))
    done = tiny.invoke("train", spec)
    assert done.exit_code == 0, done.output
    local = RunFolder(folder / "local" / "engines")
    ours, theirs = ({path.name for path in f.root.iterdir()} for f in (local, run.folder))
    assert ours <= theirs | {".lock"}
    assert theirs - ours == {
        "launch.sh",
        "logs",
        "openrlhf",
        "policy-server.log",
        "requests",
        "submitted.jsonl",
    }
    rows = [tiny.rows(f.metrics) for f in (local, run.folder)]
    assert {frozenset(row) for row in rows[0]} == {frozenset(row) for row in rows[1]}
    types = [{row["type"] for row in tiny.rows(f.events)} for f in (local, run.folder)]
    assert types[0] - types[1] <= {"no_proposal"}  # what the evolver finds is each run's own
    headings = [re.findall(r"<h2[^>]*>(.*?)</h2>", f.report.read_text()) for f in (local, run.folder)]
    assert headings[0] == headings[1]
    # What the first step draws depends on the seed alone; which of it ties does not.
    for folder_ in (local, run.folder):
        assert {"fox", "words", "letters", "tie"} <= drawn_first(folder_)


def test_openrlhf_trained_on_what_was_redrawn(run: Run) -> None:
    """Its mean reward (above) is that of the groups that stand; here, that some were redrawn at all."""
    rows = tiny.rows(run.folder.metrics)
    assert rows[0]["redrawn"] > 0, "`tie` has no rewards that differ"
    aside = [r for r in run.records if isinstance(r, Group) and r.set_aside]
    assert len(aside) == sum(row["redrawn"] for row in rows)
    assert all(group.collapse.startswith("collapsed") for group in aside)
    ties = {s: sum(g.collapse != "spread" for g in groups) for s, groups in run.groups().items()}
    assert ties == {row["step"]: row["tied_in_batch"] for row in rows}


def test_a_third_start_leaves_the_finished_run_as_it_is(run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.folder.root.rglob("*")}
    script = run.folder.root / "launch.sh"
    third = subprocess.run(["bash", str(script)], capture_output=True, text=True, timeout=120)
    assert third.returncode == 0, third.stderr
    assert "is finished already" in third.stderr
    assert {path: path.stat().st_mtime_ns for path in run.folder.root.rglob("*")} == before


def test_nothing_is_left_running(run: Run) -> None:
    for pid in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert str(run.folder.root).encode() not in (pid / "cmdline").read_bytes(), pid
