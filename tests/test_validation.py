"""Evaluations during training: tasks set apart, the best policy kept, and nothing else changed by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.specs.loader import SpecError, load_run_spec
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.data.validation import cut
from safetensors.torch import load_file

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
    assert "best/policy" in (small.run / "report.html").read_text()
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


# --- bad input ------------------------------------------------------------------------------------


def test_a_domain_of_one_task_gives_none(small: tiny.Paths) -> None:
    file = small.folder / "texts" / "animals.yaml"
    content = yaml.safe_load(file.read_text())
    content["train"] = content["train"][:1]
    file.write_text(yaml.safe_dump(content))
    with pytest.raises(SpecError, match="no training task can be set apart"):
        load_tasks(load_run_spec(with_validation(small, 2)))


def test_openrlhf_does_not_evaluate() -> None:
    root = Path(__file__).parent.parent / "specs"
    with pytest.raises(SpecError, match=r"logging.evaluate_every.*openrlhf does not evaluate"):
        load_run_spec(root / "smoke-1gpu.yaml", None, {"logging": {"evaluate_every": 5}})
