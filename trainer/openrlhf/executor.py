"""OpenRLHF's agent executor (`--train.agent_func_path`): one call is one rollout of a slot.

The controller says what the slot is (p: its task, g: the guidance of this sample); the response goes back
to it to be judged (c). OpenRLHF trains on exactly the token ids returned here.
"""

from __future__ import annotations

import json
from collections import Counter
from copy import deepcopy
from typing import Any

from harnessrl.trainer.openrlhf.client import AsyncClient
from harnessrl.trainer.openrlhf.wire import ClaimReply, SlotSample, SubmitRequest
from openrlhf.utils.agent import AgentExecutorBase


class PromptTooLongError(Exception):
    """A prompt does not fit. It is never cut: that would lose the guidance, or the task."""


class TokenMismatchError(Exception):
    """What OpenRLHF would train on is not the prompt's tokens followed by the sampled ids."""


class AgentExecutor(AgentExecutorBase):  # type: ignore[misc]  # openrlhf has no types
    """One for each vLLM engine. The G calls with a label come to one engine, in order: its samples."""

    def __init__(self) -> None:
        self._client: AsyncClient | None = None
        self._calls: Counter[str] = Counter()

    async def execute(
        self,
        prompt: str,
        label: str,
        sampling_params: Any,
        max_length: int,
        hf_tokenizer: Any,
        llm_engine: Any,
        images: Any = None,
    ) -> dict[str, Any]:
        """Claim, generate, submit. Raises, and so ends the run, rather than train on something else."""
        # Of a model that can see (vision_config, as Qwen3.5's) OpenRLHF hands in the whole processor.
        tokenizer = getattr(hf_tokenizer, "tokenizer", hf_tokenizer)
        where = self._where(label)
        if self._client is None:
            self._client = AsyncClient()  # belongs to the event loop that runs here
        claim = await self._client.claim(where)
        loss_ids = tokenize(claim.loss_prompt, tokenizer, claim)
        sampled_ids = tokenize(claim.prompt, tokenizer, claim)
        params = deepcopy(sampling_params)
        if params.max_tokens is None:
            params.max_tokens = max_length - len(sampled_ids)
        output = (await llm_engine.generate(sampled_ids, params)).outputs[0]
        response_ids = list(output.token_ids)
        finished = output.finish_reason != "length"
        await self._client.submit(
            SubmitRequest(
                **where.model_dump(),
                text=tokenizer.decode(response_ids, skip_special_tokens=True).strip(),
                token_ids=response_ids,
                finished=finished,
            )
        )
        return {
            "prompt": prompt,
            "label": label,
            "images": images,
            "mm_train_inputs": None,
            "observation_tokens": loss_tokens(loss_ids, response_ids, max_length),
            "action_ranges": [(len(loss_ids), len(loss_ids) + len(response_ids))],
            # They would be those under the prompt sampled from; where they count, the run does not start.
            "rollout_log_probs": None,
            "truncated": not finished,
            # Its group is not judged yet: the experience maker puts the reward in their place.
            "reward": 0.0,
            "scores": 0.0,
            # Numbers only, and the same keys on every sample.
            "extra_logs": {
                "slot": float(where.slot),
                "sample": float(where.sample),
                "guided": float(claim.guided),
                "harness_version": float(claim.harness_version),
            },
        }

    def _where(self, label: str) -> SlotSample:
        slot = json.loads(label)
        sample = self._calls[label]
        self._calls[label] += 1
        return SlotSample(**slot, sample=sample)


def tokenize(text: str, tokenizer: Any, claim: ClaimReply) -> list[int]:
    """Token ids of a user message in the chat template. Raises `PromptTooLongError`."""
    templated = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        tokenize=False,
        add_generation_prompt=True,
        **claim.chat_template_kwargs,
    )
    ids = list(tokenizer(text=templated, add_special_tokens=False)["input_ids"])
    if len(ids) > claim.max_prompt_tokens:
        raise PromptTooLongError(
            f"a prompt of {claim.task_id} has {len(ids)} tokens; engine.max_prompt_tokens is "
            f"{claim.max_prompt_tokens}"
        )
    return ids


def loss_tokens(loss_ids: list[int], response_ids: list[int], max_length: int) -> list[int]:
    """The sequence that is trained on: prompt and sampled ids, whole. Raises `TokenMismatchError`."""
    tokens = [*loss_ids, *response_ids]
    if len(tokens) > max_length or not response_ids:
        raise TokenMismatchError(
            f"{len(loss_ids)} prompt and {len(response_ids)} response tokens do not fit data.max_len "
            f"{max_length} whole"
        )
    return tokens
