"""The controller: owns the harness, the memory, sampling, judging and the evolver.

An engine asks it what to roll out (`claim`), hands the responses in (`submit`), fetches advantages
once groups are complete (`advantages`) and says when it has taken its step (`step_done`). Only the
controller computes rewards and advantages, because unscored criteria, baselines and std need whole
groups. Shapes: S slots (groups) a step, G rollouts a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..agents.evolver.critic import guided_count
from ..agents.evolver.evidence import Memory
from ..agents.evolver.evolver import Evolver
from ..agents.policy import Request, Sample
from ..agents.scoring.diagnosis import as_known, as_verdicts, collapse, pair_classes
from ..agents.scoring.judge import Scorer
from ..agents.scoring.reward import Floats, group_advantages
from ..agents.usage import Usage
from ..memory.events import EventLog
from ..memory.records import Accepted, AnyRecord, Group, StepSummary
from ..memory.rollouts import Rollout
from ..prompts import guided_prompt
from ..specs.harness import HarnessState, apply
from ..specs.sampling import draw_tasks, probabilities, stream
from ..specs.schema import RunSpec
from ..specs.tasks import Criterion
from .metrics import step_metrics


@dataclass(frozen=True)
class Claim:
    """What one slot of a step is: a task, and G requests of which some may carry guidance.

    `prompt` is the plain prompt: what the loss is computed under by default.
    """

    step: int
    slot: int
    task_id: str
    harness_version: int
    prompt: str
    requests: tuple[Request, ...]
    guided: tuple[bool, ...]
    guidance: tuple[str, ...] | None


@dataclass(frozen=True)
class Submission:
    """One rollout handed in. Submitting a (step, slot, sample) again changes nothing."""

    step: int
    slot: int
    sample: int
    response: Sample


@dataclass
class _Group:
    """A slot being filled, and what was concluded once all its rollouts were in."""

    claim: Claim
    rubric: tuple[Criterion, ...]  # c_t as of the claim
    responses: dict[int, Sample] = field(default_factory=dict)
    met_GK: Floats | None = None
    rewards_G: Floats | None = None
    quality_G: Floats | None = None
    advantages_G: Floats | None = None


class ClaimError(Exception):
    """A submission for a slot or sample nobody claimed, or a step asked about before it is complete."""


@dataclass(frozen=True)
class StepStats:
    """What an engine reports about its step; every field becomes a metric of that name."""

    loss: float
    grad_norm: float  # before clipping
    clip_share: float  # of response tokens
    kl: float | None  # nats a token, from the policy at the start; None: not measured
    plain_logprob_guided: float | None  # nats a token, guided rollouts under the plain prompt


class Controller:
    """One run's controller. Not thread-safe: one engine drives it."""

    def __init__(
        self,
        spec: RunSpec,
        harness: HarnessState,
        scorer: Scorer,
        usage: Usage,
        memory: Memory,
        log: EventLog,
        evolver: Evolver | None,
        on_new_version: Callable[[HarnessState], None] = lambda _: None,
    ) -> None:
        self.spec = spec
        self.harness = harness
        self.scorer = scorer
        self.usage = usage
        self.memory = memory
        self.log = log
        self.evolver = evolver
        self.on_new_version = on_new_version
        self._groups: dict[tuple[int, int], _Group] = {}
        self._last_done = -1

    # --- the engine's four calls -------------------------------------------------------------

    def claim(self, step: int, slots: Sequence[int]) -> list[Claim]:
        """What to roll out in these slots of a step. Claiming again gives the same answer.

        Raises `ClaimError` for a step that is done or a slot outside 0 .. tasks_per_step - 1.
        """
        p = self.spec.interfaces.p
        chances = probabilities(self.harness, p.domain_shares, p.paused_weight)
        drawn = draw_tasks(chances, self.spec.engine.tasks_per_step, self.spec.seed, step)
        claims = []
        if step <= self._last_done:
            raise ClaimError(f"step {step} is done already")
        for slot in slots:
            if not 0 <= slot < len(drawn):
                raise ClaimError(f"slot {slot}: a step has the slots 0 to {len(drawn) - 1}")
            if (step, slot) not in self._groups:
                rubric = self.harness.rubric(drawn[slot])
                self._groups[step, slot] = _Group(self._claim(step, slot, drawn[slot]), rubric)
            claims.append(self._groups[step, slot].claim)
        return claims

    def submit(self, samples: Sequence[Submission]) -> None:
        """Take rollouts in; judge each group as soon as it is complete.

        Raises `ClaimError` for a slot or sample that was not claimed.
        """
        for s in samples:
            if 0 <= s.step <= self._last_done:
                continue  # a late duplicate: the step is over
            group = self._groups.get((s.step, s.slot))
            if group is None or not 0 <= s.sample < len(group.claim.requests):
                raise ClaimError(f"step {s.step}, slot {s.slot}, sample {s.sample}: not claimed")
            group.responses.setdefault(s.sample, s.response)
            if group.rewards_G is None and len(group.responses) == len(group.claim.requests):
                self._judge(group)

    def advantages(self, step: int) -> Floats:
        """advantages_SG of a step, slots in order. Raises `ClaimError` while rollouts are missing."""
        rows = []
        for group in self._step_groups(step):
            if group.advantages_G is None:
                missing = len(group.claim.requests) - len(group.responses)
                raise ClaimError(f"step {step}, slot {group.claim.slot}: {missing} rollouts missing")
            rows.append(group.advantages_G)
        return np.stack(rows)

    def step_done(
        self, step: int, stats: StepStats, say: Callable[[str], None] = lambda _: None
    ) -> dict[str, Any]:
        """Record a finished step, let the evolver look, and return the step's metrics.

        An accepted update becomes the next harness version here, between steps, never inside one.
        Raises `ClaimError` while rollouts are missing.
        """
        self.advantages(step)  # complains about missing rollouts
        groups = self._step_groups(step)
        if len(groups) < self.spec.engine.tasks_per_step:
            raise ClaimError(f"step {step}: only {len(groups)} slots were claimed")
        rollouts = [rollout for group in groups for rollout in self._rollouts(group)]
        records = [self._record(group) for group in groups]
        self.memory.rollouts.write(step, rollouts)
        metrics = step_metrics(step, self.harness, self.spec, records, rollouts) | asdict(stats)
        self._remember(records)
        for key in [key for key in self._groups if key[0] == step]:
            del self._groups[key]
        self._last_done = step
        evolve_started = time.monotonic()
        done = step + 1
        # After the last step there is nothing left that a change could act on.
        if self.evolver and done % self.spec.evolver.every == 0 and done < self.spec.engine.steps:
            self._evolve(step, say)
        evolve_seconds = time.monotonic() - evolve_started
        metrics |= asdict(self.usage)
        version = metrics["harness_version"]  # the one the step was taken under
        summary = StepSummary(id=f"s-{step:06d}", step=step, harness_version=version, metrics=metrics)
        self._remember([summary])
        return {**metrics, "seconds": {"evolve": evolve_seconds}}

    # --- the parts ---------------------------------------------------------------------------

    def _claim(self, step: int, slot: int, task_id: str) -> Claim:
        task = self.harness.tasks[task_id]
        guidance = self.harness.of(task_id).guidance
        size = self.spec.engine.group_size
        n_guided = guided_count(guidance, size)
        prompts = [task.prompt] * size
        if guidance is not None:
            prompts[:n_guided] = [guided_prompt(task.prompt, guidance.checklist)] * n_guided
        requests = [Request(prompts[i], ("train", step, slot, task_id, i)) for i in range(size)]
        return Claim(
            step=step,
            slot=slot,
            task_id=task_id,
            harness_version=self.harness.version,
            prompt=task.prompt,
            requests=tuple(requests),
            guided=tuple(i < n_guided for i in range(size)),
            guidance=None if guidance is None else guidance.checklist,
        )

    def _judge(self, group: _Group) -> None:
        claim = group.claim
        task = self.harness.tasks[claim.task_id]
        texts = [group.responses[i].text for i in range(len(claim.requests))]
        group.met_GK = self.scorer.verdicts(task, group.rubric, texts, "train")
        group.rewards_G = self.scorer.rewards(group.rubric, group.met_GK)
        asked = stream(self.spec.seed, "oracle", claim.step, claim.slot).random()
        if asked < self.spec.oracle.share:
            group.quality_G = self.scorer.quality(task, texts)
        else:
            group.quality_G = np.full(len(texts), np.nan)
        group.advantages_G = group_advantages(
            group.rewards_G,
            np.array(claim.guided),
            self.spec.reward.advantage,
            self.spec.reward.baseline,
            # Under the guided prompt there is no mismatch to guard against.
            self.spec.interfaces.g.mismatch if self._on_plain else "ignore",
        )

    @property
    def _on_plain(self) -> bool:
        return self.spec.interfaces.g.train_on == "plain"

    def _step_groups(self, step: int) -> list[_Group]:
        found = sorted((slot, g) for (s, slot), g in self._groups.items() if s == step)
        if not found:
            raise ClaimError(f"step {step}: nothing was claimed")
        return [group for _, group in found]

    def _record(self, group: _Group) -> Group:
        claim = group.claim
        assert group.met_GK is not None and group.rewards_G is not None
        assert group.quality_G is not None
        return Group(
            id=f"g-{claim.step:06d}-{claim.slot}",
            step=claim.step,
            harness_version=claim.harness_version,
            slot=claim.slot,
            task_id=claim.task_id,
            domain=self.harness.tasks[claim.task_id].domain,
            rewards=as_known(group.rewards_G),
            quality=as_known(group.quality_G),
            guided=list(claim.guided),
            met={c.id: as_verdicts(group.met_GK[:, k]) for k, c in enumerate(group.rubric)},
            collapse=collapse(group.rewards_G),
            pairs=pair_classes(group.rewards_G, group.quality_G),
        )

    def _rollouts(self, group: _Group) -> list[Rollout]:
        record = self._record(group)
        assert group.advantages_G is not None
        return [
            Rollout(
                step=record.step,
                slot=record.slot,
                sample=i,
                task_id=record.task_id,
                harness_version=record.harness_version,
                guided=record.guided[i],
                guidance=group.claim.guidance if record.guided[i] else None,
                response=group.responses[i].text,
                tokens=len(group.responses[i].token_ids),
                finished=group.responses[i].finished,
                reward=record.rewards[i],
                advantage=float(group.advantages_G[i]),
                quality=record.quality[i],
                verdicts={criterion: verdicts[i] for criterion, verdicts in record.met.items()},
            )
            for i in range(len(record.rewards))
        ]

    def _evolve(self, step: int, say: Callable[[str], None]) -> None:
        assert self.evolver is not None
        look = self.evolver.look(step, self.harness, say)
        records = list(look.records)
        if look.accepted:
            self.harness = apply(self.harness, look.updates)
            records.append(
                Accepted(
                    id=f"h-{self.harness.version:06d}",
                    step=step,
                    harness_version=self.harness.version,
                    decision_ids=[d.id for d in look.accepted],
                    updates=look.updates,
                )
            )
        self._remember(records)
        if look.accepted:
            self.on_new_version(self.harness)

    def _remember(self, records: Sequence[AnyRecord]) -> None:
        self.log.append(records)  # the log first: the index can be rebuilt from it
        self.memory.add(records)
