"""A run whose rollouts and gradient steps happen elsewhere: the controller's side of it, without HTTP.

One thread drives it (the service's event loop); judging runs on others, and so does `finish_step`, while
which nothing else is let in. Shapes: S slots a step, G samples a slot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from ...agents.policy import Freezable, Sample
from ...agents.scoring.diagnosis import as_known
from ...memory.files import write_atomic
from ...memory.records import AnyRecord, RunFinished
from ...specs.engines import GrpoEngine
from ...specs.schema import RunSpec
from ..controller import StepStats
from ..data.load import Tasks
from ..group import Submission
from ..metrics import check_finite
from ..probe import probe_run
from ..report.build import build_report
from ..runfolder import RunFolder, save_checkpoint
from ..slots import ClaimError
from ..start import Parts
from ..train import cannot_judge
from ..validation import Validation
from .journal import Journal
from .wire import (
    AdvantagesReply,
    ClaimReply,
    Fingerprint,
    PolicyFolder,
    RedrawReply,
    Saved,
    SlotSample,
    StateReply,
    StepReport,
    SubmitRequest,
)


class ServedPolicy(Freezable, Protocol):
    """A policy that can be told to serve other weights (`frozen.FrozenPolicy`)."""

    def serve(self, folder: Path, version: int, prints: Sequence[Fingerprint]) -> None:
        """Serve the weights in `folder`, made by `version` steps, and make sure of it by `prints`."""

    def save(self, folder: Path) -> None:
        """Keep the weights that are served as `folder/policy`. Raises `OSError`."""


class RunEndedError(Exception):
    """The run has ended, or must; the message says why."""


class Session:
    """The state of a run at the controller: which step is open, and what it still needs."""

    def __init__(
        self,
        spec: RunSpec,
        tasks: Tasks,
        run: RunFolder,
        parts: Parts,
        frozen: ServedPolicy,
        say: Callable[[str], None],
        past: Sequence[AnyRecord] = (),
    ) -> None:
        self.spec = spec
        self.tasks = tasks
        self.run = run
        self.parts = parts
        self.frozen = frozen
        assert isinstance(spec.engine, GrpoEngine)
        self.max_prompt_tokens = spec.engine.max_prompt_tokens
        self.say = say
        self.step = parts.steps_done  # the open one
        self.validation = Validation(spec, tasks, parts, run, past, frozen.save)
        self.finished = False
        self.ended: str | None = None  # why nothing more can be done
        self.stopping = False  # the process is about to end, and the run is not
        self._begun = False
        self._journal = Journal(run.submitted)
        self._replay()

    def begin(self, with_probe: bool) -> None:
        """Before the first step."""
        if with_probe and self.step == 0:
            probe_run("before", self.parts, self.tasks, self.spec, self.say)
        if self.step == 0 and self.validation.is_due(0):
            self.validation.evaluate(0, None, self.say)
        self._begun = True

    def must_begin(self, with_probe: bool) -> bool:
        """Has something to be measured yet before the first step (by `begin`)?

        The trainer asks for that once; a controller that was killed in it has to think of it itself.
        """
        if self._begun or self.step or self.ended is not None:
            return False
        return (with_probe and self.spec.logging.probe_samples > 0) or self.validation.is_due(0)

    def state(self) -> StateReply:
        """Where the run stands."""
        return StateReply(
            run=self.run.root.name,
            steps=self.spec.engine.steps,
            steps_done=self.step,
            tasks_per_step=self.spec.engine.tasks_per_step,
            group_size=self.spec.engine.group_size,
            harness_version=self.parts.controller.harness.version,
        )

    def claim(self, where: SlotSample) -> ClaimReply:
        """What a rollout is; asked again, the same. Raises `ClaimError` or `RunEndedError`."""
        self.alive()
        size = self.spec.engine.group_size
        if self.step >= self.spec.engine.steps:
            raise ClaimError(f"step {where.step}: all {self.step} steps of the run are done")
        if where.step != self.step or where.sample >= size:
            raise ClaimError(
                f"step {where.step}, sample {where.sample}: the open step is {self.step}, "
                f"with samples 0 to {size - 1}"
            )
        claim = self.parts.controller.slots.claim(where.step, [where.slot])[0]
        if where.attempt != claim.attempt:
            raise ClaimError(
                f"step {where.step}, slot {where.slot}: attempt {where.attempt}, and the open one is "
                f"{claim.attempt}"
            )
        g = self.spec.interfaces.g
        prompt = claim.requests[where.sample].prompt
        return ClaimReply(
            task_id=claim.task_id,
            harness_version=claim.harness_version,
            prompt=prompt,
            loss_prompt=claim.prompt if g.train_on == "plain" else prompt,
            guided=claim.guided[where.sample],
            max_prompt_tokens=self.max_prompt_tokens,
            chat_template_kwargs=self.spec.roles.policy.chat_template_kwargs,
        )

    def submit(self, rollout: SubmitRequest) -> None:
        """Take a rollout in; again, it changes nothing. Raises `ClaimError` or `RunEndedError`."""
        self.alive()
        if self._take(rollout):
            self._journal.write(rollout)

    def redraw(self, step: int) -> RedrawReply | None:
        """Which slots to roll out anew, or None while rollouts are out or being judged.

        Raises `ClaimError` or `RunEndedError`.
        """
        self.alive()
        self._check_open(step)
        controller = self.parts.controller
        if not self.spec.interfaces.p.redraws:
            return RedrawReply(step=step, slots=[], attempt=0)
        fresh = controller.slots.is_judged(step)
        if not fresh and not controller.slots.can_redraw(step):
            return None
        claims = controller.slots.redraw(step)
        attempt = claims[0].attempt if claims else 0
        reply = RedrawReply(step=step, slots=[claim.slot for claim in claims], attempt=attempt)
        if claims and fresh:
            self._journal.write(reply)
        return reply

    def advantages(self, step: int) -> AdvantagesReply | None:
        """A step's advantages and rewards, or None while rollouts are out or being judged.

        Raises `ClaimError` or `RunEndedError`.
        """
        self.alive()
        self._check_open(step)
        controller = self.parts.controller
        if not controller.slots.is_judged(step):
            return None
        rewards_SG = controller.slots.rewards(step)
        return AdvantagesReply(
            advantages=controller.slots.advantages(step).tolist(),
            rewards=[as_known(row) for row in rewards_SG],
            export=controller.needs_policy(step) or self.validation.is_due(step + 1),
        )

    def check_done(self, step: int) -> None:
        """Raises `ClaimError` for the open step while rollouts of it are out or being judged."""
        if step == self.step and not self.parts.controller.slots.is_judged(step):
            raise ClaimError(f"step {step} is done before all its rollouts are in and judged")

    def finish_step(self, step: int, report: StepReport) -> None:
        """Evidence into memory, the evolver's look, metrics. A step that is done already stays as it is;
        the evaluation after it, that its controller was killed in, is made up for.

        Raises `PolicyServerError`, and what `Controller.step_done` raises.
        """
        if step < self.step:
            if step + 1 == self.step and report.policy is not None and self._must_evaluate():
                self.settle()  # as below
                self._serve(report, self.step)
                self.validation.evaluate(self.step, self._reward_of(step), self.say)
            return
        parts = self.parts
        stats = StepStats(
            loss=report.loss,
            grad_norm=report.grad_norm,
            clip_share=report.clip_share,
            kl=report.kl,
            plain_logprob_guided=report.plain_logprob_guided,
        )
        check_finite(step, asdict(stats))  # `step_done` looks too, but only once the weights are loaded
        waited = 0.0
        if report.policy is not None:
            waited = self.settle()  # a look beside training measures on the weights that are served now
            self._serve(report, step + 1)
        metrics = parts.controller.step_done(step, stats, self.say, self.say)
        metrics["seconds"] = report.seconds | metrics["seconds"]
        if "evolve_wait" in metrics["seconds"]:
            metrics["seconds"]["evolve_wait"] += waited
        parts.metrics.append(metrics)
        self.run.write_metrics(parts.metrics)
        parts.scalars.write(metrics)
        if self.validation.is_due(step + 1):
            started = time.monotonic()
            self.validation.evaluate(step + 1, metrics["reward_mean"], self.say)
            metrics["seconds"]["evaluate"] = time.monotonic() - started
            self.run.write_metrics(parts.metrics)
        self._journal.clear()
        self.step = step + 1
        self.say(
            f"step {self.step} of {self.spec.engine.steps}: reward {_shown(metrics['reward_mean'])}, "
            f"signal rate {_shown(metrics['signal_rate'])}, harness {parts.controller.harness.version}"
        )
        if blind := cannot_judge(parts.metrics, self.spec):
            self.ended = blind

    @property
    def looking(self) -> bool:
        """Is there a look beside training that is to be applied yet?"""
        return self.parts.controller.looking

    def settle(self) -> float:
        """Wait for a look beside training; the seconds that took. Raises what went wrong in it."""
        started = time.monotonic()
        self.parts.controller.settle()
        return time.monotonic() - started

    def wait_for_look(self) -> None:
        """Before a checkpoint; it is on record as the last step's waiting."""
        seconds: dict[str, float] = self.parts.metrics[-1]["seconds"]
        seconds["evolve_wait"] = seconds.get("evolve_wait", 0.0) + self.settle()
        self.run.write_metrics(self.parts.metrics)

    def saved(self, step: int, checkpoint: Saved) -> None:
        """OpenRLHF's checkpoint after `step` steps is complete: so is the run's.

        A look beside training is waited for. Raises `ClaimError` or `OSError`.
        """
        if step != self.step:
            raise ClaimError(f"a checkpoint after {step} steps, and {self.step} are done")
        cursors = self.parts.cursors(step, with_weights=False)

        def point_to(folder: Path) -> None:
            write_atomic(folder / "openrlhf.json", checkpoint.model_dump_json(indent=1))

        save_checkpoint(self.run, step, cursors, point_to)

    def finish(self, policy: PolicyFolder, with_probe: bool) -> None:
        """After the last step: the trained policy is measured, and the report is written."""
        if self.finished or self.step < self.spec.engine.steps:
            return
        parts = self.parts
        if with_probe and self.spec.logging.probe_samples:
            self.say("loading the trained policy to probe it")
            self.frozen.serve(Path(policy.policy), self.step, [])
            probe_run("after", parts, self.tasks, self.spec, self.say)
        parts.controller.end()
        version = parts.controller.harness.version
        totals = asdict(parts.usage)
        parts.record(RunFinished(id="end", step=self.step, harness_version=version, **totals))
        self.say(f"the trained policy: {policy.policy}")
        self.say(f"the report: {build_report(self.run.root)}")
        self.finished = True

    def alive(self) -> None:
        """Raises `RunEndedError` once nothing more can be done."""
        if self.ended is not None:
            raise RunEndedError(self.ended)

    def close(self) -> None:
        """Let go of files."""
        self._journal.close()

    def _check_open(self, step: int) -> None:
        """Raises `ClaimError` for any step but the open one."""
        if self.step >= self.spec.engine.steps:
            raise ClaimError(f"step {step}: all {self.step} steps of the run are done")
        if step != self.step:
            raise ClaimError(f"step {step}: the open step is {self.step}")

    def _serve(self, report: StepReport, steps_done: int) -> None:
        assert report.policy is not None
        self.say("loading the new weights into the frozen policy")
        self.frozen.serve(Path(report.policy), steps_done, report.fingerprints)

    def _must_evaluate(self) -> bool:
        """Is the evaluation after the last step due, and not on record?"""
        return self.validation.is_due(self.step) and self.step not in self.validation.done

    def _reward_of(self, step: int) -> float | None:
        rewards: dict[int, float | None] = {row["step"]: row["reward_mean"] for row in self.parts.metrics}
        return rewards.get(step)

    def _take(self, rollout: SubmitRequest) -> bool:
        """Hand a rollout to the controller; false if it was there already."""
        sample = Sample(rollout.text, tuple(rollout.token_ids), rollout.finished)
        submission = Submission(rollout.step, rollout.slot, rollout.sample, sample, rollout.attempt)
        if not self.parts.controller.slots.submit([submission]):
            return False
        self.parts.usage.add_samples("train", [sample])
        return True

    def _replay(self) -> None:
        """Take in what was handed in and redrawn in the open step before the controller was restarted.

        The same slots are redrawn, whatever a judge makes of their rollouts the second time.
        """
        for line in self._journal.lines(self.step):
            if isinstance(line, RedrawReply):
                self.parts.controller.slots.refill(self.step, line.slots)
            else:
                self.parts.controller.slots.claim(line.step, [line.slot])
                self._take(line)


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"
