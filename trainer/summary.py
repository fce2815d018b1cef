"""What a finished run comes to, in a few lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..memory.events import read_jsonl, read_log
from ..memory.records import Decision, Evaluation, Probe, RunFinished
from .metrics import evolver_wait, wall_time
from .progress import figure
from .runfolder import RunFolder
from .validation import best_of


def validation_lines(evaluations: Sequence[Evaluation]) -> list[str]:
    """How the validation score went, and after how many steps it was best; [] without evaluations."""
    best = best_of(evaluations)
    if best is None:
        return []
    first, last = evaluations[0], evaluations[-1]
    return [
        f"{'validation:':15} reward {figure(first.reward)} -> {figure(last.reward)}, "
        f"best {figure(best.reward)} after {best.steps_done} steps, "
        f"quality {figure(first.quality)} -> {figure(last.quality)} (best: {figure(best.quality)})"
    ]


def summary_lines(run: RunFolder) -> list[str]:
    """Before and after on both splits, updates by interface, and what was spent."""
    records = read_log(run.events)
    probes = {(r.split, r.when): r for r in records if isinstance(r, Probe)}
    lines = []
    for split in ("train", "held_out"):
        before, after = probes.get((split, "before")), probes.get((split, "after"))
        if before and after:
            lines.append(
                f"{split + ' tasks:':15} reward {figure(before.reward)} -> {figure(after.reward)}, "
                f"quality {figure(before.quality)} -> {figure(after.quality)}, "
                f"words {before.words:.0f} -> {after.words:.0f}"
            )
    lines += validation_lines([r for r in records if isinstance(r, Evaluation)])
    decisions = [r for r in records if isinstance(r, Decision)]
    for told, accepted in (("accepted", True), ("rejected", False)):
        counts = Counter(d.update.interface for d in decisions if d.accepted == accepted)
        by_interface = ", ".join(f"{name} {n}" for name, n in sorted(counts.items()))
        lines.append(f"{told} updates: {counts.total()}{f' ({by_interface})' if counts else ''}")
    for end in (r for r in records if isinstance(r, RunFinished)):
        for name in ("rollouts", "tokens"):
            spent: dict[str, int] = getattr(end, name)
            parts = ", ".join(f"{purpose} {n:,}" for purpose, n in spent.items())
            lines.append(f"{name + ':':9} {sum(spent.values()):,} ({parts})")
        rows = read_jsonl(run.metrics)
        evolver = sum(row["seconds"].get("evolve", 0.0) for row in rows)
        probing = sum(probe.seconds for probe in probes.values())
        total = sum(wall_time(row["seconds"]) for row in rows) + probing
        shown = f"evolver {evolver / 60:.1f}"
        if any("evolve_wait" in row["seconds"] for row in rows):
            waited = sum(evolver_wait(row["seconds"]) for row in rows)
            shown += f" beside training, which waited {waited / 60:.1f} for it"
        lines.append(f"time:     {total / 60:.1f} min ({shown}, probes {probing / 60:.1f})")
    return lines
