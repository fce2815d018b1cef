"""The same tensors through OpenRLHF's own functions and through ours: advantages, policy loss, KL."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from harnessrl.agents.scoring.reward import group_advantages
from harnessrl.trainer.local.grpo import clipped_loss, k3
from harnessrl.trainer.openrlhf.worker import put_advantages
from openrlhf.models.loss import PolicyLoss
from openrlhf.models.utils import compute_approx_kl
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

CLOSE = {"rtol": 0.0, "atol": 1e-6}
SLOTS, GROUP, TOKENS = 5, 8, 12


def experiences(rewards_SG: torch.Tensor, generator: torch.Generator) -> list[Experience]:
    """A step's rollouts in micro batches of 4, with responses of different lengths."""
    made = []
    rewards = rewards_SG.flatten()
    for start in range(0, len(rewards), 4):
        lengths = torch.randint(1, TOKENS, (4,), generator=generator)
        mask = (torch.arange(TOKENS) >= 3) & (torch.arange(TOKENS) < (3 + lengths).unsqueeze(1))
        index = list(range(start, start + 4))
        made.append(
            Experience(
                action_mask=mask.long(),
                kl=torch.zeros(4, TOKENS),
                rewards=rewards[index],
                index=index,
                info={},
            )
        )
    return made


def their_maker(estimator: str) -> RemoteExperienceMaker:
    """OpenRLHF's experience maker, as far as advantages need it."""
    penalties = SimpleNamespace(overlong_buffer_len=None, stop_properly_penalty_coef=None)
    args = SimpleNamespace(
        rollout=SimpleNamespace(n_samples_per_prompt=GROUP),
        algo=SimpleNamespace(
            advantage=SimpleNamespace(estimator=estimator, gamma=1.0, lambd=1.0, no_std_norm=False)
        ),
        reward=SimpleNamespace(clip_range=None, **vars(penalties)),
    )
    maker: Any = object.__new__(RemoteExperienceMaker)
    maker.strategy = SimpleNamespace(args=args)
    maker.args = args
    maker.advantage_estimator = estimator
    maker.kl_ctl = SimpleNamespace(value=0.0)
    return maker


@pytest.mark.parametrize("estimator", ["group_norm", "dr_grpo"])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_of_complete_plain_groups(
    estimator: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Length penalties are off in every run of ours; their settings are not what is compared here.
    import openrlhf.trainer.ppo_utils.experience_maker as module

    monkeypatch.setattr(module, "apply_length_penalties", lambda experiences, args: None)
    generator = torch.Generator().manual_seed(seed)
    rewards_SG = torch.randint(0, 5, (SLOTS, GROUP), generator=generator) / 4
    rewards_SG[0] = 0.5  # a group without a signal
    theirs = their_maker(estimator).compute_advantages_and_returns(
        experiences(rewards_SG, torch.Generator().manual_seed(seed))
    )
    ours_SG = np.stack(
        [
            group_advantages(row.double().numpy(), np.zeros(GROUP, bool), estimator, "group", "ignore")
            for row in rewards_SG
        ]
    )
    ours_flat = torch.tensor(ours_SG, dtype=torch.float32).flatten()
    ours = experiences(rewards_SG, torch.Generator().manual_seed(seed))
    for one, other in zip(ours, theirs, strict=True):
        put_advantages(one, ours_flat[one.index])
        mask = one.action_mask.bool()
        assert mask.any(dim=1).all()
        torch.testing.assert_close(one.advantages[mask], other.advantages[mask], **CLOSE)
        torch.testing.assert_close(one.returns[mask], other.returns[mask], **CLOSE)


@pytest.mark.parametrize("seed", range(5))
def test_policy_loss(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    old_BT = -torch.rand(6, TOKENS, generator=generator) * 3
    new_BT = old_BT + 0.4 * torch.randn(6, TOKENS, generator=generator)
    advantages_B = torch.randn(6, generator=generator)
    lengths = torch.randint(1, TOKENS + 1, (6, 1), generator=generator)
    mask_BT = (torch.arange(TOKENS) < lengths).float()
    theirs, clip_ratio, *_ = PolicyLoss(clip_eps_low=0.2, clip_eps_high=0.2)(
        new_BT, old_BT, advantages_B.unsqueeze(1) * mask_BT, action_mask=mask_BT
    )
    ours = clipped_loss(new_BT, old_BT, advantages_B, mask_BT, 0.2, float(mask_BT.sum()))
    torch.testing.assert_close(ours.value, theirs, **CLOSE)
    assert ours.clipped_tokens > 0
    torch.testing.assert_close(torch.tensor(ours.clipped_tokens) / mask_BT.sum(), clip_ratio, **CLOSE)


def test_gradients_of_the_policy_loss() -> None:
    old_BT = -torch.rand(4, TOKENS, generator=torch.Generator().manual_seed(1))
    advantages_B = torch.tensor([1.0, -0.5, 0.0, 2.0])
    mask_BT = torch.ones(4, TOKENS)
    grads = []
    for which in ("ours", "theirs"):
        new_BT = (old_BT * 0.9).requires_grad_()
        if which == "ours":
            loss = clipped_loss(new_BT, old_BT, advantages_B, mask_BT, 0.2, float(mask_BT.sum())).value
        else:
            loss = PolicyLoss()(new_BT, old_BT, advantages_B.unsqueeze(1) * mask_BT, mask_BT)[0]
        loss.backward()
        grads.append(new_BT.grad)
    torch.testing.assert_close(*grads, **CLOSE)


def test_kl_estimate() -> None:
    generator = torch.Generator().manual_seed(0)
    ours_BT = -torch.rand(4, TOKENS, generator=generator)
    reference_BT = ours_BT + 0.3 * torch.randn(4, TOKENS, generator=generator)
    theirs = compute_approx_kl(ours_BT, reference_BT, kl_estimator="k3")
    torch.testing.assert_close(k3(ours_BT, reference_BT), theirs, **CLOSE)
