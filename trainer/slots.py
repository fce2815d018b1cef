"""The slots of a step: which task and guidance fills each, the rollouts that come in, what they earn.

An engine asks what to roll out (`claim`), hands the responses in (`submit`), rolls out anew what teaches
nothing (`redraw`) and fetches advantages once groups are complete (`advantages`). Shapes: S slots
(groups) a step, G rollouts a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import numpy as np

from ..agents.evolver.evidence import Memory
from ..agents.policy import Request
from ..agents.scoring.quality import Quality
from ..agents.scoring.reward import Floats, group_advantages
from ..agents.scoring.scorer import Scorer
from ..prompts import guided_prompt
from ..specs.guidance import show
from ..specs.harness import HarnessState
from ..specs.sampling import draw_another, draw_tasks, probabilities, stream
from ..specs.schema import RunSpec
from ..specs.tasks import Criterion
from .group import Claim, SlotGroup, Submission, again


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


class Slots:
    """Not thread-safe: one engine drives it. Only the judging of a complete group may run elsewhere
    (`judge`): it writes to that group alone.

    `versions` is the controller's list; the harness is its last one, and does not change inside a step.
    """

    def __init__(
        self,
        spec: RunSpec,
        versions: Sequence[HarnessState],
        scorer: Scorer,
        memory: Memory,
        judge: Runner,
    ) -> None:
        self.spec = spec
        self.versions = versions
        self.scorer = scorer
        self.memory = memory
        self.judge = judge
        self._drawn: tuple[tuple[int, int], list[str]] = ((-1, -1), [])  # (step, version) -> tasks
        self._groups: dict[tuple[int, int], SlotGroup] = {}  # (step, slot) -> what stands there now
        self._aside: dict[int, list[SlotGroup]] = {}  # step -> what stood there, and tied
        self._last_done = -1

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

        Raises `ClaimError` for a slot or sample that was not claimed, or that has another response.
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
            if group.responses.setdefault(s.sample, s.response) != s.response:
                raise ClaimError(
                    f"step {s.step}, slot {s.slot}, sample {s.sample}: another response was handed in "
                    "already; two trainers of one run?"
                )
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
        groups = self.complete(step)
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
        seen = tied | {group.claim.task_id for group in self._in(step)}
        for group in groups:
            slot, attempt = group.claim.slot, group.claim.attempt + 1
            rng = stream(self.spec.seed, "redraw", step, slot, attempt)
            task_id = draw_another(self._substitutes(group.claim.domain), seen, tied, rng)
            seen.add(task_id)
            self._groups[step, slot] = self._opened(step, slot, task_id, attempt)
        return [self._groups[step, slot].claim for slot in slots]

    def advantages(self, step: int) -> Floats:
        """advantages_SG of a step, slots in order. Waits for the judging of groups that are complete.

        Raises `ClaimError` while rollouts are missing.
        """
        rows = []
        for group in self._in(step):
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
        rows = [group.rewards_G for group in self._in(step)]
        return np.stack([row for row in rows if row is not None])

    # --- the controller's calls --------------------------------------------------------------

    def complete(self, step: int) -> list[SlotGroup]:
        """The judged groups of a step, slots in order. Raises `ClaimError` unless they are all there."""
        self.advantages(step)  # complains about missing rollouts
        groups = self._in(step)
        if len(groups) < self.spec.engine.tasks_per_step:
            raise ClaimError(f"step {step}: only {len(groups)} slots were claimed")
        return groups

    def aside(self, step: int) -> list[SlotGroup]:
        """The groups that were set aside in a step, once they are judged."""
        groups = self._aside.get(step, [])
        for group in groups:
            assert group.judged is not None
            group.judged.result()
        return groups

    def close(self, step: int) -> None:
        """The step is done: what belongs to it is forgotten."""
        for key in [key for key in self._groups if key[0] == step]:
            del self._groups[key]
        self._aside.pop(step, None)
        self._last_done = step

    # --- which task, and how it is shown -----------------------------------------------------

    @property
    def _harness(self) -> HarnessState:
        return self.versions[-1]

    def _tasks(self, step: int) -> list[str]:
        """The tasks drawn for a step's slots."""
        key = (step, self._harness.version)
        if self._drawn[0] != key:
            drawn = draw_tasks(self._chances(), self.spec.engine.tasks_per_step, self.spec.seed, step)
            self._drawn = (key, drawn)
        return self._drawn[1]

    def _chances(self) -> dict[str, float]:
        """p_t of every task."""
        p = self.spec.interfaces.p
        return probabilities(self._harness, p.domain_shares, p.paused_weight)

    def _substitutes(self, domain: str) -> dict[str, float]:
        """p_t of what may take the place of a tied group of a domain: no update on p is undone by it.

        Of the same domain, so that no mass moves between domains; paused tasks only where all are.
        """
        tasks = self._harness.tasks
        p = {i: chance for i, chance in self._chances().items() if tasks[i].domain == domain}
        return {i: chance for i, chance in p.items() if not self._harness.of(i).paused} or p

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
        task = self._harness.tasks[task_id]
        shown = show(
            self._harness.of(task_id).guidance,
            self.memory.strengths(self._harness, task_id, step, self.spec.engine.steps),
            self._harness.rubric(task_id),
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
            domain=task.domain,
            harness_version=self._harness.version,
            prompt=task.prompt,
            requests=tuple(requests),
            shown=tuple(shown),
            attempt=attempt,
        )

    # --- what it earns -----------------------------------------------------------------------

    def _scored(self, claim: Claim) -> tuple[Criterion, ...]:
        """The criteria a group is scored by: all in force, less what `reward.dropout` leaves out.

        A criterion with positive points stays, so that the group is scored by the same formula.
        """
        rubric = self._harness.rubric(claim.task_id)
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
        task = self._harness.tasks[claim.task_id]
        texts = [group.responses[i].text for i in range(len(claim.requests))]
        group.met_GK = self.scorer.verdicts(task, group.rubric, texts, "train")
        group.rewards_G = self.scorer.rewards(group.rubric, group.met_GK)
        rng = stream(self.spec.seed, "oracle", claim.step, claim.slot, *again(claim.attempt))
        if rng.random() < self.spec.oracle.share:
            plain = [not is_guided for is_guided in claim.guided]
            group.quality = self.scorer.quality(task, texts, "train", plain)
        else:
            group.quality = Quality(np.full(len(texts), np.nan))
        g = self.spec.interfaces.g
        group.advantages_G = group_advantages(
            group.rewards_G,
            np.array(claim.guided),
            self.spec.reward.advantage,
            self.spec.reward.baseline,
            # Under the guided prompt there is no mismatch to guard against.
            g.mismatch if g.train_on == "plain" else "ignore",
        )

    def _in(self, step: int) -> list[SlotGroup]:
        found = sorted((slot, g) for (s, slot), g in self._groups.items() if s == step)
        if not found:
            raise ClaimError(f"step {step}: nothing was claimed")
        return [group for _, group in found]
