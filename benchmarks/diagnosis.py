"""What the diagnosis takes: 100,000 pairs of rollouts, and the table of a run.

    python benchmarks/diagnosis.py                # 21 runs of everything

Prints the median of several runs of classifying 100,016 pairs (3,572 groups of 8) with their signal rate,
from arrays and from the records of a run, and of the table per criterion, task, domain and step, with
intervals, of a run of 28 steps with 4 groups of 8 and 6 criteria a task. CPU milliseconds: the work is
single-threaded. Exits with 1 on a miss.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
from harnessrl.agents.evolver.attribute import group_arrays
from harnessrl.agents.scoring.alarms import alarms
from harnessrl.agents.scoring.breakdown import BYS, breakdown
from harnessrl.agents.scoring.diagnosis import (
    as_known,
    as_verdicts,
    by_class,
    class_counts,
    collapse,
    pair_classes,
    signal_interval,
    signal_rate,
    stacks,
)
from harnessrl.agents.scoring.reward import Floats
from harnessrl.memory.records import Group
from harnessrl.specs.tasks import Criterion

BAR_MS = 50.0
GROUPS, SIZE = 3_572, 8  # 28 pairs each
STEPS, SLOTS, TASKS, CRITERIA = 28, 4, 12, 6


def arrays(groups: int, size: int, seed: int = 0) -> tuple[Floats, Floats]:
    """(score_MG, quality_MG) with ties, collapsed groups, unscored rollouts and a silent oracle."""
    rng = np.random.default_rng(seed)
    quality_MG = rng.integers(20, size=(groups, size)) / 20
    score_MG = np.round(quality_MG + rng.normal(0, 0.3, quality_MG.shape), 1)
    tied_M = rng.random(groups) < 0.2
    score_MG[tied_M] = rng.choice([-0.2, 0.0, 0.5, 1.0], size=(tied_M.sum(), 1))
    score_MG[rng.random(score_MG.shape) < 0.02] = np.nan
    quality_MG[rng.random(groups) < 0.1] = np.nan
    return score_MG, quality_MG


def records(groups: int) -> tuple[list[Group], dict[str, Criterion]]:
    """Groups as a run records them, a few a step, and the criteria they were scored by."""
    score_MG, quality_MG = arrays(groups, SIZE)
    rng = np.random.default_rng(1)
    criteria = [
        Criterion(text=f"Criterion {k} of task {n}.", points=-1 if k == 0 else 1 + k % 3)
        for n in range(TASKS)
        for k in range(CRITERIA)
    ]
    made = []
    for n, (score_G, quality_G) in enumerate(zip(score_MG, quality_MG, strict=True)):
        task = n % TASKS
        rubric = criteria[task * CRITERIA : (task + 1) * CRITERIA]
        met_GK = (rng.random((SIZE, CRITERIA)) < 0.5).astype(float)
        made.append(
            Group(
                id=f"g-{n}",
                step=n // SLOTS,
                harness_version=0,
                slot=n % SLOTS,
                task_id=f"task-{task}",
                domain=f"domain-{task % 5}",
                rewards=as_known(score_G),
                quality=as_known(quality_G),
                guided=[False] * SIZE,
                met={c.id: as_verdicts(met_GK[:, k]) for k, c in enumerate(rubric)},
                collapse=collapse(score_G),
                pairs=pair_classes(score_G, quality_G),
            )
        )
    return made, {criterion.id: criterion for criterion in criteria}


def milliseconds(work: Callable[[], object], runs: int) -> float:
    """Median CPU time of several runs, after one that nobody counts."""
    work()
    times = []
    for _ in range(runs):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return 1000 * median(times)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=21, help="how often everything is measured")
    parser.add_argument("--loose", action="store_true", help="five times the bar: for a busy machine")
    options = parser.parse_args(arguments)
    score_MG, quality_MG = arrays(GROUPS, SIZE)
    many, _ = records(GROUPS)
    run, criteria = records(STEPS * SLOTS)

    def diagnosed() -> float | None:
        return signal_rate(by_class(class_counts(score_MG, quality_MG)))

    def from_records() -> float | None:
        counts = [class_counts(*stack) for stack in stacks(group_arrays(many))]
        return signal_rate(by_class(np.concatenate(counts)))

    def with_interval() -> object:
        pairs = zip(score_MG, quality_MG, strict=True)
        return signal_interval(pairs, np.random.default_rng(0))

    bar = BAR_MS * (5 if options.loose else 1)
    pairs = GROUPS * SIZE * (SIZE - 1) // 2
    figures: list[tuple[str, Callable[[], object], float | None]] = [
        ("classes and signal rate, from arrays", diagnosed, bar),
        ("the same, from the records of a run", from_records, bar),
        ("interval of that, 200 replicates", with_interval, None),
    ]
    missed = 0
    print(f"{pairs:,} pairs ({GROUPS:,} groups of {SIZE})")
    for name, work, limit in figures:
        missed += tell(name, milliseconds(work, options.runs), limit)
    print(f"a run of {STEPS} steps, {SLOTS} groups of {SIZE} each, {CRITERIA} criteria a task")
    for by in BYS:
        n = len(breakdown(run, by, criteria, 0))
        took = milliseconds(lambda by=by: breakdown(run, by, criteria, 0), options.runs)
        missed += tell(f"table by {by} with intervals, {n} rows", took, None)
    missed += tell(
        "alarms of all its groups", milliseconds(lambda: alarms(run, criteria), options.runs), None
    )
    return 1 if missed else 0


def tell(name: str, value: float, bar: float | None) -> bool:
    """Print a figure; is it over its bar?"""
    over = bar is not None and value >= bar
    against = "" if bar is None else f"  (bar: under {bar:g})"
    print(f"{name:44} {value:8.2f} ms{against}{'  MISSED' if over else ''}")
    return over


if __name__ == "__main__":
    raise SystemExit(main())
