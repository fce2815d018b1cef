"""How a long command that asks others ends on Ctrl-C: with what is kept."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import typer

from .shared import STOPPED, fail


class Stopped:
    """What is said of a command that is stopped."""

    kept: Callable[[], str] | None = None

    def told(self) -> str:
        """How much is kept, as soon as that can be known."""
        return "stopped: nothing was asked yet" if self.kept is None else self.kept()


@contextlib.contextmanager
def stopping() -> Iterator[Stopped]:
    """The first Ctrl-C ends what is going on, a second one the process."""
    asked = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            if sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h\n")  # the bars hide the cursor
            os._exit(STOPPED)
        asked = True
        typer.echo("stopping; Ctrl-C again ends at once", err=True)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, stop)
    stopped = Stopped()
    try:
        yield stopped
    except KeyboardInterrupt:
        fail(stopped.told(), STOPPED)
    finally:
        signal.signal(signal.SIGINT, before)
