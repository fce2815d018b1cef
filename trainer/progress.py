"""What a person sees while a run trains: a live panel on a terminal, one line a step elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from ..specs.printable import one_line
from .metrics import wall_time

LAST_STEPS = 8  # rows of the live table
COLUMNS = ("step", "reward", "quality", "signal", "zero-std", "words", "H", "seconds")


class Display:
    """Shows steps, and what is going on between them. Live inside its `with` block."""

    def __init__(self, steps: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self.steps = steps
        self.started = time.monotonic()
        self.first = 0
        self.rows: list[tuple[str, ...]] = []
        self.note = ""
        self.held = ""
        self.bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}"),
            console=self.console,
        )
        self.bar_task = self.bar.add_task("training", total=steps, left="")
        self.live = Live(console=self.console, refresh_per_second=4, transient=False)

    def begin(self, steps_done: int) -> None:
        """Training begins with step number `steps_done`: time left is reckoned from here."""
        self.first = steps_done
        self.note = ""
        self.started = time.monotonic()
        self.bar.update(self.bar_task, completed=steps_done)

    def __enter__(self) -> Display:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.note = ""
        if self.console.is_terminal:
            self._refresh()
            self.live.stop()

    def say(self, text: str) -> None:
        """What is being done now, e.g. by the evolver."""
        self.note = one_line(text)
        if self.console.is_terminal:
            self._refresh()
        else:
            self.tell(text)

    def tell(self, text: str) -> None:
        """Something that stays on the screen: an alarm, an answer to a person."""
        self.console.print(f"  {one_line(text)}", markup=False, highlight=False, soft_wrap=True)

    def hold(self, text: str) -> None:
        """Something a person must see whatever else is going on."""
        self.held = one_line(text)
        if self.console.is_terminal:
            self._refresh()
        else:
            self.tell(text)

    def step(self, metrics: dict[str, Any]) -> None:
        """A step is complete."""
        done = metrics["step"] + 1
        self.note = ""
        row = step_row(metrics)
        left = self.time_left(done)
        if self.console.is_terminal:
            self.rows = [*self.rows, row][-LAST_STEPS:]
            self.bar.update(self.bar_task, completed=done, left=left)
            self._refresh()
        else:
            cells = "  ".join(f"{k} {v}" for k, v in zip(COLUMNS[1:], row[1:], strict=True))
            self.console.print(
                f"step {done}/{self.steps}  {cells}  {left}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def time_left(self, done: int) -> str:
        """Time to go at this run's pace so far."""
        pace = (time.monotonic() - self.started) / max(1, done - self.first)
        seconds = int(pace * (self.steps - done))
        return f"{seconds // 60}:{seconds % 60:02d} left"

    def _refresh(self) -> None:
        table = Table(*COLUMNS, box=None, pad_edge=False)
        for row in self.rows:
            table.add_row(*row)
        parts: list[Any] = [table, self.bar, f"[dim]{escape(self.note)}[/dim]"]
        if self.held:
            parts.append(f"[bold]{escape(self.held)}[/bold]")
        self.live.update(Group(*parts))


def step_row(metrics: dict[str, Any]) -> tuple[str, ...]:
    """A step's figures as text, in the order of `COLUMNS`; `-` where there is nothing to say."""
    seconds = wall_time(metrics["seconds"])
    return (
        str(metrics["step"] + 1),
        figure(metrics["reward_mean"]),
        figure(metrics["quality_mean"]),
        figure(metrics["signal_rate"]),
        figure(metrics["zero_std_share"]),
        f"{metrics['words_mean']:.0f}",
        str(metrics["harness_version"]),
        f"{seconds:.0f}",
    )


def figure(value: float | None) -> str:
    """Two decimals, or `-` for nothing."""
    return "-" if value is None else f"{value:.2f}"
