"""Prompts as the policy sees them: the chat template, and what may not be in one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from ..agents.policy import PromptError
from ..prompts import fullest_prompt
from ..specs.harness import HarnessState
from ..specs.schema import Scalar

#: Tokens that a chat template may add to a prompt.
TEMPLATE_TOKENS = 100
BATCH = 500  # prompts; what a tokenizer makes of more fills memory


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


def doubtful(prompts: Sequence[str], folder: Path, max_prompt_tokens: int) -> set[str]:
    """The prompts that `Chat.check_prompt` might refuse, by the tokenizer in a model folder alone.

    Thousands of prompts take a second or two so, and transformers, slow to load, is mostly not needed.
    """
    if not (folder / "tokenizer.json").is_file():
        return set(prompts)
    from tokenizers import Tokenizer

    limit = max_prompt_tokens - TEMPLATE_TOKENS
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    control = _control_tokens(tokenizer, folder)
    found = {prompt for prompt in prompts if any(token in prompt for token in control)}
    long = [prompt for prompt in prompts if len(prompt.encode()) > limit]  # a token is a byte or more
    for start in range(0, len(long), BATCH):
        batch = long[start : start + BATCH]
        encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        found |= {p for p, tokens in zip(batch, encoded, strict=True) if len(tokens) > limit}
    return found


def _control_tokens(tokenizer: Any, folder: Path) -> set[str]:
    """Every token that a tokenizer may treat as its own, whichever of its files names it."""
    found = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():
            named = json.loads((folder / name).read_text(encoding="utf-8"))
            values = [value for key, value in named.items() if key.endswith(("_token", "_tokens"))]
            found |= set(_texts(values))
    return found - {""}


def _texts(value: Any) -> list[str]:
    """The strings in a value, whatever it is."""
    if isinstance(value, str):
        return [value]
    within = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for one in within for text in _texts(one)]


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
