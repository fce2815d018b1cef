"""What was spent, by purpose: every rollout, token and judge call is counted somewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
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

    def since(self, before: RoleUsage | None) -> RoleUsage:
        """What came on top of `before`."""
        if before is None:
            return replace(self)
        cost = None if self.cost is None else self.cost - (before.cost or 0.0)
        return RoleUsage(
            self.calls - before.calls,
            self.failed - before.failed,
            self.attempts - before.attempts,
            self.tokens_in - before.tokens_in,
            self.tokens_out - before.tokens_out,
            self.seconds - before.seconds,
            cost,
        )

    def add(self, more: RoleUsage) -> None:
        """Count in what was counted elsewhere."""
        self.calls += more.calls
        self.failed += more.failed
        self.attempts += more.attempts
        self.tokens_in += more.tokens_in
        self.tokens_out += more.tokens_out
        self.seconds += more.seconds
        if more.cost is not None:
            self.cost = (self.cost or 0.0) + more.cost


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

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for `from_dict`."""
        return asdict(self)

    def copy(self) -> Usage:
        """The same totals, to be counted on elsewhere."""
        return Usage.from_dict(self.as_dict())

    def since(self, before: Usage) -> Usage:
        """What came on top of the totals `before`."""
        roles = {
            role: {p: used.since(before.roles.get(role, {}).get(p)) for p, used in by_purpose.items()}
            for role, by_purpose in self.roles.items()
        }
        return Usage(
            _less(self.rollouts, before.rollouts),
            _less(self.tokens, before.tokens),
            _less(self.judge_calls, before.judge_calls),
            roles,
        )

    def add(self, more: Usage) -> None:
        """Count in what was counted elsewhere."""
        for ours, theirs in (
            (self.rollouts, more.rollouts),
            (self.tokens, more.tokens),
            (self.judge_calls, more.judge_calls),
        ):
            for purpose, n in theirs.items():
                ours[purpose] = ours.get(purpose, 0) + n
        for role, by_purpose in more.roles.items():
            for purpose, used in by_purpose.items():
                self.roles.setdefault(role, {}).setdefault(purpose, RoleUsage()).add(used)

    def add_samples(self, purpose: Purpose, samples: Sequence[Sample]) -> None:
        """Count sampled responses."""
        tokens = sum(len(s.token_ids) for s in samples)
        self.rollouts[purpose] = self.rollouts.get(purpose, 0) + len(samples)
        self.tokens[purpose] = self.tokens.get(purpose, 0) + tokens


def _less(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {purpose: n - before.get(purpose, 0) for purpose, n in now.items()}


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
