"""What a run folder remembers of how the run was started, and what differs from it now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..memory.events import fold_versions, read_log
from ..memory.files import write_atomic
from ..memory.records import RunFinished, RunStarted
from ..specs.errors import Steps, dotted
from ..specs.loader import TEMPLATES, dump_yaml, load_harness_file, load_run_spec
from ..specs.schema import RunSpec
from ..specs.tasks import Task
from .data.load import Tasks, load_resolved
from .runfolder import RunFolder, latest_checkpoint, locked

#: What a resume may say otherwise: where things lie, not what is run.
PLACES = ("name", "tasks.files", "start", "logging.folder", *(dotted(path) for path in TEMPLATES))


class StoredError(Exception):
    """The run folder cannot be resumed from; the message says why."""


@dataclass(frozen=True)
class Stored:
    """A run as it was started."""

    spec: RunSpec
    tasks: Tasks
    recipe: str
    with_probe: bool
    finished: bool


def run_started(name: str, recipe: str, spec: RunSpec, tasks: Tasks) -> RunStarted:
    """A log's first record, of which version 0 of the harness follows."""
    return RunStarted(
        id="run",
        step=-1,
        harness_version=0,
        name=name,
        seed=spec.seed,
        recipe=recipe,
        task_ids=list(tasks.train),
        harness=tasks.start,
        guidance=list(spec.interfaces.g.start),
    )


def write_start(run: RunFolder, spec: RunSpec, tasks: Tasks, provenance: dict[str, Any]) -> None:
    """Everything a resume needs to know exactly what was asked for. Raises `OSError`."""
    write_atomic(run.provenance, json.dumps(provenance, indent=1))
    if spec.start:
        write_atomic(run.harness(0), dump_yaml(tasks.start.model_dump(mode="json", exclude_none=True)))
    resolved = tasks.as_file().model_dump(mode="json", exclude_none=True)
    if not tasks.validation:
        del resolved["validation"]
    write_atomic(run.tasks, dump_yaml(resolved))
    # What the run started from lies beside its spec, whatever becomes of the original files.
    stored, files = with_templates(spec)
    stored["tasks"]["files"] = [run.tasks.name]
    if spec.start:
        stored["start"] = str(run.harness(0).relative_to(run.root))
    for file, text in files.items():
        write_atomic(run.root / file, text)
    write_atomic(run.spec, dump_yaml(stored))


def with_templates(spec: RunSpec) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of a spec file that names its templates beside it, and their texts by these names.

    Raises `OSError`.
    """
    content = spec.model_dump(mode="json", exclude_none=True)
    files: dict[str, str] = {}
    for path, text in _templates(spec).items():
        file = f"prompts/{dotted(path)}.md"
        files[file] = text
        section: Any = content
        for step in path[:-1]:
            section = section[step]
        section[path[-1]] = file
    return content, files


def accept_changes(run: RunFolder, spec: RunSpec, recipe: str, tasks: Tasks, changes: list[str]) -> None:
    """Go on under another spec: what changed goes on record in provenance.json.

    Raises `RunBusyError`, `OSError`, `UpdateError` when the log's updates do not fit the new tasks, or
    `StoredError` when the run is past the new spec's last step; nothing is written then.
    """
    with locked(run):
        fold_versions(tasks.train, read_log(run.events))
        found = latest_checkpoint(run)
        begun = [line for line in changes if line.startswith(("start:", "interfaces.g.start"))]
        if found is not None and begun:
            raise StoredError(f"{run.root}: what a run starts from cannot change any more ({begun[0]})")
        if found is not None and found[0] > spec.engine.steps:
            raise StoredError(f"{run.root}: {found[0]} steps are done, the spec has {spec.engine.steps}")
        about = json.loads(run.provenance.read_text())
        about |= {"recipe": recipe, "changes": [*about.get("changes", []), *changes]}
        write_start(run, spec, tasks, about)


def read_stored(run: RunFolder) -> Stored:
    """Raises `StoredError`, `SpecError` or `LogError` when a part is missing or damaged."""
    try:
        about = json.loads(run.provenance.read_text())
        recipe, with_probe = str(about["recipe"]), bool(about["probe"])
    except (OSError, ValueError, KeyError) as error:
        raise StoredError(f"{run.provenance}: cannot be read ({error})") from None
    loaded = load_run_spec(run.spec)
    tasks = load_resolved(run.tasks)
    if loaded.start_file is not None:
        tasks.start = load_harness_file(loaded.start_file)
    return Stored(
        loaded.spec,
        tasks,
        recipe,
        with_probe,
        any(isinstance(record, RunFinished) for record in read_log(run.events)),
    )


def differences(stored: Stored, spec: RunSpec, tasks: Tasks) -> list[str]:
    """One line for everything that a spec and its tasks say otherwise than the run."""
    lines = _differences(stored.spec.model_dump(), spec.model_dump())
    kept = [line for line in lines if line.partition(":")[0] not in PLACES]
    if stored.tasks.start.tasks != tasks.start.tasks:
        kept.append("start: another harness to start from")
    old, new = _templates(stored.spec), _templates(spec)
    kept += [f"{dotted(path)}: another text" for path in TEMPLATES if old.get(path) != new.get(path)]
    return kept + _changed_tasks(stored.tasks, tasks)


def _templates(spec: RunSpec) -> dict[Steps, str]:
    """The texts of the templates of one's own, by their place in the spec. Raises `OSError`."""
    texts: dict[Steps, str] = {}
    for path in TEMPLATES:
        value: Any = spec
        for step in path:
            value = getattr(value, str(step), None)
        if value is not None:
            texts[path] = Path(value).read_text(encoding="utf-8")
    return texts


def _differences(old: Any, new: Any, path: str = "") -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        found = []
        for key in [*old, *(k for k in new if k not in old)]:
            at = f"{path}.{key}" if path else str(key)
            found += _differences(old.get(key), new.get(key), at)
        return found
    return [] if old == new else [f"{path}: {old!r} in the run, {new!r} now"]


def _changed_tasks(old: Tasks, new: Tasks) -> list[str]:
    """One line for each task that was added, taken out or changed."""
    before, after = ({**t.train, **t.held_out, **t.validation} for t in (old, new))
    lines = []
    for task_id in sorted(before.keys() | after.keys()):
        if task_id not in after:
            lines.append(f"task {task_id}: taken out")
        elif task_id not in before:
            lines.append(f"task {task_id}: added")
        elif before[task_id] != after[task_id] and _plain(before[task_id]) != _plain(after[task_id]):
            lines.append(f"task {task_id}: changed")
    return lines


def _plain(task: Task) -> dict[str, Any]:
    """A task as it is stored: dates, decimals and bytes of a parquet file became texts there."""
    return task.model_dump(mode="json")
