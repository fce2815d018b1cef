"""What the role layer costs: verdicts a second, CPU a verdict, and what a second replica brings.

    python benchmarks/judging.py            # about two minutes
    python benchmarks/judging.py --short    # the same bars, in less than a minute

A scripted endpoint in a process of its own takes 200 ms for every answer. `Role.ask` and `Judge.decide`
are measured beside a bare asyncio `AsyncOpenAI` client with a semaphore, which sends the same bodies; the
sides take turns in one process, so that a busy machine slows all of them alike. Two replicas that serve 8
requests at a time each are measured beside one of them, with enough questions in flight that both have
some waiting, and few enough a second that the processor is not what limits them. What else the machine
does makes blocks longer, never shorter: the shortest of each side are compared. `--short` measures once
more after a miss. Exits with 1 on a miss, and with 3 if the machine is too busy to tell.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from harnessrl.agents.roles.client import Answer, Question, Role
from harnessrl.agents.roles.exchange import request_body
from harnessrl.agents.scoring.judge import Item, Judge
from harnessrl.agents.scoring.verdictcache import VerdictCache
from harnessrl.agents.usage import Usage
from harnessrl.specs.schema import Judge as JudgeSpec
from openai import AsyncOpenAI

SERVICE = 0.2  # seconds
CONCURRENCY = 32
SEATS = 8  # requests that a limited replica serves at a time
RESPONSE = "A short walk after dinner is a simple habit that helps the body rest. " * 12
CRITERIA = 8  # a response


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    waves: int  # of CONCURRENCY questions in a block
    rounds: int  # of blocks of every side
    tries: int = 1


FULL = Size(waves=10, rounds=12)
SHORT = Size(waves=5, rounds=4, tries=2)
#: What is asked for: a share of the bare client's throughput; CPU milliseconds a verdict beyond it;
#: answers a second of two replicas over one's.
SHARE, CPU_MS, REPLICAS = 0.95, 1.0, 1.9
#: The share of what is possible that the bare client has to reach for a miss to mean anything.
ENOUGH = 0.8
MET, MISSED, TOO_BUSY = 0, 1, 3  # as exit codes


# --- the endpoint ---------------------------------------------------------------------------------


def serve(seats: int, service: float, here: Connection) -> None:
    """A scripted endpoint, until the other side hangs up."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    from scripted_endpoint import Reply, ScriptedEndpoint

    reply = Reply('{"reason": "It says so in its first sentence.", "met": true}', after=service)
    with ScriptedEndpoint(lambda body: reply, capacity=seats) as endpoint:
        here.send(endpoint.base_url)
        with contextlib.suppress(EOFError):
            here.recv()


@contextlib.contextmanager
def serving(seats: int = 10_000, service: float = SERVICE) -> Iterator[str]:
    """The base URL of an endpoint in a process of its own."""
    fresh = multiprocessing.get_context("spawn")
    here, there = fresh.Pipe()
    process = fresh.Process(target=serve, args=(seats, service, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        here.close()
        process.join(timeout=10)


# --- the sides ------------------------------------------------------------------------------------


@dataclass
class Side:
    """One way to get verdicts, and what its blocks took."""

    name: str
    work: Callable[[int], None]  # so many verdicts
    wall: list[float]
    cpu: list[float]
    n: int = 0

    def block(self, n: int) -> None:
        """So many more verdicts, measured."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.work(n)
        self.cpu.append(time.process_time() - cpu)
        self.wall.append(time.perf_counter() - wall)
        self.n += n

    def per_second(self) -> float:
        """Verdicts a second, in the shortest block."""
        return self.n / len(self.wall) / min(self.wall)

    def cpu_ms(self) -> float:
        """CPU milliseconds a verdict, of all threads of this process, in the cheapest block."""
        return 1000 * min(self.cpu) * len(self.cpu) / self.n


def items(n: int, block: int) -> list[Item]:
    """Responses that nobody asked about before, with `n` criteria between them."""
    criteria = tuple(
        f"The response keeps to rule number {k}: it says what to do." for k in range(CRITERIA)
    )
    response = f"{RESPONSE} ({block})"
    return [Item(f"Request number {i}.", response, criteria) for i in range(n // CRITERIA)]


def bare(spec: JudgeSpec, questions: list[Question], runner: asyncio.Runner) -> Callable[[int], None]:
    """The client alone: a semaphore, and every body ready to be sent."""
    client = AsyncOpenAI(base_url=spec.base_urls[0], api_key="EMPTY", max_retries=0, timeout=spec.timeout)
    bodies: list[dict[str, Any]] = [request_body(spec, question) for question in questions]
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(body: dict[str, Any]) -> str:
        async with slots:
            reply = await client.chat.completions.create(**body)
            return reply.choices[0].message.content or ""

    async def every(n: int) -> list[str]:
        return await asyncio.gather(*(one(bodies[i % len(bodies)]) for i in range(n)))

    return lambda n: check(runner.run(every(n)))


def check(answers: list[Any]) -> None:
    """Nothing is measured that went wrong."""
    assert all(answers), "the endpoint did not answer"


def measure(size: Size) -> tuple[Side, Side, Side]:
    """The bare client, `Role.ask` and `Judge.decide` on one endpoint, in turns."""
    with (
        serving() as base_url,
        asyncio.Runner() as runner,
        tempfile.TemporaryDirectory() as folder,
        contextlib.ExitStack() as stack,
    ):
        spec = JudgeSpec(base_urls=(base_url,), model="scripted", concurrency=CONCURRENCY)
        role = Role("judge", spec, Usage())
        stack.callback(role.close)
        cache = VerdictCache(Path(folder) / "verdicts.sqlite", spec.cache)
        stack.callback(cache.close)
        judge = Judge(role, spec, cache)
        n = size.waves * CONCURRENCY
        parts = [Item(i.prompt, i.response, (text,)) for i in items(n, -1) for text in i.criteria]
        questions = [judge._question(part) for part in parts]
        blocks = iter(range(10_000))

        def ask(n: int) -> None:
            check([isinstance(answer, Answer) for answer in role.ask(questions[:n], "train")])

        def decide(n: int) -> None:
            rows = judge.decide(items(n, next(blocks)), "train")
            check([verdict.met for row in rows for verdict in row])

        sides = (
            Side("bare client", bare(spec, questions, runner), [], []),
            Side("Role.ask", ask, [], []),
            Side("Judge.decide", decide, [], []),
        )
        for side in sides:
            side.work(CONCURRENCY)  # connections and imports
        for n_round in range(size.rounds):
            for k in range(len(sides)):
                sides[(n_round + k) % len(sides)].block(n)
        return sides


def measure_replicas(size: Size) -> tuple[float, float]:
    """Answers a second of one replica of limited capacity, and of two."""
    with serving(SEATS) as first, serving(SEATS) as second, contextlib.ExitStack() as stack:
        sides = []
        for urls in ((first,), (first, second)):
            spec = JudgeSpec(base_urls=urls, model="scripted", concurrency=4 * SEATS)
            role = Role("judge", spec, Usage())
            stack.callback(role.close)
            questions = [Question([{"role": "user", "content": f"{i}"}]) for i in range(2000)]

            def ask(n: int, role: Role = role, questions: list[Question] = questions) -> None:
                check([isinstance(answer, Answer) for answer in role.ask(questions[:n], "train")])

            sides.append(Side(f"{len(urls)} replicas", ask, [], []))
        for side in sides:
            side.work(CONCURRENCY)
        for _ in range(max(2, size.rounds // 4)):
            for side in sides:
                side.block(size.waves * CONCURRENCY)
        return sides[0].per_second(), sides[1].per_second()


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer calls, and once more after a miss")
    size = SHORT if parser.parse_args().short else FULL
    outcomes = (measured(size) for _ in range(size.tries))
    return next((outcome for outcome in outcomes if outcome != MISSED), MISSED)


def measured(size: Size) -> int:
    """Measure once and print it: the exit code."""
    plain, role, judge = measure(size)
    one, two = measure_replicas(size)
    print(
        f"{plain.n:,} verdicts a side, {1000 * SERVICE:g} ms each at the endpoint, {CONCURRENCY} at once"
    )
    for side in (plain, role, judge):
        blocks = ", ".join(f"{w:.2f}" for w in (min(side.wall), median(side.wall), max(side.wall)))
        print(
            f"{side.name:12} {side.per_second():6.1f} a second, {side.cpu_ms():5.2f} ms CPU each "
            f"(blocks of {plain.n // len(plain.wall)}: {blocks} s)"
        )
    print(f"{'1 replica':12} {one:6.1f} a second, {SEATS} at a time")
    print(f"{'2 replicas':12} {two:6.1f} a second")
    ideal = CONCURRENCY / SERVICE
    figures: list[tuple[str, float, float, bool]] = [
        ("Role.ask, share of the bare client", role.per_second() / plain.per_second(), SHARE, True),
        ("Role.ask, CPU ms beyond it", role.cpu_ms() - plain.cpu_ms(), CPU_MS, False),
        ("Judge.decide, CPU ms beyond it", judge.cpu_ms() - plain.cpu_ms(), CPU_MS, False),
        ("two replicas over one", two / one, REPLICAS, True),
    ]
    missed = 0
    print(f"{'Judge.decide, share of the bare client':40} {judge.per_second() / plain.per_second():6.3f}")
    print(f"{'bare client, share of what is possible':40} {plain.per_second() / ideal:6.3f}")
    for name, value, bar, at_least in figures:
        is_missed = value < bar if at_least else value >= bar
        missed += is_missed
        told = f"at least {bar:g}" if at_least else f"under {bar:g}"
        print(f"{name:40} {value:6.3f}  (bar: {told}){'  MISSED' if is_missed else ''}")
    if missed and plain.per_second() < ENOUGH * ideal:
        print("the machine is too busy to tell: the bare client has not the processor time either")
        return TOO_BUSY
    return MISSED if missed else MET


if __name__ == "__main__":
    raise SystemExit(main())
