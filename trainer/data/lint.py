"""What is probably wrong with tasks although they can be read, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import regex
from ftfy import fix_encoding
from ftfy.badness import BADNESS_RE

from ...specs.tasks import Criterion, Task
from ...specs.texts import normalised
from .draw import words_in
from .duplicates import near_duplicates, sketch
from .rows import Row

LONG_PROMPT = 2000  # words
_REPLACED = regex.compile("\ufffd")  # what a lenient decoder writes for bytes that are no text
_BLAMES = regex.compile(
    r"^(?:the (?:response|answer) )?"
    r"(?:fail(?:s|ed|ing|ure)? to|does not|doesn['\u2019]t|neglect(?:s|ed|ing)|omi(?:ts|tted|tting)"
    r"|omission of|(?:no|not|without) mention(?:ing)?|lack(?:s|ing| of)|overlook(?:s|ed|ing)"
    r"|incorrectly|wrongly|misstat(?:es|ed|ing))\b",
    regex.I,
)
_WANTS = regex.compile(r"^(?:the (?:response|answer) )?(?:should|must)\b|^avoid(?:s|ing)?\b", regex.I)


@dataclass(frozen=True)
class Finding:
    """One thing to look at: where (`file:line` and the task's id), what it is, a suggestion."""

    where: str
    kind: str
    detail: str
    suggestion: str


def findings(tasks: Sequence[tuple[str, Task]], threshold: float = 0.8) -> Iterator[Finding]:
    """Everything that looks wrong with tasks and where they stand, then the near-duplicates."""
    places = [f"{where}: {task.id}" for where, task in tasks]
    for place, (_, task) in zip(places, tasks, strict=True):
        for finding in _of_task(task):
            yield replace(finding, where=place)
    for match in near_duplicates([sketch(task.prompt) for _, task in tasks], threshold):
        detail = f"close to {places[match.kept]} (similarity {match.similarity:.2f})"
        yield Finding(places[match.index], "duplicate", detail, "keep one of them")


def unusable(rows: Sequence[Row]) -> Iterator[Finding]:
    """The rows that are no tasks: nobody could train on them."""
    for row in rows:
        if isinstance(row.task, str):
            kind = "malformed row" if row.malformed else "refused row"
            yield Finding(row.where, kind, row.task, "mend it or leave it out")


def _of_task(task: Task) -> Iterator[Finding]:
    if (n := words_in(task.prompt)) > LONG_PROMPT:
        told = "leave it out (filters.max_prompt_words) or raise engine.max_prompt_tokens"
        yield Finding(task.id, "long prompt", f"{n:,} words", told)
    if task.rubric and all(criterion.points < 0 for criterion in task.rubric):
        yield Finding(
            task.id, "only penalties", "saying nothing earns all", "add what a response must have"
        )
    for what, text in (("prompt", task.prompt), ("reference", task.reference or "")):
        yield from _mojibake(task, what, text)
    for criterion in task.rubric:
        yield from _of_criterion(task, criterion)
    seen: dict[str, float] = {}
    for criterion in task.rubric:
        said = normalised(criterion.text)
        if said in seen and criterion.check is None:
            both = f"{criterion.text[:60]!r} with {seen[said]:g} and {criterion.points:g} points"
            opposed = seen[said] * criterion.points < 0
            kind = "contradictory signs" if opposed else "duplicate criterion"
            yield Finding(task.id, kind, both, "keep one of them")
        seen.setdefault(said, criterion.points)


def _of_criterion(task: Task, criterion: Criterion) -> Iterator[Finding]:
    text = criterion.text
    shown = f"{text[:80]!r}, {criterion.points:g} points"
    if not regex.search(r"[\p{L}\p{N}]", text):
        yield Finding(task.id, "empty criterion", shown, "leave it out")
    elif criterion.check is None and criterion.points > 0 and _BLAMES.match(text):
        told = "it rewards what sounds like a fault: turn the sign or the wording"
        yield Finding(task.id, "contradictory signs", shown, told)
    elif criterion.check is None and criterion.points < 0 and _WANTS.match(text):
        told = "it punishes what sounds wanted: turn the sign or the wording"
        yield Finding(task.id, "contradictory signs", shown, told)
    yield from _mojibake(task, "criterion", text)


def _mojibake(task: Task, what: str, text: str) -> Iterator[Finding]:
    """UTF-8 that was read as Latin-1, Windows-1252 or the like, of whatever language."""
    if text.isascii():
        return  # quickly: ftfy reads 3 MB/s
    found = BADNESS_RE.search(text) or _REPLACED.search(text)
    if found is None:
        return
    part = text[max(found.start() - 10, 0) : found.start() + 20]
    repaired = fix_encoding(part)
    told = f"read it as UTF-8: {repaired!r}"
    if repaired == part:
        told = "look for an original that was read as UTF-8"
    yield Finding(task.id, "mojibake", f"{what}: {part!r}", told)
