"""What LangGraph's server loads: the evolver's graph, to look at, and a snapshot of a run's states."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph_sdk.runtime import ServerRuntime

from ...agents.evolver.graph import build_graph

#: The environment variable that says where the snapshot lies.
SNAPSHOT = "HARNESSRL_STUDIO_SNAPSHOT"

# What runs the graph needs (policy, memory, ...) is no JSON, so the server could not describe it.
_GRAPH = build_graph().copy(update={"context_schema": None})


class ReadOnlyError(ValueError):
    """Studio asked to run the graph, or to change a state. (The server shows a ValueError's text.)"""


def evolver(runtime: ServerRuntime[Any]) -> Any:
    """The evolver's graph, for everything but running it and changing states.

    Its nodes need the policy, the memory and the harness of a run in training, which exist in that
    run's process only. Raises `ReadOnlyError`.
    """
    if runtime.access_context in ("threads.create_run", "threads.update"):
        raise ReadOnlyError(
            "Studio shows what the evolver did and cannot run it: its nodes work on the policy, the "
            "memory and the harness of a training run, inside `harnessrl train`; nothing was changed"
        )
    return _GRAPH


@contextlib.asynccontextmanager
async def states() -> AsyncIterator[AsyncSqliteSaver]:
    """The saver on the snapshot. Without one (`langgraph dev` in a checkout) there are no states."""
    async with AsyncSqliteSaver.from_conn_string(os.environ.get(SNAPSHOT, ":memory:")) as saver:
        yield saver
