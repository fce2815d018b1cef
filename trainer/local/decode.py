"""Responses of a local model: a chat prompt in, text and token ids out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...agents.policy import PromptError, Request, Sample
from ...specs.sampling import stream
from ...specs.schema import Scalar
from ..chat import Chat
from .generate import sample_steps
from .model import load

#: Rollouts decoded together. More only costs memory: 64 fill two cores.
DECODE_BATCH = 64
#: On CPUs a `FolderSampler` decodes no more tokens at once than take a minute or two, but at least so
#: many responses: two cores write 180 tokens a second at 16, 300 at 32 and 350 at 60.
CPU_TOKENS, CPU_BATCH = 16_384, 32


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end a response."""
    ends = model.generation_config.eos_token_id
    listed = ends if isinstance(ends, list) else [ends]
    return sorted({*listed, tokenizer.eos_token_id} - {None})


def decode(
    model: Any,
    chat: Chat,
    ends: Sequence[int],
    requests: Sequence[Request],
    seed: int,
    temperature: float,
    max_new_tokens: int,
    at_once: int = DECODE_BATCH,
) -> Iterator[list[tuple[int, Sample]]]:
    """One response a request; `temperature` 0 takes the likeliest token.

    Comes token by token, for whoever wants to stop in between: the numbers and responses of the requests
    that end with it, often none. The draws depend on `seed` and the requests' keys only. Raises
    `PromptError`.
    """
    for start in range(0, len(requests), at_once):
        batch = requests[start : start + at_once]
        rows = {prompt: row for row, prompt in enumerate(dict.fromkeys(r.prompt for r in batch))}
        for prompt in rows:
            chat.check_prompt(prompt)
        uniform_BT = np.stack([stream(seed, *r.key).random(max_new_tokens) for r in batch])
        steps = sample_steps(
            model,
            [chat.tokenize(prompt) for prompt in rows],
            [rows[r.prompt] for r in batch],
            uniform_BT,
            ends,
            temperature,
        )
        for ended in steps:
            texts = chat.tokenizer.batch_decode([ids for _, ids in ended], skip_special_tokens=True)
            yield [
                (start + b, Sample(text.strip(), tuple(ids), ids[-1] in ends))
                for text, (b, ids) in zip(texts, ended, strict=True)
            ]


def device() -> str:
    """Where a `FolderSampler` samples."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def compute_dtype(device_type: str) -> torch.dtype:
    """The type to multiply in: bf16, or float32 on a CPU that has no bf16 products.

    Without AVX-512 (or Arm's bf16) a product in bf16 takes about thirty times as long as one in float32.
    """
    slow = device_type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.float32 if slow else torch.bfloat16


class FolderSampler:
    """A model folder, to sample from alone: weights in bf16, on one GPU where there is one.

    Raises `PolicyNotFoundError`.
    """

    def __init__(self, folder: Path, max_new_tokens: int, template_kwargs: Mapping[str, Scalar]) -> None:
        model, tokenizer = load(folder)
        self.model = model.to(device(), torch.bfloat16).to(compute_dtype(device())).eval()
        self._ends = end_tokens(self.model, tokenizer)
        context = getattr(model.config, "max_position_embeddings", None) or 2**31
        self._chat = Chat(tokenizer, context, template_kwargs)
        self._room = context - max_new_tokens

    def refuses(self, prompt: str) -> str:
        """Why the prompt cannot be answered, or an empty string."""
        if len(self._chat.tokenize(prompt)) > self._room:
            return "the prompt leaves no room for a response"
        try:
            self._chat.check_prompt(prompt)
        except PromptError as error:
            return str(error).partition(":")[0]
        return ""

    def sample(
        self, requests: Sequence[Request], seed: int, temperature: float, max_new_tokens: int
    ) -> Iterator[list[tuple[int, Sample]]]:
        """Like `decode`. Who stops in between loses what is being decoded: on CPUs, where a batch takes
        minutes, it is smaller."""
        small = max(CPU_BATCH, CPU_TOKENS // max_new_tokens)
        at_once = DECODE_BATCH if device() == "cuda" else min(DECODE_BATCH, small)
        return decode(
            self.model, self._chat, self._ends, requests, seed, temperature, max_new_tokens, at_once
        )
