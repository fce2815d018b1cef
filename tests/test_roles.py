"""A role behind real sockets: faults, retries, deadlines, replicas, limits, keys and what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import Future as ConcurrentFuture
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import scripted  # noqa: F401  (the profile of hypothesis)
from harnessrl.agents.roles import faults
from harnessrl.agents.roles.client import Answer, KeyMissingError, NoAnswer, Question, Role
from harnessrl.agents.roles.replicas import COOL_DOWN, FAILURES, Replicas
from harnessrl.agents.usage import RoleUsage, Usage
from harnessrl.specs.schema import Endpoint, Prices
from hypothesis import given
from hypothesis import strategies as st
from openai import APIStatusError, RateLimitError
from scripted_endpoint import Body, Reply, ScriptedEndpoint, nobody_there, question
from tenacity import Future, RetryCallState

JUDGING = Path(__file__).parent.parent / "benchmarks" / "judging.py"
YES = Reply("yes")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backoff as it is, but short."""
    monkeypatch.setattr(faults, "MAX_BACKOFF", 0.03)


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    """Says yes until a test tells it otherwise."""
    with ScriptedEndpoint(lambda body: YES) as serving:
        yield serving


@contextlib.contextmanager
def role(*base_urls: str, usage: Usage | None = None, **spec: Any) -> Iterator[Role]:
    """A role with short limits, closed at the end."""
    rest = {"model": "scripted", "timeout": 2.0, "deadline": 5.0, "retries": 1} | spec
    made = Role("judge", Endpoint(base_urls=base_urls, **rest), usage or Usage())
    try:
        yield made
    finally:
        made.close()


def ask(text: str = "hello", schema: dict[str, Any] | None = None) -> Question:
    return Question([{"role": "user", "content": text}], schema)


def in_turn(*replies: Reply) -> Callable[[Body], Reply]:
    """The replies one after the other; the last one again and again."""
    left = list(replies)
    return lambda body: left.pop(0) if len(left) > 1 else left[0]


def replicas_at(endpoint: ScriptedEndpoint, n: int) -> list[str]:
    """One endpoint as several replicas: it sees what all of them are asked."""
    return [endpoint.base_url.replace("/v1", f"/{i}/v1") for i in range(n)]


def used(role: Role, purpose: str = "train") -> RoleUsage:
    return role.usage[purpose]


# --- faults ---------------------------------------------------------------------------------------

#: What may happen to an attempt, and what is said of it when it happens every time.
FAULTS = {
    "a timeout": (Reply(after=1.0), "timed out"),
    "blanks without end": (Reply(blanks=1.0), "timed out"),
    "429": (Reply("slow down", status=429), "HTTP 429"),
    "429 with Retry-After": (Reply(status=429, headers={"Retry-After": "0.1"}), "HTTP 429"),
    "429 with no number": (Reply(status=429, headers={"Retry-After": "nan"}), "HTTP 429"),
    "429 with no date": (Reply(status=429, headers={"Retry-After": "Wed, 21 Oct 2065"}), "HTTP 429"),
    "429 before now": (Reply(status=429, headers={"Retry-After": "-5"}), "HTTP 429"),
    "408": (Reply(status=408), "HTTP 408"),
    "500": (Reply("boom", status=500), "HTTP 500: Error code: 500 - boom"),
    "500 in bytes": (Reply(status=500, raw=b"\xff\x00"), "HTTP 500"),
    "429 until the end of time": (
        Reply(status=429, headers={"Retry-After": "Mon, 01 Jan 2035 00:00:00 +99999999999999"}),
        "HTTP 429",
    ),
    "no completion": (Reply(raw=b'{"choices": []}'), "sent no chat completion"),
    "an error for one": (
        Reply(raw=b'{"error": {"message": "over\\nloaded", "code": 503}}'),
        "sent no chat completion: over loaded",
    ),
    "502 in HTML": (Reply(status=502, raw=b"<h1>bad</h1>", headers={"content-type": "text/html"}), "502"),
    "503": (Reply(status=503), "HTTP 503"),
    "a dropped connection": (Reply(drop=True), "no connection"),
    "a broken encoding": (Reply(raw=b"{}", headers={"content-encoding": "gzip"}), "no connection"),
    "truncated JSON": (Reply(raw=b'{"choices": [{"message": {"cont'), "sent no chat completion"),
    "no JSON": (Reply(raw=b"<html>"), "sent no chat completion"),
    "a page": (Reply(raw=b"<html>", headers={"content-type": "text/html"}), "sent no chat completion"),
    "nothing": (Reply(raw=b""), "sent no chat completion"),
    "null": (Reply(raw=b"null"), "sent no chat completion"),
    "a list": (Reply(raw=b"[1]"), "sent no chat completion"),
    "deep JSON": (Reply(raw=b"[" * 100_000), "sent no chat completion"),
    "no UTF-8": (Reply(raw=b'{"choices": "\xff"}'), "sent no chat completion"),
    "choices by name": (Reply(raw=b'{"choices": {"a": 1}}'), "sent no chat completion"),
    "no message": (Reply(raw=b'{"choices": [{"message": null}]}'), "sent no chat completion"),
    "a number": (Reply(raw=b'{"choices": [{"message": {"content": 5}}]}'), "sent no chat completion"),
    "parts": (Reply(raw=b'{"choices": [{"message": {"content": []}}]}'), "sent no chat completion"),
    "odd usage": (
        Reply(raw=b'{"choices": [{"message": {"content": "a"}}], "usage": {"prompt_tokens": "x"}}'),
        "sent no chat completion",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_tried_again_and_told_when_it_stays(fault: str, endpoint: ScriptedEndpoint) -> None:
    reply, told = FAULTS[fault]
    with role(endpoint.base_url, timeout=0.25 if told == "timed out" else 2.0) as judge:
        endpoint.answer = in_turn(reply, YES)
        (answer,) = judge.ask([ask()], "train")
        assert isinstance(answer, Answer), answer
        assert (answer.text, used(judge).attempts, used(judge).failed) == ("yes", 2, 0)
        endpoint.answer = in_turn(reply)
        (answer,) = judge.ask([ask()], "train")
        assert isinstance(answer, NoAnswer)
        assert answer.cause.startswith("judge: ") and told in answer.cause, answer.cause
        assert "\n" not in answer.cause
        assert (used(judge).calls, used(judge).attempts, used(judge).failed) == (2, 4, 1)
        assert judge.replicas.all[0].in_flight == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_request_that_the_server_finds_wrong_is_not_sent_again(
    status: int, endpoint: ScriptedEndpoint
) -> None:
    endpoint.answer = in_turn(Reply("no such model", status=status))
    with role(endpoint.base_url, retries=5) as judge:
        (answer,) = judge.ask([ask()], "train")
        assert answer == NoAnswer(f"judge: HTTP {status}: Error code: {status} - no such model")
        assert (used(judge).attempts, used(judge).failed) == (1, 1)
        assert judge.replicas.all[0].failures == 0, "that says nothing about the server"


def soon() -> str:
    """The HTTP date that is one to two seconds away."""
    return format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)


@pytest.mark.parametrize("said", ["0.4", soon])
def test_retry_after_is_waited_for(said: str | Callable[[], str], endpoint: ScriptedEndpoint) -> None:
    def answer(body: Body) -> Reply:
        if len(endpoint.times) > 1:
            return YES
        after = said if isinstance(said, str) else said()  # now: the machine may be busy
        return Reply(status=429, headers={"Retry-After": after})

    endpoint.answer = answer
    with role(endpoint.base_url) as judge:
        assert isinstance(judge.ask([ask()], "train")[0], Answer)
    first, second = endpoint.times
    assert 0.4 <= second - first < 4.0


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("", None),
        ("soon", None),
        ("nan", None),
        ("Wed, 21 Oct 2065", None),
        ("7.5", 7.5),
        ("-5", 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2065 07:28:00 GMT", faults.MAX_RETRY_AFTER),
        ("Wed, 21 Oct 2065 07:28:00", faults.MAX_RETRY_AFTER),
        ("86400", faults.MAX_RETRY_AFTER),
        ("inf", faults.MAX_RETRY_AFTER),
    ],
)
def test_what_retry_after_says(said: str, seconds: float | None) -> None:
    request = httpx.Request("POST", "http://localhost/v1")
    reply = httpx.Response(429, headers={"Retry-After": said}, request=request)
    assert faults.retry_after(RateLimitError("slow down", response=reply, body=None)) == seconds


@given(st.text(st.characters(codec="latin-1", exclude_categories=["Cc"])))
def test_no_retry_after_is_an_error(said: str) -> None:
    request = httpx.Request("POST", "http://localhost/v1")
    reply = httpx.Response(503, headers={"Retry-After": said.encode("latin-1")}, request=request)
    seconds = faults.retry_after(APIStatusError("busy", response=reply, body=None))
    assert seconds is None or 0.0 <= seconds <= faults.MAX_RETRY_AFTER


@pytest.mark.parametrize("seconds", ["60", "inf", "1e300", "Wed, 21 Oct 2065 07:28:00 GMT"])
def test_retry_after_the_deadline_ends_at_the_deadline(seconds: str, endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply(status=503, headers={"Retry-After": seconds}))
    started = time.monotonic()
    with role(endpoint.base_url, deadline=0.3) as judge:
        told = "no answer from judge in 0.3 s: HTTP 503: Error code: 503 - scripted"
        assert judge.ask([ask()], "train") == [NoAnswer(told)]
        told = "no answer from judge in 0.3 s: every replica had asked for a pause"
        assert judge.ask([ask()], "train") == [NoAnswer(told)]
        assert (used(judge).failed, used(judge).attempts) == (2, 1)
    assert time.monotonic() - started < 3.0


def test_backoff_grows_with_the_attempts_and_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "MAX_BACKOFF", 3.0)
    for attempt, most in ((1, 0.5), (2, 1.0), (3, 2.0), (4, 3.0), (9, 3.0)):
        state = RetryCallState(None, None, (), {})  # type: ignore[arg-type]
        state.attempt_number = attempt
        state.outcome = Future.construct(attempt, TimeoutError(), True)
        waits = [faults.backoff(state) for _ in range(200)]
        assert 0 <= min(waits) < 0.2 * most
        assert 0.8 * most < max(waits) <= most


def test_a_question_ends_at_its_deadline(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply(after=30))
    started = time.monotonic()
    with role(endpoint.base_url, timeout=20, deadline=0.4, concurrency=8) as judge:
        answers = judge.ask([ask()] * 8, "train")
        assert answers == [NoAnswer("no answer from judge in 0.4 s")] * 8
        assert used(judge).failed == 8
        assert judge.replicas.all[0].in_flight == 0
        endpoint.answer = in_turn(YES)
        assert isinstance(judge.ask([ask()], "train")[0], Answer), "the role still works"
    assert time.monotonic() - started < 3.0


def test_a_deadline_is_no_failure_of_the_replica_that_was_asked_just_before(
    endpoint: ScriptedEndpoint,
) -> None:
    """The other one took the time: it is given most of the deadline, and then times out."""
    slow, late = replicas_at(endpoint, 2)
    endpoint.answer = in_turn(Reply(after=30))
    with role(slow, late, timeout=0.8, deadline=1.0, concurrency=1) as judge:
        told = "no answer from judge in 1 s: timed out"
        assert judge.ask([ask()], "train") == [NoAnswer(told)]
        assert used(judge).attempts == 2
        assert [r.failures for r in judge.replicas.all] == [1, 0]
    with role(slow, timeout=20.0, deadline=0.4) as judge:
        judge.ask([ask()], "train")
        assert judge.replicas.all[0].failures == 1, "it hung from the first to the last"


def test_all_replicas_dead_is_no_answer_and_no_hang() -> None:
    started = time.monotonic()
    with role(nobody_there(), nobody_there(), retries=2) as judge:
        answers = judge.ask([ask()] * 20, "train")
        assert answers == [NoAnswer("judge: no connection (ConnectError)")] * 20
        assert 60 <= used(judge).attempts <= 120 and used(judge).failed == 20
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("n_replicas", [1, 2, 5])
def test_retries_are_rounds_over_all_replicas(n_replicas: int, endpoint: ScriptedEndpoint) -> None:
    with role(*replicas_at(endpoint, n_replicas), retries=2) as judge:
        endpoint.answer = in_turn(*[Reply(status=503)] * (2 * n_replicas), YES)
        assert isinstance(judge.ask([ask()], "train")[0], Answer), "after two whole rounds"
        assert used(judge).attempts == 2 * n_replicas + 1
        endpoint.answer = in_turn(Reply(status=503))
        assert isinstance(judge.ask([ask()], "train")[0], NoAnswer)
        assert used(judge).attempts == 5 * n_replicas + 1


def test_all_replicas_dead_ends_at_the_deadline_with_many_retries() -> None:
    started = time.monotonic()
    with role(nobody_there(), nobody_there(), retries=10_000, deadline=0.5) as judge:
        answers = judge.ask([ask()] * 4, "train")
        told = "no answer from judge in 0.5 s: no connection (ConnectError)"
        assert answers == [NoAnswer(told)] * 4
    assert time.monotonic() - started < 3.0


def test_answers_come_in_the_order_of_the_questions(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = lambda body: Reply(question(body), after=0.1 - 0.01 * int(question(body)))
    with role(endpoint.base_url) as judge:
        answers = judge.ask([ask(str(n)) for n in range(10)], "train")
        assert [a.text for a in answers if isinstance(a, Answer)] == [str(n) for n in range(10)]
        assert judge.ask([], "train") == []


def test_an_answer_is_the_content_alone(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = lambda body: Reply("no", reasoning="yes, yes", finish="length")
    with role(endpoint.base_url) as judge:
        (answer,) = judge.ask([ask()], "train")
        assert isinstance(answer, Answer)
        assert (answer.text, answer.finish, answer.base_url) == ("no", "length", endpoint.base_url)
        endpoint.answer = lambda body: Reply(None, reasoning="yes, yes")
        (answer,) = judge.ask([ask()], "train")
        assert isinstance(answer, Answer) and answer.text == ""


# --- replicas -------------------------------------------------------------------------------------


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_dead_replica_is_left_alone_and_tried_again_later(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply("yes", after=0.01))
    revived = ScriptedEndpoint(lambda body: Reply("yes", after=0.01))  # nobody listens there yet
    clock = Clock()
    with role(revived.base_url, endpoint.base_url, concurrency=4) as judge:
        judge.replicas = Replicas(judge.spec.base_urls, clock)
        dead, live = judge.replicas.all

        def ask_many() -> int:
            """Attempts that went to the dead replica for nothing."""
            before = used(judge).attempts if judge.usage else 0
            answers = judge.ask([ask()] * 30, "train")
            assert all(isinstance(answer, Answer) for answer in answers)
            return used(judge).attempts - before - 30

        assert FAILURES <= ask_many() <= FAILURES + 4, "its circuit opens"
        assert dead.open_until == clock.now + COOL_DOWN
        assert (dead.answered, live.answered) == (0, 30)
        clock.now += COOL_DOWN - 0.1
        assert ask_many() == 0, "it is left alone"
        clock.now += 0.1
        assert ask_many() == 1, "one request tries it again"
        assert ask_many() == 0, "and it is left alone again"
        clock.now += COOL_DOWN
        with revived:
            assert ask_many() == 0
            assert dead.failures == 0 and dead.answered >= 8, "it is back"


def test_a_dead_replica_costs_no_answer_even_without_its_circuit(endpoint: ScriptedEndpoint) -> None:
    """The next attempt goes to the other replica."""
    with role(nobody_there(), endpoint.base_url, concurrency=1) as judge:
        assert [a.text for a in judge.ask([ask()] * 3, "train") if isinstance(a, Answer)] == ["yes"] * 3
        assert used(judge).attempts == 6


def test_a_slow_replica_gets_less(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply("fast", after=0.02))
    with (
        ScriptedEndpoint(lambda body: Reply("slow", after=0.4)) as slow,
        role(slow.base_url, endpoint.base_url, concurrency=8) as judge,
    ):
        answers = judge.ask([ask()] * 60, "train")
        texts = Counter(answer.text for answer in answers if isinstance(answer, Answer))
        assert texts.total() == 60
        assert texts["fast"] > 3 * texts["slow"] > 0


def test_two_replicas_share_the_load(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply("one", after=0.02))
    with (
        ScriptedEndpoint(lambda body: Reply("two", after=0.02)) as other,
        role(endpoint.base_url, other.base_url, concurrency=8) as judge,
    ):
        judge.ask([ask()] * 80, "train")
        counts = [len(endpoint.bodies), len(other.bodies)]
        assert sum(counts) == 80 and min(counts) >= 32, counts
        assert [replica.answered for replica in judge.replicas.all] == counts


def test_rate_limits_of_one_replica_do_not_open_its_circuit(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply(status=429))
    with role(endpoint.base_url, retries=FAILURES) as judge:
        assert isinstance(judge.ask([ask()], "train")[0], NoAnswer)
        assert (used(judge).attempts, judge.replicas.all[0].failures) == (FAILURES + 1, 0)


def replicas_with_circuits(n_open: int, of: int) -> tuple[Replicas, Clock]:
    """The first `n_open` have failed, one second after the other."""
    clock = Clock()
    replicas = Replicas([f"http://r{n}" for n in range(of)], clock)
    for replica in replicas.all[:n_open]:
        for _ in range(FAILURES):
            replicas.failed(replica)
        clock.now += 1
    return replicas, clock


def test_a_circuit_opens_after_failures_in_a_row() -> None:
    replicas, _ = replicas_with_circuits(0, of=2)
    first, second = replicas.all
    second.in_flight = 1
    for _ in range(FAILURES - 1):
        replicas.failed(first)
    assert replicas.pick() is first
    replicas.succeeded(first)
    for _ in range(FAILURES - 1):
        replicas.failed(first)
    assert replicas.pick() is first, "not in a row"
    replicas.failed(first)
    assert replicas.pick() is second


def test_one_request_at_a_time_tries_a_replica_again() -> None:
    replicas, clock = replicas_with_circuits(1, of=2)
    first, second = replicas.all
    second.in_flight = 5
    assert replicas.pick() is second
    clock.now = first.open_until
    assert replicas.pick() is first
    first.in_flight = 1  # the probe
    assert replicas.pick() is second
    first.in_flight = 0
    replicas.failed(first)
    assert replicas.pick() is second, "it failed: another cool-down"
    clock.now += COOL_DOWN
    replicas.succeeded(replicas.pick())
    first.in_flight = 4
    assert replicas.pick() is first, "it answered: an ordinary replica again"


def test_with_every_circuit_open_the_one_that_closes_first_is_used() -> None:
    replicas, _ = replicas_with_circuits(3, of=3)
    assert replicas.pick() is replicas.all[0]
    replicas.failed(replicas.all[0])
    assert replicas.pick() is replicas.all[1]
    assert replicas.pick(avoid=[replicas.all[1]]) is replicas.all[1], "never refused"


def test_the_replica_that_just_failed_is_avoided() -> None:
    replicas, _ = replicas_with_circuits(0, of=2)
    first, second = replicas.all
    second.in_flight = 9
    assert replicas.pick() is first
    assert replicas.pick(avoid=[first]) is second
    alone, _ = replicas_with_circuits(0, of=1)
    assert alone.pick(avoid=alone.all) is alone.all[0]


def test_a_paused_replica_is_left_alone_until_then() -> None:
    replicas, clock = replicas_with_circuits(0, of=2)
    first, second = replicas.all
    replicas.pause(first, 3.0)
    replicas.pause(first, 1.0)
    second.in_flight = 9
    assert replicas.pick() is second
    assert replicas.pick(avoid=[second]) is second and not replicas.is_free(besides=[second])
    assert (replicas.pick(never=[second]), replicas.wait(never=[second])) == (None, 3.0)
    replicas.succeeded(first)  # what was on its way
    assert replicas.pick() is second, "a pause is kept"
    replicas.pause(second, 2.0)
    assert (replicas.pick(), replicas.wait()) == (None, 2.0)
    clock.now += 2.0
    assert replicas.pick() is second
    clock.now += 1.0
    assert replicas.pick() is first


def test_a_paused_replica_is_waited_for_rather_than_one_that_fails() -> None:
    replicas, clock = replicas_with_circuits(1, of=2)
    failing, second = replicas.all
    replicas.pause(second, 60.0)
    assert (replicas.pick(), replicas.wait()) == (None, COOL_DOWN - 1)
    clock.now = failing.open_until
    assert replicas.pick() is failing
    failing.in_flight = 1  # the probe
    assert replicas.pick() is None and replicas.wait() == second.paused_until - clock.now


def test_a_refusal_keeps_a_replica_in_or_out_of_rotation() -> None:
    replicas, clock = replicas_with_circuits(1, of=2)
    out, healthy = replicas.all
    for _ in range(2 * FAILURES):
        replicas.refused(healthy)
    assert replicas.pick() is healthy and healthy.failures == 0
    clock.now = out.open_until
    assert replicas.pick() is out
    replicas.refused(out)
    assert replicas.pick() is healthy, "another cool-down"


def refusing(status: int) -> Callable[[Body], Reply]:
    return in_turn(Reply("refused", status=status))


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
@pytest.mark.parametrize("retries", [0, 2])
def test_a_replica_that_refuses_what_the_other_answers_leaves_rotation(
    status: int, retries: int, endpoint: ScriptedEndpoint
) -> None:
    """It is always the least loaded one, as it answers at once."""
    endpoint.answer = in_turn(Reply("yes", after=0.02))
    with (
        ScriptedEndpoint(refusing(status)) as wrong,
        role(wrong.base_url, endpoint.base_url, concurrency=4, retries=retries) as judge,
    ):
        clock = Clock()
        judge.replicas = Replicas(judge.spec.base_urls, clock)
        answers = judge.ask([ask()] * 60, "train")
        assert all(isinstance(answer, Answer) for answer in answers), answers
        assert FAILURES <= len(wrong.bodies) <= FAILURES + 4
        assert used(judge).attempts == 60 + len(wrong.bodies)
        before = len(wrong.bodies)
        clock.now += COOL_DOWN
        assert all(isinstance(answer, Answer) for answer in judge.ask([ask()] * 20, "train"))
        assert len(wrong.bodies) == before + 1, "one request tries it again"
        clock.now += COOL_DOWN
        wrong.answer = in_turn(Reply("yes", after=0.02))
        judge.ask([ask()] * 20, "train")
        assert judge.replicas.all[0].answered >= 8, "it was put right"


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_question_that_is_wrong_takes_no_replica_out(status: int, endpoint: ScriptedEndpoint) -> None:
    def answer(body: Body) -> Reply:
        return Reply("wrong", status=status) if question(body) == "wrong" else Reply("yes", after=0.01)

    endpoint.answer = answer
    with (
        ScriptedEndpoint(answer) as other,
        role(endpoint.base_url, other.base_url, concurrency=4, retries=5) as judge,
    ):
        answers = judge.ask([ask("wrong"), ask(), ask("wrong"), ask("wrong")] * 10, "train")
        assert [isinstance(a, Answer) for a in answers] == [False, True, False, False] * 10
        assert {a for a in answers if isinstance(a, NoAnswer)} == {
            NoAnswer(f"judge: HTTP {status}: Error code: {status} - wrong")
        }
        assert used(judge).attempts == 10 + 2 * 30, "each replica is asked once"
        assert [r.failures for r in judge.replicas.all] == [0, 0]
        assert all(judge.replicas.is_free(besides=[r]) for r in judge.replicas.all)


def test_a_refused_question_is_tried_again_where_the_other_replica_only_failed(
    endpoint: ScriptedEndpoint,
) -> None:
    endpoint.answer = in_turn(Reply(status=500), YES)
    with (
        ScriptedEndpoint(refusing(404)) as wrong,
        role(wrong.base_url, endpoint.base_url) as judge,
    ):
        assert isinstance(judge.ask([ask()], "train")[0], Answer)
        assert (len(wrong.bodies), len(endpoint.bodies)) == (1, 2)


def test_a_rate_limited_replica_keeps_no_question_waiting(endpoint: ScriptedEndpoint) -> None:
    """Its pause is its own: who asks goes to the other one."""
    endpoint.answer = in_turn(Reply("yes", after=0.02))
    limited = in_turn(Reply(status=429, headers={"Retry-After": "30"}))
    with (
        ScriptedEndpoint(limited) as busy,
        role(busy.base_url, endpoint.base_url, concurrency=8, deadline=20.0) as judge,
    ):
        started = time.monotonic()
        answers = judge.ask([ask()] * 80, "train")
        assert all(isinstance(answer, Answer) for answer in answers)
        assert time.monotonic() - started < 3.0
        assert 1 <= len(busy.bodies) <= 8, "what was on its way"
        assert judge.replicas.all[0].failures == 0


def test_when_all_replicas_pause_a_question_waits_for_the_first(endpoint: ScriptedEndpoint) -> None:
    def limited(seconds: str) -> Reply:
        return Reply(status=429, headers={"Retry-After": seconds})

    endpoint.answer = in_turn(limited("0.5"), YES)
    with (
        ScriptedEndpoint(in_turn(limited("30"))) as other,
        role(endpoint.base_url, other.base_url, retries=2, concurrency=1) as judge,
    ):
        started = time.monotonic()
        answers = judge.ask([ask()] * 6, "train")
        assert all(isinstance(answer, Answer) for answer in answers), answers
        assert 0.5 <= time.monotonic() - started < 3.0
        assert (len(endpoint.bodies), len(other.bodies)) == (7, 1)


def test_a_rate_limit_for_all_is_kept_and_costs_few_attempts(endpoint: ScriptedEndpoint) -> None:
    """Five a half second: those who wait see the pause that the first one runs into."""
    begun: list[float] = []

    def answer(body: Body) -> Reply:
        now = time.monotonic()
        if len([at for at in begun if now - at < 0.5]) >= 5:
            return Reply(status=429, headers={"Retry-After": "0.5"})
        begun.append(now)
        return YES

    endpoint.answer = answer
    with role(endpoint.base_url, retries=4, deadline=30.0, concurrency=20) as judge:
        answers = judge.ask([ask()] * 30, "train")
        assert all(isinstance(a, Answer) for a in answers), answers
        assert used(judge).failed == 0


# --- limits ---------------------------------------------------------------------------------------


def test_concurrency_is_used_and_never_exceeded(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply("yes", after=0.03))
    same = endpoint.base_url.replace("/v1", "/again/v1")  # two replicas, one endpoint that counts
    with role(endpoint.base_url, same, concurrency=6) as judge:
        judge.ask([ask()] * 30, "train")
        assert endpoint.most_at_once == 6
        threads = [threading.Thread(target=judge.ask, args=([ask()] * 10, "train")) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=10)
        assert endpoint.most_at_once == 6, "over all who ask"
        assert (used(judge).calls, used(judge).failed) == (60, 0)


def test_concurrency_holds_through_retries(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(*[Reply(status=500, after=0.02)] * 10, Reply("yes", after=0.02))
    with role(endpoint.base_url, concurrency=3, retries=20) as judge:
        assert all(isinstance(a, Answer) for a in judge.ask([ask()] * 12, "train"))
        assert endpoint.most_at_once == 3


def test_requests_per_minute_are_kept(endpoint: ScriptedEndpoint) -> None:
    """A minute's requests at once, then two a second."""
    with role(endpoint.base_url, requests_per_minute=120) as judge:
        started = time.monotonic()
        answers = judge.ask([ask()] * 122, "train")
        assert all(isinstance(answer, Answer) for answer in answers)
    since = [at - started for at in endpoint.times]
    assert all(n <= 120 + 2 * t + 0.01 for n, t in enumerate(since, 1))
    assert 1.0 <= since[-1] < 5.0


def test_retries_count_against_the_requests_per_minute(endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = in_turn(Reply(status=500), YES)
    with role(endpoint.base_url, requests_per_minute=60, retries=70) as judge:
        started = time.monotonic()
        judge.ask([ask()] * 60, "train")
        assert len(endpoint.times) == 61 and endpoint.times[-1] - started >= 0.99


@pytest.mark.parametrize("text", ["x" * 400, "字" * 133 + "x"], ids=["English", "Chinese"])
def test_tokens_per_minute_are_kept_and_to_wait_for_them_is_no_failure(
    text: str, endpoint: ScriptedEndpoint
) -> None:
    """200 tokens each (400 bytes, 100 to answer): a minute's 20 at once, then one every 3 s."""
    with role(endpoint.base_url, tokens_per_minute=4_000, max_tokens=100, deadline=2.8) as judge:
        started = time.monotonic()
        answers = judge.ask([ask(text)] * 21, "train")
        assert not [answer for answer in answers if isinstance(answer, NoAnswer)]
    since = [at - started for at in endpoint.times]
    assert len(since) == 21
    assert 2.97 <= since[20] < 10.0


def test_a_question_beyond_a_minutes_tokens_is_asked_all_the_same(endpoint: ScriptedEndpoint) -> None:
    with role(endpoint.base_url, tokens_per_minute=100, max_tokens=50) as judge:
        assert isinstance(judge.ask([ask("x" * 4000)], "train")[0], Answer)


# --- what is counted ------------------------------------------------------------------------------


def test_calls_attempts_tokens_and_cost_are_counted_by_purpose(endpoint: ScriptedEndpoint) -> None:
    usage = Usage()
    prices = Prices(input=2.0, output=500.0)
    with role(endpoint.base_url, usage=usage, prices=prices, concurrency=1) as judge:
        endpoint.answer = in_turn(Reply(status=500), Reply("one two three"), Reply("four"))
        judge.ask([ask("a b c d"), ask("e f")], "train")
        endpoint.answer = in_turn(Reply(status=400))
        judge.ask([ask("g")], "train")
        endpoint.answer = in_turn(Reply("five six", after=0.1))
        judge.ask([ask("h i j")], "probe")
    train, probe = usage.roles["judge"]["train"], usage.roles["judge"]["probe"]
    assert (train.calls, train.attempts, train.failed) == (3, 4, 1)
    assert (train.tokens_in, train.tokens_out) == (6, 4)
    assert train.cost == pytest.approx((6 * 2.0 + 4 * 500.0) / 1e6)
    assert (probe.calls, probe.attempts, probe.failed) == (1, 1, 0)
    assert (probe.tokens_in, probe.tokens_out) == (3, 2)
    assert 0.1 <= probe.seconds < 2.0


def test_without_prices_there_is_no_cost(endpoint: ScriptedEndpoint) -> None:
    with role(endpoint.base_url) as judge:
        judge.ask([ask()], "train")
        assert used(judge).cost is None


def test_counting_goes_on_where_it_stopped(endpoint: ScriptedEndpoint) -> None:
    before = {"judge": {"train": {"calls": 5, "attempts": 7, "tokens_in": 100, "cost": 1.5}}}
    usage = Usage.from_dict({"roles": before})
    with role(endpoint.base_url, usage=usage, prices=Prices(input=1e6, output=0.0)) as judge:
        judge.ask([ask("a b")], "train")
    now = usage.roles["judge"]["train"]
    assert (now.calls, now.attempts, now.tokens_in, now.cost) == (6, 8, 102, 3.5)


# --- requests -------------------------------------------------------------------------------------


def test_the_request_is_what_the_spec_says(endpoint: ScriptedEndpoint) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 1}
    spec = {"model": "some/model", "temperature": 0.25, "max_tokens": 77, "extra_body": extra}
    with role(endpoint.base_url, **spec) as judge:
        asked = [Question([{"role": "user", "content": "hello"}], schema, "thing"), ask("plain")]
        for one in asked:
            judge.ask([one], "train")
    with_schema, plain = endpoint.bodies
    assert with_schema == {
        "model": "some/model",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0.25,
        "max_completion_tokens": 77,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "thing", "schema": schema, "strict": True},
        },
        **extra,
    }
    assert plain.keys() == with_schema.keys() - {"response_format"}


@pytest.mark.parametrize(
    "text",
    [
        "Grüße, 世界, 👩\u200d🚀, \u202eright to left\u202c, e\u0301",
        "a\x00b\x1b[31m\r\n\t\x7f\u2028\ufeff",
        '"quoted" \\ {{ braces }} {% raw %} </s><|im_end|>',
        "x" * 50_000,
    ],
)
def test_text_arrives_as_it_is(text: str, endpoint: ScriptedEndpoint) -> None:
    endpoint.answer = lambda body: Reply(question(body))
    with role(endpoint.base_url) as judge:
        (answer,) = judge.ask([ask(text)], "train")
        assert isinstance(answer, Answer) and answer.text == text
    assert question(endpoint.bodies[0]) == text


def test_lone_surrogates_are_replaced(endpoint: ScriptedEndpoint) -> None:
    """UTF-8 has none; JSON in files may."""
    with role(endpoint.base_url) as judge:
        assert isinstance(judge.ask([ask("a\ud800b\udfff 👍")], "train")[0], Answer)
    seen = question(endpoint.bodies[0])
    assert seen.replace("\ufffd", "") == "ab 👍" and "\ufffd" in seen


def test_the_key_comes_from_the_environment_and_goes_into_the_header_only(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses")
    with role(endpoint.base_url, api_key_env="JUDGE_KEY") as judge:
        judge.ask([ask()], "train")
    assert endpoint.headers[0]["authorization"] == "Bearer sk-very-secret"
    assert "secret" not in json.dumps(endpoint.bodies)


def test_without_a_variable_no_key_of_the_environment_is_sent(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses")
    with role(endpoint.base_url) as judge:
        judge.ask([ask()], "train")
    assert "somebody" not in json.dumps(endpoint.headers)


@pytest.mark.parametrize("value", [None, ""])
def test_a_missing_key_is_named(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-somebody-elses")
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    before = threading.active_count()
    with pytest.raises(KeyMissingError, match="JUDGE_KEY"), role(nobody_there(), api_key_env="JUDGE_KEY"):
        pass
    assert threading.active_count() == before


def test_an_error_that_repeats_the_key_is_told_without_it(
    endpoint: ScriptedEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUDGE_KEY", "sk-very-secret")
    endpoint.answer = in_turn(Reply("x" * 160 + " the key sk-very-secret is wrong", status=401))
    with role(endpoint.base_url, api_key_env="JUDGE_KEY") as judge:
        (answer,) = judge.ask([ask()], "train")
        assert isinstance(answer, NoAnswer)
        assert "the key ..." in answer.cause and "sk-" not in answer.cause


@pytest.mark.skipif(shutil.which("openssl") is None, reason="a certificate is made with openssl")
def test_what_runs_here_is_asked_past_proxies_and_with_ones_own_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, own, both = tmp_path / "key", tmp_path / "own.pem", tmp_path / "both.pem"
    made = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*made.split(), "-keyout", key, "-out", own], check=True, capture_output=True)
    both.write_text(key.read_text() + own.read_text())
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "OPENAI_PROXY"):
        monkeypatch.setenv(name, nobody_there().removesuffix("/v1"))
    for name in ("NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedEndpoint(lambda body: YES, certificate=both) as endpoint:
        with role(endpoint.base_url, retries=0) as judge:
            told = "judge: no connection (ConnectError)"
            assert judge.ask([ask()], "train") == [NoAnswer(told)], "nobody vouches for it"
        monkeypatch.setenv("SSL_CERT_FILE", str(own))
        with role(endpoint.base_url, retries=0) as judge:
            (answer,) = judge.ask([ask()], "train")
            assert isinstance(answer, Answer), answer


# --- several roles, several threads ---------------------------------------------------------------


def test_roles_at_one_address_do_not_share_a_connection_pool(endpoint: ScriptedEndpoint) -> None:
    with role(endpoint.base_url) as judge:
        with role(endpoint.base_url) as other:
            assert isinstance(other.ask([ask()], "train")[0], Answer)
            assert isinstance(judge.ask([ask()], "train")[0], Answer)
        assert isinstance(judge.ask([ask()], "train")[0], Answer), "closing one leaves the other"
    with role(endpoint.base_url) as judge:
        assert isinstance(judge.ask([ask()], "train")[0], Answer), "and one can come after"


def test_a_closed_role_leaves_no_thread(endpoint: ScriptedEndpoint) -> None:
    with role(endpoint.base_url) as judge:
        judge.ask([ask()] * 3, "train")
        thread = judge._thread
        assert thread.is_alive()
    assert not thread.is_alive()


def test_whoever_asks_while_a_role_closes_is_told(endpoint: ScriptedEndpoint) -> None:
    """And nobody waits for what will not be asked, before the loop has stopped or after."""
    with role(endpoint.base_url) as judge:
        copied = judge.counted_in(Usage())
        late: list[ConcurrentFuture[Any]] = []
        close = judge._clients[endpoint.base_url].close

        def ask_late() -> None:
            late.append(copied.start(copied.ask_one(ask(), "train")))

        async def close_after_that() -> None:
            await asyncio.to_thread(ask_late)
            await close()

        judge._clients[endpoint.base_url].close = close_after_that  # type: ignore[method-assign]
    ask_late()
    for one in late:
        with pytest.raises(CancelledError):
            one.result(timeout=5)
    assert len(late) == 2 and not endpoint.bodies


def test_a_replica_says_which_models_it_serves(endpoint: ScriptedEndpoint) -> None:
    with role(endpoint.base_url, nobody_there()) as judge:
        there, dead = judge.spec.base_urls
        assert judge.models(there) == {"scripted"}
        assert judge.models(dead) == "no connection (ConnectError)"


def test_a_replica_that_never_ends_its_list_of_models_is_given_up(endpoint: ScriptedEndpoint) -> None:
    """Each blank comes in time for the client's own timeout."""
    endpoint.models = Reply(raw=b"", blanks=5.0)
    started = time.monotonic()
    with role(endpoint.base_url, timeout=0.3) as judge:
        assert judge.models(endpoint.base_url) == "timed out"
    assert time.monotonic() - started < 3.0


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.slow
def test_asking_costs_little_beside_a_bare_client() -> None:
    """95% of its throughput, under 1 ms of CPU a verdict, and two replicas are 1.9 times one."""
    done = subprocess.run(
        [sys.executable, JUDGING, "--short"], capture_output=True, text=True, timeout=600
    )
    if done.returncode == 3:
        pytest.skip(done.stdout)  # the bare client has not the processor time either
    assert done.returncode == 0, done.stdout + done.stderr
