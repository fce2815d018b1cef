"""Which replica gets the next request: the least loaded one whose circuit is closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Failures in a row that open a replica's circuit, and the seconds until it is tried again.
FAILURES = 5
COOL_DOWN = 10.0


@dataclass
class Replica:
    """One endpoint of a role, and how it is doing."""

    base_url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    open_until: float = 0.0
    answered: int = 0


class Replicas:
    """Balances by load and leaves failing replicas alone for a while.

    A circuit opens after `FAILURES` failures in a row; after `COOL_DOWN` seconds one request at a time
    tries it again. When every circuit is open the one that closes first is used: a request is never
    refused here, so that a deadline, and not this class, decides when to give up.
    """

    def __init__(self, base_urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.all = [Replica(url) for url in base_urls]
        self._clock = clock

    def pick(self, avoid: Replica | None = None) -> Replica:
        """The replica for the next attempt; not `avoid` (which just failed), if another will do."""
        now = self._clock()
        usable = [r for r in self.all if self._usable(r, now)]
        others = [r for r in usable if r is not avoid]
        if chosen := (others or usable):
            return min(chosen, key=lambda r: r.in_flight)
        return min(self.all, key=lambda r: r.open_until)

    def succeeded(self, replica: Replica) -> None:
        """It answered: its circuit closes."""
        replica.failures = 0
        replica.open_until = 0.0
        replica.answered += 1

    def failed(self, replica: Replica) -> None:
        """It did not answer, or with a server error."""
        replica.failures += 1
        if replica.failures >= FAILURES:
            replica.open_until = self._clock() + COOL_DOWN

    def _usable(self, replica: Replica, now: float) -> bool:
        if replica.failures < FAILURES:
            return True
        return now >= replica.open_until and replica.in_flight == 0  # half open: one probe
