"""The controller: owns the harness, the memory, sampling, judging and the evolver.

An engine asks its `slots` what to roll out and what that earned, and says when it has taken its step
(`step_done`). Only the controller computes rewards and advantages, because unscored criteria, baselines
and std need whole groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..agents.evolver.beside import Beside, Outcome, still_fitting
from ..agents.evolver.critic import Critic
from ..agents.evolver.evidence import Memory
from ..agents.evolver.evolver import Evolver
from ..agents.scoring.alarms import WINDOW, Alarm, alarms, oracle_alarms, tied_alarms
from ..agents.scoring.scorer import Scorer
from ..agents.usage import Usage
from ..memory.events import EventLog, next_version
from ..memory.records import Accepted, AnyRecord, Decision, StepSummary
from ..specs.harness import HarnessState
from ..specs.schema import RunSpec
from .metrics import check_finite, step_metrics
from .people import answer_request, open_requests, refuse
from .requests import HarnessRequest
from .slots import Runner, Slots, judge_now


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
        versions: Sequence[HarnessState],
        scorer: Scorer,
        usage: Usage,
        memory: Memory,
        log: EventLog,
        critic: Critic,
        evolver: Evolver | None,
        asked: Callable[[], Sequence[HarnessRequest]] = list,
        on_new_version: Callable[[HarnessState], None] = lambda _: None,
        judge: Runner = judge_now,
        beside: Beside | None = None,
    ) -> None:
        self.spec = spec
        self.versions = list(versions)
        self.scorer = scorer
        self.usage = usage
        self.memory = memory
        self.log = log
        self.critic = critic
        self.evolver = evolver
        self.asked = asked
        self.on_new_version = on_new_version
        self.slots = Slots(spec, self.versions, scorer, memory, judge)
        self.beside = beside  # looks beside training, in place of `evolver`
        self._alarmed: set[tuple[str, str]] = set()

    @property
    def harness(self) -> HarnessState:
        """H_t, the newest version."""
        return self.versions[-1]

    def needs_policy(self, step: int) -> bool:
        """Will something be measured on the policy once `step` is done (a look, a person's request)?"""
        if step + 1 >= self.spec.engine.steps:
            return False
        return self._looks(step) or bool(open_requests(self.asked(), self.memory.records, step))

    @property
    def looking(self) -> bool:
        """Is there a look beside training that is to be applied yet?"""
        return self.beside is not None and self.beside.step is not None

    def settle(self) -> Outcome | None:
        """Wait for the look beside training, if there is one; it is applied when it is due. Until then
        this is what it came to. Raises what went wrong in it."""
        return None if self.beside is None else self.beside.wait()

    def step_done(
        self,
        step: int,
        stats: StepStats,
        say: Callable[[str], None] = lambda _: None,
        tell: Callable[[str], None] = lambda _: None,
    ) -> dict[str, Any]:
        """Record a finished step, let the evolver look, and return the step's metrics.

        `say` hears what is being done; `tell` what a person should not miss (alarms, answers). An
        accepted update becomes the next harness version here, between steps, never inside one.
        Raises `ClaimError` while rollouts are missing, and `NotFiniteError`: nothing is recorded then.
        """
        check_finite(step, asdict(stats))
        batch, aside = self.slots.complete(step), self.slots.aside(step)
        groups = [*batch, *aside]
        rollouts = [rollout for group in groups for rollout in group.rollouts()]
        records = [group.record() for group in groups]
        self.memory.rollouts.write(step, rollouts)
        causes = self.scorer.take_causes("train")
        metrics = step_metrics(step, self.harness, self.spec, records, rollouts, causes) | asdict(stats)
        metrics |= {"redrawn": len(aside), "tied_in_batch": sum(group.tied for group in batch)}
        self._remember(records)
        metrics["oracle_causes"] = self.scorer.take_oracle_causes("train")
        more = [*oracle_alarms(records, metrics["oracle_causes"]), *self._still_tied(metrics)]
        metrics["alarms"] = self._alarms(step, more, tell)
        self.slots.close(step)
        evolve_started = time.monotonic()
        done = step + 1
        seconds = self._apply_due(step)
        # After the last step there is nothing left that a change could act on.
        if done < self.spec.engine.steps:
            if self.critic.policy.version == done:  # else there is nothing to measure on: they wait
                self._answer_people(step, tell)
            if self._looks(step):
                self._evolve(step, say)
        if self.beside is None:
            seconds["evolve"] = time.monotonic() - evolve_started
        else:
            seconds["evolve_wait"] = time.monotonic() - evolve_started
        metrics |= asdict(self.usage)
        version = metrics["harness_version"]  # the one the step was taken under
        summary = StepSummary(id=f"s-{step:06d}", step=step, harness_version=version, metrics=metrics)
        self._remember([summary])
        return {**metrics, "seconds": seconds}

    def end(self) -> None:
        """The run is over: what people asked for too late is refused, with that reason."""
        step = self.spec.engine.steps
        for request in open_requests(self.asked(), self.memory.records, step):
            answer = refuse(request, step, self.harness, "the run ended before it could act")
            self._remember(answer.records)

    # --- the parts ---------------------------------------------------------------------------

    def _looks(self, step: int) -> bool:
        """Does the evolver look after `step`?"""
        evolves = self.evolver is not None or self.beside is not None
        return evolves and self.spec.looks_after(step)

    def _evolve(self, step: int, say: Callable[[str], None]) -> None:
        if self.beside is not None:
            self.beside.start(step, self.harness, say)
        elif self.evolver is not None:
            self._conclude(step, self.evolver.look(step, self.harness, say).records)

    def _apply_due(self, step: int) -> dict[str, float]:
        """Apply the look beside training that is due after `step`; its seconds, {} for none."""
        if self.beside is None or self.beside.step is None:
            return {}
        self.beside.raise_failure()
        is_due = self.beside.step + self.spec.evolver.lag <= step
        if not is_due and not self._looks(step):  # a resume may have changed when looks are due
            return {}
        outcome = self.beside.take()
        self.usage.add(Usage.from_dict(outcome.usage))
        self._conclude(step, still_fitting(outcome.records, self.harness, self.critic, step))
        return {"evolve": outcome.seconds}

    def _conclude(self, step: int, records: Sequence[AnyRecord]) -> None:
        """Log what a look came to. What it accepted is the next version, after `step`."""
        self._remember(records)
        if accepted := [r for r in records if isinstance(r, Decision) and r.accepted]:
            ids = [decision.id for decision in accepted]
            self._accept(step, decision_ids=ids, updates=[decision.update for decision in accepted])

    def _alarms(
        self, step: int, more: Sequence[Alarm], tell: Callable[[str], None]
    ) -> list[dict[str, str]]:
        """What is going wrong, a sentence each; those that were not on at the last step are said."""
        groups = self.memory.groups(step, WINDOW)
        tasks = {group.task_id for group in groups}
        in_force = {c.id: c for task_id in tasks for c in self.harness.rubric(task_id)}
        found = [*alarms(groups, in_force), *more]
        for alarm in found:
            if (alarm.kind, alarm.where) not in self._alarmed:
                tell(f"alarm: {alarm.sentence}")
        self._alarmed = {(alarm.kind, alarm.where) for alarm in found}
        return [asdict(alarm) for alarm in found]

    def _still_tied(self, metrics: dict[str, Any]) -> list[Alarm]:
        """The warning about slots that no redraw helped, in this step or a while ago."""
        redraws, slots = self.spec.interfaces.p.redraws, self.spec.engine.tasks_per_step
        if not redraws:
            return []
        first = metrics["step"] - WINDOW + 1
        past = [r.metrics for r in self.memory.records if isinstance(r, StepSummary) and r.step >= first]
        tied_T = [row.get("tied_in_batch", 0) for row in (*past, metrics)]
        return list(tied_alarms(tied_T, slots, redraws))

    def _answer_people(self, step: int, tell: Callable[[str], None]) -> None:
        """What people asked for since the last step (`harnessrl harness apply | rollback`)."""
        for request in open_requests(self.asked(), self.memory.records, step):
            answer = answer_request(request, step, self.versions, self.critic, tell)
            tell(answer.told)
            self._remember(answer.records)
            if answer.accepted:
                self._accept(step, **answer.accepted)

    def _accept(self, step: int, **what: Any) -> None:
        """Log a new harness version, which acts from the next step on."""
        number = self.harness.version + 1
        record = Accepted(id=f"h-{number:06d}", step=step, harness_version=number, **what)
        self.versions.append(next_version(self.versions, record))
        self._remember([record])
        self.on_new_version(self.harness)

    def _remember(self, records: Sequence[AnyRecord]) -> None:
        self.log.append(records)  # the log first: the index can be rebuilt from it
        self.memory.add(records)
