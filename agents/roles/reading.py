"""Reading what a model answered in JSON, apart from what it thought before."""

from __future__ import annotations

import json
import re
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
#: An answer in JSON up to its first key; and so after the end of a thought, as a text may quote it.
_BEGINS = r'\s*+(?:```(?:json)?\s*+)?\{\s*+("(?:[^"\\]|\\.)*+")'
_OWN = re.compile(_BEGINS)
_QUOTED = re.compile(rf"<\s*+/\s*+think(?:ing)?\s*+>{_BEGINS}", re.IGNORECASE)


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
    own = _OWN.match(text)
    if own is None:
        return False
    quoted = "\n".join(message["content"] for message in question.messages).replace(WORD_JOINER, "")
    keys = {found[1] for found in _QUOTED.finditer(quoted)}
    # A key can be written with escapes in many ways.
    return own[1] in keys or any("\\" in key for key in keys)


def read_json(model: type[M], text: str) -> M:
    """`text` as a `model`, every key said once. Raises `ValueError` (pydantic's, or a plain one).

    A model that repeats a quotation without escaping it says the quotation's keys too. Which of two equal
    keys is its own cannot be known, and a parser takes the last one.
    """
    found = model.model_validate_json(text)  # first: it also bounds how deep the answer is nested
    json.loads(text, object_pairs_hook=once)
    return found
