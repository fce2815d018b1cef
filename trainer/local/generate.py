"""Forward passes that share prompts: sampling, and log-probabilities for the loss.

The G rollouts of a task start with one prompt. Both passes run every distinct prompt once and spread
its keys and values over the rollouts, so a group of 8 pays for its prompt once, not 8 times; in the
loss, gradients flow back through the shared prompt. Shapes: P distinct prompts, B rollouts, L prompt
tokens (left-padded), T response tokens (right-padded), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def _prefill(model: Any, prompts: Sequence[Sequence[int]], owner_B: Tensor) -> Any:
    """Run the distinct prompts; (cache, mask_BL, next-token logits_BV) spread over the rollouts."""
    device = next(model.parameters()).device
    longest = max(len(p) for p in prompts)
    ids_PL = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    mask_PL = torch.zeros_like(ids_PL)
    for row, prompt in enumerate(prompts):
        ids_PL[row, longest - len(prompt) :] = torch.tensor(prompt, device=device)
        mask_PL[row, longest - len(prompt) :] = 1
    positions_PL = (mask_PL.cumsum(1) - 1).clamp(min=0)
    out = model(
        ids_PL,
        attention_mask=mask_PL,
        position_ids=positions_PL,
        use_cache=True,
        logits_to_keep=1,
    )
    cache = out.cache
    cache.batch_select_indices(owner_B)
    return cache, mask_PL[owner_B], out.logits[:, -1][owner_B]


def pick_tokens(logits_BV: Tensor, uniform_B: Tensor, temperature: float) -> Tensor:
    """Inverse-CDF sampling: token ids_B, each decided by its own uniform number in [0, 1).

    One number a row makes a rollout's draws independent of who else is in the batch. At temperature 0
    the likeliest token is taken.
    """
    if temperature == 0.0:
        return logits_BV.float().argmax(-1)
    # On the CPU: a cumulative sum has no deterministic order on a GPU.
    probs_BV = torch.softmax(logits_BV.float() / temperature, dim=-1).cpu()
    cdf_BV = probs_BV.cumsum(-1)
    # Rounding leaves the last entry near, not at, 1.
    target_B1 = (uniform_B.cpu() * cdf_BV[:, -1]).unsqueeze(1)
    ids_B = torch.searchsorted(cdf_BV, target_B1, right=True).squeeze(1)
    return ids_B.clamp(max=cdf_BV.shape[1] - 1).to(logits_BV.device)


@torch.no_grad()
def sample_steps(
    model: Any,
    prompts: Sequence[Sequence[int]],
    owner: Sequence[int],
    uniform_BT: np.ndarray,
    end_ids: Sequence[int],
    temperature: float,
) -> Iterator[list[tuple[int, list[int]]]]:
    """Sample one response a rollout; `owner[b]` is the prompt of rollout b. Ends are kept.

    Token by token: the rollouts that end with each one, often none, as (b, token ids). Whoever iterates
    may stop after any token.
    """
    device = next(model.parameters()).device
    uniforms_BT = torch.as_tensor(uniform_BT, dtype=torch.float32, device=device)
    owner_B = torch.tensor(owner, device=device)
    cache, mask_BL, logits_BV = _prefill(model, prompts, owner_B)
    ends = torch.tensor(list(end_ids), device=device)
    responses: list[list[int]] = [[] for _ in owner]
    alive_B = torch.arange(len(owner), device=device)  # rollouts still being written, in cache order
    for t in range(uniform_BT.shape[1]):
        ids_B = pick_tokens(logits_BV, uniforms_BT[alive_B, t], temperature)
        for b, token in zip(alive_B.tolist(), ids_B.tolist(), strict=True):
            responses[b].append(token)
        go_on_B = ~torch.isin(ids_B, ends)
        if t + 1 == uniform_BT.shape[1]:
            go_on_B[:] = False
        yield [(b, responses[b]) for b in alive_B[~go_on_B].tolist()]
        if not go_on_B.any():
            return
        if not go_on_B.all():  # finished rollouts leave the batch
            kept_B = go_on_B.nonzero().squeeze(1)
            cache.batch_select_indices(kept_B)
            alive_B, ids_B, mask_BL = alive_B[kept_B], ids_B[kept_B], mask_BL[kept_B]
        positions_B1 = mask_BL.sum(1, keepdim=True)
        mask_BL = torch.cat([mask_BL, torch.ones_like(positions_B1)], dim=1)
        out = model(
            ids_B.unsqueeze(1),
            attention_mask=mask_BL,
            position_ids=positions_B1,
            cache=cache,
            use_cache=True,
        )
        logits_BV = out.logits[:, -1]


@torch.no_grad()
def sequence_logprobs(model: Any, ids: Sequence[int]) -> list[float]:
    """Log-probabilities (nats) of a sequence's tokens but the first, at temperature 1."""
    device = next(model.parameters()).device
    ids_1T = torch.tensor([list(ids)], device=device)
    logprobs_TV = torch.log_softmax(model(ids_1T).logits[0, :-1].float(), dim=-1)
    found: list[float] = logprobs_TV.gather(-1, ids_1T[0, 1:, None])[:, 0].tolist()
    return found


def response_logprobs(
    model: Any,
    prompts: Sequence[Sequence[int]],
    owner: Sequence[int],
    responses_BT: Tensor,
    mask_BT: Tensor,
    temperature: float,
) -> Tensor:
    """log pi(response token | prompt, tokens before it), shape (B, T); 0 where mask_BT is 0.

    `temperature` is the sampling temperature: the loss is about the distribution that was sampled.
    """
    owner_B = torch.tensor(owner, device=responses_BT.device)
    cache, prompt_mask_BL, first_BV = _prefill(model, prompts, owner_B)
    logits_BTV = first_BV.unsqueeze(1)
    if responses_BT.shape[1] > 1:
        seen_BT = mask_BT[:, :-1].long()
        positions_BT = prompt_mask_BL.sum(1, keepdim=True) + seen_BT.cumsum(1) - 1
        out = model(
            responses_BT[:, :-1],
            attention_mask=torch.cat([prompt_mask_BL, seen_BT], dim=1),
            position_ids=positions_BT.clamp(min=0),
            cache=cache,
            use_cache=True,
        )
        logits_BTV = torch.cat([logits_BTV, out.logits], dim=1)
    logprobs_BTV = torch.log_softmax(logits_BTV.float() / temperature, dim=-1)
    logprobs_BT = logprobs_BTV.gather(-1, responses_BT.unsqueeze(-1)).squeeze(-1)
    return logprobs_BT * mask_BT
