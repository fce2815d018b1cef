"""Evaluations during training: tasks set apart, the best policy kept, and nothing else changed by it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.agents.policy import Request, Sample
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Evaluation
from harnessrl.specs.loader import SpecError, load_run_spec
from harnessrl.specs.openrlhf import OpenrlhfEngine
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.trainer.chat import Chat
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.data.validation import cut
from harnessrl.trainer.openrlhf.frozen import FrozenPolicy
from harnessrl.trainer.openrlhf.session import Session
from harnessrl.trainer.openrlhf.wire import Fingerprint, SlotSample, StepReport, SubmitRequest
from harnessrl.trainer.runfolder import RunFolder
from harnessrl.trainer.slots import judge_now
from harnessrl.trainer.start import assemble, begin_or_resume
from harnessrl.trainer.validation import Validation
from safetensors.torch import load_file
from transformers import AutoTokenizer

RUBRIC = (Criterion(text="a", points=1.0),)


def some(n: int, domains: int = 2) -> dict[str, TrainTask]:
    """Training tasks over a few domains."""
    made = [
        TrainTask(id=f"t{i}", domain=f"d{i % domains}", prompt=f"Write {i}.", rubric=RUBRIC)
        for i in range(n)
    ]
    return {task.id: task for task in made}


def with_validation(paths: tiny.Paths, every: int, **more: Any) -> Path:
    """The tiny spec, evaluating on its way."""
    spec = yaml.safe_load(paths.spec.read_text())
    spec["logging"] |= {"evaluate_every": every, "validation_samples": 2, **more}
    paths.spec.write_text(yaml.safe_dump(spec))
    return paths.spec


# --- the split ------------------------------------------------------------------------------------


def test_each_domain_gives_its_share_and_keeps_a_task() -> None:
    left, apart = cut(some(40), 0.1, seed=0)
    assert len(apart) == 4 and len(left) == 36 and not left.keys() & apart.keys()
    assert sorted(task.domain for task in apart.values()) == ["d0", "d0", "d1", "d1"]
    left, apart = cut(some(3, domains=2), 0.5, seed=0)
    assert {task.domain for task in left.values()} == {"d0", "d1"}
    assert len(apart) == 1


def test_the_split_is_the_seeds_and_not_that_of_the_files_order() -> None:
    tasks = some(40)
    turned = dict(reversed(tasks.items()))
    assert cut(tasks, 0.2, seed=1)[1].keys() == cut(turned, 0.2, seed=1)[1].keys()
    assert cut(tasks, 0.2, seed=1)[1].keys() != cut(tasks, 0.2, seed=2)[1].keys()


def test_what_is_said_twice_or_started_from_is_never_set_apart() -> None:
    tasks = some(10, domains=1)
    tasks["t9"] = tasks["t9"].model_copy(update={"prompt": "write: 8"})
    for seed in range(20):
        _, apart = cut(tasks, 0.5, seed, kept={"t0"})
        assert apart and not apart.keys() & {"t0", "t8", "t9"}


def test_nobody_takes_a_validation_task_for_a_training_one() -> None:
    _, apart = cut(some(10), 0.2, seed=0)
    assert not any(isinstance(task, TrainTask) for task in apart.values())


def test_tasks_that_a_file_names_are_taken(small: tiny.Paths) -> None:
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["validation"] = [content["train"].pop()]
    file.write_text(yaml.safe_dump(content))
    tasks = load_tasks(load_run_spec(with_validation(small, 2)))
    assert list(tasks.validation) == ["words"] and len(tasks.train) == 3


# --- a run ----------------------------------------------------------------------------------------


def test_a_run_evaluates_and_keeps_the_best(small: tiny.Paths) -> None:
    done = tiny.invoke("train", with_validation(small, 2))
    assert done.exit_code == 0, done.output + repr(done.exception)
    events = tiny.surviving(small.run / "events.jsonl")
    found = [event for event in events if event["type"] == "evaluation"]
    assert [one["steps_done"] for one in found] == [0, 2, 4, 6]
    assert [one["training_reward"] is None for one in found] == [True, False, False, False]
    assert all(one["quality"] is not None for one in found)
    apart = set(found[0]["per_task"])
    assert len(apart) == 2, "a task of each domain"
    started = next(event for event in events if event["type"] == "run_started")
    assert len(started["task_ids"]) == 2 and not apart & set(started["task_ids"])
    for event in events:
        if event["type"] not in ("evaluation", "probe"):
            assert event.get("task_id") not in apart, event
            assert not apart & {*event.get("task_ids", []), *event.get("update", {}).get("task_ids", [])}
    for file in (small.run / "rollouts").iterdir():
        assert not apart & {rollout["task_id"] for rollout in tiny.rows(file)}
    best = max(found, key=lambda one: (one["reward"], -one["steps_done"]))
    about = json.loads((small.run / "best" / "about.json").read_text())
    assert about == {name: best[name] for name in ("reward", "quality")} | {"steps": best["steps_done"]}
    assert f"best {best['reward']:.2f} after {best['steps_done']} steps" in done.output
    assert not (small.run / "best" / "optimizer").exists()
    report = (small.run / "report.html").read_text()
    assert "best/policy" in report
    assert "Validation tasks: seed-rubric reward" in report
    assert "Evaluations while it trained" in report
    totals = next(event for event in events if event["type"] == "run_finished")["rollouts"]
    assert totals["evaluate"] == 4 * 2 * 2


def test_the_best_policy_is_that_of_its_step(small: tiny.Paths) -> None:
    """A run that ends where the best one was has the same weights."""
    with_validation(small, 1)
    assert tiny.invoke("train", small.spec, "--no-probe").exit_code == 0
    about = json.loads((small.run / "best" / "about.json").read_text())
    if about["steps"] == 0:
        pytest.skip("no step made it better")
    done = tiny.invoke("train", small.spec, "--no-probe", "--name", "short", "--steps", about["steps"])
    assert done.exit_code == 0, done.output
    (checkpoint,) = (small.runs / "short" / "checkpoints").iterdir()
    ours, theirs = (
        load_file(folder / "policy" / "model.safetensors") for folder in (small.run / "best", checkpoint)
    )
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)


def test_a_killed_run_evaluates_as_the_whole_one_did(small: tiny.Paths) -> None:
    with_validation(small, 1)
    assert tiny.invoke("train", small.spec, "--no-probe").exit_code == 0
    process = tiny.start("train", small.spec, "--no-probe", "--name", "killed")
    killed = small.runs / "killed"
    tiny.wait_until(lambda: tiny.n_lines(killed / "metrics.jsonl") >= 3, process)
    process.kill()
    process.wait()
    done = tiny.invoke("train", "--resume", killed)
    assert done.exit_code == 0, done.output

    def evaluations(run: Path) -> list[dict[str, Any]]:
        return [e for e in tiny.surviving(run / "events.jsonl") if e["type"] == "evaluation"]

    assert evaluations(killed) == evaluations(small.run)
    for name in ("about.json", "policy/model.safetensors"):
        assert (killed / "best" / name).read_bytes() == (small.run / "best" / name).read_bytes()


def test_without_it_nothing_is_set_apart(finished: tiny.Finished) -> None:
    assert not (finished.run / "best").exists()
    assert "validation" not in yaml.safe_load((finished.run / "tasks.yaml").read_text())
    (line,) = [e for e in tiny.rows(finished.run / "events.jsonl") if e["type"] == "run_finished"]
    assert "evaluate" not in line["rollouts"]


def test_evaluating_moves_no_draw_of_training(small: tiny.Paths) -> None:
    """The same tasks to train on, with evaluations and without: the same rollouts and weights."""
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["validation"] = [content["train"].pop()]
    file.write_text(yaml.safe_dump(content))
    for name, every in (("with", 1), ("without", 0)):
        with_validation(small, every)
        done = tiny.invoke("train", small.spec, "--no-probe", "--name", name, "--steps", 3)
        assert done.exit_code == 0, done.output
    first, second = (tiny.content(small.runs / name) for name in ("with", "without"))
    for part in ("rollouts", "harness", "weights", "optimizer", "threads"):
        assert first[part] == second[part], part


# --- an engine elsewhere --------------------------------------------------------------------------


class ScriptedServer:
    """In place of the frozen policy's vLLM (tests/engines has that): its answers, by version."""

    def __init__(self, answers: list[str]) -> None:
        self.answers = answers
        self.version = 0
        self.folder: Path | None = None

    def check_prompt(self, prompt: str) -> None:
        pass

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        return [Sample(self.answers[self.version], (1, 2), True) for _ in requests]

    def frozen(self) -> ScriptedServer:
        return self

    def serve(self, folder: Path, version: int, prints: Sequence[Fingerprint]) -> None:
        self.folder, self.version = folder, version

    def save(self, folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "policy" / "version").write_text(str(self.version))


SERVED = """
name: served
tasks: {{files: [texts/animals.yaml, texts/apart.yaml]}}
roles: {{policy: {{model: {model}}}}}
interfaces: {{p: {{evolve: false}}, g: {{evolve: false}}, c: {{evolve: false}}}}
engine:
  {{kind: openrlhf, device: cpu, steps: 3, tasks_per_step: 1, group_size: 2,
    max_new_tokens: 10, max_prompt_tokens: 160}}
logging: {{folder: runs, probe_samples: 0, evaluate_every: 2, validation_samples: 2}}
"""


def test_openrlhf_evaluates_the_weights_it_exports_for_that(tmp_path: Path, tiny_model: Path) -> None:
    tiny.write_spec(tmp_path, tiny_model)
    (tmp_path / "texts" / "apart.yaml").write_text(tiny.APART_YAML)
    file = tmp_path / "served.yaml"
    file.write_text(SERVED.format(model=tiny_model))
    spec = load_run_spec(file)
    tasks = load_tasks(spec)
    run = RunFolder(tmp_path / "runs" / "served")
    run.root.mkdir(parents=True)
    server = ScriptedServer(["no", "no", "we", "see"])
    past = begin_or_resume(spec.spec, "harnessrl", tasks, run, "no")
    exported = []
    with assemble(spec.spec, tasks, run, past, server, judge_now) as parts:
        session = Session(spec.spec, tasks, run, parts, server, lambda text: None)
        session.begin(with_probe=False)
        for step in range(3):
            for sample in range(2):
                session.claim(SlotSample(step=step, slot=0, sample=sample))
                session.submit(
                    SubmitRequest(
                        step=step, slot=0, sample=sample, text="a b"[: sample + 1], token_ids=[1],
                        finished=True,
                    )
                )  # fmt: skip
            reply = session.advantages(step)
            assert reply is not None
            exported.append(reply.export)
            policy = str(tmp_path / f"frozen-{step}") if reply.export else None
            session.finish_step(step, StepReport(loss=0, grad_norm=0, clip_share=0, policy=policy))
        session.close()
    assert exported == [False, True, True]  # after two steps, and after the last one
    found = [r for r in read_log(run.events) if isinstance(r, Evaluation)]
    assert [(one.steps_done, one.reward) for one in found] == [(0, 0.0), (2, 1.0), (3, 0.5)]
    assert found[0].training_reward is None and found[1].training_reward is not None
    assert (run.best / "policy" / "version").read_text() == "2"
    seconds = [row["seconds"] for row in tiny.rows(run.metrics)]
    assert ["evaluate" in row for row in seconds] == [False, True, True]


def test_an_evaluation_that_the_controller_was_killed_in_is_made_up_for(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer, whose report was not answered, hands it in again."""
    tiny.write_spec(tmp_path, tiny_model)
    (tmp_path / "texts" / "apart.yaml").write_text(tiny.APART_YAML)
    file = tmp_path / "served.yaml"
    file.write_text(SERVED.format(model=tiny_model).replace("evaluate_every: 2", "evaluate_every: 1"))
    spec = load_run_spec(file)
    tasks = load_tasks(spec)
    run = RunFolder(tmp_path / "runs" / "served")
    run.root.mkdir(parents=True)
    report = StepReport(loss=0, grad_norm=0, clip_share=0, policy=str(tmp_path / "frozen-1"))
    server = ScriptedServer(["no", "see"])

    class Killed(BaseException):
        pass

    def kill(*args: Any) -> None:
        raise Killed

    with assemble(
        spec.spec, tasks, run, begin_or_resume(spec.spec, "", tasks, run, "no"), server
    ) as parts:
        session = Session(spec.spec, tasks, run, parts, server, lambda text: None)
        session.begin(with_probe=False)
        for sample in range(2):
            where = SlotSample(step=0, slot=0, sample=sample)
            session.claim(where)
            session.submit(SubmitRequest(**where.model_dump(), text="a", token_ids=[1], finished=True))
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Validation, "evaluate", kill)
            session.finish_step(0, report)
        session.close()
    server = ScriptedServer(["no", "see"])
    past = begin_or_resume(spec.spec, "", tasks, run, "log")
    with assemble(spec.spec, tasks, run, past, server) as parts:
        session = Session(spec.spec, tasks, run, parts, server, lambda text: None, past.records)
        assert session.step == 1
        for _ in range(2):  # once
            session.finish_step(0, report)
        session.close()
    found = [r for r in read_log(run.events) if isinstance(r, Evaluation)]
    assert [one.steps_done for one in found] == [0, 1]
    assert found[1].training_reward == tiny.rows(run.metrics)[0]["reward_mean"]
    assert (run.best / "policy" / "version").read_text() == ("1" if found[1].reward else "0")


def test_the_best_policy_outlives_the_folder_that_was_served(tmp_path: Path, tiny_model: Path) -> None:
    """Without a copy of its gigabytes."""
    served = tmp_path / "frozen-000002"
    shutil.copytree(tiny_model, served)
    (served / "linked.json").symlink_to(tiny_model / "config.json")  # as in a hub's cache
    engine = OpenrlhfEngine.model_validate(
        {"kind": "openrlhf", "device": "cpu", "steps": 1, "tasks_per_step": 1, "group_size": 2}
    )
    policy = FrozenPolicy(
        engine, served, Chat(AutoTokenizer.from_pretrained(served), 64, {}), tmp_path / "log"
    )
    policy.save(tmp_path / "best")
    policy.close()
    kept = tmp_path / "best" / "policy"
    assert (served / "model.safetensors").stat().st_ino == (kept / "model.safetensors").stat().st_ino
    shutil.rmtree(served)
    assert (kept / "linked.json").read_text() == (tiny_model / "config.json").read_text()
    assert (
        load_file(kept / "model.safetensors").keys() == load_file(tiny_model / "model.safetensors").keys()
    )


# --- bad input ------------------------------------------------------------------------------------


def test_a_domain_of_one_task_gives_none(small: tiny.Paths) -> None:
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["train"] = content["train"][:1]
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(SpecError, match="no training task can be set apart"):
        load_tasks(load_run_spec(with_validation(small, 2)))
