"""The spec language at size: 10,000 tasks with 120,000 criteria.

    python benchmarks/spec_language.py

Prints what `harnessrl validate` takes (the whole command: imports, reading, every check), for a YAML and
a JSONL file whose criteria share 12 patterns, for a JSONL file with a pattern of its own for each
criterion, and for one that a judge decides, with prompts long enough to be counted in tokens.
Then apply and diff on the harness state. Each is the fastest of several runs, so what the code takes and
not what else the machine does, beside its bar. Exits with 1 on a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from harnessrl.specs.harness import HarnessState, apply, diff
from harnessrl.specs.loader import load_run_spec
from harnessrl.specs.updates import Add, Boost, Mount
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.local.model import tokenizer_at_hand

QUICKSTART = Path(__file__).parent.parent / "specs" / "quickstart.yaml"
N_TASKS, N_CRITERIA = 10_000, 12
PROMPT_BYTES = 900
RUNS = 3
JUDGE = "judge: {base_urls: ['http://127.0.0.1:1/v1'], model: none}"
SPEC = """\
name: large
tasks: {{files: [{file}]}}
roles: {{policy: {{model: {policy}}}{judge}}}
engine: {{kind: local, max_prompt_tokens: 950}}
"""
#: How the patterns of criterion k look; `#` is a number that makes one distinct.
SHAPES = (
    *(r"word#", r"\bword#\b", r"(?:word|term)#(?:s|es)?", r"^\s*[-*] item #[.:]", r"\d+(?:\.\d+)? mg#"),
    *(r"https?://\S+#", r"(?i)term# is", r"a#.*b", r"\bno\b [^.]* #\.", r"#{1,3} [A-Z]\w+", r"word #$"),
    r"(?<!not )\bterm#\b",
)
VERBS = "explain compare describe summarise question defend rewrite list".split()
NOUNS = "treatment proof story contract recipe theorem journey budget river orchestra city".split()


def task(i: int, kind: str) -> dict[str, Any]:
    """One task as plain data."""
    rubric: list[dict[str, Any]] = []
    for k in range(N_CRITERIA):
        text = f"Criterion {k} of task {i} looks for one thing in the answer."
        rubric.append({"text": text, "points": 1 + k % 3})
        if kind != "judged":
            pattern = SHAPES[k].replace("#", str(i)) if kind == "distinct" else f"word{k}"
            rubric[k]["check"] = {"kind": "regex", "pattern": pattern}
    prompt = f"Question number {i}: say something about topic {i}."
    if kind == "judged":
        rng = random.Random(i)
        while len(prompt) < PROMPT_BYTES:
            prompt += f" Then {rng.choice(VERBS)} the {rng.choice(NOUNS)} of {rng.choice(NOUNS)} {i}."
    return {"id": f"task-{i}", "domain": f"domain-{i % 5}", "prompt": prompt, "rubric": rubric}


def yaml_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    """A task file as people write it: a criterion a line."""
    yield "train:"
    for row in rows:
        yield f"  - id: {row['id']}\n    domain: {row['domain']}\n    prompt: '{row['prompt']}'"
        yield "    rubric:"
        for criterion in row["rubric"]:
            check = criterion["check"]
            yield (
                f"      - {{text: {criterion['text']}, points: {criterion['points']}, "
                f"check: {{kind: {check['kind']}, pattern: {check['pattern']}}}}}"
            )


def write(folder: Path, policy: str) -> dict[str, Path]:
    """A spec for each kind of task file."""
    specs = {}
    for kind in ("yaml", "jsonl", "distinct", "judged"):
        rows = [task(i, kind) for i in range(N_TASKS)]
        file = folder / ("tasks.yaml" if kind == "yaml" else f"{kind}.jsonl")
        lines = yaml_lines(rows) if kind == "yaml" else map(json.dumps, rows)
        file.write_text("\n".join(lines) + "\n")
        specs[kind] = folder / f"{kind}.spec.yaml"
        judge = f", {JUDGE}" if kind == "judged" else ""
        specs[kind].write_text(SPEC.format(file=file.name, policy=policy, judge=judge))
    return specs


def validate(spec: Path) -> tuple[float, float]:
    """Seconds and GiB of `harnessrl validate` in a process of its own."""
    start = "from harnessrl.trainer.cli import main; main()"
    command = [sys.executable, "-c", start, "validate", str(spec)]
    # Python keeps what it compiled, as it does wherever nobody told it not to.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{spec} is not valid")
    per_gib = 2**30 if sys.platform == "darwin" else 2**20
    return seconds, usage.ru_maxrss / per_gib


def fastest(work: Callable[[], object], repeats: int = 20) -> float:
    """Milliseconds of the fastest of several runs."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return 1000 * min(times)


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--policy", default="smollm2-wheel", help="whose tokenizer counts")
    parser.add_argument("--slack", type=float, default=1.0, help="times the bars, on a busy machine")
    args = parser.parse_args()
    if tokenizer_at_hand(args.policy) is None:
        parser.error(f"the tokenizer of {args.policy} is not here yet: `harnessrl train` fetches it")
    figures: list[tuple[str, float, float, str]] = []
    names = {
        "yaml": "yaml, 12 patterns",
        "jsonl": "jsonl, 12 patterns",
        "distinct": "jsonl, 120,000 patterns",
        "judged": f"jsonl, judged, {PROMPT_BYTES}-byte prompts",
    }
    with tempfile.TemporaryDirectory() as folder:
        specs = write(Path(folder), args.policy)
        validate(QUICKSTART)  # whatever is to be compiled is, by then
        for kind, path in specs.items():
            seconds, gib = min(validate(path) for _ in range(RUNS))
            figures.append((f"validate {names[kind]}", seconds, 5.0, "s"))
            figures.append(("  memory of that", gib, 1.0, "GiB"))
        tasks = load_tasks(load_run_spec(specs["jsonl"]))
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
        bar *= args.slack
        missed += value >= bar
        print(f"{name:42} {value:8.3f} {unit:3}  (bar {bar:g}){'  MISSED' if value >= bar else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
