"""Run folders: names, and checkpoints that are complete or not there at all."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harnessrl.specs.harness import HarnessState, TaskHarness
from harnessrl.trainer import runfolder
from harnessrl.trainer.runfolder import (
    MARKER,
    RunFolder,
    latest_checkpoint,
    new_run_folder,
    save_checkpoint,
)

CURSORS = {"steps": 2, "usage": {}}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path)


def weights(folder: Path) -> None:
    (folder / "policy").mkdir()
    (folder / "policy" / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "optimizer").mkdir()
    (folder / "optimizer" / "adamw.pt").write_bytes(b"o" * 2000)


def test_a_checkpoint_is_written_whole(run: RunFolder) -> None:
    path = save_checkpoint(run, 2, CURSORS, weights)
    assert path == run.checkpoints / "step-000002"
    assert json.loads((path / "controller.json").read_text()) == CURSORS
    assert latest_checkpoint(run) == (2, path)
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-000002"]
    listed = json.loads((path / MARKER).read_text())
    files = {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()}
    assert files == {*listed, MARKER}


def test_the_newest_stays_and_older_ones_go(run: RunFolder) -> None:
    for steps in (2, 4, 6):
        save_checkpoint(run, steps, CURSORS, weights)
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-000006"]


def test_no_checkpoint_at_all(run: RunFolder) -> None:
    assert latest_checkpoint(run) is None
    run.checkpoints.mkdir()
    assert latest_checkpoint(run) is None


def test_the_newest_complete_one_is_found(run: RunFolder, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    for steps in (9, 10, 100):  # numbers, not names, are compared
        path = save_checkpoint(run, steps, CURSORS, weights)
        shutil.copytree(path, kept / path.name)
    shutil.rmtree(run.checkpoints)
    kept.rename(run.checkpoints)
    found = latest_checkpoint(run)
    assert found is not None
    assert found[0] == 100
    (found[1] / MARKER).unlink()
    assert latest_checkpoint(run) == (10, run.checkpoints / "step-000010")


# --- what breaks while one is written -------------------------------------------------------------


def full(folder: Path) -> None:
    (folder / "policy").mkdir()
    (folder / "policy" / "model.safetensors").write_bytes(b"w" * 10)
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(folder: Path) -> None:
    weights(folder)
    raise KeyboardInterrupt


@pytest.mark.parametrize(("writer", "error"), [(full, OSError), (interrupted, KeyboardInterrupt)])
def test_a_writer_that_breaks_leaves_no_trace(
    run: RunFolder, writer: Callable[[Path], None], error: type[BaseException]
) -> None:
    with pytest.raises(error):
        save_checkpoint(run, 2, CURSORS, writer)
    assert latest_checkpoint(run) is None
    assert list(run.checkpoints.iterdir()) == []


@pytest.mark.parametrize(("writer", "error"), [(full, OSError), (interrupted, KeyboardInterrupt)])
def test_a_writer_that_breaks_spares_the_last_checkpoint(
    run: RunFolder, writer: Callable[[Path], None], error: type[BaseException]
) -> None:
    before = save_checkpoint(run, 2, CURSORS, weights)
    with pytest.raises(error):
        save_checkpoint(run, 4, CURSORS, writer)
    assert latest_checkpoint(run) == (2, before)
    after = save_checkpoint(run, 4, CURSORS, weights)
    assert latest_checkpoint(run) == (4, after)


@pytest.mark.parametrize("broken", ["write_atomic", "rename"])
def test_a_disk_that_is_full_at_the_very_end(
    run: RunFolder, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = save_checkpoint(run, 2, CURSORS, weights)

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    where = runfolder if broken == "write_atomic" else Path
    with monkeypatch.context() as patch:
        patch.setattr(where, broken, fail)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(run, 4, CURSORS, weights)
    assert latest_checkpoint(run) == (2, before)
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-000002"]


def test_a_really_full_disk(run: RunFolder) -> None:
    """The kernel refuses to let any file grow over 1.5 kB: writing the optimizer fails half-way."""
    before = save_checkpoint(run, 2, CURSORS, weights)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            save_checkpoint(run, 4, CURSORS, weights)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert latest_checkpoint(run) == (2, before)


def test_a_process_that_is_killed_while_it_writes(run: RunFolder) -> None:
    program = f"""
import os, signal
from pathlib import Path
from harnessrl.trainer.runfolder import RunFolder, save_checkpoint
def weights(folder):
    (folder / "policy").mkdir()
    (folder / "policy" / "model.safetensors").write_bytes(b"w" * 1000)
def killed(folder):
    weights(folder)
    os.kill(os.getpid(), signal.SIGKILL)
run = RunFolder(Path({str(run.root)!r}))
save_checkpoint(run, 2, {{}}, weights)
save_checkpoint(run, 4, {{}}, killed)
"""
    done = subprocess.run([sys.executable, "-c", program])
    assert done.returncode == -signal.SIGKILL
    assert latest_checkpoint(run) == (2, run.checkpoints / "step-000002")
    save_checkpoint(run, 4, CURSORS, weights)  # what the killed process left is in nobody's way
    assert [p.name for p in run.checkpoints.iterdir()] == ["step-000004"]


# --- what is not complete -------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[Path], object]] = {
    "no marker": lambda path: (path / MARKER).unlink(),
    "empty marker": lambda path: (path / MARKER).write_text(""),
    "marker cut short": lambda path: (path / MARKER).write_text((path / MARKER).read_text()[:20]),
    "file cut short": lambda path: os.truncate(path / "optimizer" / "adamw.pt", 1999),
    "file gone": lambda path: (path / "policy" / "model.safetensors").unlink(),
    "folder gone": lambda path: shutil.rmtree(path / "policy"),
    "no cursors": lambda path: (path / "controller.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_does_not_exist(run: RunFolder, damage: str) -> None:
    DAMAGE[damage](save_checkpoint(run, 4, CURSORS, weights))
    assert latest_checkpoint(run) is None


def test_unfinished_and_foreign_names_do_not_count(run: RunFolder) -> None:
    path = save_checkpoint(run, 4, CURSORS, weights)
    for name in (".step-000009.tmp", "step-000008.tmp", "step-000004 (copy)", "best", "step-"):
        shutil.copytree(path, run.checkpoints / name)
    assert latest_checkpoint(run) == (4, path)


def test_a_person_s_own_copies_are_kept(run: RunFolder) -> None:
    path = save_checkpoint(run, 4, CURSORS, weights)
    shutil.copytree(path, run.checkpoints / "step-000004-keep")
    save_checkpoint(run, 6, CURSORS, weights)
    assert (run.checkpoints / "step-000004-keep").is_dir()


# --- the other files ------------------------------------------------------------------------------


def test_run_folder_names(tmp_path: Path) -> None:
    parent = tmp_path / "deep" / "runs"
    made = [new_run_folder(parent, "tiny") for _ in range(3)]
    assert [path.name for path in made] == ["tiny", "tiny-2", "tiny-3"]
    assert all(path.is_dir() for path in made)
    made[1].rmdir()
    assert new_run_folder(parent, "tiny").name == "tiny-2"
    assert new_run_folder(parent, "other").name == "other"
    (parent / "file").write_text("")
    assert new_run_folder(parent, "file").name == "file-2"


def test_metrics_and_harness_are_written_whole(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    from harnessrl.trainer.start import _exporter  # with torch: no other test here needs it

    run.write_metrics([{"step": 0}, {"step": 1}])
    export = _exporter(run)
    export(HarnessState({}, version=7))
    harness = run.root / "harness" / "000007.yaml"
    assert run.metrics.read_text() == '{"step": 0}\n{"step": 1}\n'
    assert harness.read_text() == "version: 7\ntasks: {}\n"

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        run.write_metrics([{"step": 0}, {"step": 1}, {"step": 2}])
    with pytest.raises(OSError, match="No space left"):
        export(HarnessState({}, version=7, changes={"a": TaskHarness(paused=True)}))
    with pytest.raises(OSError, match="No space left"):
        export(HarnessState({}, version=8))
    assert run.metrics.read_text() == '{"step": 0}\n{"step": 1}\n'
    assert harness.read_text() == "version: 7\ntasks: {}\n"
    assert os.listdir(harness.parent) == ["000007.yaml"]
    assert sorted(p.name for p in run.root.iterdir()) == ["harness", "metrics.jsonl"]
