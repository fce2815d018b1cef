"""The validation split: training tasks set apart, by which the best checkpoint is chosen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ...specs.tasks import TrainTask, ValidationTask
from ...specs.texts import normalised


def cut(
    train: Mapping[str, TrainTask], share: float, seed: int, kept: Collection[str] = ()
) -> tuple[dict[str, TrainTask], dict[str, ValidationTask]]:
    """What is left to train on, and what is set apart: `share` of each domain, one task at least.

    Depends on ids, domains, prompts and the seed, not on the order of the files. A domain keeps one task
    to train on; tasks in `kept`, and those whose prompt another task has too, are never set apart.
    """
    from ...specs.sampling import stream  # here: what sets nothing apart does without numpy

    times = Counter(normalised(task.prompt) for task in train.values())
    domains: dict[str, list[str]] = {}
    for task_id in sorted(train):
        domains.setdefault(train[task_id].domain, []).append(task_id)
    apart: set[str] = set()
    for domain, ids in domains.items():
        free = [one for one in ids if one not in kept and times[normalised(train[one].prompt)] == 1]
        n = min(max(1, round(share * len(ids))), len(ids) - 1, len(free))
        order = stream(seed, "validation", domain).permutation(len(free))
        apart |= {free[k] for k in order[:n].tolist()}
    left = {one: task for one, task in train.items() if one not in apart}
    return left, {one: _set_apart(task) for one, task in train.items() if one in apart}


def _set_apart(task: TrainTask) -> ValidationTask:
    fields = {name: getattr(task, name) for name in type(task).model_fields}
    return ValidationTask.model_construct(**fields)  # its parts are checked already
