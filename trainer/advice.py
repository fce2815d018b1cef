"""What a spec and its tasks allow, but a person would rather know before the run than after it."""

from __future__ import annotations

from collections.abc import Iterator

from ..specs.schema import RunSpec
from .data.load import Tasks
from .local.model import template_mentions


def advice(spec: RunSpec, tasks: Tasks) -> list[str]:
    """One line for everything remarkable; nothing here stops a run."""
    left_out = [f"left out: {line}" for line in tasks.refusal_lines()]
    left_out += [f"not compared with the tasks: {problem}" for problem in tasks.unread]
    return [*left_out, *_evolution(spec, tasks), *_size(spec, tasks), *_thinking(spec)]


def _evolution(spec: RunSpec, tasks: Tasks) -> Iterator[str]:
    """Why the harness may change less than expected."""
    rules, n = spec.evolver, len(tasks.train)
    needed = rules.attribute.min_groups
    visits = rules.horizon * spec.engine.tasks_per_step / n
    if spec.evolves and needed > 1 and visits < needed:
        steps = -(-needed * n // spec.engine.tasks_per_step)
        key = "max_staleness" if rules.memory == "run" else "every"
        yield (
            f"with {n} tasks, a task has {visits:.1f} groups in evolver.{key} {rules.horizon} steps, and "
            f"{needed} are needed to conclude anything: set it to {steps} or more, or the harness will "
            "hardly change"
        )
    rounds = (needed - 1) * n // spec.engine.tasks_per_step  # until a task comes that often
    first = rules.every * -(-(rounds + 1) // rules.every)
    acts = first + rules.lag
    if spec.evolves and spec.engine.steps <= acts:
        lag = f", {rules.lag} before what it finds acts" if rules.lag else ""
        yield (
            f"the evolver needs {needed} groups of a task, and looks every {rules.every} steps{lag}, but "
            f"not after the last one: with {spec.engine.steps} steps the harness will hardly change; "
            f"use {acts + 1} or more"
        )
    if spec.oracle.kind == "none":
        yield "no oracle: collapse will be visible, spurious reward will not"
    blind = [task.id for task in tasks.train.values() if task.quality is None]
    if blind and spec.oracle.kind == "embedded":
        yield f"no `quality`, so never diagnosed: {_few(blind)}"
    bare = [task.id for task in tasks.train.values() if task.reference is None]
    if bare and spec.oracle.kind == "reference":
        yield f"no `reference`, so never diagnosed: {_few(bare)}"
    if spec.roles.oracle is not None and not spec.oracle.asks:
        yield f"roles.oracle is never asked: oracle.kind is {spec.oracle.kind}"
    bare = [t.id for t in tasks.train.values() if not (t.pool.criteria or t.pool.checklists)]
    from_pools = spec.evolver.propose.role == "catalogue"
    if bare and from_pools and (spec.interfaces.c.evolve or spec.interfaces.g.evolve):
        yield f"no `pool`, so nothing to try on them: {_few(bare)}"


def _size(spec: RunSpec, tasks: Tasks) -> Iterator[str]:
    engine = spec.engine
    if engine.tasks_per_step > len(tasks.train):
        yield (
            f"engine.tasks_per_step {engine.tasks_per_step} of {len(tasks.train)} training tasks: tasks "
            "repeat inside a step"
        )
    if engine.kind == "sim":
        return
    if engine.warmup_steps >= engine.steps:
        yield (
            f"engine.warmup_steps {engine.warmup_steps} of {engine.steps} steps: the learning rate never "
            f"reaches {engine.learning_rate:g}"
        )
    if engine.learning_rate > 1e-2:
        yield f"engine.learning_rate {engine.learning_rate:g} is far above what trains a language model"


def _thinking(spec: RunSpec) -> Iterator[str]:
    """Thoughts that nobody asked for fill a response."""
    policy, argument = spec.roles.policy, "enable_thinking"
    if spec.engine.kind == "sim" or argument in policy.chat_template_kwargs:
        return
    if template_mentions(policy.model, argument):
        yield (
            f"{policy.model} may think, and roles.policy.chat_template_kwargs does not say whether: what "
            f"it thinks takes from engine.max_new_tokens {spec.engine.max_new_tokens} and is scored with "
            f"its answer; turn that off with {{{argument}: false}}, or on with true"
        )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
