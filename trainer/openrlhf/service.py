"""The controller service: a run's `Session` over HTTP, described at `/docs` and `/openapi.json`.

Answers in a word: 200 here it is; 202 working on it, ask again; 401 no token; 409 the request makes no
sense now; 410 the run has ended; 503 busy between two steps, try again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from ..controller import ClaimError
from .session import RunEndedError, Session
from .wire import (
    AdvantagesReply,
    ClaimReply,
    PolicyFolder,
    Progress,
    Saved,
    SlotSample,
    StateReply,
    StepReport,
    SubmitRequest,
)

#: Seconds that a request about something slow is held before the answer is "working".
HOLD = 20.0
DONE = Progress(state="done")
WORKING = Progress(state="working")


class _Slow:
    """The one slow thing that runs at a time (a step's end, the run's end), on a thread of its own."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.name = ""

    @property
    def running(self) -> bool:
        return self.task is not None and not self.task.done()

    async def run(self, name: str, job: Callable[[], None]) -> Progress:
        """Start it, unless it runs or ran already, and wait a while for it."""
        if self.running and self.name != name:
            raise HTTPException(503, f"busy with {self.name}")
        if self.task is None or self.name != name:
            self.name = name
            self.task = asyncio.create_task(asyncio.to_thread(job))
        await asyncio.wait([self.task], timeout=HOLD)
        if not self.task.done():
            return WORKING
        self.task.result()  # raises what the job raised
        return DONE


def build_app(session: Session, token: str | None, with_probe: bool) -> FastAPI:
    """The service's app. With a `token`, every request has to carry it as its bearer token."""

    async def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token is not None and not secrets.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "the bearer token is missing or wrong")

    app = FastAPI(
        title="HarnessRL controller",
        description="What each rollout of a run is, and what it is worth.",
        dependencies=[Depends(authorised)],
    )
    slow = _Slow()

    async def between_steps() -> None:
        if slow.running:
            raise HTTPException(503, f"busy with {slow.name}")

    open_step = Depends(between_steps)

    @app.exception_handler(ClaimError)
    async def senseless(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(RunEndedError)
    async def ended(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 410)

    def finishing(job: Callable[[], None]) -> Callable[[], None]:
        """What goes wrong at a step's end ends the run: nothing can be trained without it."""

        def guarded() -> None:
            try:
                job()
            except Exception as error:
                session.ended = f"{type(error).__name__}: {error}"
                raise RunEndedError(session.ended) from error

        return guarded

    @app.get("/health")
    async def health() -> Progress:
        """Is the service up?"""
        return DONE

    @app.get("/v1/state")
    async def state() -> StateReply:
        """Where the run stands."""
        return session.state()

    @app.post("/v1/claim", dependencies=[open_step])
    async def claim(where: SlotSample) -> ClaimReply:
        """What one rollout is: its task and its guidance. Asked again, the same."""
        size = session.spec.engine.group_size
        if where.step != session.step or where.sample >= size:
            raise ClaimError(
                f"step {where.step}, sample {where.sample}: the open step is {session.step}, "
                f"with samples 0 to {size - 1}"
            )
        return session.claim(where)

    @app.post("/v1/submit", dependencies=[open_step])
    async def submit(rollout: SubmitRequest) -> Progress:
        """Hand a rollout in. Handed in again, nothing changes."""
        session.submit(rollout)
        return DONE

    @app.get(
        "/v1/steps/{step}/advantages",
        response_model=AdvantagesReply,
        responses={202: {"model": Progress}},
        dependencies=[open_step],
    )
    async def advantages(step: int) -> Any:
        """Advantages and rewards of a step, once everything is in and judged."""
        until = asyncio.get_running_loop().time() + HOLD
        while (found := session.advantages(step)) is None:
            if asyncio.get_running_loop().time() > until:
                return JSONResponse(WORKING.model_dump(), 202)
            await asyncio.sleep(0.02)
        return found

    @app.post("/v1/steps/{step}/done")
    async def step_done(step: int, report: StepReport, response: Response) -> Progress:
        """The trainer has taken a step: evidence into memory, and the evolver looks."""
        if step > session.step:
            raise ClaimError(f"step {step} is done before step {session.step}")
        job = finishing(lambda: session.finish_step(step, report))
        return _coded(await slow.run(f"the end of step {step}", job), response)

    @app.post("/v1/steps/{step}/saved")
    async def saved(step: int, checkpoint: Saved) -> Progress:
        """A checkpoint of the trainer's after `step` steps is complete."""
        if step != session.step:
            raise ClaimError(f"a checkpoint after {step} steps, and {session.step} are done")
        session.saved(step, checkpoint)
        return DONE

    @app.post("/v1/finish")
    async def finish(policy: PolicyFolder, response: Response) -> Progress:
        """The trained policy lies in a folder: it is measured, and the report written."""
        job = finishing(lambda: session.finish(policy, with_probe))
        return _coded(await slow.run("the end of the run", job), response)

    return app


def _coded(progress: Progress, response: Response) -> Progress:
    response.status_code = 202 if progress.state == "working" else 200
    return progress
