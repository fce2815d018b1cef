"""How busy an evaluation keeps the endpoint of the policy that it samples.

    python benchmarks/evaluate.py            # about two minutes
    python benchmarks/evaluate.py --short    # about half a minute, with a looser bar

250 held-out tasks, a greedy and a sampled response each, from a scripted endpoint in a process of its own
that takes a second for every response and works on 32 at once; another endpoint judges five criteria of
each response meanwhile. Beside it a bare asyncio `AsyncOpenAI` client with a semaphore asks for as many
responses. The two take turns in one process, so that a busy machine slows both alike. Exits with 1 on a
miss.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from harnessrl.agents.roles.client import Role
from harnessrl.agents.scoring.judge import Judge
from harnessrl.agents.scoring.scorer import Scorer
from harnessrl.agents.usage import Usage
from harnessrl.specs.schema import Judge as JudgeSpec
from harnessrl.specs.schema import Oracle
from harnessrl.specs.tasks import Criterion, HeldOutTask
from harnessrl.trainer.evaluate.measures import RubricMeasure
from harnessrl.trainer.evaluate.policies import EndpointPolicy
from harnessrl.trainer.evaluate.run import Settings, answer_all
from harnessrl.trainer.evaluate.store import ResponseStore
from openai import AsyncOpenAI

sys.path.insert(0, str(Path(__file__).parent))
import judging

RESPONSE_S = 1.0  # the policy's endpoint, a response
VERDICT_S = 0.1  # the judge's
SEATS = 32  # responses that the policy's endpoint works on at once
IN_FLIGHT = 64  # so that it always has some waiting
CRITERIA = 5
MAX_TOKENS = 256


@dataclass(frozen=True)
class Size:
    """How much is measured, and what is asked of it."""

    tasks: int
    rounds: int
    share: float  # of the bare client's throughput


FULL = Size(tasks=250, rounds=3, share=0.95)
SHORT = Size(tasks=128, rounds=1, share=0.85)


def tasks(n: int) -> list[tuple[str, HeldOutTask]]:
    """Tasks that a judge decides."""
    rubric = tuple(Criterion(text=f"It keeps to rule {k}.", points=1.0) for k in range(CRITERIA))
    made = (
        HeldOutTask(id=f"t{i}", domain="d", prompt=f"Write about {i}.", rubric=rubric) for i in range(n)
    )
    return [("held-out", task) for task in made]


def bare(url: str, prompts: list[str]) -> float:
    """Seconds that a bare client takes for as many responses."""

    async def every() -> float:
        slots = asyncio.Semaphore(IN_FLIGHT)
        async with AsyncOpenAI(base_url=url, api_key="EMPTY", max_retries=0) as client:

            async def one(prompt: str) -> None:
                async with slots:
                    await client.chat.completions.create(
                        model="scripted",
                        messages=[{"role": "user", "content": prompt}],
                        temperature=0.0,
                        max_completion_tokens=MAX_TOKENS,
                    )

            started = time.perf_counter()
            await asyncio.gather(*map(one, prompts))
            return time.perf_counter() - started

    return asyncio.run(every())


def evaluated(url: str, judge_url: str, n: int) -> tuple[float, float]:
    """Seconds until an evaluation has every response, and until all are measured too."""
    spec = JudgeSpec(base_urls=(judge_url,), model="scripted", concurrency=IN_FLIGHT)
    role = Role("judge", spec, Usage())
    scorer = Scorer(Oracle(kind="none"), Usage(), 0.2, Judge(role, spec, None))
    policy = EndpointPolicy(url, IN_FLIGHT, MAX_TOKENS, {})
    sampled_at = [0.0]

    def progress(sampled: int, measured: int) -> None:
        if sampled == 2 * n and not sampled_at[0]:
            sampled_at[0] = time.perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        store = ResponseStore(Path(folder) / "responses.sqlite")
        started = time.perf_counter()
        settings = Settings(samples=1, temperature=1.0, max_tokens=MAX_TOKENS, seed=0)
        measures = [RubricMeasure(scorer, lambda task: ())]
        found = answer_all(policy, tasks(n), measures, settings, store, progress)
        whole = time.perf_counter() - started
        store.close()
    policy.close()
    role.close()
    assert all(response.scores["rubric"].value == 1.0 for a in found for response in a.responses)
    return sampled_at[0] - started, whole


def main() -> int:
    """Measure, print, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--short", action="store_true", help="fewer tasks and a looser bar")
    size = SHORT if parser.parse_args().short else FULL
    prompts = [f"Write about {i}." for i in range(size.tasks)] * 2
    alone: list[float] = []
    ours: list[float] = []
    whole: list[float] = []
    with judging.serving(SEATS, RESPONSE_S) as url, judging.serving(service=VERDICT_S) as judge_url:
        bare(url, prompts[:IN_FLIGHT])  # imports and warm-up
        evaluated(url, judge_url, 4)

        def take_evaluation() -> None:
            sampled, done = evaluated(url, judge_url, size.tasks)
            ours.append(sampled)
            whole.append(done)

        turns: list[Callable[[], None]] = [
            lambda: alone.append(bare(url, prompts)),
            take_evaluation,
        ]
        for n in range(size.rounds):
            for turn in turns if n % 2 == 0 else reversed(turns):
                turn()
    n = len(prompts)
    print(
        f"{n} responses of {RESPONSE_S:g} s, {SEATS} at once; "
        f"{n * CRITERIA:,} verdicts of {VERDICT_S:g} s"
    )
    print(f"{'what is possible':44} {SEATS / RESPONSE_S:6.1f} responses a second")
    print(f"{'bare client':44} {n / median(alone):6.1f}")
    print(f"{'evaluation, until all are sampled':44} {n / median(ours):6.1f}")
    print(f"{'evaluation, until all are measured':44} {n / median(whole):6.1f}")
    share = sum(alone) / sum(ours)
    missed = share < size.share
    told = f"(bar: at least {size.share:g}){'  MISSED' if missed else ''}"
    print(f"{'evaluation, share of the bare client':44} {share:6.3f}  {told}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
