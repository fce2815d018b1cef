"""`harnessrl studio`: what the evolver decided, in LangGraph Studio."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Annotated

import typer

from .shared import BAD_INPUT, RunArg, check_run, fail


def studio(
    run: RunArg,
    port: Annotated[
        int, typer.Option(help="Port of the local server (on 127.0.0.1).", min=1, max=65535)
    ] = 2024,
) -> None:
    """Show every decision of a run's evolver in LangGraph Studio, step by step.

    Serves a copy of the run as it is now, in training or finished: the run is only read, and what is
    done in Studio changes nothing in it. To see later decisions, start this again. Ctrl-C ends it.

    \b
    Examples:
      harnessrl studio runs/quickstart
      harnessrl studio runs/quickstart --port 2025
    """
    check_run(run)
    from ..runfolder import RunFolder
    from ..studio.server import ServerError, check_installed, serving
    from ..studio.snapshot import SnapshotError

    try:
        check_installed()
        typer.echo("copying the run and starting LangGraph's server")
        with _interrupted_by_signals(), serving(RunFolder(run), port) as served:
            accepted = sum(thread.about["outcome"] == "accepted" for thread in served.threads)
            typer.echo(f"{len(served.threads)} threads, {accepted} with an accepted update")
            typer.echo(f"Studio: {served.studio}")
            typer.echo(f"API:    {served.api} (its reference: {served.api}/docs)")
            typer.echo("Ctrl-C ends it")
            served.wait()
    except SnapshotError as error:
        fail(str(error), BAD_INPUT)
    except ServerError as error:
        fail(str(error))
    except KeyboardInterrupt:
        typer.echo("ended")


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """SIGTERM is like Ctrl-C: however this command is ended, the server ends with it."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, signal.default_int_handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
