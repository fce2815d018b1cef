"""What is asked of an endpoint and what comes back: the request of a question, the reply read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types.chat import ChatCompletion

from ...specs.printable import short_line
from ...specs.schema import Endpoint
from .faults import NoReplyError


@dataclass(frozen=True)
class Question:
    """Chat messages and, where the answer is to be JSON, its schema under a name."""

    messages: Sequence[dict[str, str]]
    schema: dict[str, Any] | None = None
    name: str = "answer"
    strict: bool = True  # the schema is closed, as servers ask that enforce it to the letter
    more: Mapping[str, Any] = field(default_factory=dict)  # fields of this one request, e.g. its seed


@dataclass(frozen=True)
class Answer:
    """What came back. `text` is the content alone, never the reasoning beside it."""

    question: Question
    text: str
    finish: str  # the server's finish_reason
    tokens_in: int
    tokens_out: int
    seconds: float  # of the attempt that answered
    base_url: str
    token_ids: tuple[int, ...] = ()  # of the text, where the server was asked for them


@dataclass(frozen=True)
class NoAnswer:
    """Why there is none, in words for the log."""

    cause: str


def request_body(spec: Endpoint, question: Question) -> dict[str, Any]:
    """The keyword arguments of the client's call."""
    body: dict[str, Any] = {
        "model": spec.model,
        "messages": [{**m, "content": _sendable(m["content"])} for m in question.messages],
        "temperature": spec.temperature,
        "max_completion_tokens": spec.max_tokens,
    }
    if question.schema is not None:
        schema = {"name": question.name, "schema": question.schema, "strict": question.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    if spec.extra_body:
        body["extra_body"] = spec.extra_body
    return {**body, **question.more}


def _sendable(text: str) -> str:
    """`text` with replacement characters for lone surrogates, which UTF-8 cannot carry."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def read_reply(reply: ChatCompletion, question: Question, seconds: float, base_url: str) -> Answer:
    """What a reply holds. The client does not look at its types, so any error may come of it.

    Raises `NoReplyError` for one that holds no completion, with the server's word on it.
    """
    if not reply.choices:
        error = getattr(reply, "error", None)
        said = error.get("message") if isinstance(error, dict) else error
        raise NoReplyError(f"sent no chat completion{f': {short_line(str(said))}' if said else ''}")
    choice = reply.choices[0]
    text = choice.message.content
    if not isinstance(text, str | None):
        raise TypeError("the content is no text")
    used = reply.usage
    return Answer(
        question=question,
        text=text or "",
        finish=str(choice.finish_reason),
        tokens_in=int(used.prompt_tokens or 0) if used else 0,
        tokens_out=int(used.completion_tokens or 0) if used else 0,
        seconds=seconds,
        base_url=base_url,
        token_ids=tuple(getattr(choice, "token_ids", None) or ()),  # vLLM's addition to the protocol
    )
