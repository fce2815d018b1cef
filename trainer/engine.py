"""What a training engine is to the loop: it samples, takes a step on examples, and saves itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..agents.policy import Freezable


@dataclass(frozen=True)
class Example:
    """One rollout as it enters the loss: `prompt` is the text it is trained under."""

    prompt: str
    response_ids: tuple[int, ...]
    advantage: float


@dataclass(frozen=True)
class UpdateStats:
    """What one training step did to the weights."""

    loss: float
    grad_norm: float  # before clipping
    clip_share: float  # of response tokens
    kl: float | None  # nats a token, from the reference; None: no reference is kept


class TrainingEngine(Freezable, Protocol):
    """A policy that can be trained."""

    def train(self, examples: Sequence[Example], normaliser: float) -> UpdateStats:
        """Take one training step; `normaliser` divides the summed token losses."""

    def mean_logprob(self, examples: Sequence[Example]) -> float | None:
        """Mean log-probability (nats a token) of responses under their loss prompts; None if none."""

    def save(self, folder: Path) -> None:
        """Write `policy/` and what a resume needs into a checkpoint folder. Raises `OSError`."""

    def load_optimizer(self, folder: Path) -> None:
        """Take what a resume needs from a checkpoint folder."""
