"""A run's folder: where everything lies, and checkpoints that are either complete or not there."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..memory.files import write_atomic

MARKER = "COMPLETE"


@dataclass(frozen=True)
class RunFolder:
    """Paths inside `runs/<name>/`."""

    root: Path

    @property
    def spec(self) -> Path:
        """The resolved spec."""
        return self.root / "spec.yaml"

    @property
    def tasks(self) -> Path:
        """The resolved tasks."""
        return self.root / "tasks.yaml"

    @property
    def events(self) -> Path:
        """The event log."""
        return self.root / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """One line a step."""
        return self.root / "metrics.jsonl"

    @property
    def rollouts(self) -> Path:
        """Rollout text, one file a step."""
        return self.root / "rollouts"

    @property
    def chroma(self) -> Path:
        """The memory index."""
        return self.root / "chroma"

    @property
    def graph(self) -> Path:
        """LangGraph's checkpoints of the evolver."""
        return self.root / "graph.sqlite"

    @property
    def provenance(self) -> Path:
        """Versions, commit, seed, machine."""
        return self.root / "provenance.json"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's event files."""
        return self.root / "tensorboard"

    @property
    def verdicts(self) -> Path:
        """The judge's verdicts, by content."""
        return self.root / "verdicts.sqlite"

    @property
    def comparisons(self) -> Path:
        """The oracle's answers, by content."""
        return self.root / "comparisons.sqlite"

    @property
    def anchors(self) -> Path:
        """What the oracle measures each task's responses by."""
        return self.root / "anchors.jsonl"

    @property
    def requests(self) -> Path:
        """What people ask of the harness (trainer/requests.py)."""
        return self.root / "requests"

    @property
    def checkpoints(self) -> Path:
        """Checkpoint folders, `step-NNNNNN` after N steps."""
        return self.root / "checkpoints"

    @property
    def best(self) -> Path:
        """The policy that did best on the validation tasks, beside the newest one."""
        return self.root / "best"

    @property
    def openrlhf(self) -> Path:
        """What OpenRLHF reads and writes: slots, checkpoints, the final policy."""
        return self.root / "openrlhf"

    @property
    def submitted(self) -> Path:
        """What OpenRLHF handed in for the step that is not done yet."""
        return self.root / "submitted.jsonl"

    @property
    def logs(self) -> Path:
        """Output of the processes of a launched run, one file each."""
        return self.root / "logs"

    def harness(self, version: int) -> Path:
        """The export of one harness version."""
        return self.root / "harness" / f"{version:06d}.yaml"

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Write the whole metrics file (it is small) so that it is never half a line long."""
        write_atomic(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))


class RunBusyError(Exception):
    """Another process is writing to this run folder."""


@contextlib.contextmanager
def locked(run: RunFolder) -> Iterator[None]:
    """Hold a run folder against other processes. Raises `RunBusyError`."""
    lock = FileLock(run.root / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunBusyError(f"{run.root}: another process is training here") from None
    try:
        yield
    finally:
        lock.release()


def new_run_folder(parent: Path, name: str) -> Path:
    """`parent/name`, or `parent/name-2`, `-3`, ... if that is taken. Makes the folder."""
    for n in range(1, 10_000):
        root = parent / (name if n == 1 else f"{name}-{n}")
        try:
            root.mkdir(parents=True)
        except FileExistsError:
            continue
        return root
    raise FileExistsError(f"{parent}: no free name for {name}")


def save_checkpoint(
    run: RunFolder, steps: int, cursors: dict[str, Any], save_weights: Callable[[Path], None]
) -> Path:
    """Write the checkpoint after `steps` steps and remove the older ones.

    Everything goes to a temporary folder; the marker, written last, lists every file with its size,
    and one rename makes the checkpoint appear. Raises `OSError` (disk full) and leaves no trace then.
    """
    target = run.checkpoints / f"step-{steps:06d}"
    scratch = run.checkpoints / f".{target.name}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        save_weights(scratch)
        (scratch / "controller.json").write_text(json.dumps(cursors, indent=1))
        sizes = {str(p.relative_to(scratch)): p.stat().st_size for p in scratch.rglob("*") if p.is_file()}
        write_atomic(scratch / MARKER, json.dumps(sizes, indent=1))
        shutil.rmtree(target, ignore_errors=True)
        scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    for _, old in _numbered(run):
        if old != target:
            (old / MARKER).unlink(missing_ok=True)  # half-deleted is not complete either
            shutil.rmtree(old, ignore_errors=True)
    return target


def save_best(run: RunFolder, about: dict[str, Any], save_weights: Callable[[Path], None]) -> None:
    """Keep the policy as the best one so far, in place of the one before. Raises `OSError`."""
    scratch = run.root / f".{run.best.name}.tmp"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        save_weights(scratch)
        shutil.rmtree(scratch / "optimizer", ignore_errors=True)  # nothing is resumed from it
        (scratch / "about.json").write_text(json.dumps(about, indent=1))
        shutil.rmtree(run.best, ignore_errors=True)
        scratch.rename(run.best)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def latest_checkpoint(run: RunFolder) -> tuple[int, Path] | None:
    """(steps done, folder) of the newest complete checkpoint, or None."""
    return max((found for found in _numbered(run) if _is_complete(found[1])), default=None)


def _numbered(run: RunFolder) -> list[tuple[int, Path]]:
    """(steps, folder) of everything named like a checkpoint; copies under other names are let be."""
    pattern = re.compile(r"step-(\d{6,})")
    matches = [(pattern.fullmatch(path.name), path) for path in run.checkpoints.glob("step-*")]
    return [(int(match[1]), path) for match, path in matches if match]


def _is_complete(path: Path) -> bool:
    marker = path / MARKER
    if not marker.is_file():
        return False
    try:
        sizes: dict[str, int] = json.loads(marker.read_text())
    except ValueError:
        return False
    return all(
        (path / name).is_file() and (path / name).stat().st_size == size for name, size in sizes.items()
    )
