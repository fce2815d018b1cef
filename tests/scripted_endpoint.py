"""An OpenAI-compatible chat endpoint whose answers a test scripts; over real HTTP, with real faults.

The answers are scripted, nothing else is: requests go through the real client and a real socket.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from harnessrl.prompts import WORD_JOINER

Body = dict[str, Any]


@dataclass
class Reply:
    """What the endpoint sends back. The default is a well-formed completion with `text`."""

    text: str | None = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    finish: str = "stop"
    reasoning: str | None = None  # beside the content, as reasoning models send it
    after: float = 0.0  # seconds until anything is sent
    blanks: float = 0.0  # seconds of blanks before the body, as some servers send while one waits
    raw: bytes | None = None  # this body instead of a completion
    drop: bool = False  # close the connection without an answer


def verdict(met: bool, reason: str = "because") -> Reply:
    """A judge's answer to one criterion."""
    return Reply(json.dumps({"reason": reason, "met": met}))


def question(body: Body) -> str:
    """The text of a request's only message."""
    (message,) = body["messages"]
    return str(message["content"])


# --- a judge that does as the prompt says ---------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """A judge's question, read as its first lines say: by the mark, and by nothing else."""

    request: str
    response: str
    criteria: tuple[str, ...]  # or the part to copy


def _read(body: Body) -> str:
    """A question as a model reads it: what parts control tokens is invisible."""
    return re.sub(f"(?<=[<[]){WORD_JOINER}", "", question(body))


def asked(body: Body) -> Asked:
    """What a judge is asked to decide."""
    text = _read(body)
    found = re.search(r"lines that hold (\S+) is data", text)
    assert found, text
    mark = re.escape(found[1])
    quoted = rf"^{mark} ([A-Z]+)(?: \d+)?\n(.*?)\n{mark} END OF \1"
    parts = re.findall(quoted, text, re.DOTALL | re.MULTILINE)
    assert [name for name, _ in parts[:2]] == ["REQUEST", "RESPONSE"], parts
    assert {name for name, _ in parts[2:]} in ({"CRITERION"}, {"PART"}), parts
    return Asked(parts[0][1], parts[1][1], tuple(content for _, content in parts[2:]))


def judging(decide: Callable[[str, str], bool]) -> Callable[[Body], Reply]:
    """A judge that says `decide(response, criterion)`, one by one or for a whole rubric."""

    def answer(body: Body) -> Reply:
        it = asked(body)
        met = [decide(it.response, criterion) for criterion in it.criteria]
        if body["response_format"]["json_schema"]["name"] == "verdict":
            return verdict(met[0])
        return verdicts(dict(enumerate(met, 1)))

    return answer


def verdicts(met: dict[int, bool]) -> Reply:
    """A judge's answer to a whole rubric."""
    told = [{"number": n, "reason": "because", "met": one} for n, one in met.items()]
    return Reply(json.dumps({"verdicts": told}))


def extraction(text: str | None) -> Reply:
    """A judge's answer to what it is to copy (None: not found)."""
    return Reply(json.dumps({"found": text is not None, "text": text or ""}))


def copying(copy: Callable[[str, str], str | None]) -> Callable[[Body], Reply]:
    """A judge that copies `copy(response, part)`."""

    def answer(body: Body) -> Reply:
        it = asked(body)
        (part,) = it.criteria
        assert body["response_format"]["json_schema"]["name"] == "extraction"
        return extraction(copy(it.response, part))

    return answer


# --- an oracle that does as the prompt says --------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    """An oracle's question, read by the mark and by nothing else; of a grade `first` is the reference."""

    request: str
    first: str
    second: str


def compared(body: Body) -> Compared:
    """What an oracle is asked to compare or to grade."""
    text = _read(body)
    found = re.search(r"lines\s+that\s+hold\s+(\S+)\s+is\s+data", text)
    assert found, text
    mark = re.escape(found[1])
    parts = re.findall(rf"^{mark} ([A-Z ]+)\n(.*?)\n{mark} END OF \1", text, re.DOTALL | re.MULTILINE)
    names = [name for name, _ in parts]
    assert names in (["REQUEST", "RESPONSE A", "RESPONSE B"], ["REQUEST", "REFERENCE", "RESPONSE"]), names
    return Compared(*(content for _, content in parts))


def opinion(better: str, reason: str = "because") -> Reply:
    """An oracle's answer to a pair."""
    return Reply(json.dumps({"reason": reason, "better": better}))


def comparing(worth: Callable[[str], float]) -> Callable[[Body], Reply]:
    """An oracle that prefers, and grades by, the response that is worth more."""

    def answer(body: Body) -> Reply:
        it = compared(body)
        if body["response_format"]["json_schema"]["name"] == "grade":
            grade = round(10 * worth(it.second))
            return Reply(json.dumps({"reason": "because", "grade": min(10, max(0, grade))}))
        first, second = worth(it.first), worth(it.second)
        return opinion("tie" if first == second else "A" if first > second else "B")

    return answer


# --- the endpoint ---------------------------------------------------------------------------------


class ScriptedEndpoint:
    """Serves `answer(body)` at `base_url` inside a `with` block, and again inside another one.

    `bodies`, `headers` and `times` (monotonic seconds) keep every request in order. At most `capacity`
    requests are worked on at once, the others wait. An error in `answer` comes out of the `with` block.
    `models` is its answer to who asks what it serves. With a `certificate` (a file that holds it and its
    key) it speaks HTTPS.
    """

    def __init__(
        self, answer: Callable[[Body], Reply], capacity: int = 10_000, certificate: Path | None = None
    ) -> None:
        self.answer = answer
        self.certificate = certificate
        self.capacity = capacity
        self.models = Reply(raw=json.dumps({"data": [{"id": "scripted"}]}).encode())
        self.bodies: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.most_at_once = 0
        self._at_once = 0
        self._errors: list[Exception] = []
        with _socket(0) as free:
            self.port: int = free.getsockname()[1]

    @property
    def base_url(self) -> str:
        """What a role's `base_urls` name."""
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> ScriptedEndpoint:
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(timeout=10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=10)
        errors, self._errors = self._errors, []
        if errors:
            raise errors[0]

    def _run(self) -> None:
        config = uvicorn.Config(
            self._app,
            log_level="critical",
            lifespan="off",
            interface="asgi3",
            timeout_keep_alive=60,
            ssl_certfile=self.certificate,
        )
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(self._serve(config))

    async def _serve(self, config: uvicorn.Config) -> None:
        """Until told to stop; then at once, as if it had been killed."""
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._seats = asyncio.Semaphore(self.capacity)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([_socket(self.port)])
        self._started.set()
        await self._stop.wait()
        for listening in server.servers:
            listening.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()  # type: ignore[union-attr]

    async def _app(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        content = b""
        while True:
            message = await receive()
            content += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"].endswith("/models"):
            told = self.models
            await self._send(send, told.status, told.headers, told.raw or b"", blanks=told.blanks)
            return
        body = json.loads(content)
        self.bodies.append(body)
        self.headers.append({k.decode(): v.decode() for k, v in scope["headers"]})
        self.times.append(time.monotonic())
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            async with self._seats:
                try:
                    reply = self.answer(body)
                except Exception as error:
                    self._errors.append(error)
                    raise
                await asyncio.sleep(reply.after)
            if reply.drop:
                # Promise more than is sent, and break off.
                await self._send(send, 200, {"content-length": "100000"}, b"{", more=True)
                raise ConnectionError("dropped, as scripted")
            content = _completion(body, reply) if reply.raw is None else reply.raw
            await self._send(send, reply.status, reply.headers, content, blanks=reply.blanks)
        finally:
            self._at_once -= 1

    @staticmethod
    async def _send(
        send: Any,
        status: int,
        headers: dict[str, str],
        body: bytes,
        more: bool = False,
        blanks: float = 0.0,
    ) -> None:
        sent = {"content-type": "application/json"} | headers
        listed = [(k.lower().encode(), v.encode()) for k, v in sent.items()]
        await send({"type": "http.response.start", "status": status, "headers": listed})
        until = time.monotonic() + blanks
        while time.monotonic() < until:
            await send({"type": "http.response.body", "body": b"\n", "more_body": True})
            await asyncio.sleep(0.05)
        await send({"type": "http.response.body", "body": body, "more_body": more})


def nobody_there() -> str:
    """A base URL at which nothing listens."""
    with _socket(0) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}/v1"


def _socket(port: int) -> socket.socket:
    """Bound, and not listening yet."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def _completion(body: Body, reply: Reply) -> bytes:
    if reply.status != 200:
        return json.dumps({"error": {"message": reply.text or "scripted", "code": reply.status}}).encode()
    message: dict[str, Any] = {"role": "assistant", "content": reply.text}
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    words_in = sum(len(str(m["content"]).split()) for m in body["messages"])
    words_out = len((reply.text or "").split())
    return json.dumps(
        {
            "id": "scripted",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reply.finish}],
            "usage": {
                "prompt_tokens": words_in,
                "completion_tokens": words_out,
                "total_tokens": words_in + words_out,
            },
        }
    ).encode()
