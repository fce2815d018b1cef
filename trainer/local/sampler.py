"""Sampling from a bf16 copy of the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ...agents.policy import Request, Sample
from ...specs.engines import LocalEngine
from ..chat import Chat
from .decode import compute_dtype, decode, end_tokens


def bf16_copy(model: Any) -> Any:
    """A copy with its weights rounded to bf16, that takes no gradients. Buffers (rotary frequencies)
    stay exact."""
    frozen = copy.deepcopy(model)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
        dtype = compute_dtype(parameter.device.type)
        parameter.data = parameter.data.to(torch.bfloat16).to(dtype)
    return frozen


class Sampler:
    """A policy to sample from (`agents.policy.Policy`). `version` counts the training steps in it."""

    def __init__(self, model: Any, chat: Chat, spec: LocalEngine, version: int) -> None:
        self.model = model  # a `bf16_copy`
        self.spec = spec
        self.version = version
        self._chat = chat
        self._ends = end_tokens(model, chat.tokenizer)

    def frozen(self) -> Sampler:
        """This policy as it is now. Another thread may use it: its tokenizer is its own too."""
        return Sampler(copy.deepcopy(self.model), self._chat.copy(), self.spec, self.version)

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a user message in the chat template, up to where the response starts."""
        return self._chat.tokenize(prompt)

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError` (see `trainer.chat.Chat`)."""
        self._chat.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order (see `agents.policy.Policy`)."""
        limit = self.spec.max_new_tokens
        steps = decode(self.model, self._chat, self._ends, requests, seed, self.spec.temperature, limit)
        found = {n: sample for ended in steps for n, sample in ended}
        return [found[n] for n in range(len(requests))]
