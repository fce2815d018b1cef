"""Questions to the oracle's endpoint: which of two responses is better, and how good one is.

An answer is what the oracle's own JSON says, read strictly, or there is none and a cause why. The
responses are quoted as data between marks that they cannot hold; of rubrics nothing is shown.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ...prompts import fingerprint, render
from ...specs.schema import Oracle as OracleSpec
from ..roles.client import Answer, NoAnswer, Question, Role
from ..roles.reading import answer_alone, read_json
from .verdictcache import Answers

#: How often an answer that cannot be read is asked for again.
ASK_AGAIN = 1
MOST_GRADE = 10
_POINTS = {"A": 2, "tie": 1, "B": 0}  # what the first of two responses gets


class _Better(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    better: Literal["A", "B", "tie"]
    reason: str = ""


class _Grade(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    grade: Annotated[int, Field(ge=0, le=MOST_GRADE)]
    reason: str = ""


def _schema(key: str, values: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"reason": {"type": "string"}, key: values},
        "required": ["reason", key],
        "additionalProperties": False,
    }


_BETTER_SCHEMA = _schema("better", {"type": "string", "enum": list(_POINTS)})
_GRADE_SCHEMA = _schema("grade", {"type": "integer", "enum": list(range(MOST_GRADE + 1))})


@dataclass(frozen=True)
class Pair:
    """Which of two responses to a request is better?"""

    prompt: str
    first: str
    second: str


@dataclass(frozen=True)
class Graded:
    """How good is a response, beside a reference?"""

    prompt: str
    reference: str
    response: str


@dataclass(frozen=True)
class Opinion:
    """A whole number, or None and why. Of a pair: 2 the first is better, 1 a tie, 0 the second; of a
    graded response: 0 to 10."""

    value: int | None
    cause: str = ""


class Examiner:
    """Asks the oracle's role, within a budget, and never the same twice where there is a cache.

    Several threads may use it.
    """

    def __init__(self, role: Role, spec: OracleSpec, cache: Answers | None) -> None:
        self.role = role
        self.spec = spec
        self.cache = cache
        self._words = fingerprint("grade" if spec.kind == "reference" else "compare", spec.prompt)
        self._spending = threading.Lock()
        self.left = spec.budget - sum(used.calls for used in role.usage.values())
        """Questions that may still be asked in this run."""

    def ask(self, items: Sequence[Pair | Graded], purpose: str, anew: bool = False) -> list[Opinion]:
        """An opinion on each item, all asked at once. What the budget has no room for is not begun.

        `anew`: whatever the cache holds.
        """
        hashes = [self._hash(item) for item in items]
        opinions: dict[bytes, Opinion] = {}
        if self.cache is not None and not anew:
            opinions = {key: Opinion(value) for key, value in self.cache.get(list({*hashes})).items()}
        wanted = {k: item for k, item in zip(hashes, items, strict=True) if k not in opinions}
        for _ in range(1 + ASK_AGAIN):
            if not self._may_spend(len(wanted)):
                cause = f"oracle.budget {self.spec.budget} has no room for it"
                opinions |= {key: Opinion(None, cause) for key in wanted if key not in opinions}
                break
            answers, found = self._asked(wanted, purpose)
            opinions |= found
            # Asking again helps against a garbled answer, not against a dead endpoint.
            wanted = {
                key: item
                for (key, item), answer in zip(wanted.items(), answers, strict=True)
                if isinstance(answer, Answer) and found[key].value is None
            }
        return [opinions[key] for key in hashes]

    def _asked(
        self, wanted: Mapping[bytes, Pair | Graded], purpose: str
    ) -> tuple[list[Answer | NoAnswer], dict[bytes, Opinion]]:
        """The answers and what they say, kept as they come: one may be stopped."""
        items = list(wanted.items())
        found: dict[bytes, Opinion] = {}

        def heard(n: int, answer: Answer | NoAnswer) -> None:
            key, item = items[n]
            found[key] = opinion = _read(answer, isinstance(item, Pair))
            if self.cache is not None and opinion.value is not None:
                self.cache.put([(key, opinion.value)])

        answers = self.role.ask([self._question(item) for _, item in items], purpose, heard)
        return answers, found

    def _may_spend(self, questions: int) -> bool:
        with self._spending:
            if questions > self.left:
                return False
            self.left -= questions
            return True

    def lend(self, questions: int | None = None) -> int:
        """Take questions out of what is left, by default half, for one who asks beside this one.

        So neither can use up what the other was to have, whoever is faster. Says how many.
        """
        with self._spending:
            lent = self.left // 2 if questions is None else questions
            self.left -= lent
        return lent

    def take_back(self, questions: int) -> None:
        """What was not asked of them."""
        with self._spending:
            self.left += questions

    def _question(self, item: Pair | Graded) -> Question:
        own = self.spec.prompt
        if isinstance(item, Pair):
            quoted = {"prompt": item.prompt, "first": item.first, "second": item.second}
            text = render("compare", own, fence=_fence(*quoted.values()), **quoted)
            return Question([{"role": "user", "content": text}], _BETTER_SCHEMA, "comparison")
        quoted = {"prompt": item.prompt, "reference": item.reference, "response": item.response}
        text = render("grade", own, fence=_fence(*quoted.values()), **quoted)
        return Question([{"role": "user", "content": text}], _GRADE_SCHEMA, "grade")

    def _hash(self, item: Pair | Graded) -> bytes:
        spec = self.role.spec
        who = [spec.model, spec.temperature, spec.extra_body, self._words]
        texts = [item.prompt, *_two(item)]
        content = json.dumps([who, type(item).__name__, texts])
        return hashlib.sha256(content.encode()).digest()


def _two(item: Pair | Graded) -> tuple[str, str]:
    if isinstance(item, Pair):
        return item.first, item.second
    return item.reference, item.response


def _fence(*texts: str) -> str:
    """A mark that the quoted texts cannot hold, since it depends on them."""
    return f"[{hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:16]}]"


def _read(answer: Answer | NoAnswer, is_pair: bool) -> Opinion:
    """The opinion in an answer, or why there is none."""
    if isinstance(answer, NoAnswer):
        return Opinion(None, answer.cause)
    text = answer_alone(answer)
    if not text:
        cause = "ran out of tokens before it answered" if answer.finish == "length" else "said nothing"
        return Opinion(None, f"the oracle {cause}")
    try:
        if is_pair:
            return Opinion(_POINTS[read_json(_Better, text).better])
        return Opinion(read_json(_Grade, text).grade)
    except ValueError:
        kind = "comparison" if is_pair else "grade"
        cut = " (cut off)" if answer.finish == "length" else ""
        return Opinion(None, f"the oracle's answer is no {kind}{cut}: {text[:80]!r}")
