"""What was spent, by purpose: every rollout, token and judge call is counted somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from .policy import Policy, Request, Sample

Purpose = Literal["train", "critic", "probe"]
PURPOSES: tuple[Purpose, ...] = ("train", "critic", "probe")


@dataclass
class Usage:
    """Running totals by purpose."""

    rollouts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    judge_calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))

    def add_samples(self, purpose: Purpose, samples: Sequence[Sample]) -> None:
        """Count sampled responses."""
        self.rollouts[purpose] += len(samples)
        self.tokens[purpose] += sum(len(s.token_ids) for s in samples)


@dataclass(frozen=True)
class CountedPolicy:
    """A policy whose samples are counted under one purpose."""

    inner: Policy
    usage: Usage
    purpose: Purpose

    @property
    def version(self) -> int:
        """The inner policy's version."""
        return self.inner.version

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample from the inner policy and count."""
        samples = self.inner.sample(requests, seed)
        self.usage.add_samples(self.purpose, samples)
        return samples
