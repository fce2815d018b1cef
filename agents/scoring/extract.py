"""Extract, then check: a judge copies a part out of the response, and a program decides on that part.

The part counts only if the response holds it, up to whitespace and case, and what the check reads is the
response's own spelling of it: text that a judge makes up, by itself or because the response tells it to,
is never evidence.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...prompts import WORD_JOINER, fingerprint, render
from ...specs.checks import Check, PluginCheck
from ...specs.schema import Judge as JudgeSpec
from ..roles.client import Answer, NoAnswer, Question
from ..roles.reading import answer_alone, read_json
from .checks import Verdict, missing_resource, run_check
from .judge import ASK_AGAIN, Item, Judge, _fence
from .plugins import version


class _Extraction(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    found: bool
    text: str = ""


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"found": {"type": "boolean"}, "text": {"type": "string"}},
    "required": ["found", "text"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Part:
    """What is to be copied out of a response, the answer to a prompt."""

    prompt: str
    response: str
    what: str


@dataclass(frozen=True)
class Extract:
    """What is copied out of a response, and the check that decides on it."""

    part: Part
    check: Check


def check_extracts(judge: Judge, extracts: Sequence[Extract], purpose: str) -> list[Verdict]:
    """A verdict for each; unscored (with a cause) where there is none, not met where nothing is found.

    All questions are asked at once; extracts of the same part share one. Verdicts are kept as they come.
    """
    if not extracts:
        return []
    keys = [_hash(judge.spec, one) for one in extracts]
    by_key = dict(zip(keys, extracts, strict=True))
    verdicts = {key: settled for key, one in by_key.items() if (settled := _settled(one))}
    if judge.cache is not None:
        known = judge.cache.get([key for key in by_key if key not in verdicts])
        verdicts |= {key: Verdict(bool(met)) for key, met in known.items()}
    open_ones: dict[Part, dict[bytes, Check]] = {}
    for key, one in by_key.items():
        if key not in verdicts:
            open_ones.setdefault(one.part, {})[key] = one.check
    parts = list(open_ones)
    for _ in range(1 + ASK_AGAIN):
        left: set[Part] = set()
        for part, answer in _as_they_come(judge, parts, purpose):
            said = _read(answer, part.response)
            decided = {
                key: run_check(check, part.prompt, said) if isinstance(said, str) else said
                for key, check in open_ones[part].items()
            }
            verdicts |= decided
            if judge.cache is not None:  # at once: one may be stopped
                judge.cache.put((key, one.met) for key, one in decided.items() if one.met is not None)
            # As with verdicts: asking again helps against a bad answer, not against a dead endpoint.
            if isinstance(answer, Answer) and isinstance(said, Verdict) and said.met is None:
                left.add(part)
        parts = [part for part in parts if part in left]
        if not parts:
            break
    return [verdicts[key] for key in keys]


def _settled(one: Extract) -> Verdict | None:
    """The verdict where there is nothing to ask: the check never works here, or the response is blank."""
    if cause := missing_resource(one.check):
        return Verdict(None, cause)
    return None if one.part.response.strip() else Verdict(False)


def _as_they_come(
    judge: Judge, parts: Sequence[Part], purpose: str
) -> Iterator[tuple[Part, Answer | NoAnswer]]:
    """The answer to each part as it comes, all being asked at once.

    Given out in the caller's thread: in the role's, a slow check would hold up the other answers.
    """
    arrived: SimpleQueue[tuple[Part, Answer | NoAnswer] | None] = SimpleQueue()
    questions = [_question(part) for part in parts]
    asking = judge.role.start(
        judge.role.ask_all(questions, purpose, lambda n, answer: arrived.put((parts[n], answer)))
    )
    asking.add_done_callback(lambda _: arrived.put(None))
    yield from iter(arrived.get, None)
    asking.result()  # raises what ended it, if anything did


def _question(part: Part) -> Question:
    fence = _fence(Item(part.prompt, part.response, ()))
    text = render("extract", fence=fence, prompt=part.prompt, response=part.response, what=part.what)
    return Question([{"role": "user", "content": text}], _SCHEMA, "extraction")


def _read(answer: Answer | NoAnswer, response: str) -> str | Verdict:
    """The part of the response that an answer names; a verdict where it names none."""
    if isinstance(answer, NoAnswer):
        return Verdict(None, answer.cause)
    said = answer_alone(answer)
    if not said:
        cause = "ran out of tokens before it answered" if answer.finish == "length" else "said nothing"
        return Verdict(None, f"the judge {cause}")
    try:
        extraction = read_json(_Extraction, said)
    except ValueError:
        cut = " (cut off)" if answer.finish == "length" else ""
        return Verdict(None, f"the judge's answer is no extraction{cut}: {said[:80]!r}")
    if not extraction.found:
        return Verdict(False)
    if not extraction.text.strip():
        return Verdict(None, "the judge finds a part and does not say which")
    part = held(extraction.text, response)
    if part is None:
        return Verdict(None, f"what the judge extracts is not in the response: {extraction.text[:80]!r}")
    return part


# --- where a text stands in a response ------------------------------------------------------------

#: Models straighten quotation marks as they copy.
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")


def held(text: str, response: str) -> str | None:
    """What `response` holds that reads as `text` up to whitespace and case, as written there; or None."""
    wanted, _ = _folded(text.strip())
    response = unicodedata.normalize("NFC", response)
    folded, begins = _folded(response)
    at = folded.find(wanted)
    if at < 0 or not wanted:
        return None
    first = bisect_right(begins, at) - 1
    last = bisect_right(begins, at + len(wanted) - 1) - 1
    return response[first : last + 1].strip()


def _folded(text: str) -> tuple[str, list[int]]:
    """`text` without case and with single blanks, and where in that each of its characters begins."""
    parts: list[str] = []
    begins: list[int] = []
    length, after_blank = 0, False
    for character in unicodedata.normalize("NFC", text).translate(_STRAIGHT):
        blank = character.isspace()
        part = ("" if after_blank else " ") if blank else character.casefold()
        if character == WORD_JOINER:  # parts control tokens in what the judge was shown
            part = ""
        begins.append(length)
        parts.append(part)
        length += len(part)
        after_blank = blank
    return "".join(parts), begins


def _hash(spec: JudgeSpec, one: Extract) -> bytes:
    """What a verdict hangs on. Never the key of a judge's own verdict, which names no check."""
    who = [spec.model, spec.temperature, spec.extra_body, fingerprint("extract")]
    check: list[Any] = [one.check.model_dump(mode="json")]
    if isinstance(one.check, PluginCheck):
        check.append(version(one.check.name))
    part = one.part
    content = json.dumps(["extract", who, part.prompt, part.response, part.what, check])
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()
