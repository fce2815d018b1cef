"""`harnessrl diagnose RUN`: failure classes and signal rate of a run, in detail."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from .shared import BAD_INPUT, RunArg, check_run, fail, say

if TYPE_CHECKING:
    from ..report.diagnosis import Diagnosed

WIDE = 110  # columns of a terminal that the failure classes need


def diagnose(
    run: RunArg,
    by: Annotated[
        Literal["criterion", "task", "domain", "step"], typer.Option(help="What a row stands for.")
    ] = "criterion",
    task: Annotated[str | None, typer.Option(metavar="ID", help="Only the groups of this task.")] = None,
    last: Annotated[int | None, typer.Option(metavar="N", help="Only the last N steps.", min=1)] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON; unknown figures are null.")
    ] = False,
) -> None:
    """Say where the reward tells good responses from bad ones, and where not: the worst first.

    A row has the signal rate with its bootstrap interval, the groups whose scores all tie (at the floor,
    between, at the ceiling), and the failure classes as shares of the pairs whose score and oracle
    quality are known. docs/judging.md explains them. Only the run folder is read.

    \b
    Examples:
      harnessrl diagnose runs/quickstart
      harnessrl diagnose runs/quickstart --by task --last 10
      harnessrl diagnose runs/quickstart --task blue-sky --json
    """
    check_run(run)
    from ...memory.events import LogError
    from ..report.diagnosis import NothingToDiagnoseError, diagnose_run

    try:
        found = diagnose_run(run, by, task, last)
    except (NothingToDiagnoseError, LogError) as error:
        fail(str(error), BAD_INPUT)
    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=1))
        return
    for note in found.notes:
        say(note)
    _print(found)


def _print(found: Diagnosed) -> None:
    """A table as wide as the terminal; elsewhere columns of plain text, with whole names."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from ..report.diagnosis import table

    console = Console()
    if not console.is_terminal:
        titles, rows = table(found)
        lines = [*zip(*(title.split("\n") for title in titles), strict=True), *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for *cells, name in lines:
            numbers = [cell.rjust(width) for cell, width in zip(cells, widths, strict=False)]
            say("  ".join([*numbers, name]))
        return
    wide = console.width >= WIDE
    titles, rows = table(found, shares=wide)
    drawn = Table(box=None, pad_edge=False)
    for title in titles[:-1]:
        drawn.add_column(title, justify="right", no_wrap=True)
    drawn.add_column(titles[-1], overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))  # never markup: criteria may come from a model
    console.print(drawn)
    if not wide:
        typer.echo(f"a terminal of {WIDE} columns, or --json, has the failure classes too")
