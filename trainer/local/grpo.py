"""The GRPO objective: clipped policy-gradient loss on group-relative advantages.

Group-relative advantages: DeepSeekMath (arXiv 2402.03300), section 4.1. Clipping: PPO
(arXiv 1707.06347), eq. 7. Token normalisation without a length bias (`dr_grpo`): arXiv 2503.20783.
Shapes: B rollouts, T response tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine import Example


class TokenMismatchError(Exception):
    """A loss sequence is not exactly its prompt's tokens followed by the sampled response ids."""


@dataclass(frozen=True)
class Batch:
    """Examples as tensors. Rollouts with the same prompt share it: `owner[b]` indexes `prompts`."""

    prompts: list[list[int]]
    owner: list[int]
    responses_BT: Tensor
    mask_BT: Tensor
    advantages_B: Tensor


def make_batch(
    examples: Sequence[Example], tokenize: Callable[[str], list[int]], device: torch.device
) -> Batch:
    """Pad the examples' responses on the right; tokenise each distinct prompt once."""
    rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(e.prompt for e in examples))}
    longest = max(len(e.response_ids) for e in examples)
    responses_BT = torch.zeros(len(examples), longest, dtype=torch.long, device=device)
    mask_BT = torch.zeros(len(examples), longest, device=device)
    for b, example in enumerate(examples):
        n = len(example.response_ids)
        responses_BT[b, :n] = torch.tensor(example.response_ids, device=device)
        mask_BT[b, :n] = 1.0
    advantages = [e.advantage for e in examples]
    return Batch(
        [tokenize(prompt) for prompt in rows],
        [rows[e.prompt] for e in examples],
        responses_BT,
        mask_BT,
        torch.tensor(advantages, dtype=torch.float32, device=device),
    )


def check_tokens(batch: Batch, examples: Sequence[Example], tokenize: Callable[[str], list[int]]) -> None:
    """The token-equality check, on the tensors the loss will see.

    Raises `TokenMismatchError` unless every sequence is tokenize(prompt) + sampled ids, exactly.
    """
    for b, example in enumerate(examples):
        if batch.prompts[batch.owner[b]] != tokenize(example.prompt):
            raise TokenMismatchError(f"rollout {b}: the loss would see another prompt")
        seen = batch.responses_BT[b][batch.mask_BT[b].bool()].tolist()
        if seen != list(example.response_ids):
            raise TokenMismatchError(f"rollout {b}: the loss would see other response tokens")


@dataclass(frozen=True)
class Loss:
    """The scalar to minimise, and how many response tokens' gradients the clip removed."""

    value: Tensor
    clipped_tokens: int


def k3(logprobs_BT: Tensor, reference_BT: Tensor) -> Tensor:
    """Per-token estimate of KL(pi || reference) on tokens sampled from pi, never negative, shape (B, T).

    exp(d) - d - 1 with d = log reference - log pi: the k3 estimator (Schulman, "Approximating KL
    divergence"), as in DeepSeekMath (arXiv 2402.03300), eq. 4.
    """
    difference_BT = reference_BT - logprobs_BT
    return torch.exp(difference_BT) - difference_BT - 1


def clipped_loss(
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    clip: float,
    normaliser: float,
) -> Loss:
    """- sum_t min(r A, clip(r, 1 - eps, 1 + eps) A) / normaliser, r = pi(token) / pi_old(token)."""
    ratio_BT = torch.exp(logprobs_BT - old_logprobs_BT)
    advantages_B1 = advantages_B.unsqueeze(1)
    plain_BT = ratio_BT * advantages_B1
    clipped_BT = ratio_BT.clamp(1 - clip, 1 + clip) * advantages_B1
    value = -(torch.minimum(plain_BT, clipped_BT) * mask_BT).sum() / normaliser
    return Loss(value, int(((clipped_BT < plain_BT) * mask_BT).sum()))
