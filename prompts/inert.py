"""Texts of others, without control tokens of the model that is to read them."""

from __future__ import annotations

import regex

#: Control tokens of common model families, as text: `<|im_end|>`, `</s>`, `</think>`, ... (DeepSeek's
#: have full-width bars, U+FF5C).
_CONTROL = regex.compile(
    r"<[|\uFF5C][^<>|\uFF5C\s]{1,64}[|\uFF5C]>|</?(?:s|bos|eos|pad|unk)>|<(?:start|end)_of_turn>"
    r"|\[/?(?:INST|SYSTEM_PROMPT)\]|</?think(?:ing)?>"
)
WORD_JOINER = "\u2060"


def inert(value: object) -> object:
    """Text in which no tokenizer finds a control token: an invisible character parts each of them.

    A server makes real control tokens of their text, and with them a response could end its turn of the
    conversation, or the thought of a model that quotes it, whatever marks it stands between.
    """
    return _CONTROL.sub(_parted, value) if isinstance(value, str) else value


def _parted(match: regex.Match[str]) -> str:
    token = str(match[0])
    return token[0] + WORD_JOINER + token[1:]
