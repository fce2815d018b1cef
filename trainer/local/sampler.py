"""Sampling from a bf16 copy of the weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ...agents.policy import Request, Sample
from ...specs.engines import LocalEngine
from ...specs.sampling import stream
from ..chat import Chat
from .generate import sample_tokens

#: Rollouts decoded together. More only costs memory: 64 fill two cores.
DECODE_BATCH = 64


def bf16_copy(model: Any) -> Any:
    """A copy that takes no gradients. Buffers (rotary frequencies) stay exact."""
    frozen = copy.deepcopy(model)
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
        parameter.data = parameter.data.to(torch.bfloat16)
    return frozen


class Sampler:
    """A policy to sample from (`agents.policy.Policy`). `version` counts the training steps in it."""

    def __init__(self, model: Any, tokenizer: Any, spec: LocalEngine, version: int) -> None:
        self.model = model  # bf16
        self.tokenizer = tokenizer
        self.spec = spec
        self.version = version
        self._chat = Chat(tokenizer, spec.max_prompt_tokens)
        ends = model.generation_config.eos_token_id
        listed = ends if isinstance(ends, list) else [ends]
        self._ends = sorted({*listed, tokenizer.eos_token_id} - {None})

    def frozen(self) -> Sampler:
        """This policy as it is now. Another thread may use it: its tokenizer is its own too."""
        tokenizer = copy.deepcopy(self.tokenizer)  # one at work cannot be called into
        return Sampler(copy.deepcopy(self.model), tokenizer, self.spec, self.version)

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a user message in the chat template, up to where the response starts."""
        return self._chat.tokenize(prompt)

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError` (see `trainer.chat.Chat`)."""
        self._chat.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order (see `agents.policy.Policy`)."""
        samples: list[Sample] = []
        for start in range(0, len(requests), DECODE_BATCH):
            samples += self._decode(requests[start : start + DECODE_BATCH], seed)
        return samples

    def _decode(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(r.prompt for r in requests))}
        for prompt in rows:
            self.check_prompt(prompt)
        limit = self.spec.max_new_tokens
        uniform_BT = np.stack([stream(seed, *r.key).random(limit) for r in requests])
        responses = sample_tokens(
            self.model,
            [self.tokenize(prompt) for prompt in rows],
            [rows[r.prompt] for r in requests],
            uniform_BT,
            self._ends,
            self.spec.temperature,
        )
        texts = self.tokenizer.batch_decode(responses, skip_special_tokens=True)
        return [
            Sample(text.strip(), tuple(ids), ids[-1] in self._ends)
            for text, ids in zip(texts, responses, strict=True)
        ]
