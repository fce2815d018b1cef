"""A look of the evolver that runs beside training: on a thread, over a snapshot of the run.

What it comes to is held until the step at which it is due. Nothing of it depends on how fast either
side was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict

from ...memory.records import AnyRecord, Decision
from ...specs.harness import HarnessState, UpdateError, apply
from ..policy import Policy, Request, Sample
from ..usage import Usage
from .critic import Critic
from .evolver import Evolver

#: Seconds that an abandoned look has to come to an end.
GRACE = 20.0


class AbandonedError(Exception):
    """The run is being ended, and nobody waits for this look any more."""


class Outcome(BaseModel):
    """What a look came to. It can be kept in a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    step: int  # after which it began
    records: list[AnyRecord]
    usage: dict[str, Any]  # what it took, as of `Usage`
    lent: int  # questions to the oracle that were set aside for it
    seconds: float  # wall time


@dataclass(frozen=True)
class Snapshot:
    """What one look works with: nothing that training changes, or counts in."""

    evolver: Evolver
    usage: Usage  # counts on from the run's
    before: Usage  # ... which were these
    lent: int


class Workshop(Protocol):
    """Makes snapshots of a run, one at a time."""

    def snapshot(self, watched: Callable[[Policy], Policy]) -> Snapshot:
        """The run as it is now. What the critic samples goes through `watched`."""

    def resume(self, outcome: Outcome) -> None:
        """A look of an earlier process is over, and not yet due."""

    def join(self, outcome: Outcome) -> None:
        """The look is due: what it took and found out is the run's now."""


@dataclass(frozen=True)
class Watched:
    """A policy that refuses to sample once `check` raises."""

    inner: Policy
    check: Callable[[], None]

    @property
    def version(self) -> int:
        """The inner policy's version."""
        return self.inner.version

    def check_prompt(self, prompt: str) -> None:
        """The inner policy's check."""
        self.inner.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample from the inner policy."""
        self.check()
        return self.inner.sample(requests, seed)


class Beside:
    """Looks beside training, one at a time. One thread uses it."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._found: Future[Outcome] | None = None
        self._thread: threading.Thread | None = None
        self._abandoned = threading.Event()
        self.step: int | None = None
        """The step after which the look began that waits to be taken; None: there is none."""

    def resume(self, outcome: Outcome) -> None:
        """Go on with a look that an earlier process has waited for."""
        self.workshop.resume(outcome)
        self.step, self._found = outcome.step, Future()
        self._found.set_result(outcome)

    def start(self, step: int, harness: HarnessState, say: Callable[[str], None]) -> None:
        """Begin a look at the run as it is now, after `step`."""
        assert self.step is None, "a look is applied before the next one begins"
        snapshot = self.workshop.snapshot(lambda policy: Watched(policy, self._check))
        found: Future[Outcome] = Future()

        def said(text: str) -> None:
            self._check()
            say(text)

        def work() -> None:
            started = time.monotonic()
            try:
                snapshot.evolver.memory.catch_up()
                records = snapshot.evolver.look(step, harness, said).records
                seconds = time.monotonic() - started
                usage = snapshot.usage.since(snapshot.before).as_dict()
                found.set_result(
                    Outcome(step=step, records=records, usage=usage, lent=snapshot.lent, seconds=seconds)
                )
            except BaseException as error:  # raised again where it is waited for
                found.set_exception(error)

        self.step, self._found = step, found
        self._thread = threading.Thread(target=work, name=f"look-{step}", daemon=True)
        self._thread.start()

    def raise_failure(self) -> None:
        """Raise what went wrong in the look, if anything has by now."""
        if self._found is not None and self._found.done():
            self._found.result()

    def wait(self) -> Outcome | None:
        """Wait for the look. It stays to be taken. Raises what went wrong in it."""
        return None if self._found is None else self._found.result()

    def take(self) -> Outcome:
        """Wait for the look, and let its work be joined with the run's."""
        outcome = self.wait()
        assert outcome is not None
        self.workshop.join(outcome)
        self.step = self._found = self._thread = None
        return outcome

    def close(self) -> None:
        """Abandon the look, if there is one: it ends at its next rollouts, or at what it says next."""
        self._abandoned.set()
        if self._thread is not None:
            self._thread.join(GRACE)

    def _check(self) -> None:
        if self._abandoned.is_set():
            raise AbandonedError


def still_fitting(
    records: Sequence[AnyRecord], harness: HarnessState, critic: Critic, step: int
) -> list[AnyRecord]:
    """A look's records, in which a decision is no longer accepted if `harness`, which may have changed
    meanwhile, does not take its update after `step`."""
    kept: list[Decision] = []
    out: list[AnyRecord] = []
    for record in records:
        if isinstance(record, Decision) and record.accepted:
            interim = replace(apply(harness, [d.update for d in kept], step), version=harness.version)
            try:
                critic.check(record.update, interim, step)
                kept.append(record)
            except UpdateError as error:
                why = f"{record.reason}; but after step {step} it cannot be applied any more: {error}"
                record = record.model_copy(update={"accepted": False, "reason": why})
        out.append(record)
    return out
