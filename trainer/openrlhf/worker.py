"""The trainer's side of a run on OpenRLHF: subclasses at its official seams, no fork.

    SlotGenerator      which rollouts a step has: its slots, by number; no data loader is asked
    ExperienceMaker    advantages are the controller's: they need whole groups and unscored criteria
    HarnessTrainer     tells the controller when a step is taken, and hands over the weights to measure on

Shapes: B rollouts of a micro batch, T tokens, S slots, G rollouts a slot.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any

import openrlhf.trainer.ppo_trainer as ppo
import ray
import torch
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from vllm import SamplingParams

from .client import Client, ControllerError
from .wire import Fingerprint, Saved, StepReport

#: Sequences by which the controller checks that its frozen policy has these weights.
FINGERPRINTS = 4


class SlotGenerator(SamplesGenerator):  # type: ignore[misc]  # openrlhf has no types
    """Rolls out the slots 0 .. S - 1 of step `step`. The trainer moves `step` on."""

    client: Client
    step = 0
    steps = 0

    def generate_samples(self, **kwargs: Any) -> tuple[list[Any], None, int, bool]:
        """All rollouts of a step, slot by slot and sample by sample, and whether it is the last one.

        What the controller redraws takes the place of what stood in its slot. A run that was killed
        between its last step and its end has no step left.
        """
        if self.step >= self.steps:
            return [], None, 0, True
        sleeps = self.args.vllm.enable_sleep
        if sleeps:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        groups: dict[int, list[Any]] = {}  # slot -> its responses
        slots, attempt = list(range(self.args.rollout.batch_size)), 0
        while slots:
            where = [{"step": self.step, "slot": slot, "attempt": attempt} for slot in slots]
            labels = [json.dumps(one) for one in where]
            refs = self._dispatch_prompts_to_vllm(labels, labels, **kwargs)
            # Raises what an executor raised: no slot is left out silently.
            groups |= zip(slots, ray.get(refs), strict=True)
            redraw = self.client.redraw(self.step)
            slots, attempt = redraw.slots, redraw.attempt
        if sleeps:
            batch_vllm_engine_call(self.vllm_engines, "sleep")
        responses = [response for group in groups.values() for response in group]
        samples = [self._process_response_into_experience(one, **kwargs) for one in responses]
        return samples, None, len(groups), self.step + 1 >= self.steps


class ExperienceMaker(RemoteExperienceMaker):  # type: ignore[misc]
    """Log-probabilities are OpenRLHF's; rewards and advantages come from the controller."""

    def __init__(self, *args: Any, client: Client, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.client = client
        self.step = 0
        self.export = False  # will the controller measure on what comes out of this step?
        self.plain_logprob_guided: float | None = None  # nats a token

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        """Put the controller's advantages on every response token of its rollout."""
        reply = self.client.advantages(self.step)
        self.export = reply.export
        advantages_SG = torch.tensor(reply.advantages, dtype=torch.float32)
        rewards_SG = torch.tensor(
            [[math.nan if r is None else r for r in row] for row in reply.rewards], dtype=torch.float32
        )
        # OpenRLHF's own logs average over all rollouts: where there is no reward, the mean of the others
        # stands in, for those logs alone.
        shown_SG = torch.where(rewards_SG.isnan(), rewards_SG.nanmean(), rewards_SG)
        logprob, tokens = 0.0, 0.0
        for experience in experiences:
            at = experience.info["slot"].long(), experience.info["sample"].long()
            put_advantages(experience, advantages_SG[at])
            experience.rewards = rewards_SG[at]
            experience.info |= {"reward": shown_SG[at], "score": shown_SG[at]}
            mask_BT = experience.action_mask * experience.info["guided"].unsqueeze(1)
            logprob += float((experience.action_log_probs * mask_BT).sum())
            tokens += float(mask_BT.sum())
        self.plain_logprob_guided = logprob / tokens if tokens else None
        return experiences


def put_advantages(experience: Any, advantages_B: torch.Tensor) -> None:
    """One advantage a rollout, on all its response tokens (gamma 1, no critic), as OpenRLHF's GRPO does.

    The KL term stands in the loss, never in the reward.
    """
    mask_BT = experience.action_mask
    experience.advantages = advantages_B.unsqueeze(1) * mask_BT
    experience.returns = experience.advantages.clone()
    experience.info["return"] = advantages_B
    experience.kl = None


_Trainer: Any = ppo.PPOTrainer.__ray_metadata__.modified_class  # the class under @ray.remote


class HarnessTrainer(_Trainer):  # type: ignore[misc]
    """OpenRLHF's synchronous trainer, in step with the controller."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.client = Client()
        run = self.client.state()
        rollout = self.args.rollout
        self._agree("rollout.batch_size", rollout.batch_size, run.tasks_per_step)
        self._agree("rollout.n_samples_per_prompt", rollout.n_samples_per_prompt, run.group_size)
        if self.args.algo.advantage.is_correction_level != "off":
            raise ControllerError(
                "algo.advantage.is_correction_level corrects by log-probabilities under the prompt that "
                "was sampled from, and guided rollouts are trained under another; leave it off"
            )
        self.samples_generator = SlotGenerator(
            self.strategy, self.prompts_dataloader, None, self.tokenizer, self.vllm_engines
        )
        self.samples_generator.client = self.client
        self.samples_generator.steps = run.steps
        self.experience_maker = ExperienceMaker(
            self.actor_model_group,
            self.critic_model_group,
            self.reward_model_group,
            self.reference_model_group,
            self.kl_ctl,
            self.strategy,
            self.tokenizer,
            client=self.client,
        )
        self._generated = time.monotonic()
        self._printed: list[list[int]] = []  # token ids of the sequences of the fingerprints

    def init_checkpoint_states(self) -> dict[str, Any]:
        """Where OpenRLHF goes on. Raises `ControllerError` if the controller goes on elsewhere."""
        states: dict[str, Any] = super().init_checkpoint_states()
        self._agree("steps done", states["global_step"], self.client.state().steps_done)
        self.samples_generator.step = states["global_step"]
        self._generated = time.monotonic()
        return states

    def train_step(self, rollout_samples: list[Any], global_step: int) -> tuple[dict[str, Any], int]:
        """One GRPO step, and then the controller's: evidence into memory, the evolver's look."""
        seconds = {"rollout": time.monotonic() - self._generated}
        self.experience_maker.step = global_step
        status, done = super().train_step(rollout_samples, global_step)
        seconds["score"] = status["timing/make_experience"]
        seconds["train"] = status["timing/ppo_train"] + status["timing/broadcast"]
        kl_coef = self.args.algo.kl.init_coef
        report = StepReport(
            loss=status["policy_loss"] + (kl_coef * status["kl"] if kl_coef > 0 else 0.0),
            grad_norm=status["actor_grad_norm"],
            clip_share=status["ppo_clip_ratio"],
            kl=status["kl"] if kl_coef > 0 else None,
            plain_logprob_guided=self.experience_maker.plain_logprob_guided,
            seconds=seconds,
        )
        if self.experience_maker.export:
            exported = self._export(done)
            prints = self._fingerprints(rollout_samples)
            report = report.model_copy(update={"policy": exported, "fingerprints": prints})
        self.client.step_done(global_step, report)
        self.samples_generator.step = done
        self._generated = time.monotonic()
        return status, done

    def save_logs_and_checkpoints(
        self, global_step: int, logs_dict: Any = None, client_states: Any = None
    ) -> None:
        """OpenRLHF's checkpoint; once it is complete, the controller's counts the same steps."""
        super().save_logs_and_checkpoints(global_step, logs_dict, client_states)
        if global_step % self.args.ckpt.save_steps == 0:
            saved = Saved(path=os.path.abspath(self.args.ckpt.path), tag=f"global_step{global_step}")
            self.client.saved(global_step, saved)
            self._rotate(Path(saved.path))

    def _rotate(self, folder: Path) -> None:
        """OpenRLHF keeps the newest `ckpt.max_num` training states, but all models beside them."""
        exported = sorted(folder.glob("global_step*_hf"), key=lambda path: path.stat().st_mtime)
        for old in exported[: -self.args.ckpt.max_num]:
            shutil.rmtree(old, ignore_errors=True)

    def _export(self, steps_done: int) -> str:
        """The new weights as a plain model folder, beside the output folder, complete or not there."""
        ray.get(self.actor_model_group.async_run_method(method_name="save_model"))
        output = Path(self.args.ckpt.output_dir).absolute()
        target = output.parent / f"frozen-{steps_done:06d}"
        shutil.rmtree(target, ignore_errors=True)
        output.rename(target)
        return str(target)

    def _fingerprints(self, rollout_samples: list[Any]) -> list[Fingerprint]:
        """What the rollout engine, which has the new weights by now, makes of a few sequences.

        They stay the same, so that it shows how much it has moved since the last export.
        """
        engine = self.vllm_engines[0]
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "wake_up")
        found = []
        if not self._printed:
            every = max(1, len(rollout_samples) // FINGERPRINTS)
            self._printed = [one.sequences[0].tolist() for one in rollout_samples[::every][:FINGERPRINTS]]
        for ids in self._printed:
            output = ray.get(engine.generate.remote(ids, params))
            logprobs = [at[i].logprob for at, i in zip(output.prompt_logprobs[1:], ids[1:], strict=True)]
            found.append(Fingerprint(token_ids=ids, logprobs=logprobs))
        if self.args.vllm.enable_sleep:
            batch_vllm_engine_call(self.vllm_engines, "sleep")
        return found

    @staticmethod
    def _agree(what: str, ours: int, theirs: int) -> None:
        if ours != theirs:
            raise ControllerError(f"{what}: {ours} here, {theirs} at the controller; nothing was trained")
