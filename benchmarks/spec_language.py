"""The spec language at size: 10,000 tasks with 120,000 criteria.

    python benchmarks/spec_language.py

Prints load and validation time of a YAML and of a JSONL task file, apply and diff on the harness state,
each beside its bar. Seconds are CPU seconds (the work is single-threaded). Exits with 1 on a miss.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harnessrl.specs.harness import HarnessState, apply, diff
from harnessrl.specs.loader import load_run_spec
from harnessrl.specs.updates import Add, Boost, Mount
from harnessrl.trainer.data.load import Tasks, load_tasks

N_TASKS, N_CRITERIA = 10_000, 12
SPEC = """\
name: large
tasks: {{files: [{file}]}}
roles: {{policy: {{model: smollm2-wheel}}}}
engine: {{kind: local}}
"""


def task(i: int) -> dict[str, Any]:
    """One task as plain data."""
    rubric = [
        {
            "text": f"Criterion {k} of task {i} looks for one thing in the answer.",
            "points": 1 + k % 3,
            "check": {"kind": "regex", "pattern": f"word{k}"},
        }
        for k in range(N_CRITERIA)
    ]
    prompt = f"Question number {i}: say something about topic {i}."
    return {"id": f"task-{i}", "domain": f"domain-{i % 5}", "prompt": prompt, "rubric": rubric}


def write(folder: Path) -> dict[str, Path]:
    """A spec for each kind of task file."""
    rows = [task(i) for i in range(N_TASKS)]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["train:"]
    for row in rows:
        lines.append(f"  - id: {row['id']}\n    domain: {row['domain']}\n    prompt: '{row['prompt']}'")
        lines.append("    rubric:")
        for criterion in row["rubric"]:
            check = criterion["check"]
            lines.append(
                f"      - {{text: {criterion['text']}, points: {criterion['points']}, "
                f"check: {{kind: {check['kind']}, pattern: {check['pattern']}}}}}"
            )
    (folder / "tasks.yaml").write_text("\n".join(lines) + "\n")
    specs = {}
    for kind in ("yaml", "jsonl"):
        specs[kind] = folder / f"{kind}.spec.yaml"
        specs[kind].write_text(SPEC.format(file=f"tasks.{kind}"))
    return specs


def load(path: Path) -> tuple[Tasks, float]:
    """The tasks, and CPU seconds."""
    started = time.process_time()
    tasks = load_tasks(load_run_spec(path))
    return tasks, time.process_time() - started


def load_alone(path: Path) -> tuple[float, float]:
    """CPU seconds and GiB of a load in a process of its own."""
    _, seconds = load(path)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fastest(work: Callable[[], object], repeats: int = 20) -> float:
    """Milliseconds of the fastest of several runs: what the code takes, without the machine's noise."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def main() -> int:
    """Measure, print, compare."""
    figures: list[tuple[str, float, float, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        specs = write(Path(folder))
        fork = multiprocessing.get_context("spawn")
        for kind, path in specs.items():
            with fork.Pool(1) as alone:
                seconds, gib = alone.apply(load_alone, (path,))
            figures.append((f"load and validate, {kind}", seconds, 5.0, "s"))
            figures.append((f"memory of that, {kind}", gib, 1.0, "GiB"))
        tasks, _ = load(specs["jsonl"])
    state = HarnessState(tasks.train)
    every = list(tasks.train)
    about = {"rationale": "a benchmark"}
    new = tasks.train[every[0]].rubric[0].model_copy(update={"text": "Something new."})
    boosts = [Boost(task_ids=(i,), factor=2.0, **about) for i in every]
    full = apply(state, boosts)  # every task has changes
    add = Add(task_ids=(every[7],), criterion=new, **about)
    mount = Mount(task_ids=(every[8],), lines=("a line",), share=0.5, **about)
    after = apply(full, [add, mount])
    figures.append(("apply one update", fastest(lambda: apply(full, [add])), 1.0, "ms"))
    figures.append(("one task's rubric", fastest(lambda: after.rubric(every[7])), 1.0, "ms"))
    figures.append(("diff of two versions", fastest(lambda: diff(full, after)), 100.0, "ms"))
    figures.append(("diff of all tasks", fastest(lambda: diff(state, full)), 100.0, "ms"))
    missed = 0
    print(f"{N_TASKS:,} tasks, {N_TASKS * N_CRITERIA:,} criteria")
    for name, value, bar, unit in figures:
        missed += value >= bar
        print(f"{name:30} {value:8.3f} {unit:3}  (bar {bar:g}){'  MISSED' if value >= bar else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
