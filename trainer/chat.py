"""Prompts as the policy sees them: the chat template, and what may not be in one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from ..agents.policy import PromptError
from ..prompts import fullest_prompt
from ..specs.harness import HarnessState
from ..specs.schema import Scalar


class Chat:
    """A tokenizer with its chat template and what this is told (`roles.policy.chat_template_kwargs`); at
    most `max_prompt_tokens` a prompt."""

    def __init__(
        self, tokenizer: Any, max_prompt_tokens: int, template_kwargs: Mapping[str, Scalar]
    ) -> None:
        self.tokenizer = tokenizer
        self.max_prompt_tokens = max_prompt_tokens
        self.template_kwargs = dict(template_kwargs)
        self._tokenized: dict[str, list[int]] = {}

    def copy(self) -> Chat:
        """One for another thread: a tokenizer at work cannot be called into."""
        return Chat(deepcopy(self.tokenizer), self.max_prompt_tokens, self.template_kwargs)

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a user message in the chat template, up to where the response starts."""
        if prompt not in self._tokenized:
            ids = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                return_dict=False,
                **self.template_kwargs,
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
                f"{self.max_prompt_tokens}: {prompt[:80]!r}",
                n,
            )


def check_task_prompts(check: Callable[[str], None], harness: HarnessState) -> None:
    """Raises `PromptError` for all training tasks, with their guidance, that `check` refuses."""
    refused: dict[str, PromptError] = {}
    for task_id in harness.tasks:
        try:
            check(fullest_prompt(harness, task_id))
        except PromptError as error:
            refused[task_id] = error
    if not refused:
        return
    first = next(iter(refused))
    told = f"{len(refused)} of {len(harness.tasks)} training tasks cannot be shown, first {first}: "
    told += str(refused[first])
    longest = max(one.tokens or 0 for one in refused.values())
    if longest:
        told += (
            f" (the longest has {longest}: set engine.max_prompt_tokens to that or more, or leave long "
            "prompts out of a mix with filters.max_prompt_words)"
        )
    raise PromptError(told, longest or None)
