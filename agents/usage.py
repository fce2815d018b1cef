"""What was spent, by purpose: every rollout, token and judge call is counted somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .policy import Policy, Request, Sample

Purpose = Literal["train", "critic", "probe", "evaluate"]
#: What every run spends on; evaluation is counted where there is one.
PURPOSES: tuple[Purpose, ...] = ("train", "critic", "probe")


@dataclass
class RoleUsage:
    """What a role's endpoint was asked, and what it took, for one purpose."""

    calls: int = 0
    failed: int = 0  # calls without an answer
    attempts: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0  # summed over calls, which overlap
    cost: float | None = None  # None: no prices are given


@dataclass
class Usage:
    """Running totals by purpose."""

    rollouts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    judge_calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PURPOSES, 0))
    roles: dict[str, dict[str, RoleUsage]] = field(default_factory=dict)  # role -> purpose

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Usage:
        """What `asdict` made of one."""
        roles = {
            role: {purpose: RoleUsage(**used) for purpose, used in by_purpose.items()}
            for role, by_purpose in data.get("roles", {}).items()
        }
        return cls(**{**data, "roles": roles})

    def add_samples(self, purpose: Purpose, samples: Sequence[Sample]) -> None:
        """Count sampled responses."""
        tokens = sum(len(s.token_ids) for s in samples)
        self.rollouts[purpose] = self.rollouts.get(purpose, 0) + len(samples)
        self.tokens[purpose] = self.tokens.get(purpose, 0) + tokens


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

    def check_prompt(self, prompt: str) -> None:
        """The inner policy's check."""
        self.inner.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample from the inner policy and count."""
        samples = self.inner.sample(requests, seed)
        self.usage.add_samples(self.purpose, samples)
        return samples
