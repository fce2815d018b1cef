"""A harness version as files that start another run: spec, templates, tasks, what is changed of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ..specs.harness import HarnessState
from ..specs.harnessfile import HarnessFile, to_file
from ..specs.loader import dump_yaml
from ..specs.openrlhf import OpenrlhfEngine
from ..specs.schema import RunSpec
from ..specs.tasks import Task, TaskFile
from .data.load import Tasks
from .data.validation import cut
from .stored import with_templates

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class Export:
    """The contents of spec.yaml, tasks.yaml and harness.yaml."""

    spec: RunSpec
    tasks: TaskFile
    harness: HarnessFile
    unlicensed: Counter[str]
    """Of each source that states no licence: how many of its tasks there are, or were left out."""

    def files(self) -> dict[str, str]:
        """The text of every file by its name in the export's folder, spec.yaml last: it names the others.

        Raises `OSError` where a template of the spec cannot be read.
        """
        spec, templates = with_templates(self.spec)
        texts = {
            name: dump_yaml(content.model_dump(mode="json", exclude_none=True))
            for name, content in (("tasks.yaml", self.tasks), ("harness.yaml", self.harness))
        }
        return {**templates, **texts, "spec.yaml": dump_yaml(spec)}

    @property
    def weights(self) -> dict[str, str]:
        """Folders of weights that the spec names, by the key: they are no part of an export."""
        named = {"roles.policy.model": self.spec.roles.policy.model}
        if isinstance(self.spec.engine, OpenrlhfEngine):
            for role, server in self.spec.engine.serve.roles().items():
                if server.model is not None:
                    named[f"engine.serve.{role}.model"] = server.model
        return {key: name for key, name in named.items() if Path(name).expanduser().is_dir()}


def exported(
    spec: RunSpec, tasks: Tasks, state: HarnessState, include_unlicensed: bool = False
) -> Export:
    """`state` of a run with this spec and these tasks, for another run to start from.

    Tasks that come from a data set without a licence are left out unless they are asked for, and with
    them everything that refers to them. `tasks.train` may be empty then: nothing could load that.
    """
    whole, harness = tasks.as_file(), to_file(state)
    every = (*whole.train, *whole.held_out, *whole.validation)
    unlicensed = Counter(task.source for task in every if is_unlicensed(task))
    if unlicensed and not include_unlicensed:
        whole = TaskFile(
            train=_licensed(whole.train),
            held_out=_licensed(whole.held_out),
            validation=_licensed(whole.validation),
        )
        known = {task.id for task in whole.train}
        harness = HarnessFile(
            version=harness.version, tasks={id: one for id, one in harness.tasks.items() if id in known}
        )
        spec = _fitting(spec, whole, harness)
    new = {
        "name": f"{spec.name}-evolved",
        "tasks": spec.tasks.model_copy(update={"files": ("tasks.yaml",)}),
        "start": "harness.yaml",
    }
    return Export(spec.model_copy(update=new), whole, harness, unlicensed)


def is_unlicensed(task: Task) -> bool:
    """Does it come from a data set (and is not somebody's own) that states no licence?"""
    return task.licence is None and task.origin is not None


def _licensed(tasks: Iterable[T]) -> tuple[T, ...]:
    return tuple(task for task in tasks if not is_unlicensed(task))


def _fitting(spec: RunSpec, tasks: TaskFile, harness: HarnessFile) -> RunSpec:
    """The spec for fewer tasks: no share for a domain that is gone, no evaluation that has no tasks."""
    p, logging = spec.interfaces.p, spec.logging
    domains = {task.domain for task in tasks.train}
    shares = {name: share for name, share in p.domain_shares.items() if name in domains}
    interfaces = spec.interfaces.model_copy(update={"p": p.model_copy(update={"domain_shares": shares})})
    if logging.evaluate_every and not tasks.validation:  # a new run would set tasks apart, if it can
        train = {task.id: task for task in tasks.train}
        if not cut(train, logging.validation_share, spec.seed, harness.tasks)[1]:
            logging = logging.model_copy(update={"evaluate_every": 0})
    return spec.model_copy(update={"interfaces": interfaces, "logging": logging})
