"""The clipped objective against hand-computed numbers, and the token-equality check."""

from __future__ import annotations

import math

import pytest
import torch
from harnessrl.trainer.local.grpo import (
    Batch,
    Example,
    TokenMismatchError,
    check_tokens,
    clipped_loss,
    k3,
    make_batch,
)

CPU = torch.device("cpu")


def one(ratio: float, advantage: float, clip: float = 0.2) -> tuple[float, float, int]:
    """(loss, d loss / d logprob, clipped tokens) of a single token with probability ratio `ratio`."""
    old = torch.tensor([[-2.0]])
    new = torch.tensor([[-2.0 + math.log(ratio)]], requires_grad=True)
    loss = clipped_loss(new, old, torch.tensor([advantage]), torch.ones(1, 1), clip, 1.0)
    loss.value.backward()
    assert new.grad is not None
    return float(loss.value.detach()), float(new.grad), loss.clipped_tokens


# r, A, loss = -min(r A, clip(r) A), d loss / d log pi = -r A where not clipped, clipped tokens
CASES = [
    (1.0, 1.0, -1.0, -1.0, 0),
    (1.5, 1.0, -1.2, 0.0, 1),  # good and already much likelier: clipped
    (0.5, 1.0, -0.5, -0.5, 0),  # good but less likely: pulled back up
    (1.5, -1.0, 1.5, 1.5, 0),  # bad but likelier: pushed back down
    (0.5, -1.0, 0.8, 0.0, 1),  # bad and already much less likely: clipped
    (1.1, 2.0, -2.2, -2.2, 0),  # inside the range
    (0.9, -2.0, 1.8, 1.8, 0),
    (3.0, 0.0, 0.0, 0.0, 0),
]


@pytest.mark.parametrize(("ratio", "advantage", "loss", "gradient", "clipped"), CASES)
def test_one_token_by_hand(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: int
) -> None:
    value, grad, n = one(ratio, advantage)
    assert value == pytest.approx(loss, abs=1e-5)
    assert grad == pytest.approx(gradient, abs=1e-5)
    assert n == clipped


def test_the_clipping_range_is_a_parameter() -> None:
    assert one(1.5, 1.0, clip=0.1)[0] == pytest.approx(-1.1, abs=1e-5)
    assert one(1.5, 1.0, clip=0.6) == (pytest.approx(-1.5, abs=1e-5), pytest.approx(-1.5, abs=1e-5), 0)


def test_a_batch_by_hand() -> None:
    """Two rollouts of lengths 3 and 1; padding counts for nothing, the normaliser divides the sum."""
    ratios_BT = torch.tensor([[1.0, 1.5, 0.5], [0.5, 7.0, 7.0]])
    mask_BT = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    old_BT = torch.full((2, 3), -1.0) * mask_BT
    new_BT = ((old_BT + ratios_BT.log()) * mask_BT).requires_grad_()
    loss = clipped_loss(new_BT, old_BT, torch.tensor([2.0, -1.0]), mask_BT, 0.2, 4.0)
    # rollout 0 (A = 2): 2.0, 2.4 (clipped), 1.0; rollout 1 (A = -1): -0.8 (clipped)
    assert float(loss.value.detach()) == pytest.approx(-(2.0 + 2.4 + 1.0 - 0.8) / 4, abs=1e-6)
    assert loss.clipped_tokens == 2
    loss.value.backward()
    expected = torch.tensor([[-2.0, 0.0, -1.0], [0.0, 0.0, 0.0]]) / 4
    torch.testing.assert_close(new_BT.grad, expected, atol=1e-6, rtol=0)


def test_at_ratio_one_the_gradient_is_the_policy_gradient() -> None:
    new_BT = torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    advantages_B = torch.tensor([1.5, -0.5, 0.0])
    loss = clipped_loss(new_BT, new_BT.detach(), advantages_B, torch.ones(3, 4), 0.2, 12.0)
    loss.value.backward()
    torch.testing.assert_close(new_BT.grad, -advantages_B.unsqueeze(1).expand(3, 4) / 12)
    assert loss.clipped_tokens == 0


# --- batches --------------------------------------------------------------------------------------


def tokenize(prompt: str) -> list[int]:
    return [ord(letter) for letter in prompt]


EXAMPLES = [
    Example("ab", (7, 8, 9), 1.0),
    Example("xyz", (5,), -0.5),
    Example("ab", (4, 6), 0.25),
]


def test_make_batch_shares_prompts_and_pads_responses() -> None:
    batch = make_batch(EXAMPLES, tokenize, CPU)
    assert batch.prompts == [tokenize("ab"), tokenize("xyz")]
    assert batch.owner == [0, 1, 0]
    assert batch.responses_BT.tolist() == [[7, 8, 9], [5, 0, 0], [4, 6, 0]]
    assert batch.mask_BT.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    assert batch.advantages_B.tolist() == [1.0, -0.5, 0.25]


def test_check_tokens_passes_what_make_batch_makes() -> None:
    check_tokens(make_batch(EXAMPLES, tokenize, CPU), EXAMPLES, tokenize)


def test_a_token_that_is_zero_is_no_padding() -> None:
    examples = [Example("ab", (0, 0), 1.0), Example("ab", (1, 2, 3), 1.0)]
    check_tokens(make_batch(examples, tokenize, CPU), examples, tokenize)


def tampered(**changes: object) -> Batch:
    batch = make_batch(EXAMPLES, tokenize, CPU)
    return Batch(**{**vars(batch), **changes})  # type: ignore[arg-type]


def test_another_prompt_is_noticed() -> None:
    guided = [tokenize("ab, as told"), tokenize("xyz")]
    with pytest.raises(TokenMismatchError, match=r"rollout 0.*prompt"):
        check_tokens(tampered(prompts=guided), EXAMPLES, tokenize)


def test_a_swapped_owner_is_noticed() -> None:
    with pytest.raises(TokenMismatchError, match=r"rollout 1.*prompt"):
        check_tokens(tampered(owner=[0, 0, 0]), EXAMPLES, tokenize)


@pytest.mark.parametrize(("b", "t", "token"), [(0, 0, 99), (0, 2, 99), (1, 0, 99)])
def test_another_response_token_is_noticed(b: int, t: int, token: int) -> None:
    batch = make_batch(EXAMPLES, tokenize, CPU)
    batch.responses_BT[b, t] = token
    with pytest.raises(TokenMismatchError, match=rf"rollout {b}.*response"):
        check_tokens(batch, EXAMPLES, tokenize)


def test_a_longer_or_shorter_mask_is_noticed() -> None:
    for b, t, value in ((1, 1, 1.0), (0, 2, 0.0)):
        batch = make_batch(EXAMPLES, tokenize, CPU)
        batch.mask_BT[b, t] = value
        with pytest.raises(TokenMismatchError, match=f"rollout {b}"):
            check_tokens(batch, EXAMPLES, tokenize)


def test_k3_is_a_distance_that_estimates_kl() -> None:
    torch.manual_seed(0)
    logits, reference = torch.randn(2, 20), torch.randn(2, 20)
    pi, ref = torch.log_softmax(logits, -1), torch.log_softmax(reference, -1)
    assert torch.equal(k3(pi, pi), torch.zeros(2, 20))
    assert (k3(pi, ref) >= 0).all()
    expected = (pi.exp() * k3(pi, ref)).sum(-1)  # over every token, with its probability
    assert torch.allclose(expected, (pi.exp() * (pi - ref)).sum(-1), atol=1e-5)
