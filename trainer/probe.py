"""The before / after probe: a fixed set of rollouts under the plain prompt and the seed rubric."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..agents.policy import Policy, Request
from ..agents.scoring.audit import audit
from ..agents.scoring.scorer import Scorer
from ..agents.usage import CountedPolicy
from ..memory.records import Probe
from ..specs.schema import RunSpec
from ..specs.tasks import Task
from .data.load import Tasks
from .start import Parts


def probe_run(
    when: Literal["before", "after"],
    parts: Parts,
    tasks: Tasks,
    spec: RunSpec,
    say: Callable[[str], None],
) -> None:
    """Probe the training and the held-out tasks of a run and log what was found."""
    splits: list[tuple[Literal["train", "held_out"], Mapping[str, Task]]] = [
        ("train", tasks.train),
        ("held_out", tasks.held_out),
    ]
    asked = parts.scorer.asked
    accuracy = audit(asked) if asked is not None and spec.logging.probe_samples else None
    for split, members in splits:
        if members and spec.logging.probe_samples:
            samples = spec.logging.probe_samples
            say(f"probing {len(members)} {split} tasks {when} training, {samples} rollouts each")
            found = probe(
                CountedPolicy(parts.policy, parts.usage, "probe"),
                parts.scorer,
                members,
                split,
                when,
                samples,
                spec.seed,
                step=-1 if when == "before" else spec.engine.steps,
                harness_version=parts.controller.harness.version,
                oracle_accuracy=accuracy,
            )
            parts.record(found)


def probe(
    policy: Policy,
    scorer: Scorer,
    tasks: Mapping[str, Task],
    split: Literal["train", "held_out"],
    when: Literal["before", "after"],
    samples: int,
    seed: int,
    step: int,
    harness_version: int,
    oracle_accuracy: float | None = None,
) -> Probe:
    """Mean R_raw under the seed rubrics, clipped to [0, 1] for display, and mean oracle quality.

    The random streams depend on (seed, task, sample) only: before and after draw the same numbers.
    """
    found = look(policy, scorer, tasks, samples, seed, "probe")
    return Probe(
        id=f"p-{split}-{when}",
        step=step,
        harness_version=harness_version,
        when=when,
        split=split,
        samples=samples,
        reward=found.reward,
        quality=found.quality,
        per_task=found.per_task,
        oracle_accuracy=oracle_accuracy,
        words=found.words,
        seconds=found.seconds,
    )


@dataclass(frozen=True)
class Look:
    """Mean reward and quality of tasks under plain prompts, and their means; None: nothing is known."""

    per_task: dict[str, tuple[float | None, float | None]]
    words: float
    seconds: float

    @property
    def reward(self) -> float | None:
        """Over the tasks that have one."""
        return _mean([r for r, _ in self.per_task.values() if r is not None])

    @property
    def quality(self) -> float | None:
        """Likewise."""
        return _mean([q for _, q in self.per_task.values() if q is not None])


def look(
    policy: Policy,
    scorer: Scorer,
    tasks: Mapping[str, Task],
    samples: int,
    seed: int,
    purpose: Literal["probe", "evaluate"],
) -> Look:
    """Rollouts of each task without guidance, by its full seed rubric and by the oracle."""
    requests = [
        Request(task.prompt, (purpose, task.id, i)) for task in tasks.values() for i in range(samples)
    ]
    started = time.monotonic()
    texts = [sample.text for sample in policy.sample(requests, seed)]
    per_task: dict[str, tuple[float | None, float | None]] = {}
    for n, task in enumerate(tasks.values()):
        mine = texts[n * samples : (n + 1) * samples]
        met_GK = scorer.verdicts(task, task.rubric, mine, purpose)
        rewards_G = np.clip(scorer.rewards(task.rubric, met_GK), 0.0, 1.0)
        per_task[task.id] = (_mean(rewards_G), _mean(scorer.quality(task, mine, purpose).q_N))
    words = float(np.mean([len(text.split()) for text in texts]))
    return Look(per_task, words, time.monotonic() - started)


def _mean(values: Sequence[float] | np.ndarray) -> float | None:
    known = np.asarray(values, dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else None
