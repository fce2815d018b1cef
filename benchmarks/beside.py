"""What the evolver costs a run when training waits for it, and when it looks beside training.

    python benchmarks/beside.py          # three runs of each mode

A tiny policy on the CPU and an evolver model that takes 200 ms to answer and proposes nothing, asked
about at most three tasks every second step. Prints for each mode the seconds that training waited for the
evolver as a share of its own (rollout, score, train, record, save): a ratio inside one run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import tiny
from harnessrl.memory.events import read_jsonl
from harnessrl.trainer.metrics import evolver_wait, wall_time
from scripted_endpoint import Body, Reply, ScriptedEndpoint

LATENCY = 0.2
STEPS = 12


def answer(body: Body) -> Reply:
    """No proposal, in `LATENCY` seconds."""
    return Reply(json.dumps({"rationale": "nothing helps", "op": "none"}), after=LATENCY)


def write_spec(folder: Path, model: Path, mode: str, url: str) -> tiny.Paths:
    """The tests' tiny run, with more rollouts a step."""
    paths = tiny.write_spec(folder, model, steps=STEPS)
    text = paths.spec.read_text()
    for old, new in {
        "every: 1": f"every: 2\n  mode: {mode}\n  apply_lag: 2\n  propose: {{role: evolver}}",
        "tasks_per_look: 2": "tasks_per_look: 3",
        "tasks_per_step: 2": "tasks_per_step: 4",
        "group_size: 4": "group_size: 16",
        "rollouts: 8": "rollouts: 16",
        "max_new_tokens: 10": "max_new_tokens: 64",
        "interfaces:": f"  evolver: {{base_urls: ['{url}'], model: scripted}}\ninterfaces:",
        "checkpoint_every: 2": "checkpoint_every: 8",
    }.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    paths.spec.write_text(text)
    return paths


def measure(folder: Path, model: Path, mode: str) -> dict[str, float]:
    """One run: the share that training waited, and the means of what that is made of."""
    with ScriptedEndpoint(answer) as endpoint:
        paths = write_spec(folder, model, mode, endpoint.base_url)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            done = tiny.invoke("train", paths.spec, "--no-probe")
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = read_jsonl(paths.run / "metrics.jsonl")
    parts = [row["seconds"] for row in rows]
    waited = sum(map(evolver_wait, parts))
    own = sum(map(wall_time, parts)) - waited
    looks = [part["evolve"] for part in parts if part.get("evolve", 0.0) > LATENCY]
    return {"share": waited / own, "step": own / STEPS, "look": median(looks)}


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        model = tiny.build_tiny_model(Path(name) / "model")
        measure(Path(name) / "warm", model, "sync")
        for mode in ("sync", "async"):
            found = [measure(Path(name) / f"{mode}-{n}", model, mode) for n in range(runs)]
            shares = sorted(one["share"] for one in found)
            step, look = (median(one[name] for one in found) for name in ("step", "look"))
            print(
                f"{mode:6} training waits {median(shares):6.1%} of its own time "
                f"({shares[0]:.1%} to {shares[-1]:.1%}); a step {step:.2f} s, a look {look:.2f} s"
            )


if __name__ == "__main__":
    main()
