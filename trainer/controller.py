"""The controller: owns the harness, the memory, sampling, judging and the evolver.

An engine asks it what to roll out (`claim`), hands the responses in (`submit`), rolls out anew what
teaches nothing (`redraw`), fetches advantages once groups are complete (`advantages`) and says when it
has taken its step (`step_done`). Only the
controller computes rewards and advantages, because unscored criteria, baselines and std need whole
groups. Shapes: S slots (groups) a step, G rollouts a group.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ..agents.evolver.beside import Beside, Outcome, still_fitting
from ..agents.evolver.critic import Critic
from ..agents.evolver.evidence import Memory
from ..agents.evolver.evolver import Evolver
from ..agents.policy import Request
from ..agents.scoring.alarms import WINDOW, Alarm, alarms, oracle_alarms, tied_alarms
from ..agents.scoring.quality import Quality
from ..agents.scoring.reward import Floats, group_advantages
from ..agents.scoring.scorer import Scorer
from ..agents.usage import Usage
from ..memory.events import EventLog, next_version
from ..memory.records import Accepted, AnyRecord, Decision, StepSummary
from ..prompts import guided_prompt
from ..specs.guidance import show
from ..specs.harness import HarnessState
from ..specs.sampling import draw_another, draw_tasks, probabilities, stream
from ..specs.schema import RunSpec
from ..specs.tasks import Criterion
from .metrics import step_metrics
from .people import answer_request, open_requests, refuse
from .requests import HarnessRequest
from .slots import Claim, SlotGroup, Submission, again


class ClaimError(Exception):
    """A submission for a slot or sample nobody claimed, or a step asked about before it is complete."""


#: Runs the judging of one complete group: at once (`judge_now`), or on another thread.
Runner = Callable[[Callable[[], None]], "Future[None]"]


def judge_now(job: Callable[[], None]) -> Future[None]:
    """Run a job here and now. What it raises is raised."""
    job()
    done: Future[None] = Future()
    done.set_result(None)
    return done


@dataclass(frozen=True)
class StepStats:
    """What an engine reports about its step; every field becomes a metric of that name."""

    loss: float
    grad_norm: float  # before clipping
    clip_share: float  # of response tokens
    kl: float | None  # nats a token, from the policy at the start; None: not measured
    plain_logprob_guided: float | None  # nats a token, guided rollouts under the plain prompt


class Controller:
    """One run's controller. Not thread-safe: one engine drives it. Only the judging of a complete group
    may run elsewhere (`judge`): it writes to that group alone.
    """

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
        self.judge = judge
        self.beside = beside  # looks beside training, in place of `evolver`
        self._drawn: tuple[int, list[str]] = (-1, [])  # the tasks of the step that was asked about last
        self._groups: dict[tuple[int, int], SlotGroup] = {}  # (step, slot) -> what stands there now
        self._aside: dict[int, list[SlotGroup]] = {}  # step -> what stood there, and tied
        self._last_done = -1
        self._alarmed: set[tuple[str, str]] = set()

    @property
    def harness(self) -> HarnessState:
        """H_t, the newest version."""
        return self.versions[-1]

    # --- the engine's calls ------------------------------------------------------------------

    def claim(self, step: int, slots: Sequence[int]) -> list[Claim]:
        """What to roll out in these slots of a step. Again, it is the same answer, until a redraw.

        Raises `ClaimError` for a step that is done or a slot outside 0 .. tasks_per_step - 1.
        """
        if step <= self._last_done:
            raise ClaimError(f"step {step} is done already")
        drawn = self._tasks(step)
        claims = []
        for slot in slots:
            if not 0 <= slot < len(drawn):
                raise ClaimError(f"slot {slot}: a step has the slots 0 to {len(drawn) - 1}")
            if (step, slot) not in self._groups:
                self._groups[step, slot] = self._opened(step, slot, drawn[slot], 0)
            claims.append(self._groups[step, slot].claim)
        return claims

    def submit(self, samples: Sequence[Submission]) -> int:
        """Take rollouts in; judge each group as soon as it is complete. Says how many were new.

        Raises `ClaimError` for a slot or sample that was not claimed.
        """
        new = 0
        for s in samples:
            if 0 <= s.step <= self._last_done:
                continue  # a late duplicate: the step is over
            group = self._groups.get((s.step, s.slot))
            if group is not None and 0 <= s.attempt < group.claim.attempt:
                continue  # likewise: that group was complete, and is set aside
            claimed = group is not None and s.attempt == group.claim.attempt
            if group is None or not claimed or not 0 <= s.sample < len(group.claim.requests):
                raise ClaimError(f"step {s.step}, slot {s.slot}, sample {s.sample}: not claimed")
            new += s.sample not in group.responses
            group.responses.setdefault(s.sample, s.response)
            if group.judged is None and group.complete:
                group.judged = self.judge(partial(self._judge, group))
        return new

    def redraw(self, step: int) -> list[Claim]:
        """Fill slots anew whose rewards tie, with other tasks (`interfaces.p.redraws`).

        Says what to roll out; [] when the step stands. Waits for the judging. Asked again before those
        rollouts are in, it is the same answer. Raises `ClaimError` while rollouts of the first attempts
        are missing.
        """
        if not self.spec.interfaces.p.redraws:
            return []
        if out := self._redrawn(step):
            return out
        groups = self._judged(step)
        attempt = max(group.claim.attempt for group in groups)
        if attempt >= self.spec.interfaces.p.redraws:
            return []
        # What stands since an earlier attempt was found not to tie.
        last = [group for group in groups if group.claim.attempt == attempt]
        return self.refill(step, [group.claim.slot for group in last if group.tied])

    def can_redraw(self, step: int) -> bool:
        """Would `redraw` answer at once?"""
        return bool(self._redrawn(step)) or self.is_judged(step)

    def refill(self, step: int, slots: Sequence[int]) -> list[Claim]:
        """Set the complete groups in these slots aside, as evidence, and claim another task for each.

        The tasks follow from the seed and from what the step holds.
        """
        aside = self._aside.setdefault(step, [])
        groups = [self._groups[step, slot] for slot in slots]
        for group in groups:
            group.aside = self.spec.engine.tasks_per_step + len(aside)
            aside.append(group)
        tied = {group.claim.task_id for group in aside}
        seen = tied | {group.claim.task_id for group in self._step_groups(step)}
        for group in groups:
            slot, attempt = group.claim.slot, group.claim.attempt + 1
            rng = stream(self.spec.seed, "redraw", step, slot, attempt)
            task_id = draw_another(self._substitutes(self._domain(group)), seen, tied, rng)
            seen.add(task_id)
            self._groups[step, slot] = self._opened(step, slot, task_id, attempt)
        return [self._groups[step, slot].claim for slot in slots]

    def advantages(self, step: int) -> Floats:
        """advantages_SG of a step, slots in order. Waits for the judging of groups that are complete.

        Raises `ClaimError` while rollouts are missing.
        """
        rows = []
        for group in self._step_groups(step):
            if group.judged is None:
                missing = len(group.claim.requests) - len(group.responses)
                raise ClaimError(f"step {step}, slot {group.claim.slot}: {missing} rollouts missing")
            group.judged.result()
            assert group.advantages_G is not None
            rows.append(group.advantages_G)
        return np.stack(rows)

    def is_judged(self, step: int) -> bool:
        """Are all rollouts of a step in, and judged? Then `advantages` answers at once."""
        groups = [group for (s, _), group in self._groups.items() if s == step]
        complete = len(groups) == self.spec.engine.tasks_per_step
        return complete and all(g.judged is not None and g.judged.done() for g in groups)

    def rewards(self, step: int) -> Floats:
        """R_raw_SG of a step (NaN: none), slots in order; known when `advantages` are."""
        self.advantages(step)
        rows = [group.rewards_G for group in self._step_groups(step)]
        return np.stack([row for row in rows if row is not None])

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
        Raises `ClaimError` while rollouts are missing.
        """
        batch = self._judged(step)
        aside = self._aside.get(step, [])
        groups = [*batch, *aside]
        for group in aside:
            assert group.judged is not None
            group.judged.result()
        rollouts = [rollout for group in groups for rollout in group.rollouts(self._domain(group))]
        records = [group.record(self._domain(group)) for group in groups]
        self.memory.rollouts.write(step, rollouts)
        causes = self.scorer.take_causes("train")
        metrics = step_metrics(step, self.harness, self.spec, records, rollouts, causes) | asdict(stats)
        metrics |= {"redrawn": len(aside), "tied_in_batch": sum(group.tied for group in batch)}
        self._remember(records)
        metrics["oracle_causes"] = self.scorer.take_oracle_causes("train")
        more = [*oracle_alarms(records, metrics["oracle_causes"]), *self._still_tied(metrics)]
        metrics["alarms"] = self._alarms(step, more, tell)
        for key in [key for key in self._groups if key[0] == step]:
            del self._groups[key]
        self._aside.pop(step, None)
        self._last_done = step
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

    def _tasks(self, step: int) -> list[str]:
        """The tasks drawn for a step's slots. The harness does not change inside a step."""
        if self._drawn[0] != step:
            drawn = draw_tasks(self._chances(), self.spec.engine.tasks_per_step, self.spec.seed, step)
            self._drawn = (step, drawn)
        return self._drawn[1]

    def _chances(self) -> dict[str, float]:
        """p_t of every task."""
        p = self.spec.interfaces.p
        return probabilities(self.harness, p.domain_shares, p.paused_weight)

    def _substitutes(self, domain: str) -> dict[str, float]:
        """p_t of what may take the place of a tied group of a domain: no update on p is undone by it.

        Of the same domain, so that no mass moves between domains; paused tasks only where all are.
        """
        p = {i: chance for i, chance in self._chances().items() if self._domain_of(i) == domain}
        return {i: chance for i, chance in p.items() if not self.harness.of(i).paused} or p

    def _redrawn(self, step: int) -> list[Claim]:
        """The claims of the newest round of redraws, if rollouts of it are missing."""
        groups = sorted((slot, group) for (s, slot), group in self._groups.items() if s == step)
        attempt = max((group.claim.attempt for _, group in groups), default=0)
        last = [group for _, group in groups if group.claim.attempt == attempt > 0]
        return [] if all(group.complete for group in last) else [group.claim for group in last]

    def _opened(self, step: int, slot: int, task_id: str, attempt: int) -> SlotGroup:
        claim = self._claim(step, slot, task_id, attempt)
        return SlotGroup(claim, self._scored(claim))

    def _claim(self, step: int, slot: int, task_id: str, attempt: int) -> Claim:
        task = self.harness.tasks[task_id]
        shown = show(
            self.harness.of(task_id).guidance,
            self.memory.strengths(self.harness, task_id, step, self.spec.engine.steps),
            self.harness.rubric(task_id),
            self.spec.engine.group_size,
            stream(self.spec.seed, "guidance", step, slot, *again(attempt)),
        )
        requests = [
            Request(guided_prompt(task.prompt, parts), ("train", step, slot, task_id, i, *again(attempt)))
            for i, parts in enumerate(shown)
        ]
        return Claim(
            step=step,
            slot=slot,
            task_id=task_id,
            harness_version=self.harness.version,
            prompt=task.prompt,
            requests=tuple(requests),
            shown=tuple(shown),
            attempt=attempt,
        )

    def _scored(self, claim: Claim) -> tuple[Criterion, ...]:
        """The criteria a group is scored by: all in force, less what `reward.dropout` leaves out.

        A criterion with positive points stays, so that the group is scored by the same formula.
        """
        rubric = self.harness.rubric(claim.task_id)
        kept = len(rubric) - int(self.spec.reward.dropout * len(rubric))
        if kept == len(rubric):
            return rubric
        rng = stream(self.spec.seed, "dropout", claim.step, claim.slot, *again(claim.attempt))
        order = rng.permutation(len(rubric)).tolist()
        gains = [k for k in order if rubric[k].points > 0]
        first = gains[:1] or order[:1]
        chosen = [*first, *(k for k in order if k not in first)][: max(1, kept)]
        return tuple(rubric[k] for k in sorted(chosen))

    def _judge(self, group: SlotGroup) -> None:
        claim = group.claim
        task = self.harness.tasks[claim.task_id]
        texts = [group.responses[i].text for i in range(len(claim.requests))]
        group.met_GK = self.scorer.verdicts(task, group.rubric, texts, "train")
        group.rewards_G = self.scorer.rewards(group.rubric, group.met_GK)
        rng = stream(self.spec.seed, "oracle", claim.step, claim.slot, *again(claim.attempt))
        if rng.random() < self.spec.oracle.share:
            plain = [not is_guided for is_guided in claim.guided]
            group.quality = self.scorer.quality(task, texts, "train", plain)
        else:
            group.quality = Quality(np.full(len(texts), np.nan))
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

    def _step_groups(self, step: int) -> list[SlotGroup]:
        found = sorted((slot, g) for (s, slot), g in self._groups.items() if s == step)
        if not found:
            raise ClaimError(f"step {step}: nothing was claimed")
        return [group for _, group in found]

    def _judged(self, step: int) -> list[SlotGroup]:
        """The groups of a step, slots in order. Raises `ClaimError` unless they are all complete."""
        self.advantages(step)  # complains about missing rollouts
        groups = self._step_groups(step)
        if len(groups) < self.spec.engine.tasks_per_step:
            raise ClaimError(f"step {step}: only {len(groups)} slots were claimed")
        return groups

    def _domain(self, group: SlotGroup) -> str:
        return self._domain_of(group.claim.task_id)

    def _domain_of(self, task_id: str) -> str:
        return self.harness.tasks[task_id].domain

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
            answer = answer_request(request, step, self.versions, self.critic)
            tell(answer.told)
            self._remember(answer.records)
            if answer.accepted:
                self._accept(step, **answer.accepted)

    def _accept(self, step: int, **what: Any) -> None:
        """Log a new harness version, which acts from the next step on."""
        number = self.harness.version + 1
        record = Accepted(id=f"h-{number:06d}", step=step, harness_version=number, **what)
        self.versions.append(next_version(self.versions, record))
        self._drawn = (-1, [])
        self._remember([record])
        self.on_new_version(self.harness)

    def _remember(self, records: Sequence[AnyRecord]) -> None:
        self.log.append(records)  # the log first: the index can be rebuilt from it
        self.memory.add(records)
