"""Advice before a run: each line where it is due, and nowhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.specs.loader import RECIPES, load_run_spec
from harnessrl.specs.sampling import draw_tasks
from harnessrl.specs.schema import RunSpec
from harnessrl.specs.tasks import Pool, TrainTask
from harnessrl.trainer.advice import advice
from harnessrl.trainer.data.load import Refusal, Tasks, load_tasks

QUICKSTART = RECIPES.parent / "quickstart.yaml"
TASKS = load_tasks(load_run_spec(QUICKSTART))  # 12 to train on
NAMES = list(TASKS.train)


def spec(recipe: str | None = None, **sections: Any) -> RunSpec:
    """The quickstart's (12 tasks; 4 a step; a look every 2 steps at 8 steps' evidence) with changes."""
    return load_run_spec(QUICKSTART, recipe, sections).spec


def without(what: str, names: Sequence[str], value: Any = None) -> Tasks:
    """The starter tasks, some of them without something."""
    train = {
        name: task.model_copy(update={what: value}) if name in names else task
        for name, task in TASKS.train.items()
    }
    return Tasks(train, TASKS.held_out)


def told(about: RunSpec, tasks: Tasks = TASKS) -> str:
    """The one line of advice, or nothing."""
    lines = advice(about, tasks)
    assert len(lines) <= 1, lines
    return lines[0] if lines else ""


# --- the shipped spec -----------------------------------------------------------------------------


def test_the_shipped_quickstart_gets_none() -> None:
    assert advice(spec(), TASKS) == []


@pytest.mark.parametrize(
    "recipe",
    [path.stem for path in sorted(RECIPES.glob("*.yaml"))],
)
def test_no_recipe_gets_any_over_the_quickstart(recipe: str) -> None:
    assert advice(spec(recipe), TASKS) == []


# --- thin evidence --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("evolver", "says"),
    [
        ({"max_staleness": 8}, ""),
        ({"max_staleness": 6}, ""),  # 6 steps of 4 groups: 2 for each of the 12 tasks
        ({"max_staleness": 5}, "1.7 groups in evolver.max_staleness 5 steps, and 2 are needed"),
        ({"max_staleness": 1}, "0.3 groups in evolver.max_staleness 1 steps, and 2 are needed"),
        ({"max_staleness": 9, "attribute": {"min_groups": 3}}, ""),
        ({"max_staleness": 8, "attribute": {"min_groups": 3}}, "2.7 groups in evolver.max_staleness 8"),
        ({"memory": "look", "every": 6}, ""),
        ({"memory": "look", "every": 4}, "1.3 groups in evolver.every 4 steps, and 2 are needed"),
    ],
)
def test_thin_evidence(evolver: dict[str, Any], says: str) -> None:
    line = told(spec(evolver=evolver))
    assert says in line
    assert bool(line) == bool(says)


@pytest.mark.parametrize("needed", [2, 3, 5])
def test_what_is_advised_against_thin_evidence_helps(needed: int) -> None:
    thin = {"max_staleness": 1, "attribute": {"min_groups": needed}}
    line = told(spec(evolver=thin))
    enough = int(line.partition("set it to ")[2].split()[0])
    assert enough == needed * 12 / 4
    assert told(spec(evolver={**thin, "max_staleness": enough})) == ""
    assert told(spec(evolver={**thin, "max_staleness": enough - 1})) != ""


def test_a_static_harness_needs_no_evidence() -> None:
    for changes in ({"max_staleness": 1}, {"every": 50}):
        assert advice(spec("grpo", evolver=changes, engine={"warmup_steps": 0}), TASKS) == []


# --- too few steps for a look ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "evolver", "says"),
    [
        (5, {}, ""),  # a look after step 4, when some tasks have come twice
        (4, {}, "with 4 steps the harness will hardly change"),  # that look would be after the last step
        (2, {}, "with 2 steps the harness will hardly change"),
        (9, {"every": 8}, ""),
        (8, {"every": 8}, "looks every 8 steps, but not after the last one: with 8 steps"),
        (3, {"attribute": {"min_groups": 1}}, ""),
        (2, {"attribute": {"min_groups": 1}}, "the evolver needs 1 groups of a task"),
    ],
)
def test_too_few_steps_for_a_look(steps: int, evolver: dict[str, Any], says: str) -> None:
    line = told(spec(engine={"steps": steps, "warmup_steps": 0}, evolver=evolver))
    assert says in line
    assert bool(line) == bool(says)


def test_a_static_harness_may_be_short() -> None:
    assert told(spec("grpo", engine={"steps": 1, "warmup_steps": 0})) == ""


def can_conclude(n: int, k: int, every: int, needed: int, steps: int, seed: int) -> bool:
    """Does any look of a run find a task with enough groups?"""
    p = {str(i): 1 / n for i in range(n)}
    groups: Counter[str] = Counter()
    for step in range(steps - 1):  # not after the last one
        groups.update(draw_tasks(p, k, seed, step))
        if (step + 1) % every == 0 and max(groups.values()) >= needed:
            return True
    return False


def test_a_run_is_called_too_short_just_when_no_look_of_it_can_conclude() -> None:
    """Against the sampler itself, for numbers of tasks that fill whole steps."""
    base = spec(engine={"warmup_steps": 0}, evolver={"max_staleness": 1000})
    for n, k, every, needed, steps in product((4, 6, 12), (2, 3), (1, 2, 3), (1, 2, 3), range(1, 13)):
        if n % k:
            continue
        about = base.model_copy(
            update={
                "engine": base.engine.model_copy(update={"steps": steps, "tasks_per_step": k}),
                "evolver": base.evolver.model_copy(
                    update={
                        "every": every,
                        "attribute": base.evolver.attribute.model_copy(update={"min_groups": needed}),
                    }
                ),
            }
        )
        tasks = Tasks({name: TASKS.train[name] for name in NAMES[:n]})
        too_short = "will hardly change" in told(about, tasks)
        can = any(can_conclude(n, k, every, needed, steps, seed) for seed in range(4))
        assert too_short != can, (n, k, every, needed, steps)


def test_few_tasks_come_twice_in_one_step() -> None:
    """Two tasks and four groups a step: after the first step a look has two groups of each."""
    about = spec(engine={"steps": 2, "warmup_steps": 0}, evolver={"every": 1})
    assert can_conclude(n=2, k=4, every=1, needed=2, steps=2, seed=0)
    lines = advice(about, Tasks({name: TASKS.train[name] for name in NAMES[:2]}))
    assert not [line for line in lines if "will hardly change" in line]


# --- oracle, quality, pool ------------------------------------------------------------------------


def test_no_oracle() -> None:
    line = told(spec(oracle={"kind": "none"}))
    assert line == "no oracle: collapse will be visible, spurious reward will not"
    # That tasks say nothing of their quality is then no news.
    assert told(spec(oracle={"kind": "none"}), without("quality", NAMES)) == line


def test_tasks_without_quality_are_named() -> None:
    assert told(spec(), without("quality", NAMES[2:4])) == (
        f"no `quality`, so never diagnosed: {NAMES[2]}, {NAMES[3]}"
    )
    assert told(spec(), without("quality", NAMES[:7])).endswith(f", {NAMES[4]} and 2 more")


def test_tasks_without_a_pool_are_named() -> None:
    assert told(spec(), without("pool", NAMES[1:2], Pool())) == (
        f"no `pool`, so nothing to try on them: {NAMES[1]}"
    )
    half: list[TrainTask] = [TASKS.train[NAMES[0]]]
    for part in ("criteria", "checklists"):  # either half is something to try
        pool = half[0].pool.model_copy(update={part: ()})
        assert told(spec(), without("pool", NAMES[:1], pool)) == ""


@pytest.mark.parametrize(("recipe", "due"), [("grpo", False), ("no-g", True), ("no-c", True)])
def test_a_pool_is_missed_only_where_something_could_come_from_it(recipe: str, due: bool) -> None:
    assert bool(told(spec(recipe), without("pool", NAMES, Pool()))) == due
    asked = {"propose": {"role": "evolver"}}
    endpoint = {"base_urls": ["http://localhost:1/v1"], "model": "m"}
    roles = {"policy": {"model": "m"}, "evolver": endpoint}
    assert told(spec(recipe, evolver=asked, roles=roles), without("pool", NAMES, Pool())) == ""
    sampling_only = {"g": {"evolve": False}, "c": {"evolve": False}}
    assert told(spec(interfaces=sampling_only), without("pool", NAMES, Pool())) == ""


# --- sizes and rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "due"), [(12, False), (13, True), (40, True)])
def test_more_slots_than_tasks(k: int, due: bool) -> None:
    line = told(spec(engine={"tasks_per_step": k}))
    says = f"engine.tasks_per_step {k} of 12 training tasks: tasks repeat inside a step"
    assert line == (says if due else "")


@pytest.mark.parametrize(("warmup", "due"), [(0, False), (27, False), (28, True), (100, True)])
def test_a_warm_up_longer_than_the_run(warmup: int, due: bool) -> None:
    line = told(spec(engine={"warmup_steps": warmup}))
    says = f"engine.warmup_steps {warmup} of 28 steps: the learning rate never reaches 2e-05"
    assert line == (says if due else "")


@pytest.mark.parametrize(("rate", "due"), [(2e-5, False), (1e-2, False), (0.02, True), (20.0, True)])
def test_a_learning_rate_out_of_proportion(rate: float, due: bool) -> None:
    line = told(spec(engine={"learning_rate": rate}))
    assert line == (
        f"engine.learning_rate {rate:g} is far above what trains a language model" if due else ""
    )


# --- together -------------------------------------------------------------------------------------


def test_what_was_left_out_is_said_first() -> None:
    refused = [Refusal("rows.jsonl:3", "not a known schema")] * 2
    tasks = Tasks(TASKS.train, TASKS.held_out, refused=refused)
    assert advice(spec(), tasks) == ["left out: 2 x not a known schema (first: rows.jsonl:3)"]


def test_several_remarks_each_have_their_line() -> None:
    about = spec(
        engine={"steps": 3, "warmup_steps": 3, "tasks_per_step": 20, "learning_rate": 1.0},
        oracle={"kind": "none"},
        evolver={"every": 3},
    )
    lines = advice(about, without("pool", NAMES, Pool()))
    assert len(lines) == len(set(lines)) == 6


@pytest.mark.parametrize("command", ["validate", "train"])
def test_the_command_line_gives_advice_and_goes_on(
    command: str, tmp_path: Path, tiny_model: Path
) -> None:
    paths = tiny.write_spec(tmp_path, tiny_model, steps=2)
    text = paths.spec.read_text().replace("learning_rate: 1e-3", "learning_rate: 1e-3\n  warmup_steps: 9")
    paths.spec.write_text(text)
    more = ("--no-probe",) if command == "train" else ()
    done = tiny.invoke(command, paths.spec, *more)
    assert done.exit_code == 0, done.output + repr(done.exception)
    assert "engine.warmup_steps 9 of 2 steps" in done.output
