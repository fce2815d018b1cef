"""Whole runs on the tiny policy: what they leave behind, and that they repeat."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tiny
import yaml
from harnessrl.agents.policy import Request, Sample
from harnessrl.memory.events import fold_versions, read_log
from harnessrl.memory.records import (
    Accepted,
    Decision,
    Diagnosis,
    Group,
    NoProposal,
    Probe,
    RunFinished,
    RunStarted,
)
from harnessrl.specs.guidance import Shown
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.harnessfile import from_file
from harnessrl.specs.loader import load_harness_file, load_run_spec
from harnessrl.specs.schema import Tasks
from harnessrl.trainer.data.load import load_resolved
from harnessrl.trainer.group import Claim
from harnessrl.trainer.runfolder import RunFolder, latest_checkpoint
from harnessrl.trainer.train import _examples, _normaliser
from tiny import data_file


def edit(spec: Path, old: str, new: str) -> None:
    text = spec.read_text()
    assert old in text
    spec.write_text(text.replace(old, new))


# --- a finished run -------------------------------------------------------------------------------


def test_a_run_folder_holds_everything(finished: tiny.Finished) -> None:
    """There is no `rng`: every stream is keyed, so nothing has to be kept."""
    files = {str(p.relative_to(finished.run)) for p in finished.run.rglob("*") if p.is_file()}
    for name in (
        "spec.yaml",
        "tasks.yaml",
        "events.jsonl",
        "metrics.jsonl",
        "graph.sqlite",
        "provenance.json",
        "report.html",
        "harness/000000.yaml",
        "chroma/chroma.sqlite3",
        "checkpoints/step-000006/COMPLETE",
        "checkpoints/step-000006/controller.json",
        "checkpoints/step-000006/optimizer/adamw.pt",
        "checkpoints/step-000006/policy/config.json",
        "checkpoints/step-000006/policy/model.safetensors",
        "checkpoints/step-000006/policy/tokenizer.json",
        *(f"rollouts/step-{step:06d}.jsonl" for step in range(6)),
    ):
        assert name in files, name
    assert not [name for name in files if "tmp" in name or Path(name).name.startswith(".tmp")]
    assert [p.name for p in (finished.run / "checkpoints").iterdir()] == ["step-000006"]


def test_the_spec_in_the_folder_is_the_one_that_was_run(finished: tiny.Finished) -> None:
    """It names the tasks beside it, whatever becomes of the ones that it was started with."""
    stored, asked = load_run_spec(finished.run / "spec.yaml"), load_run_spec(finished.spec)
    own = Tasks(files=("tasks.yaml",))
    assert stored.spec == asked.spec.model_copy(update={"tasks": own})
    assert stored.task_files == ((finished.run / "tasks.yaml").resolve(),)
    about = json.loads((finished.run / "provenance.json").read_text())
    assert (about["seed"], about["recipe"], about["probe"]) == (3, "", True)
    assert {"torch", "python", "git_commit", "platform"} <= about.keys()


def test_metrics_have_one_line_a_step(finished: tiny.Finished) -> None:
    metrics = tiny.rows(finished.run / "metrics.jsonl")
    assert [row["step"] for row in metrics] == list(range(6))
    for row in metrics:
        assert {"rollout", "score", "train", "record", "evolve"} <= row["seconds"].keys()
        assert all(s >= 0 for s in row["seconds"].values()), row["seconds"]
        assert sum(row["pairs"].values()) == 2 * 6  # two groups of four: six pairs each
        assert sum(row["collapse"].values()) == 2
    assert ["save" in row["seconds"] for row in metrics] == [False, True] * 3
    assert "NaN" not in (finished.run / "metrics.jsonl").read_text()


def test_the_log_tells_the_run_in_order(finished: tiny.Finished) -> None:
    records = read_log(finished.run / "events.jsonl")
    assert isinstance(records[0], RunStarted)
    assert isinstance(records[-1], RunFinished)
    steps = [r.step for r in records]
    assert steps == sorted(steps)
    assert len({r.id for r in records}) == len(records)
    assert len([r for r in records if isinstance(r, Group)]) == 12
    assert [(p.split, p.when) for p in records if isinstance(p, Probe)] == [
        ("train", "before"),
        ("held_out", "before"),
        ("train", "after"),
        ("held_out", "after"),
    ]
    versions = [r.harness_version for r in records]
    assert versions == sorted(versions)


def test_rollout_text_is_in_the_rollouts_only(finished: tiny.Finished) -> None:
    log = (finished.run / "events.jsonl").read_text()
    texts = [
        row["response"]
        for file in (finished.run / "rollouts").iterdir()
        for row in tiny.rows(file)
        if len(row["response"]) > 12
    ]
    assert texts
    assert not [text for text in texts if json.dumps(text, ensure_ascii=False)[1:-1] in log]


def test_what_was_spent_is_counted(finished: tiny.Finished) -> None:
    records = read_log(finished.run / "events.jsonl")
    end = records[-1]
    assert isinstance(end, RunFinished)
    rollouts = [row for p in (finished.run / "rollouts").iterdir() for row in tiny.rows(p)]
    assert end.rollouts["train"] == len(rollouts) == 6 * 2 * 4
    assert end.tokens["train"] == sum(row["tokens"] for row in rollouts)
    assert end.judge_calls["train"] == sum(len(row["verdicts"]) for row in rollouts)
    assert end.rollouts["probe"] == 2 * 5 * 2
    measured = [r.measured for r in records if isinstance(r, Decision) and r.measured]
    assert end.rollouts["critic"] == sum(m.rollouts for m in measured)


def test_the_evolver_worked_and_says_why(finished: tiny.Finished) -> None:
    records = read_log(finished.run / "events.jsonl")
    diagnoses = {r.id: r for r in records if isinstance(r, Diagnosis)}
    decisions = [r for r in records if isinstance(r, Decision)]
    assert diagnoses
    assert decisions
    ids = {r.id for r in records}
    for decision in decisions:
        diagnosis = diagnoses[decision.diagnosis_id]
        assert decision.update.interface in diagnosis.interfaces
        assert decision.reason
        assert decision.measured is not None or not decision.accepted
        assert set(decision.update.evidence) <= ids
        assert diagnosis.id in decision.update.evidence
        assert set(decision.retrieved) <= ids
    for nothing in (r for r in records if isinstance(r, NoProposal)):
        assert nothing.diagnosis_id in diagnoses


def test_the_harness_is_the_fold_of_the_log(finished: tiny.Finished, small: tiny.Paths) -> None:
    """Of a run with a critic, and of one without, which takes every candidate."""
    edit(small.spec, "margin: 0.0", "margin: 0.0, test: none")
    assert tiny.invoke("train", small.spec, "--steps", "4").exit_code == 0
    for run in (finished.run, small.run):
        tasks = load_resolved(run / "tasks.yaml").train
        folder = run / "harness"
        assert yaml.safe_load((folder / "000000.yaml").read_text()) == {"version": 0, "tasks": {}}
        state = HarnessState(tasks)
        versions = [state]
        records = read_log(run / "events.jsonl")
        for record in records:
            if isinstance(record, Accepted):
                state = apply(state, record.updates, record.step)
                assert record.harness_version == state.version
                versions.append(state)
        assert fold_versions(tasks, records) == versions
        files = sorted(folder.iterdir())
        assert [path.name for path in files] == [f"{v.version:06d}.yaml" for v in versions]
        assert [from_file(load_harness_file(path), tasks) for path in files] == versions
    assert len(versions) > 1
    decisions = [r for r in records if isinstance(r, Decision)]
    assert {d.accepted for d in decisions} == {True}
    assert {(d.reason, d.measured) for d in decisions} == {("not measured", None)}


def test_a_run_can_start_from_a_harness_and_with_guidance_for_every_task(small: tiny.Paths) -> None:
    """What another run ended with, told in a file; and the rubric, shown to half of the rollouts."""
    (small.folder / "texts" / "first.yaml").write_text(START)
    edit(small.spec, "seed: 3", "seed: 3\nstart: texts/first.yaml")
    edit(small.spec, "max_prompt_tokens: 160", "max_prompt_tokens: 400")
    edit(small.spec, "p: {", "g: {start: [{field: skill, lines: rubric, share: 0.5}]}\n  p: {")
    static = small.folder / "static.yaml"
    static.write_text(
        f"extends: {small.spec}\ninterfaces:\n"
        + "".join(f"  {name}: {{evolve: false}}\n" for name in "pgc")
    )
    done = tiny.invoke("train", static, "--steps", "2")
    assert done.exit_code == 0, done.output
    started = next(r for r in read_log(small.run / "events.jsonl") if isinstance(r, RunStarted))
    assert list(started.harness.tasks) == ["dog"] and started.guidance[0].field == "skill"
    guided = {True: 0, False: 0}
    for step in range(2):
        for row in tiny.rows(small.run / f"rollouts/step-{step:06d}.jsonl"):
            is_dog = row["task_id"] == "dog"  # whose own entry stands for all of its harness
            guided[row["guided"]] += not is_dog
            wanted = "be a dog" if is_dog else "skill: "
            assert row["guided"] == (row["sample"] < 2)
            assert all(line.startswith(wanted) or "avoid: " in line for line in row["guidance"])
            assert bool(row["guidance"]) == row["guided"]
    assert guided[True] == guided[False] > 0
    stored = load_run_spec(small.run / "spec.yaml")
    assert stored.start_file == (small.run / "harness" / "000000.yaml").resolve()
    (version,) = fold_versions(
        load_resolved(small.run / "tasks.yaml").train, read_log(small.run / "events.jsonl")
    )
    assert version.version == 0 and version.of("dog").paused and not version.of("fox").paused


START = """\
version: 7
tasks:
  dog:
    p: {paused: true}
    g: [{field: checklist, lines: [be a dog], share: 0.5, since: 12}]
"""


def test_held_out_tasks_reach_nothing_that_evolves(finished: tiny.Finished) -> None:
    for record in read_log(finished.run / "events.jsonl"):
        if not isinstance(record, Probe):
            assert "quick" not in record.model_dump_json()
    for file in (finished.run / "rollouts").iterdir():
        assert "quick" not in {row["task_id"] for row in tiny.rows(file)}
    assert "step-" in " ".join(tiny.threads(finished.run))
    assert "quick" not in " ".join(tiny.threads(finished.run))


def test_the_screen_says_where_things_are(finished: tiny.Finished) -> None:
    output = finished.output
    for told in (f"run folder: {finished.run}", "report.html", "policy:", "next:", "probe"):
        assert told in output, told
    for step in range(1, 7):
        (line,) = [text for text in output.splitlines() if text.startswith(f"step {step}/6 ")]
        for column in ("reward", "signal", "zero-std", "H", "left"):  # one line a step
            assert f"{column}" in line, line


def test_the_trained_policy_is_a_plain_model(finished: tiny.Finished) -> None:
    from transformers import AutoModelForCausalLM

    found = latest_checkpoint(RunFolder(finished.run))
    assert found is not None
    model = AutoModelForCausalLM.from_pretrained(found[1] / "policy")
    assert sum(p.numel() for p in model.parameters()) > 400_000


# --- repeating ------------------------------------------------------------------------------------


def test_the_same_seed_repeats_everything(finished: tiny.Finished, small: tiny.Paths) -> None:
    done = tiny.invoke("train", small.spec)
    assert done.exit_code == 0, done.output
    first, second = tiny.content(finished.run), tiny.content(small.run)
    for part in first:
        assert second[part] == first[part], part


def test_another_seed_is_another_run(finished: tiny.Finished, small: tiny.Paths) -> None:
    done = tiny.invoke("train", small.spec, "--seed", "4", "--steps", "2")
    assert done.exit_code == 0, done.output
    first, second = (tiny.rows(run / "rollouts/step-000000.jsonl") for run in (finished.run, small.run))
    assert [r["response"] for r in first] != [r["response"] for r in second]
    about = json.loads((small.run / "provenance.json").read_text())
    assert (about["seed"], about["probe"]) == (4, False)  # --steps is a trial run: no probes
    assert not [r for r in read_log(small.run / "events.jsonl") if isinstance(r, Probe)]


def test_a_shorter_run_is_the_beginning_of_a_longer_one(
    finished: tiny.Finished, small: tiny.Paths
) -> None:
    """Probes, checkpoints and the number of steps move no draw of training."""
    edit(small.spec, "checkpoint_every: 2", "checkpoint_every: 1")
    assert tiny.invoke("train", small.spec, "--steps", "3").exit_code == 0
    for step in range(3):
        name = f"rollouts/step-{step:06d}.jsonl"
        assert tiny.rows(small.run / name) == tiny.rows(finished.run / name)


def test_a_second_run_gets_a_folder_of_its_own(small: tiny.Paths) -> None:
    for n in (1, 2):
        done = tiny.invoke("train", small.spec, "--steps", "1", "--recipe", "grpo")
        assert done.exit_code == 0, done.output
        assert (small.runs / ("tiny" if n == 1 else "tiny-2") / "report.html").is_file()
    assert tiny.invoke("train", small.spec, "--steps", "1", "--name", "mine").exit_code == 0
    assert sorted(p.name for p in small.runs.iterdir()) == ["mine", "tiny", "tiny-2"]


# --- recipes and data -----------------------------------------------------------------------------


def test_grpo_keeps_its_harness(finished: tiny.Finished, small: tiny.Paths) -> None:
    done = tiny.invoke("train", small.spec, "--recipe", "grpo")
    assert done.exit_code == 0, done.output
    records = read_log(small.run / "events.jsonl")
    assert {r.harness_version for r in records} == {0}
    assert not [r for r in records if isinstance(r, Diagnosis | Decision | Accepted)]
    assert [p.name for p in (small.run / "harness").iterdir()] == ["000000.yaml"]
    end = records[-1]
    assert isinstance(end, RunFinished)
    assert end.rollouts == {"train": 48, "critic": 0, "probe": 20}
    assert json.loads((small.run / "provenance.json").read_text())["recipe"] == "grpo"
    # The first step is sampled and scored alike: the harness has not changed anything yet.
    name = "rollouts/step-000000.jsonl"
    assert tiny.rows(small.run / name) == tiny.rows(finished.run / name)
    ours, theirs = (
        [r for r in read_log(run / "events.jsonl") if isinstance(r, Probe) and r.when == "before"]
        for run in (finished.run, small.run)
    )
    assert [(p.reward, p.quality) for p in ours] == [(p.reward, p.quality) for p in theirs]


def test_ifeval_rows_train(small: tiny.Paths) -> None:
    edit(small.spec, "max_prompt_tokens: 160", "max_prompt_tokens: 900")
    rows = data_file("ifeval_input_data.jsonl").read_text().splitlines()
    short = sorted(rows, key=lambda row: len(json.loads(row)["prompt"]))[:12]
    path = small.folder / "rows.jsonl"
    path.write_text(tiny.join([*short, json.dumps({"prompt": "x", "rubrics": ["kind"]})]))
    done = tiny.invoke("train", small.spec, "--tasks", path, "--steps", "1")
    assert done.exit_code == 0, done.output
    assert "1 x not a known schema" in done.output
    groups = [r for r in read_log(small.run / "events.jsonl") if isinstance(r, Group)]
    assert len(groups) == 2
    assert all(g.task_id.startswith("ifeval-") for g in groups)
    assert any(r is not None for g in groups for r in g.rewards)


# --- the pieces of a step -------------------------------------------------------------------------


def claim_with_guidance() -> Claim:
    requests = tuple(Request(p, ("k", i)) for i, p in enumerate(("guided!", "guided!", "plain")))
    parts = (Shown("checklist", ("be brief",)),)
    return Claim(0, 0, "t", "d", 1, "plain", requests, (parts, parts, ()))


RESPONSES = [Sample("a", (1, 2, 3), True), Sample("b", (4,), True), Sample("c", (5, 6), False)]


def test_the_loss_sees_the_plain_prompt(small: tiny.Paths) -> None:
    advantages = np.array([[1.0, 0.0, -1.0]])
    spec = load_run_spec(small.spec).spec
    plain = _examples([claim_with_guidance()], RESPONSES, advantages, spec)
    assert [e.prompt for e in plain] == ["plain"] * 3
    assert [e.response_ids for e in plain] == [(1, 2, 3), (4,), (5, 6)]
    assert [e.advantage for e in plain] == [1.0, 0.0, -1.0]
    override = {"interfaces": {"g": {"train_on": "guided"}}}
    guided = _examples(
        [claim_with_guidance()], RESPONSES, advantages, load_run_spec(small.spec, None, override).spec
    )
    assert [e.prompt for e in guided] == ["guided!", "guided!", "plain"]


def test_what_the_loss_is_divided_by(small: tiny.Paths) -> None:
    spec = load_run_spec(small.spec).spec
    examples = _examples([claim_with_guidance()], RESPONSES, np.zeros((1, 3)), spec)
    assert _normaliser(examples, spec) == 6.0  # tokens of the batch
    without_length_bias = load_run_spec(small.spec, None, {"reward": {"advantage": "dr_grpo"}}).spec
    assert _normaliser(examples, without_length_bias) == 3 * 10.0


# --- what can go wrong ----------------------------------------------------------------------------


def test_a_prompt_that_is_too_long_is_bad_input(small: tiny.Paths) -> None:
    edit(small.spec, "max_prompt_tokens: 160", "max_prompt_tokens: 8")
    done = tiny.invoke("train", small.spec)
    assert done.exit_code == 2
    assert "engine.max_prompt_tokens is 8" in done.output


@pytest.mark.parametrize("test", ["measure", "none"])
def test_a_checklist_that_is_too_long_does_not_end_the_run(test: str, small: tiny.Paths) -> None:
    """A candidate that does not fit the prompt is one to refuse, with that reason."""
    edit(small.spec, "margin: 0.0", f"margin: 0.0, test: {test}")
    tasks = small.folder / "texts" / "animals.yaml"
    text = tasks.read_text()
    # Out of reach: every group collapses at the floor, and guidance is what could repair that.
    for old, new in (("pattern: e}", "pattern: QQQQ}"), ("min: 3}", "min: 300}"), ("'\\d'", "QQQQQ")):
        assert old in text
        text = text.replace(old, new)
    start, end = text.index("  checklists:"), text.index("train:")
    tasks.write_text(text[:start] + f"  checklists:\n    - [{'fox ' * 200}]\n" + text[end:])
    edit(small.spec, "p: {min_effective_tasks: 1.5}", "p: {evolve: false}\n  c: {evolve: false}")
    done = tiny.invoke("train", small.spec, "--steps", "4")
    assert done.exit_code == 0, done.output[-400:]
    decisions = [r for r in read_log(small.run / "events.jsonl") if isinstance(r, Decision)]
    assert decisions
    assert not [d for d in decisions if d.accepted]


def test_a_full_disk_ends_a_run_cleanly(small: tiny.Paths) -> None:
    """The weights (1.9 MB) do not fit: no checkpoint, a message and no traceback."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    done = subprocess.run(
        tiny.command("train", small.spec, "--steps", "2", "--recipe", "grpo"),
        capture_output=True,
        text=True,
        preexec_fn=limit,
        env=os.environ,
        timeout=240,
    )
    assert latest_checkpoint(RunFolder(small.run)) is None
    assert done.returncode == 1, done.stderr[-600:]
    assert "Traceback" not in done.stderr, done.stderr[-600:]
    assert f"--resume {small.run}" in done.stderr


def test_a_run_folder_that_cannot_be_made(small: tiny.Paths) -> None:
    small.runs.write_text("a file where the runs should go")
    done = tiny.invoke("train", small.spec, "--steps", "1")
    assert done.exit_code in (1, 2)
    assert isinstance(done.exception, SystemExit), repr(done.exception)
    assert str(small.runs) in done.output


def test_a_model_that_cannot_be_loaded(small: tiny.Paths, tiny_model: Path) -> None:
    broken = Path(shutil.copytree(tiny_model, small.folder / "broken"))
    (broken / "model.safetensors").unlink()
    edit(small.spec, str(tiny_model), str(broken))
    done = tiny.invoke("train", small.spec)
    assert done.exit_code == 2
    assert "cannot be loaded" in done.output


def test_a_step_that_is_no_number_ends_the_run_with_its_name(small: tiny.Paths) -> None:
    text = small.spec.read_text()
    small.spec.write_text(text.replace("learning_rate: 1e-3", "learning_rate: 1e30\n  epochs: 2"))
    done = tiny.invoke("train", small.spec, "--no-probe")
    assert done.exit_code == 1
    says = r"step \d+ \(the first is 0\): loss is nan, grad_norm is nan"
    assert re.search(says, done.output), done.output
    assert "nan" not in "".join(file.read_text().lower() for file in small.run.glob("*.jsonl"))
