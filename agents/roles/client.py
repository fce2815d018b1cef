"""Asking a role: many questions at once, each with retries, limits and a deadline."""

from __future__ import annotations

import asyncio
import copy
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import regex
from aiolimiter import AsyncLimiter
from langchain_openai import ChatOpenAI
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    DefaultAsyncHttpxClient,
    RateLimitError,
)
from openai.types.chat import ChatCompletion
from pydantic import SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.wait import wait_random_exponential

from ...specs.schema import Endpoint
from ..usage import RoleUsage, Usage
from .address import is_local
from .replicas import Replica, Replicas

T = TypeVar("T")
#: Backoff before attempt n: a random time up to 0.5 * 2^n seconds, at most this many.
MAX_BACKOFF = 20.0
CHARS_PER_TOKEN = 4  # for the token limit, which has to be reckoned before sending


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


#: Inline reasoning that some models put before their answer.
_THOUGHT = regex.compile(r"^\s*<think(?:ing)?>.*?</think(?:ing)?>", regex.DOTALL)


def answer_alone(answer: Answer) -> str:
    """What a model answers, without the thought before it and the Markdown fence around it."""
    # A thought may quote what the response says, and be cut off right there: then it has not ended.
    whole = answer.finish != "length"
    text = (_THOUGHT.sub("", answer.text, count=1) if whole else answer.text).strip()
    opening, _, rest = text.partition("\n")
    inside, _, closing = rest.rpartition("\n")
    is_fenced = opening.strip() in ("```", "```json") and closing.strip() == "```"
    return inside.strip() if is_fenced else text


class KeyMissingError(Exception):
    """The environment variable that should hold a key is not set."""


class _NoReplyError(Exception):
    """What an attempt brought is no chat completion; the message says what it was."""


class Role:
    """One role of a run: its endpoints, and the thread that its event loop runs in.

    Raises `KeyMissingError`.
    """

    def __init__(self, name: str, spec: Endpoint, usage: Usage) -> None:
        self.name = name
        self.spec = spec
        self.usage = usage.roles.setdefault(name, {})
        self.replicas = Replicas(spec.base_urls)
        self._clients = {url: _client(spec, url) for url in spec.base_urls}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"role-{name}", daemon=True)
        self._thread.start()
        self._slots = asyncio.Semaphore(spec.concurrency)
        self._requests = _limiter(spec.requests_per_minute)
        self._tokens = _limiter(spec.tokens_per_minute)

    def counted_in(self, usage: Usage) -> Role:
        """This role, with its endpoints and its limits, but what it takes is counted in `usage`."""
        other = copy.copy(self)
        other.usage = usage.roles.setdefault(self.name, {})
        return other

    def ask(
        self,
        questions: Sequence[Question],
        purpose: str,
        heard: Callable[[int, Answer | NoAnswer], None] = lambda n, answer: None,
    ) -> list[Answer | NoAnswer]:
        """An answer, or why there is none, for each question in order. A bad endpoint raises nothing.

        `heard` gets the number of a question and its answer as it comes, in the role's own thread.
        """
        return self.run(self.ask_all(questions, purpose, heard))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the role's loop and wait for it (from any other thread)."""
        return self.start(work).result()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the role's loop and do not wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def ask_all(
        self,
        questions: Sequence[Question],
        purpose: str,
        heard: Callable[[int, Answer | NoAnswer], None] = lambda n, answer: None,
    ) -> list[Answer | NoAnswer]:
        """`ask`, for callers on the role's own loop."""

        async def one(n: int, question: Question) -> Answer | NoAnswer:
            answer = await self.ask_one(question, purpose)
            heard(n, answer)
            return answer

        return list(await asyncio.gather(*(one(n, q) for n, q in enumerate(questions))))

    async def ask_one(self, question: Question, purpose: str) -> Answer | NoAnswer:
        """One question with all its attempts, inside the role's limits."""
        used = self.usage.setdefault(purpose, RoleUsage())
        used.calls += 1
        async with self._slots:
            # Before the deadline starts: to wait for our own limits is nobody's failure.
            await self._within_limits(question)
            try:
                async with asyncio.timeout(self.spec.deadline):
                    answer = await self._attempts(question, used)
            except TimeoutError:
                used.failed += 1
                return NoAnswer(f"no answer from {self.name} in {self.spec.deadline:g} s")
            except (APIError, _NoReplyError) as error:
                used.failed += 1
                return NoAnswer(f"{self.name}: {_told(error)}")
        used.tokens_in += answer.tokens_in
        used.tokens_out += answer.tokens_out
        used.seconds += answer.seconds
        if prices := self.spec.prices:
            spent = answer.tokens_in * prices.input + answer.tokens_out * prices.output
            used.cost = (used.cost or 0.0) + spent / 1e6
        return answer

    async def _attempts(self, question: Question, used: RoleUsage) -> Answer:
        last: Replica | None = None
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.spec.retries + 1),
            retry=retry_if_exception(_worth_retrying),
            wait=_wait,
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                if attempt.retry_state.attempt_number > 1:
                    await self._within_limits(question)
                used.attempts += 1
                last = self.replicas.pick(avoid=last)
                return await self._send(question, last)
        raise AssertionError("unreachable: the last attempt raises")

    async def _send(self, question: Question, replica: Replica) -> Answer:
        started = time.monotonic()
        replica.in_flight += 1
        body = _body(self.spec, question)
        try:
            # The client's own timeout is for each piece of a reply, and servers send blanks meanwhile.
            async with asyncio.timeout(self.spec.timeout):
                reply = await self._clients[replica.base_url].chat.completions.create(**body)
            answer = _answer(reply, time.monotonic() - started, replica.base_url)
        except APIError as error:
            # A request that the server finds wrong says nothing about the server.
            if _worth_retrying(error) and not isinstance(error, RateLimitError):
                self.replicas.failed(replica)
            raise
        except TimeoutError:
            self.replicas.failed(replica)
            raise _NoReplyError("timed out") from None
        except Exception as error:  # the client leaves it to us what a reply is made of
            self.replicas.failed(replica)
            raise _NoReplyError(f"sent no chat completion ({type(error).__name__})") from error
        except asyncio.CancelledError:
            self.replicas.failed(replica)  # it hung up to the question's deadline
            raise
        finally:
            replica.in_flight -= 1
        self.replicas.succeeded(replica)
        return answer

    async def _within_limits(self, question: Question) -> None:
        if self._requests:
            await self._requests.acquire()
        if self._tokens:
            chars = sum(len(message["content"]) for message in question.messages)
            size = chars // CHARS_PER_TOKEN + self.spec.max_tokens
            # More than a whole minute's budget could never be had; it waits for a full one.
            await self._tokens.acquire(min(size, self._tokens.max_rate))

    def models(self, base_url: str) -> set[str] | str:
        """The models that a replica says it serves, or why it says nothing."""

        async def listed() -> set[str]:
            return {model.id async for model in self._clients[base_url].models.list()}

        try:
            return self.run(listed())
        except APIError as error:
            return _told(error)
        except Exception as error:
            return f"sent no list of models ({type(error).__name__})"

    def close(self) -> None:
        """Close connections and end the loop's thread. Questions still open are given up: whoever waits
        for one gets a `CancelledError`."""

        async def close_all() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for client in self._clients.values():
                await client.close()

        self.run(close_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


def _client(spec: Endpoint, base_url: str) -> AsyncOpenAI:
    key = "EMPTY"
    if spec.api_key_env is not None:
        key = os.environ.get(spec.api_key_env, "")
        if not key:
            raise KeyMissingError(f"the environment variable {spec.api_key_env} is not set")
    chat = ChatOpenAI(
        model=spec.model,
        base_url=base_url,
        api_key=SecretStr(key),
        timeout=spec.timeout,
        # langchain-openai shares one HTTP client among all chat models of an address, over event loops
        # and after it was closed; each role has its own.
        http_async_client=DefaultAsyncHttpxClient(timeout=spec.timeout, trust_env=not is_local(base_url)),
        max_retries=0,  # retries are ours: the next attempt may go to another replica
        use_responses_api=False,
        cache=False,
    )
    # The client underneath keeps finish reasons, and costs a verdict a third of what a chat model call
    # costs.
    client: AsyncOpenAI = chat.root_async_client
    return client


def _body(spec: Endpoint, question: Question) -> dict[str, Any]:
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


def _answer(reply: ChatCompletion, seconds: float, base_url: str) -> Answer:
    """What a reply holds. The client does not look at its types, so any error may come of it."""
    choice = reply.choices[0] if reply.choices else None
    text = choice.message.content if choice else None
    if not isinstance(text, str | None):
        raise TypeError("the content is no text")
    used = reply.usage
    return Answer(
        text=text or "",
        finish=str(choice.finish_reason) if choice else "no choice",
        tokens_in=int(used.prompt_tokens or 0) if used else 0,
        tokens_out=int(used.completion_tokens or 0) if used else 0,
        seconds=seconds,
        base_url=base_url,
        token_ids=tuple(getattr(choice, "token_ids", None) or ()),  # vLLM's addition to the protocol
    )


def _limiter(per_minute: int | None) -> AsyncLimiter | None:
    return None if per_minute is None else AsyncLimiter(per_minute, 60)


def _worth_retrying(error: BaseException) -> bool:
    if isinstance(error, APIStatusError):
        return error.status_code in (408, 409, 429) or error.status_code >= 500
    return isinstance(error, APIConnectionError | APITimeoutError | _NoReplyError)


def _wait(state: RetryCallState) -> float:
    """Jittered exponential backoff, or what the server asks for where it says so."""
    backoff = wait_random_exponential(multiplier=0.5, max=MAX_BACKOFF)(state)
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, APIStatusError):
        try:
            return max(backoff, float(error.response.headers.get("retry-after", "")))
        except ValueError:
            return backoff
    return backoff


def _told(error: APIError | _NoReplyError) -> str:
    """The error on one line, without the key, should the server repeat it."""
    if isinstance(error, _NoReplyError):
        return str(error)
    if isinstance(error, APITimeoutError):
        return "timed out"
    key = error.request.headers.get("authorization", "").removeprefix("Bearer ")
    message = " ".join(error.message.split())
    message = (message.replace(key, "...") if key else message)[:200]
    if isinstance(error, APIStatusError):
        return f"HTTP {error.status_code}: {message}"
    if isinstance(error, APIConnectionError):
        return f"no connection ({type(error.__cause__ or error).__name__})"
    return f"{type(error).__name__}: {message}"
