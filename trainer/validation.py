"""Evaluations during a run: on tasks set apart from training, by which the best policy is chosen.

Held-out tasks have no part in the choice; they are only reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from ..agents.usage import CountedPolicy
from ..memory.records import AnyRecord, Evaluation
from ..specs.schema import RunSpec
from .data.load import Tasks
from .probe import look
from .progress import figure
from .runfolder import RunFolder, save_best
from .start import Parts


class Validation:
    """Evaluates a run's policy on its schedule, logs what comes of it, and keeps the best policy."""

    def __init__(
        self,
        spec: RunSpec,
        tasks: Tasks,
        parts: Parts,
        run: RunFolder,
        past: Iterable[AnyRecord],
        save_weights: Callable[[Path], None],
    ) -> None:
        self.spec = spec
        self.tasks = tasks.validation
        self.parts = parts
        self.run = run
        self.save_weights = save_weights
        self.policy = CountedPolicy(parts.policy, parts.usage, "evaluate")
        evaluations = [record for record in past if isinstance(record, Evaluation)]
        self.done = {record.steps_done for record in evaluations}
        self.best = best_of(evaluations)

    def is_due(self, steps_done: int) -> bool:
        """After every so many steps, before the first one, and after the last."""
        every = self.spec.logging.evaluate_every
        return bool(every) and (steps_done % every == 0 or steps_done == self.spec.engine.steps)

    def evaluate(
        self, steps_done: int, training_reward: float | None, say: Callable[[str], None]
    ) -> Evaluation:
        """Evaluate now, with the same draws each time: only the policy differs. Raises `OSError`."""
        samples = self.spec.logging.validation_samples
        say(f"evaluating on {len(self.tasks)} validation tasks, {samples} rollouts each")
        found = look(self.policy, self.parts.scorer, self.tasks, samples, self.spec.seed, "evaluate")
        record = Evaluation(
            id=f"v-{steps_done:06d}",
            step=steps_done - 1,
            harness_version=self.parts.controller.harness.version,
            steps_done=steps_done,
            samples=samples,
            reward=found.reward,
            quality=found.quality,
            training_reward=training_reward,
            per_task=found.per_task,
            words=found.words,
            seconds=found.seconds,
        )
        best = best_of(one for one in (self.best, record) if one is not None)
        if best is record:  # kept before it is on record: a record without its policy would be worse
            about = {"steps": steps_done, "reward": record.reward, "quality": record.quality}
            save_best(self.run, about, self.save_weights)
            self.best = record
        self.parts.record(record)
        self.done.add(steps_done)
        is_best = ", the best so far" if best is record else ""
        say(f"validation: reward {figure(record.reward)}, quality {figure(record.quality)}{is_best}")
        return record


def best_of(evaluations: Iterable[Evaluation]) -> Evaluation | None:
    """The evaluation with the highest reward, the earliest of equals; None where none was scored."""
    scored = [one for one in evaluations if one.reward is not None]
    return max(scored, key=lambda one: (one.reward, -one.steps_done), default=None)
