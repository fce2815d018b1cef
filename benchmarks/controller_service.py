"""How fast the controller service answers while OpenRLHF's workers claim and submit rollouts.

    python benchmarks/controller_service.py            # about a minute
    python benchmarks/controller_service.py --short    # about twenty seconds, with a looser bar

The real service (`harnessrl.trainer.openrlhf.serve`) in a process of its own, and workers in this one.
They are an open loop: rollout i is claimed at its time on the clock, whatever became of the others, and
submitted as much later as keeps 512 claimed and not submitted. Latency counts from that time on the
clock, so that a stall is seen by everything that had to wait for it. Criteria are checks that take no
time to speak of. Saturation is another figure: workers that ask again as soon as they have an answer.
Exits with 1 on a miss.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import uvloop
from harnessrl.specs.loader import load_run_spec
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.openrlhf.wire import TOKEN_ENV
from harnessrl.trainer.provenance import provenance
from harnessrl.trainer.runfolder import RunFolder
from harnessrl.trainer.stored import write_start

RATE = 300.0  # rollouts a second
OUTSTANDING = 512  # claimed and not yet submitted
TASKS = 200
GROUP = 8
TOKENS = 256  # a response
TOKEN = "a-token-for-the-benchmark"


@dataclass(frozen=True)
class Size:
    """How much is measured, and what is asked of it."""

    slots: int  # a step
    p99_ms: float


FULL = Size(slots=1024, p99_ms=10.0)
SHORT = Size(slots=256, p99_ms=40.0)

SPEC = """
name: load
tasks: {files: [tasks.yaml]}
roles: {policy: {model: %(model)s}}
interfaces: {p: {evolve: false}, g: {evolve: false}, c: {evolve: false}}
oracle: {kind: none}
evolver: {critic: {rollouts: 8, extended_rollouts: 8}}
engine: {kind: openrlhf, device: cpu, steps: 3, tasks_per_step: %(slots)d, group_size: %(group)d}
logging: {folder: runs, probe_samples: 0}
"""
TASK = """
  - id: task-%(n)d
    domain: some
    prompt: "Answer question number %(n)d in a few words, please."
    rubric:
      - {text: Has five words or more., points: 1, check: {kind: words, min: 5}}
      - {text: The letter e occurs., points: 1, check: {kind: regex, pattern: e}}
"""


@contextlib.contextmanager
def serving(folder: Path, size: Size) -> Iterator[str]:
    """The address of a service with a fresh run."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
    import tiny

    model = tiny.build_tiny_model(folder / "model")
    (folder / "tasks.yaml").write_text("train:" + "".join(TASK % {"n": n} for n in range(TASKS)))
    (folder / "spec.yaml").write_text(SPEC % {"model": model, "slots": size.slots, "group": GROUP})
    loaded = load_run_spec(folder / "spec.yaml", None, {})
    run = RunFolder(folder / "run")
    run.root.mkdir()
    write_start(run, loaded.spec, load_tasks(loaded), provenance(0, "", probe=False))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "harnessrl.trainer.openrlhf.serve",
        str(run.root),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, env=os.environ | {TOKEN_ENV: TOKEN}, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port)).close()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("the service did not start")
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


class Workers:
    """What OpenRLHF's executors do, on one event loop."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.claims: list[float] = []  # seconds each
        self.submits: list[float] = []

    async def ask(self, path: str, body: dict[str, Any], since: float, times: list[float]) -> None:
        """One request; `since` is when it was due."""
        async with self.http.post(path, json=body) as response:
            await response.read()
            if response.status != 200:
                raise RuntimeError(f"{path}: HTTP {response.status}: {await response.text()}")
        times.append(time.perf_counter() - since)

    async def rollout(self, step: int, n: int, claim_at: float | None, hold: float) -> None:
        """Claim rollout `n` of a step at a time (None: at once), hold it, submit it."""
        where = {"step": step, "slot": n // GROUP, "sample": n % GROUP}
        if claim_at is not None:
            await asyncio.sleep(max(0.0, claim_at - time.perf_counter()))
        due = time.perf_counter() if claim_at is None else claim_at
        await self.ask("/v1/claim", where, due, self.claims)
        due = time.perf_counter() if claim_at is None else claim_at + hold
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        ids = list(range(n, n + TOKENS))
        text = f"Rollout number {n} is an answer of some words. " * (TOKENS // 12)
        await self.ask(
            "/v1/submit", {**where, "text": text, "token_ids": ids, "finished": True}, due, self.submits
        )

    async def end_step(self, step: int) -> None:
        """Take the advantages, report the step."""
        report = {"loss": 0.0, "grad_norm": 0.0, "clip_share": 0.0}
        for method, path, body in (
            ("GET", f"/v1/steps/{step}/advantages", None),
            ("POST", f"/v1/steps/{step}/done", report),
        ):
            status = 202
            while status == 202:
                async with self.http.request(method, path, json=body) as response:
                    await response.read()
                    status = response.status
            if status != 200:
                raise RuntimeError(f"{path}: HTTP {status}")


async def open_loop(address: str, size: Size) -> Workers:
    """Step 0 at `RATE`."""
    async with session(address) as http:
        workers = Workers(http)
        start = time.perf_counter() + 2.0  # by then all rollouts wait for their time
        total = size.slots * GROUP
        rollouts = [workers.rollout(0, n, start + n / RATE, OUTSTANDING / RATE) for n in range(total)]
        await asyncio.gather(*rollouts)
        await workers.end_step(0)
        return workers


async def saturated(address: str, size: Size) -> float:
    """Step 1 as fast as it goes: rollouts a second."""
    async with session(address) as http:
        workers = Workers(http)
        queue = iter(range(size.slots * GROUP))

        async def one() -> None:
            for n in queue:
                await workers.rollout(1, n, None, 0.0)

        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(32)))
        return size.slots * GROUP / (time.perf_counter() - began)


def session(address: str) -> aiohttp.ClientSession:
    """As an executor's connections are."""
    return aiohttp.ClientSession(
        address,
        headers={"authorization": f"Bearer {TOKEN}"},
        connector=aiohttp.TCPConnector(limit=64),
        timeout=aiohttp.ClientTimeout(total=120),
    )


def main() -> int:
    """Measure, print, and say whether the bar holds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer rollouts, a looser bar")
    size = SHORT if parser.parse_args().short else FULL
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), size) as address:
        # What stands between the workers and the service is not measured: their modules are out of the
        # garbage collector's way, and their loop is uvloop, as Ray's is.
        gc.freeze()
        workers = uvloop.run(open_loop(address, size))
        most = uvloop.run(saturated(address, size))
    held = True
    for name, seconds in (("claim", workers.claims), ("submit", workers.submits)):
        p50, p99, worst = (1000 * float(np.quantile(seconds, q)) for q in (0.5, 0.99, 1.0))
        good = p99 < size.p99_ms
        held = held and good
        print(
            f"{name}: p50 {p50:.1f} ms, p99 {p99:.1f} ms (bar {size.p99_ms:g}: "
            f"{'ok' if good else 'MISSED'}), worst {worst:.0f} ms, over {len(seconds)} "
            f"at {RATE:g} rollouts a second, {OUTSTANDING} outstanding"
        )
    print(f"saturation: {most:.0f} rollouts a second, claimed and submitted by 32 workers")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
