"""One converter a data set: a row in the source's own schema to a task."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import regex

from ....specs.ood import OodTask
from ....specs.tasks import Task
from .common import Converter
from .exams import GPQA, MEDQA, PUBMEDQA
from .graded import BIGGEN_BENCH, WRITINGBENCH
from .instructions import IFBENCH, IFEVAL
from .rar import RAR_MEDICINE, RAR_SCIENCE
from .rubrics import HEALTHBENCH, RESEARCHQA, RUBRICHUB, VERINSTRUCT, VERL
from .writing import LONGBENCH_WRITE, LONGWRITER_ZERO, ROLEBENCH

#: Every data set that is known by its schema. Where several recognise a row, the first one has it.
CONVERTERS: dict[str, Converter] = {
    converter.name: converter
    for converter in (
        HEALTHBENCH,
        RAR_SCIENCE,
        RAR_MEDICINE,
        RUBRICHUB,
        RESEARCHQA,
        VERINSTRUCT,
        VERL,
        LONGBENCH_WRITE,
        LONGWRITER_ZERO,
        WRITINGBENCH,
        BIGGEN_BENCH,
        ROLEBENCH,
        IFEVAL,
        IFBENCH,
        MEDQA,
        GPQA,
        PUBMEDQA,
    )
}

#: The sets on which nothing may train, by name.
EVALUATION_ONLY = tuple(name for name, one in CONVERTERS.items() if one.evaluation_only)


def for_evaluation_only(task: Task) -> bool:
    """Is a task one of a set on which nothing may train, by its kind or by a name that it has?

    Names are compared as people write them: `MedQA`, `owner/IFBench_test`, `gpqa-diamond`.
    """
    names = [task.source, task.origin.set if task.origin else None]
    plain = [_plain(name) for name in names if name]
    known = tuple(_plain(name) for name in EVALUATION_ONLY)
    return isinstance(task, OodTask) or any(name.startswith(known) for name in plain)


@lru_cache(maxsize=1024)
def _plain(name: str) -> str:
    return str(regex.sub(r"[^\p{L}\p{N}]", "", name.rsplit("/", 1)[-1].casefold()))


def recognised(row: dict[str, Any]) -> Converter | None:
    """The converter for a row of unknown origin, by the row's keys."""
    return next((one for one in CONVERTERS.values() if one.recognises(row)), None)
