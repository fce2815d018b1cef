"""The simulated engine: its policy gradient, its seeds, and a planted fault that the harness repairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny
from harnessrl.agents.policy import Request
from harnessrl.memory.events import read_log
from harnessrl.memory.records import Diagnosis, Probe
from harnessrl.specs.loader import load_run_spec, load_task_file
from harnessrl.specs.schema import SimEngine as SimSpec
from harnessrl.specs.tasks import Task
from harnessrl.trainer.engine import Example
from harnessrl.trainer.sim.engine import FILLERS, SimEngine, vocabulary

SPECS = Path(__file__).parent.parent / "specs"
TASKS: dict[str, Task] = {t.id: t for t in load_task_file(SPECS / "tasks" / "sim.yaml").train}
TIDES = TASKS["tides"]
SPEC = SimSpec(kind="sim", learning_rate=1.0)


def engine(seed: int = 0) -> SimEngine:
    return SimEngine(TASKS, SPEC, seed)


def responses(policy: SimEngine, prompt: str, n: int = 400) -> list[str]:
    return [s.text for s in policy.sample([Request(prompt, ("x", i)) for i in range(n)], 0)]


def share(texts: list[str], word: str) -> float:
    return float(np.mean([word in text for text in texts]))


def test_a_vocabulary_holds_what_is_looked_for_and_fillers() -> None:
    words = vocabulary(TIDES)
    assert {"amazing", "moon", "gravity", "hello", *FILLERS} <= set(words)
    assert len(words) == len(set(words))


def test_responses_depend_on_seed_and_key_only() -> None:
    first, again = responses(engine(), TIDES.prompt), responses(engine(), TIDES.prompt)
    assert first == again != responses(engine(seed=1), TIDES.prompt)
    assert all(text.endswith(".") and len(text) > 1 for text in first)


def test_guidance_makes_its_words_likelier_and_no_others() -> None:
    policy = engine()
    plain = responses(policy, TIDES.prompt)
    guided = responses(policy, f"{TIDES.prompt}\n\nKeep to these points:\n- name gravity")
    assert share(guided, "gravity") > share(plain, "gravity") + 0.3
    assert abs(share(guided, "moon") - share(plain, "moon")) < 0.1


def test_a_step_moves_probability_to_what_had_an_advantage() -> None:
    policy = engine()
    before = policy.logits[TIDES.prompt].copy()
    others = {prompt: logits.copy() for prompt, logits in policy.logits.items() if prompt != TIDES.prompt}
    stats = policy.train([Example(TIDES.prompt, (0,), 1.0), Example(TIDES.prompt, (1,), -1.0)], 2.0)
    change = policy.logits[TIDES.prompt] - before
    assert change[0] > 0 > change[1]
    np.testing.assert_allclose(change[2:], 0, atol=1e-12)  # in neither: the two gradients cancel
    assert policy.version == 1 and stats.grad_norm > 0
    assert all((policy.logits[prompt] == logits).all() for prompt, logits in others.items())


def test_the_gradient_is_that_of_the_likelihood() -> None:
    policy = engine()
    example = Example(TIDES.prompt, (0, 3), 1.0)
    base = policy.logits[TIDES.prompt].copy()
    numeric = []
    for k in range(len(base)):
        values = []
        for eps in (1e-5, -1e-5):
            policy.logits[TIDES.prompt] = base.copy()
            policy.logits[TIDES.prompt][k] += eps
            values.append(policy.mean_logprob([example]))
        assert values[0] is not None and values[1] is not None
        numeric.append((values[0] - values[1]) / 2e-5 * len(example.response_ids))
    policy.logits[TIDES.prompt] = base.copy()
    policy.train([example], 1.0)
    analytic = (policy.logits[TIDES.prompt] - base) * SPEC.group_size / SPEC.learning_rate
    np.testing.assert_allclose(analytic, numeric, atol=1e-6)


def test_a_checkpoint_brings_the_table_back(tmp_path: Path) -> None:
    policy = engine()
    policy.train([Example(TIDES.prompt, (0,), 1.0)], 1.0)
    policy.save(tmp_path)
    other = engine(seed=5)
    other.load_optimizer(tmp_path)
    assert (other.logits[TIDES.prompt] == policy.logits[TIDES.prompt]).all()
    assert json.loads((tmp_path / "policy" / "logits.json").read_text())[TIDES.prompt]


# --- the planted fault ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sim")
    spec = folder / "sim.yaml"
    spec.write_text(f"extends: {SPECS / 'sim.yaml'}\nengine: {{steps: 40}}\n")
    for recipe in ("harnessrl", "grpo"):
        done = tiny.invoke(*("train", spec, "--recipe", recipe, "--folder", folder, "--name", recipe))
        assert done.exit_code == 0, done.output
        assert "the simulated policy" in done.output
    return {recipe: folder / recipe for recipe in ("harnessrl", "grpo")}


def quality(run: Path, when: str) -> float:
    (found,) = [
        r
        for r in read_log(run / "events.jsonl")
        if isinstance(r, Probe) and (r.split, r.when) == ("train", when)
    ]
    assert found.quality is not None
    return found.quality


def test_the_harness_keeps_quality_that_a_static_one_leaves(runs: dict[str, Path]) -> None:
    """The seed rubric pays for self-praise; the oracle does not."""
    gain = {recipe: quality(run, "after") - quality(run, "before") for recipe, run in runs.items()}
    assert gain["harnessrl"] > gain["grpo"] + 0.08


def test_the_fault_is_diagnosed_as_the_rubrics(runs: dict[str, Path]) -> None:
    found = [r for r in read_log(runs["harnessrl"] / "events.jsonl") if isinstance(r, Diagnosis)]
    apart = [d for d in found if d.failure in ("spurious", "inversion")]
    assert apart and all(d.interfaces == ["c"] for d in apart)


def test_another_kind_of_engine_replaces_the_whole_section(tmp_path: Path) -> None:
    spec = tmp_path / "other.yaml"
    spec.write_text(f"extends: {SPECS / 'quickstart.yaml'}\nengine: {{kind: sim, steps: 5}}\n")
    assert load_run_spec(spec).spec.engine == SimSpec(kind="sim", steps=5)
