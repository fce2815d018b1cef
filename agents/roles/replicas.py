"""Which replica gets the next request: the least loaded one that is in rotation."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

#: Failures in a row that open a replica's circuit, and the seconds until it is tried again.
FAILURES = 5
COOL_DOWN = 10.0


@dataclass(eq=False)
class Replica:
    """One endpoint of a role, and how it is doing."""

    base_url: str
    in_flight: int = 0
    failures: int = 0  # in a row
    open_until: float = 0.0
    paused_until: float = 0.0
    answered: int = 0


class Replicas:
    """Balances by load, and leaves alone for a while who fails or asks for a pause.

    A circuit opens after `FAILURES` failures in a row; after `COOL_DOWN` seconds one request at a time
    tries it again. When every circuit is open the one that closes first is used: a request is never
    refused here, so that a deadline, and not this class, decides when to give up. A pause is kept.
    """

    def __init__(self, base_urls: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.all = [Replica(url) for url in base_urls]
        self._clock = clock

    def pick(self, avoid: Collection[Replica] = (), never: Collection[Replica] = ()) -> Replica | None:
        """The replica for the next attempt, of those not in `never`; none of `avoid` if another will do.

        None: to be waited for (`wait`), since those in rotation are paused.
        """
        now = self._clock()
        allowed = [r for r in self.all if r not in never]
        free = [r for r in allowed if self._is_free(r, now)]
        others = [r for r in free if r not in avoid]
        if chosen := (others or free):
            return min(chosen, key=lambda r: r.in_flight)
        if any(r.failures < FAILURES for r in allowed):
            return None
        first = min(allowed, key=_comes_back)
        return first if now >= first.paused_until else None

    def is_free(self, besides: Collection[Replica]) -> bool:
        """Is there one in rotation, unpaused, `besides` these?"""
        now = self._clock()
        return any(self._is_free(r, now) for r in self.all if r not in besides)

    def wait(self, never: Collection[Replica] = ()) -> float:
        """Seconds until the next one's pause or cool-down ends, of those not in `never`."""
        now = self._clock()
        left = (_comes_back(r) - now for r in self.all if r not in never)
        return min((seconds for seconds in left if seconds > 0), default=0.0)

    def succeeded(self, replica: Replica) -> None:
        """It answered: its circuit closes."""
        replica.failures = 0
        replica.open_until = 0.0
        replica.answered += 1

    def failed(self, replica: Replica) -> None:
        """It did not answer, or with a server error, or refused what another one answered."""
        replica.failures += 1
        if replica.failures >= FAILURES:
            replica.open_until = self._clock() + COOL_DOWN

    def refused(self, replica: Replica) -> None:
        """It found a request wrong. That may be true: it counts against no replica in rotation, and is no
        reason to take one back."""
        if replica.failures >= FAILURES:
            replica.open_until = self._clock() + COOL_DOWN

    def pause(self, replica: Replica, seconds: float) -> None:
        """It asks to be left alone for so long."""
        replica.paused_until = max(replica.paused_until, self._clock() + seconds)

    def _is_free(self, replica: Replica, now: float) -> bool:
        if now < replica.paused_until:
            return False
        if replica.failures < FAILURES:
            return True
        return now >= replica.open_until and replica.in_flight == 0  # half open: one probe


def _comes_back(replica: Replica) -> float:
    return max(replica.open_until, replica.paused_until)
