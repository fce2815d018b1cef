"""The recipes without a critic read their memory: what followed earlier changes decides later ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tiny
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Decision
from harnessrl.specs.loader import RECIPES

SIM = RECIPES.parent / "sim.yaml"
UNMEASURED = ["amaris", "amaris++", "no-critic"]
#: Variants of a recipe: it as it is, with the same evidence but nothing retrieved, and without a memory.
REMEMBERS, UNTOLD, FORGETS = "", ", retrieve: {within: 0, across: 0}", ", memory: look"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """The folder of a simulated run of a recipe, a look after every step. Each is trained once."""

    @cache
    def trained(recipe: str, variant: str) -> Path:
        folder = tmp_path_factory.mktemp("recall")
        text = SIM.read_text().replace("steps: 60", "steps: 9")
        text = text.replace("tasks/sim.yaml", str(RECIPES.parent / "tasks" / "sim.yaml"))
        evolver = f"evolver: {{every: 1, attribute: {{min_groups: 1}}{variant}}}"
        spec = folder / "spec.yaml"
        spec.write_text(f"extends: {RECIPES / recipe}.yaml\n{text}\n{evolver}\n")
        done = tiny.invoke("train", spec, "--no-probe", "--folder", folder)
        assert done.exit_code == 0, done.output + repr(done.exception)
        return folder / "sim"

    return trained


def decisions_of(run: Path) -> list[Decision]:
    return [r for r in read_log(run / "events.jsonl") if isinstance(r, Decision)]


def remembering(run: Path) -> list[Decision]:
    return [d for d in decisions_of(run) if "; remembered: u-" in d.update.rationale]


@pytest.mark.parametrize("variant", [UNTOLD, FORGETS], ids=["nothing retrieved", "no memory"])
@pytest.mark.parametrize("recipe", UNMEASURED)
def test_without_memory_it_decides_otherwise(
    recipe: str, variant: str, run_of: Callable[[str, str], Path]
) -> None:
    made, without = decisions_of(run_of(recipe, REMEMBERS)), run_of(recipe, variant)
    assert not any(d.retrieved for d in decisions_of(without)) and not remembering(without)
    assert [tried(d) for d in made] != [tried(d) for d in decisions_of(without)]


def tried(decision: Decision) -> tuple[str, str]:
    """What was done where, whatever the reasons."""
    shown = decision.update.model_dump_json(exclude={"rationale", "evidence", "expected"})
    return decision.task_id, shown


@pytest.mark.parametrize("recipe", UNMEASURED)
def test_what_it_remembered_was_retrieved_before(recipe: str, run_of: Callable[[str, str], Path]) -> None:
    run = run_of(recipe, REMEMBERS)
    steps = {d.id: d.step for d in decisions_of(run)}
    found = remembering(run)
    assert found and all(d.measured is None for d in found)
    for decision in found:
        for one in decision.update.rationale.split("; remembered: ")[1].split("; "):
            read = one.split(",")[0]
            assert read in decision.retrieved and steps[read] < decision.step


@pytest.mark.parametrize("recipe", UNMEASURED)
def test_a_person_is_shown_what_it_remembered(recipe: str, run_of: Callable[[str, str], Path]) -> None:
    run = run_of(recipe, REMEMBERS)
    told = remembering(run)[0].update.rationale.split("; remembered: ")[1]
    done = tiny.invoke("harness", "log", run)
    assert done.exit_code == 0 and told in done.output
    assert told.replace(">", "&gt;") in (run / "report.html").read_text()
