"""Builds a mix: reads sources, filters, removes near-duplicates, draws, and accounts for every row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...specs.errors import Problem
from ...specs.loader import SpecError, load_mix
from ...specs.mix import OWN_SCHEMA, Filters, MixSpec, Source
from ...specs.ood import OodTask
from ...specs.tasks import HeldOutTask, Task, TrainTask
from ..local.model import cache_folder
from .converters import CONVERTERS, for_evaluation_only, recognised
from .converters.common import content_id, converted, is_text
from .draw import draw, shuffled, split, words_in
from .duplicates import Match, copies, near_duplicates, sketch
from .fetch import UnavailableError, find
from .ood import asked
from .readers import RawRow, read_raw, sha256_of
from .rows import from_own, is_own, unwritable

#: What became of a row. Of every source, the counts of these add up to the rows that were read.
FATES = ("malformed", "refused", "filtered", "duplicate", "unused", "train", "held_out", "ood")


@dataclass(frozen=True)
class LeftOut:
    """A row that is in no split although its source was read to it, and why."""

    source: str
    where: str
    fate: str
    reason: str


@dataclass
class Read:
    """What was read of one source."""

    spec: Source
    place: str = ""
    revision: str | None = None
    """Of the hub: the commit that was read."""
    stated_licence: str | None = None
    """Of the hub: what the data set's card states."""
    files: dict[str, str] = field(default_factory=dict)
    """Name of each file and the SHA-256 of its bytes."""
    missing: str = ""
    """Why it could not be had."""
    empty: list[str] = field(default_factory=list)
    """The files that were read and hold no row."""
    rows: int = 0
    tasks: list[Task] = field(default_factory=list)
    where: dict[str, str] = field(default_factory=dict)
    """Of each task: `file:line`."""


@dataclass
class Mix:
    """A built mix. `counts[source][fate]` adds up to the rows of each source."""

    spec: MixSpec
    sources: dict[str, Read] = field(default_factory=dict)
    train: list[TrainTask] = field(default_factory=list)
    held_out: list[HeldOutTask] = field(default_factory=list)
    ood: dict[str, list[OodTask]] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    def missing(self) -> list[str]:
        """Quotas that were not met, and sources that could not be had, a line each."""
        lines = [f"source {n}: not had ({r.missing})" for n, r in self.sources.items() if r.missing]
        lines += [f"source {n}: {f} holds no row" for n, r in self.sources.items() for f in r.empty]
        for name, domain in self.spec.domains.items():
            for split_name, wanted in (("train", domain.train), ("held_out", domain.held_out)):
                tasks: Sequence[Task] = self.train if split_name == "train" else self.held_out
                got = sum(task.domain == name for task in tasks)
                if got < wanted:
                    lines.append(f"{name} {split_name}: {got:,} of {wanted:,}, {wanted - got:,} missing")
        for name, one in self.spec.ood.items():
            if (got := len(self.ood[name])) < one.tasks:
                lines.append(f"ood {name}: {got:,} of {one.tasks:,}, {one.tasks - got:,} missing")
        return lines

    def check_counts(self) -> None:
        """Every row that was read has one fate. Raises `AssertionError`."""
        for name, read in self.sources.items():
            assert sum(self.counts[name].values()) == read.rows, (name, read.rows, self.counts[name])


Progress = Callable[[str], None]


def read_mix(path: Path) -> MixSpec:
    """The mix in a YAML file. Raises `SpecError`."""
    return load_mix(path, CONVERTERS)


def assemble(
    path: Path,
    folders: Sequence[Path] = (),
    offline: bool = False,
    malformed: str | None = None,
    progress: Progress = lambda line: None,
) -> Mix:
    """Build the mix of the YAML file at `path` in memory.

    `folders` are looked into before the mix's own; `malformed` goes over the mix's. Raises `SpecError`
    for a mix that is wrong, for a file that cannot be read, and with `malformed: fail` for the rows
    that cannot be used.
    """
    spec = read_mix(path)
    mix = Mix(spec)
    places = [*folders, *(path.parent / folder for folder in spec.folders)]
    for name, source in spec.sources.items():
        mix.counts[name] = Counter()
        read = mix.sources[name] = Read(source)
        try:
            found = find(source.places, places, cache_folder(), offline)
        except UnavailableError as error:
            read.missing = str(error)
            continue  # it is among what is missing
        read.place, read.revision = found.place, found.revision
        read.stated_licence = found.stated_licence
        for file in found.files:
            read.files[file.name] = sha256_of(file)
        _read_source(mix, name, read, found.files)
        progress(f"{name}: {read.rows:,} rows from {read.place} ({', '.join(map(str, found.files))})")
    if (malformed or spec.malformed) == "fail":
        _fail_on_malformed(mix)
    progress(f"comparing {sum(len(read.tasks) for read in mix.sources.values()):,} tasks")
    _remove_duplicates(mix)
    _draw_all(mix)
    mix.check_counts()
    return mix


def _read_source(mix: Mix, name: str, read: Read, files: Sequence[Path]) -> None:
    for raw in _rows(read, files):
        fields = raw.fields
        if isinstance(fields, Problem):
            _leave_out(mix, name, raw.place, "malformed", fields.message)
            continue
        odd = next(
            (k for k, allowed in read.spec.only.items() if str(fields.get(k)) not in allowed), None
        )
        if odd is not None:
            _leave_out(mix, name, raw.where, "filtered", f"{odd} is not one of those asked for")
            continue
        task = _as_task(name, read.spec, name in mix.spec.trained_on, fields, raw)
        if isinstance(task, str):
            _leave_out(mix, name, raw.where, "refused", task)
        elif reason := filtered(task, read.spec.filters):
            _leave_out(mix, name, raw.where, "filtered", reason)
        elif (first := read.where.get(task.id)) is not None:
            _leave_out(mix, name, raw.where, "duplicate", f"{task.id} is the id of {first} too")
        else:
            read.where[task.id] = raw.where
            read.tasks.append(task)


def _rows(read: Read, files: Sequence[Path]) -> Iterator[RawRow]:
    """The rows of a source, counted in `read`."""
    for file in files:
        before = read.rows
        for raw in read_raw(file):
            if read.spec.read_at_most is not None and read.rows >= read.spec.read_at_most:
                return
            read.rows += 1
            yield raw
        if read.rows == before:
            read.empty.append(file.name)


def _as_task(
    name: str, source: Source, trained_on: bool, fields: dict[str, Any], raw: RawRow
) -> Task | str:
    """The task, under the name and the licence that the mix gives its source."""
    if source.converter != OWN_SCHEMA:
        task: Task | str = converted(CONVERTERS[source.converter], fields, raw.key)
    elif not is_text(fields):
        return "half of a surrogate pair is not text"
    elif not is_own(fields):
        absent = [key for key in ("prompt", "rubric") if key not in fields]
        return f"not a task: it has no {' and no '.join(absent)}"
    else:
        if fields.get("split") != "ood":  # this mix splits anew
            fields = {key: value for key, value in fields.items() if key != "split"}
        named = {"id": f"{name}-{content_id(fields)}", "domain": "general", "source": name}
        task = from_own(fields, named)
    if isinstance(task, str):
        return task
    if trained_on and (for_evaluation_only(task) or _is_benchmark_row(fields)):
        return "a task of a set that is for evaluation only"
    if reason := unwritable(task):
        return reason
    return task.model_copy(update={"source": name, "licence": source.licence})


def _is_benchmark_row(fields: dict[str, Any]) -> bool:
    """Does a row look like an evaluation-only set's own, whatever the mix takes it for?"""
    one = recognised(fields)
    return one is not None and one.evaluation_only


def filtered(task: Task, filters: Filters) -> str | None:
    """Why a task is filtered out, or None."""
    n = len(task.rubric)
    if filters.min_criteria is not None and n < filters.min_criteria:
        return f"fewer than {filters.min_criteria} criteria"
    if filters.max_criteria is not None and n > filters.max_criteria:
        return f"more than {filters.max_criteria} criteria"
    if filters.max_prompt_words is not None and words_in(task.prompt) > filters.max_prompt_words:
        return f"a prompt of more than {filters.max_prompt_words} words"
    if filters.single_turn and task.messages and sum(m.role != "system" for m in task.messages) > 1:
        return "a conversation of several turns"
    if filters.checks_only and any(criterion.needs_judge for criterion in task.rubric):
        return "a criterion that a judge has to decide"
    return None


def _leave_out(mix: Mix, source: str, where: str, fate: str, reason: str) -> None:
    mix.counts[source][fate] += 1
    mix.left_out.append(LeftOut(source, where, fate, reason))


def _fail_on_malformed(mix: Mix) -> None:
    bad = [left for left in mix.left_out if left.fate in ("malformed", "refused")]
    if bad:
        more = f" (and {len(bad) - 20:,} more)" if len(bad) > 20 else ""
        problems = [Problem(left.where, 0, 0, left.source, left.reason) for left in bad[:20]]
        last = problems[-1]
        problems[-1] = Problem(last.file, 0, 0, last.path, last.message + more)
        raise SpecError(problems)


def _remove_duplicates(mix: Mix) -> None:
    """Drop what is close to an evaluation-only task, or to a task of an earlier source or a lower id.

    Evaluation-only sets lose nothing: a benchmark stays as its owners made it.
    """
    threshold = mix.spec.duplicates.threshold
    questions = [
        (t, text) for name in mix.spec.evaluated for t in mix.sources[name].tasks for text in asked(t)
    ]
    trained = [name for name in mix.sources if name not in mix.spec.evaluated]
    # By id, so that the order of a file decides nothing.
    tasks = [(n, t) for n in trained for t in sorted(mix.sources[n].tasks, key=lambda task: task.id)]
    sketches = [sketch(task.prompt) for _, task in tasks]
    leaks = copies(sketches, [sketch(text) for _, text in questions], threshold)
    for match in leaks:
        _leave_out_close(mix, *tasks[match.index], questions[match.kept][0], match)
    leaked = {match.index for match in leaks}
    left = [i for i in range(len(tasks)) if i not in leaked]
    for match in near_duplicates([sketches[i] for i in left], threshold):
        _leave_out_close(mix, *tasks[left[match.index]], tasks[left[match.kept]][1], match)
    for name in trained:
        read = mix.sources[name]
        read.tasks = [task for task in read.tasks if task.id in read.where]


def _leave_out_close(mix: Mix, source: str, task: Task, other: Task, match: Match) -> None:
    how = "holds the question of" if match.holds else "is close to"
    reason = f"{task.id} {how} {other.id} of {other.source} (similarity {match.similarity:.2f})"
    _leave_out(mix, source, mix.sources[source].where.pop(task.id), "duplicate", reason)


def _draw_all(mix: Mix) -> None:
    spec = mix.spec
    for domain, wanted in spec.domains.items():
        candidates = {
            name: [_of(task, TrainTask, domain) for task in mix.sources[name].tasks]
            for name in wanted.sources
        }
        drawn = draw(candidates, wanted.sources, wanted.train + wanted.held_out, spec.balance, spec.seed)
        train, held = split(drawn, wanted.train, wanted.held_out, spec.balance, spec.seed)
        mix.train += train
        mix.held_out += [_of(task, HeldOutTask, domain) for task in held]
        taken = {task.id for task in drawn}
        for name in wanted.sources:  # what another domain may still draw
            read = mix.sources[name]
            read.tasks = [task for task in read.tasks if task.id not in taken]
    for name, one in spec.ood.items():
        read = mix.sources[one.source]
        drawn_ood = shuffled(read.tasks, spec.seed)[: one.tasks]
        mix.ood[name] = [_as_ood(task, one.domain) for task in drawn_ood]
        taken = {task.id for task in drawn_ood}
        read.tasks = [task for task in read.tasks if task.id not in taken]
    for split_name, tasks in (
        ("train", mix.train),
        ("held_out", mix.held_out),
        ("ood", [task for some in mix.ood.values() for task in some]),
    ):
        for task in tasks:
            mix.counts[task.source][split_name] += 1
    for name, read in mix.sources.items():
        mix.counts[name]["unused"] += len(read.tasks)


def _of(task: Task, kind: type[Any], domain: str) -> Any:
    """The same task as one of another kind; its parts are checked already."""
    return kind.model_construct(**{**_fields(task), "domain": domain})


def _as_ood(task: Task, domain: str) -> OodTask:
    if isinstance(task, OodTask):
        return task.model_copy(update={"domain": domain})
    more = task.origin.more if task.origin else {}
    return OodTask.model_validate(
        {**_fields(task), "domain": domain, "instructions": more.get("instructions", ())}
    )


def _fields(task: Task) -> dict[str, Any]:
    return {name: getattr(task, name) for name in type(task).model_fields}
