"""What is probably wrong with tasks although they can be read, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import regex

from ...specs.tasks import Criterion, Task
from .draw import words_in
from .duplicates import near_duplicates, sketch

LONG_PROMPT = 2000  # words
#: UTF-8 read as Latin-1 or Windows-1252: a lead byte followed by a continuation byte, as characters.
_MOJIBAKE = regex.compile("[\u00c2\u00c3][\u0080-\u00bf]|\u00e2\u20ac[\u0080-\uffff]|\ufffd")
_BLAMES = regex.compile(
    r"^(?:the (?:response|answer) )?"
    r"(?:fails? to|does not|doesn['\u2019]t|neglects|omits|incorrectly|wrongly|misstates)\b",
    regex.I,
)
_WANTS = regex.compile(r"^(?:the (?:response|answer) )?(?:should|must)\b|^avoids?\b", regex.I)


@dataclass(frozen=True)
class Finding:
    """One thing to look at: the task, what it is, and a suggestion."""

    task: str
    kind: str
    detail: str
    suggestion: str


def findings(tasks: Sequence[Task], threshold: float = 0.8) -> Iterator[Finding]:
    """Everything that looks wrong, task by task, then the near-duplicates."""
    for task in tasks:
        yield from _of_task(task)
    for match in near_duplicates([sketch(task.prompt) for task in tasks], threshold):
        detail = f"close to {tasks[match.kept].id} (similarity {match.similarity:.2f})"
        yield Finding(tasks[match.index].id, "duplicate", detail, "keep one of them")


def _of_task(task: Task) -> Iterator[Finding]:
    if (n := words_in(task.prompt)) > LONG_PROMPT:
        told = "leave it out (filters.max_prompt_words) or raise engine.max_prompt_tokens"
        yield Finding(task.id, "long prompt", f"{n:,} words", told)
    if not task.prompt.strip():
        yield Finding(task.id, "empty prompt", "nothing but white space", "leave it out")
    if task.rubric and all(criterion.points < 0 for criterion in task.rubric):
        yield Finding(
            task.id, "only penalties", "saying nothing earns all", "add what a response must have"
        )
    for what, text in (("prompt", task.prompt), ("reference", task.reference or "")):
        if found := _MOJIBAKE.search(text):
            yield _mojibake(task, what, text, found.start())
    for criterion in task.rubric:
        yield from _of_criterion(task, criterion)
    seen: dict[str, float] = {}
    for criterion in task.rubric:
        plain = " ".join(regex.findall(r"\w+", criterion.text.casefold()))
        if plain in seen and criterion.check is None:
            both = f"{criterion.text[:60]!r} with {seen[plain]:g} and {criterion.points:g} points"
            opposed = seen[plain] * criterion.points < 0
            kind = "contradictory signs" if opposed else "duplicate criterion"
            yield Finding(task.id, kind, both, "keep one of them")
        seen.setdefault(plain, criterion.points)


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
    if found := _MOJIBAKE.search(text):
        yield _mojibake(task, "criterion", text, found.start())


def _mojibake(task: Task, what: str, text: str, at: int) -> Finding:
    part = text[max(at - 10, 0) : at + 20]
    try:
        repaired = part.encode("cp1252").decode("utf-8")
        told = f"read it as UTF-8: {repaired!r}"
    except UnicodeError:
        told = "look for an original that was read as UTF-8"
    return Finding(task.id, "mojibake", f"{what}: {part!r}", told)
