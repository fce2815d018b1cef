"""The whole protocol between the harness and whatever generates text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True)
class Request:
    """One rollout to sample: the user message, and the key that names its random stream.

    `key` is (purpose, step, ...); one key and one policy version draw the same random numbers.
    """

    prompt: str
    key: tuple[int | str, ...]


@dataclass(frozen=True)
class Sample:
    """One sampled response. `finished` is False when it was cut at the token limit."""

    text: str
    token_ids: tuple[int, ...]  # the response only, with its end token if it finished
    finished: bool


class PromptError(Exception):
    """A prompt (with its guidance) is longer than the policy takes, or holds control tokens.

    `tokens` is the length of one that is too long.
    """

    def __init__(self, told: str, tokens: int | None = None) -> None:
        super().__init__(told)
        self.tokens = tokens


class PolicyError(Exception):
    """The policy cannot be sampled now; the message says why."""


class Policy(Protocol):
    """A policy that can be sampled. Engines implement it; the critic and the probes use it."""

    @property
    def version(self) -> int:
        """Number of training steps in the weights that `sample` uses."""

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError` for a prompt that `sample` would refuse."""

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order. The draws depend on `seed` and the keys only.

        Raises `PromptError`, or `PolicyError` if it is served elsewhere and does not answer.
        """


@runtime_checkable
class Freezable(Policy, Protocol):
    """A policy that can be measured on while its training goes on."""

    def frozen(self) -> Policy:
        """The policy as it is now, whatever training makes of it. Another thread may sample it."""
