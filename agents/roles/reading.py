"""Reading what a model answered in JSON, apart from what it thought before."""

from __future__ import annotations

import json
from typing import TypeVar

import regex
from pydantic import BaseModel

from ...prompts import WORD_JOINER
from ...specs.yamlnodes import once
from .exchange import Answer, Question

M = TypeVar("M", bound=BaseModel)

#: Reasoning that some models put before their answer ...
_THOUGHT = regex.compile(r"<think(?:ing)?>.*?</think(?:ing)?>", regex.DOTALL)
#: ... and that of models whose chat template opens it in the prompt. An answer in JSON is no thought.
_UNOPENED = regex.compile(r"(?![{\[]|```).*</think(?:ing)?>", regex.DOTALL)
#: The end of a thought, as a text may have it that a model quotes.
_ENDS = regex.compile(r"<\s*/\s*think(?:ing)?\s*>", regex.IGNORECASE)
#: The first key of an answer in JSON.
_KEY = regex.compile(r'\s*(?:```(?:json)?\s*)?\{\s*("(?:[^"\\]|\\.)*+")')


def answer_alone(answer: Answer) -> str:
    """What a model answers, without the thought before it and the Markdown fence around it.

    A thought goes up to its end: the first `</think>` if it begins with `<think>`, else the last one. It
    stays where its end may be quoted; what stays is no JSON, and so no answer.
    """
    text = answer.text.strip()
    # A thought may quote what the response says, and be cut off right there: then it has not ended.
    if answer.finish != "length" and (thought := _THOUGHT.match(text) or _UNOPENED.match(text)):
        rest = text[thought.end() :].strip()
        if not _may_be_quoted(rest, answer.question):
            text = rest
    opening, _, rest = text.partition("\n")
    inside, _, closing = rest.rpartition("\n")
    is_fenced = opening.strip() in ("```", "```json") and closing.strip() == "```"
    return inside.strip() if is_fenced else text


def _may_be_quoted(text: str, question: Question) -> bool:
    """Does the question hold the end of a thought and then what begins as `text` does, by its first key?

    Then a model that quotes it, and stops or goes on there, cannot be told from one that answers.
    """
    own = _KEY.match(text)
    if own is None:
        return False
    for message in question.messages:
        content = message["content"].replace(WORD_JOINER, "")
        for end in _ENDS.finditer(content):
            theirs = _KEY.match(content, end.end())
            # A key can be written with escapes in many ways.
            if theirs and (theirs[1] == own[1] or "\\" in theirs[1] + own[1]):
                return True
    return False


def read_json(model: type[M], text: str) -> M:
    """`text` as a `model`, every key said once. Raises `ValueError` (pydantic's, or a plain one).

    A model that repeats a quotation without escaping it says the quotation's keys too. Which of two equal
    keys is its own cannot be known, and a parser takes the last one.
    """
    found = model.model_validate_json(text)  # first: it also bounds how deep the answer is nested
    json.loads(text, object_pairs_hook=once)
    return found
