"""Every recipe runs, and the run's own records show that it does what it says it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.memory.events import fold_versions, read_log
from harnessrl.memory.records import Accepted, AnyRecord, Decision, Diagnosis, Group, RunStarted
from harnessrl.specs.harness import HarnessState
from harnessrl.specs.loader import RECIPES, load_run_spec
from harnessrl.specs.sampling import probabilities
from harnessrl.specs.schema import RunSpec
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.trainer import train
from harnessrl.trainer.data.load import load_resolved

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
QUICKSTART = RECIPES.parent / "quickstart.yaml"
#: Six: half of RuscaRL's guidance is left at the second step of a run this long.
STEPS = 6
GROUP = 4


@dataclass(frozen=True)
class Run:
    """What a run of one recipe left in its folder."""

    spec: RunSpec
    tasks: dict[str, TrainTask]
    records: list[AnyRecord]
    rollouts: list[dict[str, Any]]
    metrics: list[dict[str, Any]]

    @property
    def decisions(self) -> list[Decision]:
        return [r for r in self.records if isinstance(r, Decision)]

    @property
    def versions(self) -> list[HarnessState]:
        return fold_versions(self.tasks, self.records)


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Callable[[str], Run]:
    """The run of a recipe by its name. Each is trained once."""

    @cache
    def trained(recipe: str) -> Run:
        paths = tiny.write_spec(tmp_path_factory.mktemp("recipe"), tiny_model, steps=STEPS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(train, "build_report", lambda root: root / "report.html")
            done = tiny.invoke("train", paths.spec, "--recipe", recipe, "--no-probe")
        assert done.exit_code == 0, done.output + repr(done.exception)
        files = sorted((paths.run / "rollouts").iterdir())
        return Run(
            load_run_spec(paths.run / "spec.yaml").spec,
            load_resolved(paths.run / "tasks.yaml").train,
            read_log(paths.run / "events.jsonl"),
            [row for file in files for row in tiny.rows(file)],
            tiny.rows(paths.run / "metrics.jsonl"),
        )

    return trained


# --- every recipe ---------------------------------------------------------------------------------


def test_all_of_them_are_there() -> None:
    wanted = {"harnessrl", "grpo", "ruscarl", "amaris", "amaris++", "no-critic", "no-critic-no-memory"}
    assert wanted | {"no-p", "no-g", "no-c"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_fits_the_shipped_quickstart(name: str) -> None:
    done = tiny.invoke("validate", QUICKSTART, "--recipe", name)
    assert done.exit_code == 0, done.output
    assert "12 training tasks, 12 held out" in done.output


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    assert [row["step"] for row in run.metrics] == list(range(STEPS))
    assert all(row["loss"] is not None and math.isfinite(row["loss"]) for row in run.metrics)
    assert len(run.rollouts) == STEPS * 2 * GROUP
    assert any(row["advantage"] for row in run.rollouts)
    (start,) = [r for r in run.records if isinstance(r, RunStarted)]
    assert start.recipe == name


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_decides_on_its_own_interfaces_only(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    evolving = {i for i in ("p", "g", "c") if getattr(run.spec.interfaces, i).evolve}
    assert {d.update.interface for d in run.decisions} <= evolving
    for record in run.records:
        if isinstance(record, Diagnosis):
            assert set(record.interfaces) <= evolving
    assert bool(run.decisions) == run.spec.evolves  # on these tasks there is always work


@pytest.mark.parametrize("name", NAMES)
def test_a_version_is_what_was_accepted(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    accepted = [d.id for d in run.decisions if d.accepted]
    assert [i for r in run.records if isinstance(r, Accepted) for i in r.decision_ids] == accepted
    assert all(d.author == "evolver" for d in run.decisions)


# --- grpo -----------------------------------------------------------------------------------------


def test_grpo_never_changes_anything(run_of: Callable[[str], Run]) -> None:
    run = run_of("grpo")
    assert {type(r).__name__ for r in run.records} == {
        "RunStarted",
        "Group",
        "StepSummary",
        "RunFinished",
    }
    assert {r.harness_version for r in run.records} == {0}
    assert len(run.versions) == 1
    assert not any(row["guided"] or row["guidance"] for row in run.rollouts)
    for group in run.records:
        if isinstance(group, Group):  # the seed rubric is scored for ever
            assert list(group.met) == [c.id for c in run.tasks[group.task_id].rubric]
    p = probabilities(run.versions[-1], {}, run.spec.interfaces.p.paused_weight)
    assert set(p.values()) == {1 / len(run.tasks)}
    assert not run.metrics[-1]["rollouts"].get("critic")


@pytest.mark.parametrize("name", ["grpo", "no-g", "amaris", "amaris++"])
def test_without_g_the_guidance_of_the_spec_is_left_out(name: str, tmp_path: Path) -> None:
    spec = tmp_path / "guided.yaml"
    start = "{field: skill, lines: [Name leaves.]}"
    spec.write_text(f"extends: {QUICKSTART}\ninterfaces: {{g: {{start: [{start}]}}}}\n")
    assert load_run_spec(spec, "no-c").spec.interfaces.g.start  # with g it stays
    assert not load_run_spec(spec, name).spec.interfaces.g.start


# --- ruscarl --------------------------------------------------------------------------------------


def as_shown(criterion: Criterion) -> str:
    return criterion.text if criterion.points > 0 else f"avoid: {criterion.text}"


def test_ruscarl_shows_the_share_of_the_criteria_that_it_should(run_of: Callable[[str], Run]) -> None:
    run = run_of("ruscarl")
    sizes = set()
    for row in run.rollouts:
        rubric = [as_shown(c) for c in run.tasks[row["task_id"]].rubric]
        x = row["step"] / (STEPS - 1)
        sigma = 1 / (1 + math.exp(125 * (x - 0.2)))
        i = row["sample"]
        n = round(len(rubric) * (GROUP - 1 - i) / (GROUP - 1) * sigma)
        assert len(row["guidance"]) == len(set(row["guidance"])) == n, row
        assert set(row["guidance"]) <= set(rubric)
        assert row["guided"] == (n > 0)
        sizes.add((row["step"], i, n))
    # A ramp at first, half of it at the second step, and then none.
    assert {n for step, i, n in sizes if step == 0} >= {0, 1, 2, 3}
    assert {n for step, i, n in sizes if i == GROUP - 1} == {0}
    assert max(n for step, i, n in sizes if step == 1) in (1, 2)
    assert {n for step, i, n in sizes if step > 1} == {0}


def test_ruscarl_draws_at_random(run_of: Callable[[str], Run]) -> None:
    """Not the first criteria of a rubric, nor the same ones for every rollout that is shown some."""
    run = run_of("ruscarl")
    places = []
    for row in run.rollouts:
        rubric = [as_shown(c) for c in run.tasks[row["task_id"]].rubric]
        if 0 < len(row["guidance"]) < len(rubric):
            places.append(sorted(rubric.index(line) for line in row["guidance"]))
    assert any(chosen != list(range(len(chosen))) for chosen in places)
    assert len({tuple(chosen) for chosen in places}) > 2


def test_ruscarl_trains_on_the_plain_prompt_and_changes_nothing(run_of: Callable[[str], Run]) -> None:
    run = run_of("ruscarl")
    g = run.spec.interfaces.g
    assert (g.evolve, g.train_on, g.mismatch) == (False, "plain", "ignore")
    guided = [row for row in run.rollouts if row["guided"]]
    assert any(row["advantage"] < 0 for row in guided), "a bad guided rollout teaches too"
    assert run.metrics[0]["plain_logprob_guided"] is not None
    assert len(run.versions) == 1
    assert not run.decisions


# --- amaris ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["amaris", "amaris++"])
def test_amaris_adds_untested_criteria_after_reading_memory(
    name: str, run_of: Callable[[str], Run]
) -> None:
    run = run_of(name)
    assert all(d.accepted and d.measured is None for d in run.decisions)
    added = [d for d in run.decisions if d.update.op == "add"]
    remembering = [d for d in added if d.retrieved]
    assert remembering
    ids = {d.id: d for d in run.decisions}
    for decision in remembering:
        for read in decision.retrieved:
            assert ids[read].step < decision.step
        assert any(ids[read].task_id != decision.task_id for read in decision.retrieved)
    for decision in added:
        acting = run.versions[-1].all_criteria(decision.task_id)
        assert decision.update.criterion in acting
    assert not run.metrics[-1]["rollouts"].get("critic")


@pytest.mark.parametrize("name", ["amaris", "amaris++"])
def test_amaris_looks_beside_training(name: str, run_of: Callable[[str], Run]) -> None:
    """The next step is on record before what a look came to, which acts from the one after it on."""
    run = run_of(name)
    assert run.spec.evolver.mode == "async" and run.spec.evolver.apply_lag == 1
    places = {r.id: n for n, r in enumerate(run.records)}
    decided = {d.id: d.step for d in run.decisions}
    accepted = [r for r in run.records if isinstance(r, Accepted)]
    assert len(accepted) > 1
    for version in accepted:
        for i in version.decision_ids:
            assert decided[i] == version.step - 1
            assert places[f"g-{version.step:06d}-0"] < places[i] < places[f"s-{version.step:06d}"]
        rows = [row for row in run.metrics if row["harness_version"] == version.harness_version]
        assert rows[0]["step"] == version.step + 1
    for row in run.metrics[1:-1]:
        assert row["seconds"]["evolve"] > 0 and row["seconds"]["evolve_wait"] >= 0


@pytest.mark.parametrize("name", ["amaris", "amaris++"])
def test_amaris_keeps_every_seed_criterion(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    assert run.spec.interfaces.c.anchored
    for version in run.versions:
        for task_id, task in run.tasks.items():
            assert set(task.rubric) <= set(version.rubric(task_id))


def test_the_first_of_amaris_takes_any_criterion_the_other_weighs(run_of: Callable[[str], Run]) -> None:
    for decision in run_of("amaris").decisions:  # what it expects, and takes back, memory says
        remembers = "; remembered: " in decision.update.rationale
        assert (decision.update.expected is not None) == remembers
        assert decision.update.op == "add" or remembers
    margin = run_of("amaris++").spec.evolver.critic.margin
    expected = [d.update.expected for d in run_of("amaris++").decisions]
    assert all(e is not None and e >= margin for e in expected)


# --- ablations ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["no-critic", "no-critic-no-memory"])
def test_without_a_critic_nothing_is_measured(name: str, run_of: Callable[[str], Run]) -> None:
    run = run_of(name)
    assert all(d.measured is None and d.revision == 0 for d in run.decisions)
    refused = [d for d in run.decisions if not d.accepted]
    assert all(d.reason.startswith("cannot be applied") for d in refused)
    assert len(refused) < len(run.decisions)
    assert len(run.versions) > 1
    assert not run.metrics[-1]["rollouts"].get("critic")


def test_the_critic_measures_in_the_whole_method(run_of: Callable[[str], Run]) -> None:
    """What the ablations leave out is there to be left out."""
    run = run_of("harnessrl")
    measured = [d for d in run.decisions if d.measured is not None]
    assert measured
    assert any(d.retrieved for d in run.decisions)
    assert run.metrics[-1]["rollouts"]["critic"] == sum(d.measured.rollouts for d in measured)  # type: ignore[union-attr]


def test_no_critic_reads_memory_and_without_memory_nothing_is_read(
    run_of: Callable[[str], Run],
) -> None:
    assert any(d.retrieved for d in run_of("no-critic").decisions)
    assert not any(d.retrieved for d in run_of("no-critic-no-memory").decisions)


def test_without_memory_only_the_last_look_is_evidence(run_of: Callable[[str], Run]) -> None:
    run = run_of("no-critic-no-memory")
    steps = {r.id: r.step for r in run.records if isinstance(r, Group)}
    diagnoses = [r for r in run.records if isinstance(r, Diagnosis)]
    assert diagnoses
    for diagnosis in diagnoses:
        assert {steps[g] for g in diagnosis.evidence} == {diagnosis.step}
    older = [
        r
        for r in run_of("no-critic").records
        if isinstance(r, Diagnosis) and any(steps[g] < r.step for g in r.evidence)
    ]
    assert older, "with memory, older groups are evidence too"


@pytest.mark.parametrize(("name", "without"), [("no-p", "p"), ("no-g", "g"), ("no-c", "c")])
def test_an_ablation_differs_in_one_interface(name: str, without: str) -> None:
    whole = load_run_spec(QUICKSTART, "harnessrl").spec.model_dump()
    ablated = load_run_spec(QUICKSTART, name).spec.model_dump()
    assert ablated["interfaces"][without]["evolve"] is False
    ablated["interfaces"][without]["evolve"] = True
    assert ablated == whole


@pytest.mark.parametrize("name", ["no-g", "grpo", "amaris"])
def test_without_the_guidance_interface_nothing_is_ever_mounted(
    name: str, run_of: Callable[[str], Run]
) -> None:
    assert not any(row["guided"] for row in run_of(name).rollouts)


def test_without_the_rubric_interface_the_seed_rubric_is_scored(run_of: Callable[[str], Run]) -> None:
    run = run_of("no-c")
    for group in run.records:
        if isinstance(group, Group):
            assert list(group.met) == [c.id for c in run.tasks[group.task_id].rubric]
