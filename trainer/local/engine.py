"""The local engine: samples rollouts and takes GRPO steps on one set of fp32 weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ...agents.policy import Request, Sample
from ...specs.engines import LocalEngine
from ...specs.schema import Scalar
from ..chat import Chat
from ..engine import Example, UpdateStats
from .decode import compute_dtype
from .generate import response_logprobs
from .grpo import Batch, check_tokens, clipped_loss, k3, make_batch
from .sampler import Sampler, bf16_copy

#: Rollouts of similar length in one backward pass: little padding, and a bounded peak of memory.
TRAIN_BATCH = 16


def rate(spec: LocalEngine, step: int) -> float:
    """Share of the learning rate at `step` (from 1): linear warm-up, then the schedule."""
    if step < spec.warmup_steps:
        return step / spec.warmup_steps
    done = max(0, step - 1 - spec.warmup_steps) / max(1, spec.steps - spec.warmup_steps)
    match spec.schedule:
        case "linear":
            return 1.0 - done
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0


class Engine:
    """Holds the policy. `version` counts training steps; `sample` uses a bf16 copy of the weights.

    The fp32 weights take the updates (bf16 would round small ones away); embeddings are frozen, so a
    tied output head stays the one that was served. `reference` is the policy at the start of the run,
    where `model` is not (a resumed run); it is kept only when the loss has a KL term. `template_kwargs`
    are `roles.policy.chat_template_kwargs`.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        spec: LocalEngine,
        version: int = 0,
        reference: Any = None,
        template_kwargs: Mapping[str, Scalar] | None = None,
    ) -> None:
        torch.set_num_threads(spec.threads or torch.get_num_threads())
        torch.use_deterministic_algorithms(True)
        # Filling fresh memory is a debugging aid of that mode, and slow.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._in_bf16 = compute_dtype(self.device.type) is torch.bfloat16
        self.spec = spec
        self.tokenizer = tokenizer
        self.model = model.to(self.device, torch.float32)
        self.model.eval()  # no dropout: the old and the new log-probabilities are the same function
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_("embed" not in name and "lm_head" not in name)
        chat = Chat(tokenizer, spec.max_prompt_tokens, template_kwargs or {})
        self._sampler = Sampler(bf16_copy(self.model), chat, spec, version)
        self._reference = None
        if spec.kl_coef > 0:
            self._reference = bf16_copy(self.model if reference is None else reference).to(self.device)
        trainable = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=spec.learning_rate, weight_decay=0.0, fused=True)

    @property
    def version(self) -> int:
        """Training steps in the weights that `sample` uses."""
        return self._sampler.version

    @property
    def sampler(self) -> Any:
        """The bf16 copy of the model that `sample` uses."""
        return self._sampler.model

    def tokenize(self, prompt: str) -> list[int]:
        """Token ids of a user message in the chat template, up to where the response starts."""
        return self._sampler.tokenize(prompt)

    def check_prompt(self, prompt: str) -> None:
        """Raises `PromptError` (see `trainer.chat.Chat`)."""
        self._sampler.check_prompt(prompt)

    def sample(self, requests: Sequence[Request], seed: int) -> list[Sample]:
        """Sample one response a request, in order (see `agents.policy.Policy`)."""
        return self._sampler.sample(requests, seed)

    def frozen(self) -> Sampler:
        """The policy as it is now, for another thread (see `agents.policy.Freezable`)."""
        return self._sampler.frozen()

    def train(self, examples: Sequence[Example], normaliser: float) -> UpdateStats:
        """Take `epochs` optimizer steps on a batch and move on to the next version.

        `normaliser` divides the summed token losses; the caller counts it over the whole batch, so
        leaving out rollouts with advantage 0 (without a KL term they have no gradient) changes nothing.
        """
        useful = [e for e in examples if e.advantage != 0.0 or self._reference is not None]
        self._sampler.version += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.spec.learning_rate * rate(self.spec, self.version)
        if not useful:
            return UpdateStats(0.0, 0.0, 0.0, None)
        batches = self._batches(useful)
        references = [self._reference_logprobs(batch) for batch in batches]
        old: dict[int, torch.Tensor] = {}
        for _ in range(self.spec.epochs):
            self.optimizer.zero_grad(set_to_none=True)
            total, clipped, kl = 0.0, 0.0, 0.0
            for n, batch in enumerate(batches):
                with torch.autocast(self.device.type, torch.bfloat16, self._in_bf16):
                    logprobs_BT = self._logprobs(self.model, batch)
                # Old log-probabilities: under the loss's own prompt, before the first step.
                old_BT = old.setdefault(n, logprobs_BT.detach())
                loss = clipped_loss(
                    logprobs_BT, old_BT, batch.advantages_B, batch.mask_BT, self.spec.clip, normaliser
                )
                value, reference_BT = loss.value, references[n]
                if reference_BT is not None:
                    distance = (k3(logprobs_BT, reference_BT) * batch.mask_BT).sum()
                    value = value + self.spec.kl_coef * distance / normaliser
                    kl += distance.item()
                value.backward()  # type: ignore[no-untyped-call]
                total += value.item()
                clipped += loss.clipped_tokens
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.spec.max_grad_norm)
            self.optimizer.step()
        self._sync_sampler()
        tokens = sum(len(e.response_ids) for e in useful)
        mean_kl = None if self._reference is None else kl / tokens
        return UpdateStats(total, norm.item(), clipped / tokens, mean_kl)

    @torch.no_grad()
    def _reference_logprobs(self, batch: Batch) -> torch.Tensor | None:
        return None if self._reference is None else self._logprobs(self._reference, batch)

    def _batches(self, examples: Sequence[Example]) -> list[Batch]:
        """Batches of similar length, each through the token-equality check."""
        by_length = sorted(examples, key=lambda e: len(e.response_ids))
        batches = []
        for start in range(0, len(by_length), TRAIN_BATCH):
            part = by_length[start : start + TRAIN_BATCH]
            batch = make_batch(part, self.tokenize, self.device)
            check_tokens(batch, part, self.tokenize)
            batches.append(batch)
        return batches

    @torch.no_grad()
    def mean_logprob(self, examples: Sequence[Example]) -> float | None:
        """Mean log-probability (nats a token) of responses under their loss prompts; None if none."""
        if not examples:
            return None
        logprobs = [self._logprobs(self._sampler.model, batch).sum() for batch in self._batches(examples)]
        return float(sum(logprobs)) / sum(len(e.response_ids) for e in examples)

    def _logprobs(self, model: Any, batch: Batch) -> torch.Tensor:
        return response_logprobs(
            model,
            batch.prompts,
            batch.owner,
            batch.responses_BT,
            batch.mask_BT,
            self.spec.temperature,
        )

    @torch.no_grad()
    def _sync_sampler(self) -> None:
        for theirs, ours in zip(self._sampler.model.parameters(), self.model.parameters(), strict=True):
            theirs.copy_(ours.to(torch.bfloat16))

    def save(self, folder: Path) -> None:
        """Write `policy/` (a plain model folder) and `optimizer/` into a checkpoint folder.

        Raises `OSError` (disk full), whatever the writers underneath make of it.
        """
        try:
            self.model.save_pretrained(folder / "policy")
            self.tokenizer.save_pretrained(folder / "policy")
            (folder / "optimizer").mkdir()
            torch.save(self.optimizer.state_dict(), folder / "optimizer" / "adamw.pt")
        except (SafetensorError, RuntimeError) as error:
            raise OSError(f"{folder}: the checkpoint could not be written ({error})") from error

    def load_optimizer(self, folder: Path) -> None:
        """Take the optimizer state of a checkpoint folder (the weights came with the model)."""
        state = torch.load(folder / "optimizer" / "adamw.pt", weights_only=True)
        self.optimizer.load_state_dict(state)
