"""What rolls out and takes gradient steps: the `engine` section of a run spec."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from .strict import Strict

Positive = Annotated[int, Field(ge=1)]


class _Engine(Strict):
    steps: Positive = 28
    """Training steps."""
    tasks_per_step: Positive = 4
    """Groups in a step."""
    group_size: Annotated[int, Field(ge=2)] = 8
    """G: rollouts in a group."""
    max_new_tokens: Positive = 40
    """Longest response (tokens)."""


class SimEngine(_Engine):
    """A simulated policy: words with probabilities instead of a network. Seconds for many steps."""

    kind: Literal["sim"]
    """Ignores `roles.policy`."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 0.5
    """Step of the policy gradient on the words' logits."""


class GrpoEngine(_Engine):
    """What GRPO on a language model needs to know, whoever carries it out."""

    max_prompt_tokens: Positive = 512
    """A longer prompt (with its guidance) is an error, never cut."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Sampling temperature of training rollouts."""
    learning_rate: Annotated[float, Field(gt=0.0)] = 2e-5
    """AdamW learning rate, once warm."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on once warm: constant, or down to zero after the last step."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """The learning rate rises linearly over the first so many steps. While it is low, the evolver can
    repair the rubrics before the policy has moved far after them."""
    clip: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """PPO clipping range epsilon of the probability ratio."""
    kl_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """Weight of KL(pi || the policy at the start) in the loss (k3 estimate, nats a token); 0: none."""
    epochs: Positive = 1
    """Optimizer steps on each batch (with 1, the ratio is 1 and nothing clips)."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Gradient norm is clipped to this."""


class LocalEngine(GrpoEngine):
    """GRPO in one process with torch."""

    kind: Literal["local"]
    """On CPU, or on one GPU where there is one."""
    threads: Positive | None = None
    """CPU threads; default: all cores."""


def engine_kind(engine: Any) -> str:
    """Which engine a mapping describes. Without a `kind`, or with an unknown one, it is read as `local`,
    which then complains about it: so its other mistakes are found as well."""
    found = engine.get("kind") if isinstance(engine, dict) else getattr(engine, "kind", None)
    return found if found in ("openrlhf", "sim") else "local"
