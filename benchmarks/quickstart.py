"""The quickstart's figures: seeds 0-2 under both recipes, before and after, as a Markdown table.

    python benchmarks/quickstart.py                    # six runs, one after the other
    python benchmarks/quickstart.py --seeds 0          # two runs
    python benchmarks/quickstart.py --folder runs/bench --reuse    # read runs that are there already

Exits with 1 when a bar is missed; every figure is printed either way.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harnessrl.memory.events import read_jsonl, read_log
from harnessrl.memory.records import Decision, Probe, RunFinished

SPEC = Path(__file__).parent.parent / "specs" / "quickstart.yaml"
RECIPES = ("harnessrl", "grpo")
REWARD_GAIN = 0.2  # bar: on the training tasks, in every seed
MINUTES = 12.0  # bar: a run, on a quiet machine
RSS_GIB = 8.0


@dataclass(frozen=True)
class Row:
    """One run's figures."""

    recipe: str
    seed: int
    probes: dict[tuple[str, str], Probe]  # (split, when)
    accepted: dict[str, int]  # interface -> count
    rejected: int
    rollouts: int
    tokens: int
    minutes: float

    def reward_gain(self) -> float:
        """Seed-rubric reward on the training tasks, after less before."""
        return self._figure("after", "reward") - self._figure("before", "reward")

    def quality(self, when: str) -> float:
        """Oracle quality on the training tasks."""
        return self._figure(when, "quality")

    def _figure(self, when: str, name: str) -> float:
        return float(getattr(self.probes["train", when], name))


def main() -> int:
    """Run what is missing, print the table, check the bars."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--reuse", action="store_true", help="keep finished runs in the folder")
    args = parser.parse_args()
    rows = []
    for seed in args.seeds:
        for recipe in RECIPES:
            rows.append(_run(args.folder, recipe, seed, args.reuse))
            print(f"done: {recipe}, seed {seed}, {rows[-1].minutes:.1f} min", file=sys.stderr)
    print(table(rows))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    if peak > 0.1:
        print(f"\npeak memory of a run: {peak:.1f} GiB")
    missed = misses(rows, peak)
    for line in missed:
        print(f"MISSED: {line}")
    return 1 if missed else 0


def _run(folder: Path, recipe: str, seed: int, reuse: bool) -> Row:
    root = folder / f"{recipe}-{seed}"
    minutes = 0.0
    if not (reuse and (root / "report.html").exists()):
        if root.exists():
            raise SystemExit(f"{root} exists already; add --reuse or name another --folder")
        command = [sys.executable, "-m", "harnessrl.trainer.cli", "train", str(SPEC)]
        command += ["--recipe", recipe, "--seed", str(seed), "--name", f"{recipe}-{seed}"]
        started = time.monotonic()
        subprocess.run([*command, "--folder", str(folder)], check=True, stdout=sys.stderr)
        minutes = (time.monotonic() - started) / 60
    return _read(root, recipe, seed, minutes)


def _read(root: Path, recipe: str, seed: int, minutes: float) -> Row:
    records = read_log(root / "events.jsonl")
    decisions = [r for r in records if isinstance(r, Decision)]
    (end,) = [r for r in records if isinstance(r, RunFinished)]
    accepted: dict[str, int] = {}
    for decision in decisions:
        if decision.accepted:
            interface = decision.update.interface
            accepted[interface] = accepted.get(interface, 0) + 1
    probes = {(r.split, r.when): r for r in records if isinstance(r, Probe)}
    if minutes == 0.0:  # a reused run: what it booked itself
        steps = sum(sum(row["seconds"].values()) for row in read_jsonl(root / "metrics.jsonl"))
        minutes = (steps + sum(p.seconds for p in probes.values())) / 60
    return Row(
        recipe,
        seed,
        probes,
        accepted,
        sum(not d.accepted for d in decisions),
        sum(end.rollouts.values()),
        sum(end.tokens.values()),
        minutes,
    )


def table(rows: list[Row]) -> str:
    """The runs as a Markdown table."""
    lines = [
        "| recipe | seed | reward | quality | held-out reward | held-out quality "
        "| accepted | rejected | rollouts | tokens | minutes |",
        "| --- " * 11 + "|",
    ]
    for row in rows:
        cells = [row.recipe, str(row.seed)]
        for split in ("train", "held_out"):
            for name in ("reward", "quality"):
                before, after = (getattr(row.probes[split, w], name) for w in ("before", "after"))
                cells.append(f"{before:.2f} -> {after:.2f}")
        by_interface = ", ".join(f"{name} {n}" for name, n in sorted(row.accepted.items()))
        total = sum(row.accepted.values())
        cells += [f"{total} ({by_interface})" if total else "0", str(row.rejected)]
        cells += [f"{row.rollouts:,}", f"{row.tokens:,}", f"{row.minutes:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def misses(rows: list[Row], peak_gib: float) -> list[str]:
    """Every bar that a run misses, in words."""
    out = []
    static = {row.seed: row for row in rows if row.recipe == "grpo"}
    for row in rows:
        name = f"{row.recipe}, seed {row.seed}"
        if row.reward_gain() < REWARD_GAIN:
            out.append(f"{name}: reward gain {row.reward_gain():.3f} is below {REWARD_GAIN}")
        if row.minutes > MINUTES:
            out.append(f"{name}: {row.minutes:.1f} minutes, over {MINUTES:g}")
        if row.recipe != "harnessrl":
            continue
        if row.quality("after") < row.quality("before"):
            out.append(f"{name}: quality fell {row.quality('before'):.3f} -> {row.quality('after'):.3f}")
        if row.seed in static and row.quality("after") < static[row.seed].quality("after"):
            theirs = static[row.seed].quality("after")
            out.append(f"{name}: quality {row.quality('after'):.3f} is below grpo's {theirs:.3f}")
        if not row.accepted or not row.rejected:
            out.append(f"{name}: {sum(row.accepted.values())} accepted, {row.rejected} rejected")
    changed = {interface for row in rows for interface in row.accepted}
    if len(changed) < 2:
        out.append(f"accepted updates to {len(changed)} interfaces over the seeds, not 2")
    if peak_gib > RSS_GIB:
        out.append(f"peak memory {peak_gib:.1f} GiB, over {RSS_GIB:g}")
    return out


if __name__ == "__main__":
    raise SystemExit(main())
