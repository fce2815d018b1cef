"""A whole run, top to bottom: probe, train under the living harness, probe, report."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ..agents.policy import Sample
from ..agents.scoring.reward import Floats
from ..agents.usage import CountedPolicy
from ..memory.records import RunFinished
from ..specs.schema import RunSpec
from .controller import StepStats
from .data.load import Tasks
from .engine import Example, TrainingEngine
from .group import Claim, Submission
from .metrics import evolver_wait
from .probe import probe_run
from .progress import Display
from .report.build import build_report
from .runfolder import RunFolder, locked, save_checkpoint
from .start import assemble, begin_or_resume, interruptible, make_engine
from .validation import Validation

#: Steps in a row with too many unscored verdicts that end a run.
UNSCORED_STEPS = 3


class UnscoredError(Exception):
    """Too little of the run can be scored; the message says how much, and why."""


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    run: RunFolder
    steps_done: int
    finished: bool


def train(
    spec: RunSpec, recipe: str, tasks: Tasks, run: RunFolder, resume: bool, with_probe: bool
) -> Result:
    """Train to the end, or to the first Ctrl-C (which saves a checkpoint after the current step).

    Raises `RunBusyError`, `PolicyNotFoundError`, `PromptError`, `KeyMissingError`, `UnscoredError`,
    `NotFiniteError`, or `OSError` (disk full).
    """
    with contextlib.ExitStack() as stack:
        display = stack.enter_context(Display(spec.engine.steps))
        stack.enter_context(locked(run))
        past = begin_or_resume(spec, recipe, tasks, run, "checkpoint" if resume else "no")
        if spec.engine.kind == "local":
            model = spec.roles.policy.model
            display.say(f"getting {model} ready (the first time it is fetched and converted)")
        engine = make_engine(spec, tasks, past)
        parts = stack.enter_context(assemble(spec, tasks, run, past, engine))
        interrupted = stack.enter_context(interruptible(display.hold))
        controller, step = parts.controller, parts.steps_done
        policy = CountedPolicy(engine, parts.usage, "train")
        if with_probe and step == 0:
            probe_run("before", parts, tasks, spec, display.say)
        validation = Validation(spec, tasks, parts, run, past.records, engine.save)
        if step == 0 and validation.is_due(step):
            validation.evaluate(step, None, display.say)
        display.begin(step)
        stopping = False
        while step < spec.engine.steps and not stopping:
            lap = _Laps()
            batch: dict[int, tuple[Claim, list[Sample]]] = {}  # slot -> its claim and G responses
            # Sample tasks ~ p_t and roll out pi_t(. | x, g_t) ...
            claims = controller.slots.claim(step, range(spec.engine.tasks_per_step))
            while claims:
                requests = [request for claim in claims for request in claim.requests]
                responses = policy.sample(requests, spec.seed)
                batch |= _by_slot(claims, responses)
                lap("rollout")
                # ... judge with c_t, and fill slots that carry no gradient again.
                controller.slots.submit(_submissions(claims, responses))
                claims = controller.slots.redraw(step)
                lap("score")
            claims = [claim for claim, _ in batch.values()]
            responses = [response for _, samples in batch.values() for response in samples]
            # Rewards and advantages are the controller's.
            advantages_SG = controller.slots.advantages(step)
            lap("score")
            # GRPO update, by default under the plain prompt.
            examples = _examples(claims, responses, advantages_SG, spec)
            plain_logprob = engine.mean_logprob(_guided_under_plain(claims, examples, spec))
            update = engine.train(examples, _normaliser(examples, spec))
            lap("train")
            # Evidence into memory; the evolver looks; accepted updates make H_{t+1}.
            stats = StepStats(**asdict(update), plain_logprob_guided=plain_logprob)
            metrics = controller.step_done(step, stats, display.say, display.tell)
            lap("record")
            lap.seconds["record"] -= evolver_wait(metrics["seconds"])  # which is told apart
            step += 1
            metrics["seconds"] = lap.seconds | metrics["seconds"]
            parts.metrics.append(metrics)
            run.write_metrics(parts.metrics)  # before the checkpoint that counts this step as done
            parts.scalars.write(metrics)
            display.step(metrics)
            if validation.is_due(step):
                validation.evaluate(step, metrics["reward_mean"], display.say)
                lap("evaluate")
                metrics["seconds"]["evaluate"] = lap.seconds["evaluate"]
                run.write_metrics(parts.metrics)
            blind = cannot_judge(parts.metrics, spec)
            due = step == spec.engine.steps or step % spec.logging.checkpoint_every == 0
            if due or interrupted() or blind:
                cursors = parts.cursors(step, with_weights=True)
                lap("settle")
                if "evolve_wait" in metrics["seconds"]:
                    metrics["seconds"]["evolve_wait"] += lap.seconds["settle"]
                _save(run, step, cursors, engine)
                lap("save")
                metrics["seconds"]["save"] = lap.seconds["save"]
                run.write_metrics(parts.metrics)
                stopping = interrupted()
            if blind:
                raise UnscoredError(blind)
        finished = step >= spec.engine.steps
        if finished and with_probe:
            probe_run("after", parts, tasks, spec, display.say)
        if finished:
            controller.end()
            version = controller.harness.version
            totals = asdict(parts.usage)
            parts.record(RunFinished(id="end", step=step, harness_version=version, **totals))
        display.say("writing the report")
        build_report(run.root)
    return Result(run, step, finished)


def cannot_judge(rows: Sequence[dict[str, Any]], spec: RunSpec) -> str | None:
    """Why training on would teach little: too many verdicts were unscored, several steps in a row."""
    last = rows[-UNSCORED_STEPS:]
    limit = spec.reward.max_unscored
    if len(last) < UNSCORED_STEPS or any(row["unscored_share"] <= limit for row in last):
        return None
    causes = ", ".join(f"{n} x {cause}" for cause, n in list(last[-1]["unscored_causes"].items())[:3])
    return (
        f"{last[-1]['unscored_share']:.0%} of the verdicts are unscored, and more than "
        f"reward.max_unscored {limit:g} were for {UNSCORED_STEPS} steps: {causes}"
    )


def _submissions(claims: Sequence[Claim], responses: Sequence[Sample]) -> list[Submission]:
    places = [(claim, i) for claim in claims for i in range(len(claim.requests))]
    return [
        Submission(claim.step, claim.slot, i, response, claim.attempt)
        for (claim, i), response in zip(places, responses, strict=True)
    ]


def _by_slot(
    claims: Sequence[Claim], responses: Sequence[Sample]
) -> dict[int, tuple[Claim, list[Sample]]]:
    """Claims with their own responses, in order."""
    left = iter(responses)
    return {claim.slot: (claim, list(islice(left, len(claim.requests)))) for claim in claims}


def _examples(
    claims: Sequence[Claim], responses: Sequence[Sample], advantages_SG: Floats, spec: RunSpec
) -> list[Example]:
    """Rollouts as the loss sees them: under the plain prompt unless g.train_on says otherwise."""
    prompts = [
        claim.prompt if spec.interfaces.g.train_on == "plain" else request.prompt
        for claim in claims
        for request in claim.requests
    ]
    return [
        Example(prompt, response.token_ids, float(advantage))
        for prompt, response, advantage in zip(prompts, responses, advantages_SG.flatten(), strict=True)
    ]


def _guided_under_plain(
    claims: Sequence[Claim], examples: Sequence[Example], spec: RunSpec
) -> list[Example]:
    """The guided rollouts, where they are trained under a prompt they were not sampled under."""
    if spec.interfaces.g.train_on == "guided":
        return []
    guided = [is_guided for claim in claims for is_guided in claim.guided]
    return [e for e, is_guided in zip(examples, guided, strict=True) if is_guided]


def _normaliser(examples: Sequence[Example], spec: RunSpec) -> float:
    """Tokens the summed loss is divided by: the batch's, or (dr_grpo) the most it could have."""
    if spec.reward.advantage == "dr_grpo":
        return float(len(examples) * spec.engine.max_new_tokens)
    return float(sum(len(e.response_ids) for e in examples))


def _save(run: RunFolder, step: int, cursors: dict[str, Any], engine: TrainingEngine) -> None:
    save_checkpoint(run, step, cursors, engine.save)


class _Laps:
    """Wall seconds of the parts of a step: `lap("train")` adds the time since the last lap to them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic()

    def __call__(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._last
        self._last = now
