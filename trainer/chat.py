"""Prompts as the policy sees them: the chat template, and what may not be in one."""

from __future__ import annotations

from typing import Any

from ..agents.policy import PromptError


class Chat:
    """A tokenizer with its chat template; at most `max_prompt_tokens` a prompt."""

    def __init__(self, tokenizer: Any, max_prompt_tokens: int) -> None:
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self._tokenized: dict[str, list[int]] = {}

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a user message in the chat template, up to where the response starts."""
        if prompt not in self._tokenized:
            ids = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}], add_generation_prompt=True, return_dict=False
            )
            self._tokenized[prompt] = list(ids)
        return list(self._tokenized[prompt])

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError`: a prompt is never cut, since that could lose the guidance.

        Nor may it hold the tokenizer's control tokens: text of a data set could end its own turn.
        """
        for token in self.tokenizer.all_special_tokens:
            if token in prompt:
                raise PromptError(f"a prompt holds the control token {token}: {prompt[:80]!r}")
        n = len(self.tokenize(prompt))
        if n > self.max_prompt_tokens:
            raise PromptError(
                f"a prompt has {n} tokens; engine.max_prompt_tokens is "
                f"{self.max_prompt_tokens}: {prompt[:80]!r}"
            )
