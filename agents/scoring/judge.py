"""The LLM judge: decides criteria in words on responses, or says why it could not.

A verdict is what the judge's own JSON says, read strictly: nothing is searched for in free text, and
what the response under judgement contains can never be read as a verdict. Points are shown to nobody.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from ...prompts import fingerprint, render
from ...specs.schema import Judge as JudgeSpec
from ..roles.client import Answer, NoAnswer, Question, Role
from ..roles.reading import answer_alone, read_json
from .checks import Verdict
from .verdictcache import Answers, Reasons

#: How often an answer that is no verdict is asked for again.
ASK_AGAIN = 1


class _Met(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    met: bool
    reason: str = ""


class _NumberedMet(_Met):
    number: int


class _AllMet(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    verdicts: list[_NumberedMet]


_MET_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "met": {"type": "boolean"}},
    "required": ["reason", "met"],
    "additionalProperties": False,
}


def _all_met_schema(n: int) -> dict[str, Any]:
    """... of `n` criteria: where a server enforces it, any model gives `n` numbered verdicts."""
    verdict = {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "enum": list(range(1, n + 1))},
            "reason": {"type": "string"},
            "met": {"type": "boolean"},
        },
        "required": ["number", "reason", "met"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"verdicts": {"type": "array", "items": verdict, "minItems": n, "maxItems": n}},
        "required": ["verdicts"],
        "additionalProperties": False,
    }


@dataclass(frozen=True)
class Item:
    """One response and the criteria (texts) to decide on it."""

    prompt: str
    response: str
    criteria: tuple[str, ...]


class Judge:
    """Decides items through a role, with a cache of its verdicts."""

    def __init__(
        self, role: Role, spec: JudgeSpec, cache: Answers | None, reasons: Reasons | None = None
    ) -> None:
        self.role = role
        self.spec = spec
        self.cache = cache
        self.reasons = reasons
        self._words = fingerprint("judge_rubric" if spec.batch == "rubric" else "judge", spec.prompt)

    def decide(self, items: Sequence[Item], purpose: str) -> list[list[Verdict]]:
        """A verdict for each criterion of each item; unscored (with a cause) where there is none.

        All questions of a call are asked at once, inside the role's limits.
        """
        verdicts: dict[bytes, Verdict] = {}
        hashes = [[self._hash(item, text) for text in item.criteria] for item in items]
        if self.cache is not None:  # an empty one is false
            known = self.cache.get(list({key for row in hashes for key in row}))
            said = self.reasons.get(list(known)) if self.reasons is not None else {}
            verdicts = {key: Verdict(bool(met), reason=said.get(key, "")) for key, met in known.items()}
        open_items: list[tuple[Item, list[bytes]]] = []
        asked: set[bytes] = set()
        for item, row in zip(items, hashes, strict=True):
            wanted = []
            for n, key in enumerate(row):  # the same text may be there twice
                if key not in verdicts and key not in asked:
                    asked.add(key)
                    wanted.append(n)
            groups = [wanted] if self.spec.batch == "rubric" else [[n] for n in wanted]
            open_items += [_part(item, row, group) for group in groups if group]
        for _ in range(1 + ASK_AGAIN):
            left: list[tuple[Item, list[bytes]]] = []
            for (item, keys), (answer, found) in zip(
                open_items, self._asked(open_items, purpose), strict=True
            ):
                verdicts |= dict(zip(keys, found, strict=True))
                # Asking again helps against a garbled answer, not against a dead endpoint.
                unclear = [n for n, verdict in enumerate(found) if verdict.met is None]
                if isinstance(answer, Answer) and unclear:
                    left.append(_part(item, keys, unclear))
            open_items = left
            if not open_items:
                break
        return [[verdicts[key] for key in row] for row in hashes]

    def _asked(
        self, open_items: Sequence[tuple[Item, list[bytes]]], purpose: str
    ) -> list[tuple[Answer | NoAnswer, list[Verdict]]]:
        """Each item's answer and what it says. Verdicts are kept as they come: one may be stopped."""
        found: dict[int, tuple[Answer | NoAnswer, list[Verdict]]] = {}

        def heard(n: int, answer: Answer | NoAnswer) -> None:
            keys = open_items[n][1]
            found[n] = answer, (verdicts := _read(answer, len(keys), self.spec.batch))
            known = [(key, one) for key, one in zip(keys, verdicts, strict=True) if one.met is not None]
            if self.reasons is not None:  # first: a verdict that is kept is not asked for again
                self.reasons.put((key, one.reason) for key, one in known if one.reason)
            if self.cache is not None:
                self.cache.put((key, bool(one.met)) for key, one in known)

        self.role.ask([self._question(item) for item, _ in open_items], purpose, heard)
        return [found[n] for n in range(len(open_items))]

    def _question(self, item: Item) -> Question:
        fence = _fence(item)
        common = {"fence": fence, "prompt": item.prompt, "response": item.response}
        if self.spec.batch == "rubric":
            text = render("judge_rubric", self.spec.prompt, criteria=item.criteria, **common)
            return Question(
                [{"role": "user", "content": text}], _all_met_schema(len(item.criteria)), "verdicts"
            )
        text = render("judge", self.spec.prompt, criterion=item.criteria[0], **common)
        return Question([{"role": "user", "content": text}], _MET_SCHEMA, "verdict")

    def _hash(self, item: Item, criterion: str) -> bytes:
        spec = self.spec
        who = [spec.model, spec.temperature, spec.batch, spec.extra_body, self._words]
        content = json.dumps([who, item.prompt, item.response, criterion])
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).digest()


def _part(item: Item, keys: Sequence[bytes], which: Sequence[int]) -> tuple[Item, list[bytes]]:
    """The item with some of its criteria only, and their keys."""
    criteria = tuple(item.criteria[n] for n in which)
    return Item(item.prompt, item.response, criteria), [keys[n] for n in which]


def _fence(item: Item) -> str:
    """A mark that the quoted texts cannot hold, since it depends on them: nothing can end its quotation.

    It depends on prompt and response only, so that the prefixes of all criteria are the same.
    """
    content = json.dumps([item.prompt, item.response]).encode()
    return f"[{hashlib.sha256(content).hexdigest()[:16]}]"


def _read(answer: Answer | NoAnswer, n: int, batch: str) -> list[Verdict]:
    """The verdicts in an answer, or why there are none."""
    if isinstance(answer, NoAnswer):
        return [Verdict(None, answer.cause)] * n
    text = answer_alone(answer)
    if not text:
        cause = "ran out of tokens before it answered" if answer.finish == "length" else "said nothing"
        return [Verdict(None, f"the judge {cause}")] * n
    try:
        if batch == "criterion":
            one = read_json(_Met, text)
            return [Verdict(one.met, reason=one.reason)]
        numbered = read_json(_AllMet, text).verdicts
    except ValueError:
        cut = " (cut off)" if answer.finish == "length" else ""
        return [Verdict(None, f"the judge's answer is no verdict{cut}: {text[:80]!r}")] * n
    by_number: dict[int, dict[bool, str]] = {}  # met -> the reason
    for each in numbered:
        by_number.setdefault(each.number, {})[each.met] = each.reason
    out = []
    for number in range(1, n + 1):
        said = by_number.get(number, {})
        cause = "the judge left the criterion out" if not said else "the judge contradicts itself"
        if len(said) == 1:
            ((met, reason),) = said.items()
            out.append(Verdict(met, reason=reason))
        else:
            out.append(Verdict(None, cause))
    return out
