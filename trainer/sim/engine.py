"""A policy without a network: each task has its words, and each word its own probability.

A response is the set of words that were drawn, so checks, rubrics and the oracle see ordinary text, and
everything around the policy (harness, evolver, critic, memory, report) is the real thing. The vocabulary
of a task is what its criteria, its pool and its oracle look for, and a few words nobody looks for: what
the rubric rewards and quality does not is learned as readily as it is by a language model.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...agents.policy import Request, Sample
from ...memory.files import write_atomic
from ...specs.checks import MentionsCheck
from ...specs.engines import SimEngine as SimSpec
from ...specs.sampling import stream
from ...specs.tasks import Criterion, Task
from ..engine import Example, UpdateStats

Floats = NDArray[np.float64]

FILLERS = ("the", "one", "thing", "with", "some", "more", "very", "well")
START = -1.4  # logit of a word at the start: a fifth of the responses have it
SPREAD = 0.5  # standard deviation of that logit over words
GUIDED = 2.5  # what guidance that names a word adds to its logit


class SimEngine:
    """Bernoulli word policies, one a task, trained by the policy gradient of their own likelihood.

    Arrays are over a task's V words. `version` counts training steps.
    """

    def __init__(self, tasks: Mapping[str, Task], spec: SimSpec, seed: int, version: int = 0) -> None:
        self.spec = spec
        self.words = {task.prompt: vocabulary(task) for task in tasks.values()}
        self.logits: dict[str, Floats] = {
            prompt: START + SPREAD * stream(seed, "sim", prompt).standard_normal(len(words))
            for prompt, words in self.words.items()
        }
        self._version = version

    @property
    def version(self) -> int:
        """Training steps taken."""
        return self._version

    def frozen(self) -> SimEngine:
        """The policy as it is now (see `agents.policy.Freezable`)."""
        other = copy.copy(self)
        other.logits = dict(self.logits)  # training replaces the arrays in it, and changes none
        return other

    def check_prompt(self, prompt: str) -> None:
        """Every prompt of the run's tasks will do."""

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order (see `agents.policy.Policy`)."""
        return [self._sample(request, seed) for request in requests]

    def _sample(self, request: Request, seed: int) -> Sample:
        prompt = self._plain(request.prompt)
        words = self.words[prompt]
        logits_V = self.logits[prompt]
        if guidance := request.prompt[len(prompt) :].lower():
            logits_V = logits_V + GUIDED * np.array([word in guidance for word in words])
        rng = stream(seed, *request.key)
        drawn = np.flatnonzero(rng.random(len(words)) < _probability(logits_V))[
            : self.spec.max_new_tokens
        ]
        if not len(drawn):
            drawn = np.array([int(logits_V.argmax())])
        text = " ".join(words[i] for i in rng.permutation(drawn))
        return Sample(f"{text}.", tuple(int(i) for i in drawn), True)

    def train(self, examples: Sequence[Example], normaliser: float) -> UpdateStats:
        """One step of gradient ascent on the mean of A log pi(words | task)."""
        self._version += 1
        gradients: dict[str, Floats] = {}
        loss = 0.0
        for example in examples:
            prompt = self._plain(example.prompt)
            there_V = self._there(prompt, example)
            chance_V = _probability(self.logits[prompt])
            step_V = example.advantage * (there_V - chance_V) / self.spec.group_size
            gradients[prompt] = gradients.get(prompt, np.zeros_like(step_V)) + step_V
            loss -= example.advantage * self._logprob(prompt, example) / normaliser
        for prompt, gradient_V in gradients.items():
            self.logits[prompt] = self.logits[prompt] + self.spec.learning_rate * gradient_V
        norm = np.sqrt(sum(float(np.square(g).sum()) for g in gradients.values()))
        return UpdateStats(loss, float(norm), 0.0, None)

    def mean_logprob(self, examples: Sequence[Example]) -> float | None:
        """Mean log-probability (nats a word of the response) under the loss prompts; None if none."""
        if not examples:
            return None
        total = sum(self._logprob(self._plain(e.prompt), e) for e in examples)
        return total / sum(len(e.response_ids) for e in examples)

    def save(self, folder: Path) -> None:
        """Write the table of logits. Raises `OSError`."""
        rows = {
            prompt: dict(zip(self.words[prompt], logits_V.tolist(), strict=True))
            for prompt, logits_V in self.logits.items()
        }
        write_atomic(folder / "policy" / "logits.json", json.dumps(rows, indent=1))

    def load_optimizer(self, folder: Path) -> None:
        """Take the table of a checkpoint folder (there is no optimizer beside it)."""
        rows: dict[str, dict[str, float]] = json.loads((folder / "policy" / "logits.json").read_text())
        for prompt, row in rows.items():
            if prompt in self.words:
                start = dict(zip(self.words[prompt], self.logits[prompt].tolist(), strict=True))
                self.logits[prompt] = np.array([row.get(w, start[w]) for w in self.words[prompt]])

    def _plain(self, prompt: str) -> str:
        """The task's own prompt, which a guided one starts with."""
        if prompt in self.words:
            return prompt
        return max((known for known in self.words if prompt.startswith(known)), key=len)

    def _there(self, prompt: str, example: Example) -> Floats:
        there_V = np.zeros(len(self.words[prompt]))
        there_V[list(example.response_ids)] = 1.0
        return there_V

    def _logprob(self, prompt: str, example: Example) -> float:
        chance_V = _probability(self.logits[prompt])
        there_V = self._there(prompt, example)
        return float(np.log(np.where(there_V > 0, chance_V, 1.0 - chance_V)).sum())


def vocabulary(task: Task) -> list[str]:
    """The words of a task: what its criteria, pool and oracle look for, and the fillers."""
    topic = [group[0] for group in task.quality.topic] if task.quality else []
    return list(dict.fromkeys((*_looked_for(task), *topic, *FILLERS)))


def _looked_for(task: Task) -> Iterator[str]:
    criteria: tuple[Criterion, ...] = (*task.rubric, *task.pool.criteria)
    for criterion in criteria:
        if isinstance(criterion.check, MentionsCheck):
            yield from criterion.check.terms


def _probability(logits_V: Any) -> Floats:
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits_V, -30.0, 30.0))))
