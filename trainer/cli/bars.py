"""What a person sees while others are asked: bars on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import repeat

import typer

#: Seconds between two lines where no bars can be drawn.
EVERY = 30.0
#: Hears how many of each thing are done, in the order of the totals.
Progress = Callable[..., None]
Begin = Callable[[str], Progress]


@contextlib.contextmanager
def showing(totals: Mapping[str, int]) -> Iterator[Begin]:
    """Progress on standard error, of each policy or judge in turn; `totals` counts what there is to do
    by its name, what comes first in time first."""
    shown = _bars if sys.stderr.isatty() else _lines
    with shown(totals) as begin:
        yield begin


@contextlib.contextmanager
def _bars(totals: Mapping[str, int]) -> Iterator[Begin]:
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
            tasks = [bars.add_task(f"{name}: {what}", total=n) for what, n in totals.items()]

            def progress(*done: int) -> None:
                for task, n in zip(tasks, done, strict=True):
                    bars.update(task, completed=n)

            return progress

        yield begin


@contextlib.contextmanager
def _lines(totals: Mapping[str, int]) -> Iterator[Begin]:
    """A line at the start and every `EVERY` seconds, whether anything came meanwhile or not."""
    ended = threading.Event()
    now: list[tuple[str, tuple[int, ...]]] = []  # of whom, and how many are done

    def said(name: str, done: tuple[int, ...], rate: str = "") -> None:
        rates = [rate, *repeat("", len(totals) - 1)]
        counts = [
            f"{n:,} of {total:,} {what}{each}"
            for n, (what, total), each in zip(done, totals.items(), rates, strict=True)
        ]
        typer.echo(f"{name}: {', '.join(counts)}", err=True)

    def talk() -> None:
        before = (time.monotonic(), "", 0)
        while not ended.wait(EVERY):
            if not now:
                continue
            at, (name, done) = time.monotonic(), now[0]
            since = before[2] if before[1] == name else 0
            rate = (done[0] - since) / (at - before[0])
            before = (at, name, done[0])
            said(name, done, f" ({rate:.2g} a second)")

    def begin(name: str) -> Progress:
        now[:] = [(name, (0,) * len(totals))]
        said(*now[0])

        def progress(*done: int) -> None:
            now[0] = (name, done)

        return progress

    talking = threading.Thread(target=talk, daemon=True)
    talking.start()
    try:
        yield begin
    finally:
        ended.set()
        talking.join()
