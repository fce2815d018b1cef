"""Which answer a response gives to a multiple-choice question: the one it commits to, or none.

Nothing is guessed: a wrong reading is worse than none. `marks` makes one character of each label and each
option's text, `phrases` lists how answers are stated around them. The last statement that commits to an
answer counts, as a response may correct itself. Several answers in one statement, a correction to nothing
clear, a refusal, or letters that are only talked about are no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import regex

from .marks import ANY, LABEL, final, marked, numbers, words
from .phrases import (
    CLOSE,
    CLOSING,
    CORRECTION,
    DENIAL,
    DENIED,
    KINDS,
    LEFT_OPEN,
    NOT_BUT,
    NOUN,
    PASSED_OVER,
    SUPPOSED,
)

#: Characters that are looked at before a statement.
REACH = 400
#: Statements that are weighed, the last ones, and questions: a response may repeat itself without end.
MANY = 40
#: Words of a response that is a label and little else.
FEW_WORDS = 12

_I = regex.IGNORECASE
#: A turn or question that somebody else begins: which answer is this question's is anybody's guess.
_QUESTION = regex.compile(r"^[ \t]*(?:human|user|question|q)[ \t]*\d*[ \t]*[:.)]", _I | regex.MULTILINE)


def chosen(text: str, choices: Mapping[str, str]) -> str | None:
    """The label of the answer that `text` commits to, or None. `choices`: label -> text, as asked."""
    parts = _QUESTION.split(final(text), MANY) if choices else []
    said = {_committed(marked(part, choices), choices) for part in parts} - {None}
    return said.pop() if len(said) == 1 else None


def _committed(text: str, choices: Mapping[str, str]) -> str | None:
    own_words = [len(words(own)) for own in choices.values()]
    said = _stated(text)
    for read in (_alone, _mentioned):
        said = read(text) if said is None else said
    said = _restated(text, own_words) if said is None else said
    return list(choices)[said.pop()] if said and len(said) == 1 else None


# --- reading a marked text: each says which answers, or None where it has nothing to say ---------------


def _stated(text: str) -> set[int] | None:
    """What the last explicit statement names; nothing where it is taken back."""
    text = NOT_BUT.sub("", text)
    found = [match for pattern in (*KINDS, CORRECTION, DENIAL) for match in pattern.finditer(text)]
    current: set[int] | None = None
    last: regex.Match[str] | None = None
    for match in sorted(found, key=lambda one: max(one.start(), one.start("said")))[-MANY:]:
        said = numbers(match["said"])
        if match.re is DENIAL:
            current = set() if said == current else current
        elif said and _is_meant(text, match):
            both_are_right = last is not None and last.re is CLOSING and match.re is CLOSING
            current = said | (current or set()) if both_are_right else said
            last = match
        elif match.re is CORRECTION and current is not None:
            others = numbers(match["rest"]) - current
            is_denied = bool(DENIED.search(match[0]))
            is_excused = is_denied or PASSED_OVER.search(match["rest"])
            current = set() if (others and not is_excused) or (is_denied and not others) else current
    return current


def _is_meant(text: str, match: regex.Match[str]) -> bool:
    """Is the statement neither denied, supposed nor asked, and not the head of a list of the options?"""
    at = match.end("lead") - len(match["lead"].lstrip(" \t\n.,;:!?("))
    sentence = regex.split(r"[.!?;\n]", text[max(0, at - REACH) : at])[-1]
    nearest = regex.split(r",(?!\s*(?:that|which|and|nor|or)\b)|\bbut\b", sentence)[-1]
    if (
        SUPPOSED.search(sentence + match["lead"].lstrip())
        or DENIED.search(nearest)
        or LEFT_OPEN.match(text, match.end())
    ):
        return False
    is_below = "\n" in text[at : match.start("said")]
    following = regex.compile(rf"[^\n]*\n[\s(-]*({ANY})(?=[).:]|\s*$)", regex.M).match(text, match.end())
    return not (is_below and following and numbers(following[1]) != numbers(match["said"]))


_ALONE = regex.compile(rf"[\s('<>-]*(?:(?:the\s+)?{NOUN}\s+)?({ANY})[\s.)!,:'>-]*$", _I)
_BARE = regex.compile(r"[\s('<>-]*([\ue000-\ue0ff\ue300-\ue3ff])[\s.)!'>-]*$")
#: `C, because the drug ...`, `Yes, as shown`
_REASON = regex.compile(
    rf"[\s('<>-]*(?:({LABEL}){CLOSE}[\s,.:-]*\b(?:because|since|as|given|due)\b"
    rf"|([\ue300-\ue3ff]){CLOSE}[\s]*[,.;:-])",
    _I,
)
_HEAD = regex.compile(rf"[\s('<>-]*(?:(?:the\s+)?{NOUN}\s+)?({LABEL})", _I)


def _alone(text: str) -> set[int] | None:
    """The first or last line, or the last sentence, is an answer and little else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    heads = [match for line in lines if (match := _HEAD.match(line) or _ALONE.match(line))]
    named = [next(iter(numbers(match[1]))) for match in heads]
    if len({*named}) > 1:  # it goes through the options, before or after it gives one
        bare = {n for line in lines if (match := _BARE.match(line)) for n in numbers(match[1])}
        is_first = bool(_BARE.match(lines[0])) and not bare & {*named[1:]}
        is_last = bool(_BARE.match(lines[-1])) and bare <= {*named[:-1]}
        return bare if len(bare) == 1 and (is_first or is_last) else None
    if len(lines) > 1 and lines[-2].endswith(":") and not _BARE.match(lines[-1]):
        del lines[-1]  # the first of a list that breaks off
    sentences = regex.split(r"(?<=[.!?])\s+", lines[-1])
    pieces = [lines[0], lines[-1], sentences[-1], *(one for one in sentences if _BARE.match(one))]
    said = [match[1] or match[2] for one in pieces if (match := _REASON.match(one))]
    said += [match[1] for one in pieces if (match := _ALONE.match(one))]
    return numbers("".join(said)) or None


def _mentioned(text: str) -> set[int] | None:
    """The labels that a response mentions which says little else: `Rather (B)`."""
    if _is_open(text) or len(words(text)) > FEW_WORDS:
        return None
    found = regex.findall(rf"\({LABEL}\)|[\ue200-\ue2ff]", text)
    return numbers("".join(found)) or None


#: An option's text, and no part of another thing (`aspirin toxicity`).
_IS_WHOLE = regex.compile(
    r"[\ue100-\ue2ff](?!\s+(?!(?:in|of|for|with|because|since|as|and|at|on|by|to|is|was|would|here)\b)\p{L})",
    _I,
)


def _restated(text: str, own_words: list[int]) -> set[int] | None:
    """The one option whose text is at least a quarter of what the response says."""
    said = numbers(text)
    if len(said) != 1 or _is_open(text) or len(words(text)) > 3 * own_words[min(said)]:
        return None
    return said if _IS_WHOLE.search(text) else None


def _is_open(text: str) -> bool:
    return bool(DENIED.search(text) or SUPPOSED.search(text) or PASSED_OVER.search(text) or "?" in text)
