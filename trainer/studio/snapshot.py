"""A copy of a run's graph states that LangGraph's server can serve. The run is only read."""

from __future__ import annotations

import contextlib
import sqlite3
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.sqlite import SqliteSaver

from ...agents.evolver.evolver import look_of
from ...agents.evolver.graph import build_graph
from ..runfolder import RunFolder

#: Where the ids of copied threads come from; the same thread of a run always gets the same one.
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "harnessrl/evolver")


class SnapshotError(Exception):
    """The run's graph states cannot be copied; the message says why."""


@dataclass(frozen=True)
class Thread:
    """One task in one look. `about` is what threads are found by (its values are plain JSON)."""

    id: str  # a UUID: the server takes no other ids
    about: dict[str, Any]


def take_snapshot(run: RunFolder, to: Path) -> list[Thread]:
    """Copy the run's graph states into the new file `to`; the threads in it, oldest first.

    In the copy, threads have UUIDs. Works beside a training run. Raises `SnapshotError`.
    """
    if not run.graph.is_file():
        raise SnapshotError(f"{run.graph} is not there: this run's evolver has not been at work")
    try:
        with contextlib.closing(sqlite3.connect(to)) as copy:
            _copy(run.graph, copy)
            saver = SqliteSaver(copy)
            saver.setup()
            names = [name for (name,) in copy.execute("SELECT DISTINCT thread_id FROM checkpoints")]
            graph = build_graph(saver)
            threads = [Thread(_uuid(name), _about(run, graph, name)) for name in names]
            copy.create_function("uuid_of", 1, _uuid, deterministic=True)
            for table in ("checkpoints", "writes"):
                copy.execute(f"UPDATE {table} SET thread_id = uuid_of(thread_id)")
            copy.commit()
    except sqlite3.Error as error:
        raise SnapshotError(f"{run.graph}: cannot be read ({error})") from None
    return sorted(threads, key=lambda t: (t.about["step"], t.about["task"]))


def _copy(source: Path, to: sqlite3.Connection) -> None:
    """A consistent copy, whether or not somebody writes to the source."""
    for _ in range(3):
        busy = _is_open(source)
        with _reading(source, busy) as connection:
            connection.backup(to)
        if busy or not _is_open(source):
            return
    raise SnapshotError(f"{source}: a run started writing to it just now; try again")


@contextlib.contextmanager
def _reading(source: Path, busy: bool) -> Iterator[sqlite3.Connection]:
    """A connection that leaves no trace beside the source.

    A reader of a database that nobody has open would make the two files of its write-ahead log, and
    leave them; so then SQLite is told that nothing changes.
    """
    how = "mode=ro" if busy else "mode=ro&immutable=1"
    uri = f"{source.resolve().as_uri()}?{how}"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection


def _is_open(source: Path) -> bool:
    return source.with_name(source.name + "-wal").exists()


def _about(run: RunFolder, graph: Any, name: str) -> dict[str, Any]:
    step, task = look_of(name)
    state = graph.get_state({"configurable": {"thread_id": name}})
    about = {
        "run": run.root.resolve().name,
        "thread": name,
        "step": step,
        "task": task,
        # `next` leaves out a node that is done but whose state is not written yet; `tasks` does not.
        "outcome": _outcome(state.values, unfinished=bool(state.tasks)),
    }
    if diagnosis := state.values.get("diagnosis"):  # not there before the first node
        about["failure"] = diagnosis["failure"]
    if decisions := state.values.get("decisions"):
        about["interface"] = decisions[-1]["update"]["interface"]
    return about


def _outcome(values: dict[str, Any], unfinished: bool) -> str:
    decisions = values.get("decisions", [])
    if unfinished:
        return "unfinished"
    if decisions:
        return "accepted" if decisions[-1]["accepted"] else "rejected"
    if values.get("no_proposal"):
        return "no proposal"
    return "refused" if values.get("unusable") else "no owner"


def _uuid(name: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, name))
