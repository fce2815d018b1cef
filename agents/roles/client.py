"""Asking a role: many questions at once, each with retries, limits and a deadline."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiolimiter import AsyncLimiter
from langchain_openai import ChatOpenAI
from openai import APIError, APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient, RateLimitError
from pydantic import SecretStr
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from ...specs.schema import Endpoint
from ..usage import RoleUsage, Usage
from .address import is_local
from .exchange import Answer, NoAnswer, Question, read_reply, request_body
from .faults import NoReplyError, backoff, retry_after, told, worth_retrying
from .replicas import Replica, Replicas

__all__ = ["Answer", "KeyMissingError", "NoAnswer", "Question", "Role"]

T = TypeVar("T")
BYTES_PER_TOKEN = 4  # in UTF-8, of whatever script: for the token limit, reckoned before sending
#: The share of its timeout, or of a shorter deadline, in which a replica could have answered.
FAIR = 0.5
LOOK_AGAIN = 1.0  # seconds between looks whether a replica is back, while all are paused


class KeyMissingError(Exception):
    """The environment variable that should hold a key is not set."""


@dataclass
class _Progress:
    """How far a question has come."""

    sent: int = 0
    error: Exception | None = None  # the last attempt's
    failed: set[Replica] = field(default_factory=set)  # in this round
    refused: set[Replica] = field(default_factory=set)  # those that find it wrong


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
        # What is handed in and the end come one after the other; a role and its copies share both.
        self._handing_in = threading.Lock()
        self._closed = threading.Event()
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
        """Start a coroutine on the role's loop and do not wait for it. Once the role is closed it is
        cancelled at once."""
        with self._handing_in:
            if not self._closed.is_set():
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        never: Future[T] = Future()
        never.cancel()
        return never

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
        progress = _Progress()
        async with self._slots:
            # Before the deadline starts: to wait for our own limits is nobody's failure.
            await self._within_limits(question)
            try:
                async with asyncio.timeout(self.spec.deadline):
                    answer = await self._attempts(question, used, progress)
            except TimeoutError:
                used.failed += 1
                return NoAnswer(f"no answer from {self.name} in {self.spec.deadline:g} s{_why(progress)}")
            except (APIError, NoReplyError) as error:
                used.failed += 1
                return NoAnswer(f"{self.name}: {told(error)}")
        used.tokens_in += answer.tokens_in
        used.tokens_out += answer.tokens_out
        used.seconds += answer.seconds
        if prices := self.spec.prices:
            spent = answer.tokens_in * prices.input + answer.tokens_out * prices.output
            used.cost = (used.cost or 0.0) + spent / 1e6
        return answer

    async def _attempts(self, question: Question, used: RoleUsage, progress: _Progress) -> Answer:
        """As many rounds over the replicas as the spec allows, with a backoff between two of them."""
        rounds = AsyncRetrying(
            stop=stop_after_attempt(self.spec.retries + 1),
            retry=retry_if_exception(worth_retrying),
            wait=backoff,
            reraise=True,
        )
        async for one in rounds:
            with one:
                return await self._round(question, used, progress, one.retry_state)
        raise AssertionError("unreachable: the last round raises")

    async def _round(
        self, question: Question, used: RoleUsage, progress: _Progress, state: RetryCallState
    ) -> Answer:
        """The first answer of a replica. A question holds its slot while it waits, so the error of one
        is raised only when no other one is left to ask."""
        progress.failed.clear()
        while True:
            if progress.sent:
                await self._within_limits(question)
            replica = await self._next(progress)
            progress.sent += 1
            used.attempts += 1
            try:
                answer = await self._send(question, replica)
            except (APIError, NoReplyError) as error:
                progress.error = error
                if worth_retrying(error):
                    progress.failed.add(replica)
                    asked = retry_after(error)
                    if asked is not None or isinstance(error, RateLimitError):
                        self.replicas.pause(replica, max(asked or 0.0, backoff(state)))
                    if not self.replicas.is_free(besides=progress.failed | progress.refused):
                        raise
                    continue
                if not isinstance(error, APIStatusError):
                    raise
                self.replicas.refused(replica)
                progress.refused.add(replica)
                if len(progress.refused) == len(self.replicas.all):
                    raise  # so it is the question that is wrong
            else:
                for other in progress.refused:
                    self.replicas.failed(other)  # it was not the question's fault
                return answer

    async def _next(self, progress: _Progress) -> Replica:
        """The replica for the next attempt, as soon as there is one."""
        while (replica := self.replicas.pick(progress.failed, progress.refused)) is None:
            # Not all at the same moment: the others see what the first one hears.
            seconds = min(self.replicas.wait(progress.refused), LOOK_AGAIN)
            await asyncio.sleep(seconds * random.uniform(1.0, 1.5))
        return replica

    async def _send(self, question: Question, replica: Replica) -> Answer:
        started = time.monotonic()
        replica.in_flight += 1
        body = request_body(self.spec, question)
        try:
            # The client's own timeout is for each piece of a reply, and servers send blanks meanwhile.
            async with asyncio.timeout(self.spec.timeout):
                reply = await self._clients[replica.base_url].chat.completions.create(**body)
            answer = read_reply(reply, question, time.monotonic() - started, replica.base_url)
        except APIError as error:
            # What is refused (4xx) may well be wrong, and a rate limit says that it works.
            if worth_retrying(error) and not isinstance(error, RateLimitError):
                self.replicas.failed(replica)
            raise
        except TimeoutError:
            self.replicas.failed(replica)
            raise NoReplyError("timed out") from None
        except NoReplyError:
            self.replicas.failed(replica)
            raise
        except Exception as error:  # the client leaves it to us what a reply is made of
            self.replicas.failed(replica)
            raise NoReplyError(f"sent no chat completion ({type(error).__name__})") from error
        except asyncio.CancelledError:
            # The question's deadline has come: its own failure only if it had had time to answer.
            fair = FAIR * min(self.spec.timeout, self.spec.deadline)
            if time.monotonic() - started >= fair:
                self.replicas.failed(replica)
            raise
        finally:
            replica.in_flight -= 1
        self.replicas.succeeded(replica)
        return answer

    async def _within_limits(self, question: Question) -> None:
        if self._requests:
            await self._requests.acquire()
        if self._tokens:
            asked = sum(len(one["content"].encode(errors="replace")) for one in question.messages)
            size = asked // BYTES_PER_TOKEN + self.spec.max_tokens
            # More than a whole minute's budget could never be had; it waits for a full one.
            await self._tokens.acquire(min(size, self._tokens.max_rate))

    def models(self, base_url: str) -> set[str] | str:
        """The models that a replica says it serves, or why it says nothing within `timeout` seconds."""

        async def listed() -> set[str]:
            async with asyncio.timeout(self.spec.timeout):
                return {model.id async for model in self._clients[base_url].models.list()}

        try:
            return self.run(listed())
        except TimeoutError:
            return "timed out"
        except APIError as error:
            return told(error)
        except Exception as error:
            return f"sent no list of models ({type(error).__name__})"

    def close(self) -> None:
        """Close connections and end the loop's thread. Questions still open are given up, and later ones
        are not asked: whoever waits for one gets a `CancelledError`."""

        async def close_all() -> None:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            for client in self._clients.values():
                await client.close()

        with self._handing_in:
            self._closed.set()
            closing = asyncio.run_coroutine_threadsafe(close_all(), self._loop)
        closing.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()


def _client(spec: Endpoint, base_url: str) -> AsyncOpenAI:
    key = "EMPTY"
    if spec.api_key_env is not None:
        key = os.environ.get(spec.api_key_env, "")
        if not key:
            raise KeyMissingError(f"the environment variable {spec.api_key_env} is not set")
    here = is_local(base_url)
    chat = ChatOpenAI(
        model=spec.model,
        base_url=base_url,
        api_key=SecretStr(key),
        openai_proxy="",  # not OPENAI_PROXY, which goes with none but its own HTTP client
        timeout=spec.timeout,
        # langchain-openai shares one HTTP client among all chat models of an address, over event loops
        # and after it was closed; each role has its own.
        http_async_client=DefaultAsyncHttpxClient(
            timeout=spec.timeout,
            # No proxy for what runs here. The certificates that SSL_CERT_FILE and SSL_CERT_DIR name hold
            # all the same: the client reads these two with the proxies, and so does Python itself.
            trust_env=not here,
            verify=ssl.create_default_context() if here else True,
        ),
        max_retries=0,  # retries are ours: the next attempt may go to another replica
        use_responses_api=False,
        cache=False,
    )
    # The client underneath keeps finish reasons, and costs a verdict a third of what a chat model call
    # costs.
    client: AsyncOpenAI = chat.root_async_client
    return client


def _limiter(per_minute: int | None) -> AsyncLimiter | None:
    return None if per_minute is None else AsyncLimiter(per_minute, 60)


def _why(progress: _Progress) -> str:
    """What is known of a question whose deadline passed."""
    if progress.error is not None:
        return f": {told(progress.error)}"
    return "" if progress.sent else ": every replica had asked for a pause"
