"""What a person sees while an evaluation goes on: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from ..evaluate.run import Progress

#: Seconds between two lines where no bars can be drawn.
EVERY = 30.0
Begin = Callable[[str], "Progress"]


@contextlib.contextmanager
def showing(tasks: int, responses: int) -> Iterator[Begin]:
    """Progress on standard error: of each policy the responses sampled and the tasks measured."""
    shown = _bars if sys.stderr.isatty() else _lines
    with shown(tasks, responses) as begin:
        yield begin


@contextlib.contextmanager
def _bars(tasks: int, responses: int) -> Iterator[Begin]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def begin(name: str) -> Progress:
            sampling = bars.add_task(f"{name}: responses", total=responses)
            measuring = bars.add_task(f"{name}: tasks measured", total=tasks)

            def progress(sampled: int, measured: int) -> None:
                bars.update(sampling, completed=sampled)
                bars.update(measuring, completed=measured)

            return progress

        yield begin


@contextlib.contextmanager
def _lines(tasks: int, responses: int) -> Iterator[Begin]:
    """A line at the start and every `EVERY` seconds, whether anything came meanwhile or not."""
    said = threading.Event()
    now: list[tuple[str, int, int]] = []  # the policy, responses sampled and tasks measured

    def talk() -> None:
        before = (time.monotonic(), "", 0)
        while not said.wait(EVERY):
            if not now:
                continue
            at, (name, sampled, measured) = time.monotonic(), now[0]
            since = before[2] if before[1] == name else 0
            rate = (sampled - since) / (at - before[0])
            before = (at, name, sampled)
            typer.echo(
                f"{name}: {sampled:,} of {responses:,} responses ({rate:.2g} a second), "
                f"{measured:,} of {tasks:,} tasks measured",
                err=True,
            )

    def begin(name: str) -> Progress:
        typer.echo(f"{name}: {tasks:,} tasks, {responses:,} responses", err=True)
        now[:] = [(name, 0, 0)]

        def progress(sampled: int, measured: int) -> None:
            now[0] = (name, sampled, measured)

        return progress

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    try:
        yield begin
    finally:
        said.set()
        talking.join()
