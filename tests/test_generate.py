"""Shared-prompt passes: the same numbers as the naive ones, for every rollout on its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harnessrl.trainer.local.generate import pick_tokens, response_logprobs, sample_steps
from harnessrl.trainer.local.model import load

# Two prompts of unlike length (so the shorter is padded), five rollouts of unlike lengths.
PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13], [40, 41, 42]]
OWNER = [0, 1, 0, 1, 0]
# End tokens so likely that rollouts finish at different lengths.
ENDS = list(range(2, 512, 6))
RESPONSES = [[20, 21, 22, 23], [30], [24, 25], [31, 32, 33, 34, 35, 36], [26]]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    found, _ = load(tiny_model)
    torch.set_num_threads(1)
    return found.eval()


@pytest.fixture(scope="module")
def peaked(tiny_model: Path) -> Any:
    """The same model with hidden states scaled up: far from uniform, so that errors show."""
    found, _ = load(tiny_model)
    with torch.no_grad():
        found.model.norm.weight.mul_(2.5)
    return found.eval()


def padded(responses: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, responses))
    ids_BT = torch.zeros(len(responses), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(responses), longest)
    for b, response in enumerate(responses):
        ids_BT[b, : len(response)] = torch.tensor(response)
        mask_BT[b, : len(response)] = 1
    return ids_BT, mask_BT


def naive(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float) -> torch.Tensor:
    """log pi of each response token from one plain pass: no cache, no padding, no sharing."""
    ids = torch.tensor([[*prompt, *response]])
    logits = model(ids, use_cache=False).logits[0].float() / temperature
    logprobs = torch.log_softmax(logits, -1)
    places = range(len(prompt) - 1, len(prompt) + len(response) - 1)
    return torch.stack([logprobs[i, token] for i, token in zip(places, response, strict=True)])


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_equal_the_naive_pass(peaked: Any, temperature: float) -> None:
    ids_BT, mask_BT = padded(RESPONSES)
    with torch.no_grad():
        shared_BT = response_logprobs(peaked, PROMPTS, OWNER, ids_BT, mask_BT, temperature)
        for b, response in enumerate(RESPONSES):
            expected = naive(peaked, PROMPTS[OWNER[b]], response, temperature)
            torch.testing.assert_close(shared_BT[b, : len(response)], expected, atol=1e-4, rtol=0)
            assert (shared_BT[b, len(response) :] == 0).all()


def test_temperature_divides_the_logits(peaked: Any) -> None:
    ids_BT, mask_BT = padded(RESPONSES)
    with torch.no_grad():
        cold, warm = (response_logprobs(peaked, PROMPTS, OWNER, ids_BT, mask_BT, t) for t in (0.5, 2.0))
    assert not torch.allclose(cold, warm, atol=1e-2)


def test_gradients_equal_the_naive_pass_through_the_shared_prompt_too(peaked: Any) -> None:
    ids_BT, mask_BT = padded(RESPONSES)
    weights_BT = torch.linspace(-1.0, 1.0, mask_BT.numel()).reshape(mask_BT.shape)

    def gradients(value: torch.Tensor) -> dict[str, torch.Tensor]:
        peaked.zero_grad(set_to_none=True)
        value.backward()
        return {n: p.grad.clone() for n, p in peaked.named_parameters() if p.grad is not None}

    shared = gradients(
        (response_logprobs(peaked, PROMPTS, OWNER, ids_BT, mask_BT, 1.3) * weights_BT).sum()
    )
    one_by_one = gradients(
        sum(
            (naive(peaked, PROMPTS[OWNER[b]], r, 1.3) * weights_BT[b, : len(r)]).sum()
            for b, r in enumerate(RESPONSES)
        )
    )
    assert shared.keys() == one_by_one.keys()
    assert len(shared) > 15
    for name, gradient in shared.items():
        scale = one_by_one[name].abs().max()
        assert scale > 0, name
        torch.testing.assert_close(
            gradient, one_by_one[name], atol=float(1e-4 * scale), rtol=1e-4, msg=name
        )
    peaked.zero_grad(set_to_none=True)


def test_a_rollout_s_logprobs_do_not_depend_on_its_neighbours(peaked: Any) -> None:
    ids_BT, mask_BT = padded(RESPONSES)
    with torch.no_grad():
        together = response_logprobs(peaked, PROMPTS, OWNER, ids_BT, mask_BT, 1.0)
        for b, response in enumerate(RESPONSES):
            alone = response_logprobs(peaked, [PROMPTS[OWNER[b]]], [0], *padded([response]), 1.0)
            torch.testing.assert_close(alone[0], together[b, : len(response)], atol=1e-4, rtol=0)


def test_single_token_responses(peaked: Any) -> None:
    with torch.no_grad():
        found = response_logprobs(peaked, PROMPTS, [0, 1], *padded([[20], [30]]), 1.0)
    assert found.shape == (2, 1)
    for b, token in enumerate((20, 30)):
        expected = naive(peaked, PROMPTS[b], [token], 1.0)
        torch.testing.assert_close(found[b], expected.detach(), atol=1e-4, rtol=0)


# --- pick_tokens ----------------------------------------------------------------------------------


def test_pick_tokens_inverts_the_cdf() -> None:
    logits_BV = torch.log(torch.tensor([[0.2, 0.3, 0.5]])).repeat(6, 1)
    uniform_B = torch.tensor([0.0, 0.19, 0.21, 0.49, 0.51, 0.9999999])
    assert pick_tokens(logits_BV, uniform_B, 1.0).tolist() == [0, 0, 1, 1, 2, 2]


def test_pick_tokens_never_picks_what_has_no_probability() -> None:
    logits_BV = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(4, 1)
    uniform_B = torch.tensor([0.0, 0.4999, 0.5, 1 - 2**-24])
    assert pick_tokens(logits_BV, uniform_B, 1.0).tolist() == [1, 1, 3, 3]


def test_pick_tokens_draws_the_softmax_distribution() -> None:
    """Chi-square over 20,000 draws against softmax(logits / T), at the 1e-4 point."""
    n, temperature = 20_000, 0.7
    generator = torch.Generator().manual_seed(1)
    logits_V = torch.randn(12, generator=generator) * 1.5
    uniform_B = torch.as_tensor(np.random.default_rng(2).random(n), dtype=torch.float32)
    picked = pick_tokens(logits_V.expand(n, -1), uniform_B, temperature)
    expected = torch.softmax(logits_V / temperature, -1).numpy() * n
    seen = np.bincount(picked.numpy(), minlength=12)
    assert expected.min() > 5
    chi_square = float(((seen - expected) ** 2 / expected).sum())
    assert chi_square < 37.4  # df = 11, p = 1e-4
    # ... and the test would notice a temperature that is not applied.
    wrong = torch.softmax(logits_V, -1).numpy() * n
    assert float(((seen - wrong) ** 2 / wrong).sum()) > 200


def test_pick_tokens_works_on_a_large_bf16_vocabulary() -> None:
    logits_BV = torch.zeros(3, 49_152, dtype=torch.bfloat16)
    picked = pick_tokens(logits_BV, torch.tensor([0.0, 0.5, 1 - 2**-24]), 1.0)
    assert picked[0] == 0
    assert abs(int(picked[1]) - 24_576) < 64
    assert 49_000 < int(picked[2]) < 49_152


# --- sampling -------------------------------------------------------------------------------------


def sample_tokens(
    model: Any,
    prompts: Any,
    owner: Sequence[int],
    uniform_BT: Any,
    ends: Sequence[int],
    temperature: float,
) -> list[list[int]]:
    """The responses in order."""
    steps = sample_steps(model, prompts, owner, uniform_BT, ends, temperature)
    ended = {b: ids for step in steps for b, ids in step}
    return [ended[b] for b in range(len(owner))]


def uniforms(rows: int, length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, length))


def naive_sample(
    model: Any, prompt: Sequence[int], uniform_T: np.ndarray, ends: Sequence[int], temperature: float
) -> list[int]:
    """One rollout, token by token, each from a whole fresh pass."""
    response: list[int] = []
    for u in uniform_T:
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *response]]), use_cache=False).logits[:, -1]
        token = int(pick_tokens(logits, torch.tensor([u], dtype=torch.float32), temperature)[0])
        response.append(token)
        if token in ends:
            break
    return response


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_sampling_equals_the_naive_loop(peaked: Any, temperature: float) -> None:
    uniform_BT = uniforms(8, 12)
    owner = [0, 1, 0, 1, 0, 1, 0, 1]
    got = sample_tokens(peaked, PROMPTS, owner, uniform_BT, ENDS, temperature)
    for b, response in enumerate(got):
        expected = naive_sample(peaked, PROMPTS[owner[b]], uniform_BT[b], ENDS, temperature)
        assert response == expected, b
    assert len({len(response) for response in got}) > 1


def test_a_rollout_is_the_same_alone_and_in_any_batch(peaked: Any) -> None:
    uniform_BT = uniforms(8, 12, seed=1)
    owner = [0, 1, 0, 1, 0, 1, 0, 1]
    together = sample_tokens(peaked, PROMPTS, owner, uniform_BT, ENDS, 1.0)
    for b in range(8):
        alone = sample_tokens(peaked, [PROMPTS[owner[b]]], [0], uniform_BT[b : b + 1], ENDS, 1.0)
        assert alone == [together[b]]
    order = [5, 2, 7, 0]
    some = sample_tokens(peaked, PROMPTS, [owner[b] for b in order], uniform_BT[order], ENDS, 1.0)
    assert some == [together[b] for b in order]


def test_in_bf16_a_rollout_is_mostly_the_same_in_any_batch(tiny_model: Path) -> None:
    """Rounding may flip a draw that lies on an edge; it must not happen often."""
    model, _ = load(tiny_model)
    model = model.to(torch.bfloat16).eval()
    uniform_BT = uniforms(16, 12, seed=2)
    owner = [0, 1] * 8
    together = sample_tokens(model, PROMPTS, owner, uniform_BT, [2], 1.0)
    alone = [
        sample_tokens(model, [PROMPTS[owner[b]]], [0], uniform_BT[b : b + 1], [2], 1.0)[0]
        for b in range(16)
    ]
    assert sum(a == b for a, b in zip(alone, together, strict=True)) >= 12


class Counting:
    """A model that records how many rows each pass had."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.rows: list[int] = []

    def __call__(self, ids: torch.Tensor, **kwargs: Any) -> Any:
        self.rows.append(len(ids))
        return self.inner(ids, **kwargs)

    def parameters(self) -> Any:
        return self.inner.parameters()


def test_finished_rollouts_leave_the_batch(peaked: Any) -> None:
    counting = Counting(peaked)
    got = sample_tokens(counting, PROMPTS, [0, 1] * 6, uniforms(12, 16, seed=3), ENDS, 1.0)
    lengths = [len(response) for response in got]
    assert min(lengths) < max(lengths)
    assert counting.rows[0] == 2  # every distinct prompt once
    expected = [sum(n > t for n in lengths) for t in range(1, max(lengths))]
    assert counting.rows[1:] == expected


def test_an_end_token_is_kept_and_nothing_follows_it(peaked: Any) -> None:
    got = sample_tokens(peaked, PROMPTS, [0, 1] * 6, uniforms(12, 16, seed=3), ENDS, 1.0)
    for response in got:
        assert not set(response[:-1]) & set(ENDS)
        assert response[-1] in ENDS or len(response) == 16


def test_all_rollouts_may_end_at_once_or_at_the_first_token(model: Any) -> None:
    everything = list(range(512))
    got = sample_tokens(model, PROMPTS, OWNER, uniforms(5, 4), everything, 1.0)
    assert [len(response) for response in got] == [1] * 5
    assert [len(r) for r in sample_tokens(model, PROMPTS, OWNER, uniforms(5, 1), [2], 1.0)] == [1] * 5


def test_sampled_tokens_are_what_the_loss_scores(peaked: Any) -> None:
    """Importance ratios start at 1: sampling and loss see one distribution."""
    uniform_BT = uniforms(400, 1, seed=5)
    got = sample_tokens(peaked, PROMPTS[:1], [0] * 400, uniform_BT, [2], 0.8)
    with torch.no_grad():
        logits = peaked(torch.tensor([PROMPTS[0]])).logits[0, -1] / 0.8
    cdf = torch.softmax(logits.float(), -1).cumsum(-1).numpy()
    for u, (token,) in zip(uniform_BT[:, 0], got, strict=True):
        below = cdf[token - 1] if token else 0.0
        assert below - 1e-5 <= u <= cdf[token] + 1e-5
