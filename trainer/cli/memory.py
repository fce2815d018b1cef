"""`harnessrl memory ...`: look into a run's memory."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared import BAD_INPUT, RunArg, check_run, fail, say

app = typer.Typer(no_args_is_help=True, help="Look into a run's memory.")


@app.command()
def rebuild(run: RunArg) -> None:
    """Make the Chroma index anew from the event log.

    Example: harnessrl memory rebuild runs/quickstart
    """
    check_run(run)
    from ...memory.events import LogError, read_log
    from ...memory.index import MemoryIndex
    from ..runfolder import RunBusyError, RunFolder, locked

    folder = RunFolder(run)
    try:
        records = read_log(folder.events)
        with locked(folder):
            index = MemoryIndex(folder.chroma)
            n = index.rebuild(records)
            index.close()
    except (LogError, RunBusyError) as error:
        fail(str(error), BAD_INPUT)
    typer.echo(f"indexed {n} diagnoses and decisions")


@app.command()
def search(
    run: RunArg,
    text: Annotated[str, typer.Argument(help="What to look for, in plain words.")],
    limit: Annotated[int, typer.Option(help="Number of hits.", min=1)] = 5,
) -> None:
    """Find diagnoses and decisions that resemble TEXT.

    Example: harnessrl memory search runs/quickstart "short answers score higher"
    """
    check_run(run)
    from ...memory.index import MemoryIndex
    from ..runfolder import RunBusyError, RunFolder, locked

    folder = RunFolder(run)
    try:
        with locked(folder):
            index = MemoryIndex(folder.chroma)
            hits = index.search(text, limit)
            index.close()
    except RunBusyError as error:
        fail(str(error), BAD_INPUT)
    if not hits:
        typer.echo(f"nothing found; `harnessrl memory rebuild {run}` makes the index from the log")
    for hit in hits:
        say(f"{hit.similarity:.2f}  {hit.record_id}  {hit.signature}")
