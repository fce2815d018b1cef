"""How OpenRLHF's processes talk to the controller service. Outages are waited out, refusals are not."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from .wire import (
    CONTROLLER_ENV,
    TOKEN_ENV,
    TOKEN_FILE_ENV,
    AdvantagesReply,
    ClaimReply,
    PolicyFolder,
    Progress,
    RedrawReply,
    Saved,
    SlotSample,
    StateReply,
    StepReport,
    SubmitRequest,
)

#: Seconds that an outage of the controller is waited out. Its restart takes some tens of them.
PATIENCE = 900.0
#: Seconds a single request may take; the service answers within half of it, if only "working".
TIMEOUT = 60.0
MAX_BACKOFF = 5.0

Reply = TypeVar("Reply", bound=BaseModel)


class ControllerError(Exception):
    """The controller refuses, or was not to be reached for `PATIENCE` seconds."""


def _address() -> str:
    url = os.environ.get(CONTROLLER_ENV)
    if not url:
        raise ControllerError(f"the environment variable {CONTROLLER_ENV} is not set")
    return url.rstrip("/")


def _token() -> str | None:
    """Ray logs the environment that a job is given, so that the token itself may not be in it."""
    file = os.environ.get(TOKEN_FILE_ENV)
    return Path(file).read_text(encoding="utf-8") if file else os.environ.get(TOKEN_ENV)


def _settings() -> dict[str, Any]:
    """Of either client. A proxy that the environment names is for the world outside."""
    token = _token()
    bearer = {"authorization": f"Bearer {token}"} if token else {}
    headers = {"content-type": "application/json", **bearer}
    return {"base_url": _address(), "headers": headers, "trust_env": False}


class _Patience:
    """How long to wait before asking again: jittered exponential backoff, up to `PATIENCE`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._since = time.monotonic()
        self._longest = 0.2

    def wait(self, answered: bool) -> float:
        """Seconds. A controller that answers (it is busy) is no outage, however long it takes."""
        if answered:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > PATIENCE:
            raise ControllerError(f"{_address()}{self.path}: no answer for {PATIENCE:g} s")
        wait = self._longest * random.uniform(0.5, 1.0)
        self._longest = min(MAX_BACKOFF, 2 * self._longest)
        return wait


def _is_busy(response: httpx.Response) -> bool:
    return response.status_code in (429, 502, 503, 504)


def _read(response: httpx.Response, reply: type[Reply]) -> Reply:
    if response.status_code >= 400:
        raise ControllerError(f"{response.url.path}: HTTP {response.status_code}: {response.text[:500]}")
    return reply.model_validate_json(response.content)


class AsyncClient:
    """For executors: many rollouts on one event loop, at most `concurrency` requests in flight."""

    def __init__(self, concurrency: int = 64) -> None:
        limits = httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
        # Waiting for a free connection is no outage.
        timeout = httpx.Timeout(TIMEOUT, pool=None)
        self._http = httpx.AsyncClient(**_settings(), limits=limits, timeout=timeout)

    async def claim(self, where: SlotSample) -> ClaimReply:
        """What a rollout is. Raises `ControllerError`."""
        return await self._post("/v1/claim", where, ClaimReply)

    async def submit(self, rollout: SubmitRequest) -> None:
        """Hand a rollout in. Raises `ControllerError`."""
        await self._post("/v1/submit", rollout, Progress)

    async def _post(self, path: str, body: BaseModel, reply: type[Reply]) -> Reply:
        patience = _Patience(path)
        while True:
            try:
                response = await self._http.post(path, content=body.model_dump_json())
                if not _is_busy(response):
                    return _read(response, reply)
                answered = True
            except httpx.TransportError:
                answered = False
            await asyncio.sleep(patience.wait(answered))


class Client:
    """For the trainer: one request at a time."""

    def __init__(self) -> None:
        self._http = httpx.Client(**_settings(), timeout=TIMEOUT)

    def state(self) -> StateReply:
        """Where the run stands. Raises `ControllerError`."""
        return _read(self._send("GET", "/v1/state"), StateReply)

    def begin(self) -> None:
        """Training starts up; what has to be measured before it begins. Raises `ControllerError`."""
        _read(self._send("POST", "/v1/begin"), Progress)

    def redraw(self, step: int) -> RedrawReply:
        """Which slots to roll out anew, once all rollouts are judged. Raises `ControllerError`."""
        return _read(self._done("POST", f"/v1/steps/{step}/redraw"), RedrawReply)

    def advantages(self, step: int) -> AdvantagesReply:
        """A step's advantages, once all its rollouts are judged. Raises `ControllerError`."""
        return _read(self._done("GET", f"/v1/steps/{step}/advantages"), AdvantagesReply)

    def step_done(self, step: int, report: StepReport) -> None:
        """A step is taken: waits until the evolver has looked. Raises `ControllerError`."""
        self._done("POST", f"/v1/steps/{step}/done", report)

    def saved(self, step: int, checkpoint: Saved) -> None:
        """A checkpoint after `step` steps is complete. Raises `ControllerError`."""
        self._done("POST", f"/v1/steps/{step}/saved", checkpoint)

    def finish(self, policy: str) -> None:
        """The last step is taken, and the trained policy lies in a folder. Raises `ControllerError`."""
        self._done("POST", "/v1/finish", PolicyFolder(policy=policy))

    def _done(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        """Ask again while the answer is "working" (202): that is no outage, and may take long."""
        while True:
            response = self._send(method, path, body)
            if response.status_code != 202:
                _read(response, _Anything)
                return response

    def _send(self, method: str, path: str, body: BaseModel | None = None) -> httpx.Response:
        content = None if body is None else body.model_dump_json()
        patience = _Patience(path)
        while True:
            try:
                response = self._http.request(method, path, content=content)
                if not _is_busy(response):
                    return response
                answered = True
            except httpx.TransportError:
                answered = False
            time.sleep(patience.wait(answered))


class _Anything(BaseModel):
    pass
