"""Tasks of an evaluation that a run of the spec trains on, or chooses its policy by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...specs.tasks import Task
from ...specs.texts import normalised
from .sets import SetTasks
from .tables import by


@dataclass(frozen=True)
class Seen:
    """How many tasks of a set are no new ones."""

    set_name: str
    tasks: int
    seen: int
    by_id_alone: int
    """Of these, with an id of the spec's but another prompt."""
    kinds: tuple[str, ...]
    """`training`, `validation`."""

    def __str__(self) -> str:
        kinds = " or ".join(self.kinds)
        same = "their prompt, up to case, spacing and the punctuation of sentences"
        if self.by_id_alone:
            same += f"; {self.by_id_alone} of them their id alone"
        return (
            f"{self.set_name}: {self.seen} of {self.tasks} tasks are {kinds} tasks of this spec "
            f"({same}): the figures say little about new tasks"
        )


def seen(tasks: SetTasks, trained: Sequence[tuple[str, Task]]) -> list[Seen]:
    """The sets with tasks that have the prompt or the id of one of `trained`, (kind, task)."""
    prompts = {normalised(task.prompt): kind for kind, task in trained}
    ids = {task.id: kind for kind, task in trained}
    out = []
    for name, some in by(tasks, lambda one: one[0]).items():
        same = [prompts.get(normalised(task.prompt)) for _, task in some]
        found = [kind or ids.get(task.id) for kind, (_, task) in zip(same, some, strict=True)]
        kinds = tuple(sorted({kind for kind in found if kind}))
        if kinds:
            n = sum(kind is not None for kind in found)
            alone = n - sum(kind is not None for kind in same)
            out.append(Seen(name, len(some), n, alone, kinds))
    return out
