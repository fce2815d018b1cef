"""The controller service: a run's `Session` over HTTP, described at `/docs` and `/openapi.json`.

Answers in a word: 200 here it is; 202 working on it, ask again; 401 no token; 409 the request makes no
sense now; 410 the run has ended; 503 busy between two steps, try again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError

from ..slots import ClaimError
from .session import RunEndedError, Session
from .wire import (
    AdvantagesReply,
    ClaimReply,
    PolicyFolder,
    Progress,
    RedrawReply,
    Refusal,
    Saved,
    SlotSample,
    StateReply,
    StepReport,
    SubmitRequest,
    Wire,
)

#: Seconds that a request about something slow is held before the answer is "working".
HOLD = 20.0
#: Why a request is not carried out.
NO_TOKEN = "The bearer token is missing or wrong."
SENSELESS = "It makes no sense now: another step, slot or attempt is open, or it was not claimed."
ENDED = "The run has ended, or must: what went wrong."
BUSY = "Between two steps, or about to end: ask again."
WAIT = "Not yet: ask again."
DONE = Progress(state="done")
WORKING = Progress(state="working")


Responses = dict[int | str, dict[str, Any]]  # as FastAPI wants it
Step = Annotated[int, Path(ge=0, description="Which step, from 0.")]


def _refusal(why: str) -> dict[str, Any]:
    return {"model": Refusal, "description": why}


def build_app(session: Session, token: str | None, with_probe: bool) -> FastAPI:
    """The service's app. With a `token`, every request but `/health` carries it as its bearer token."""
    slow = _Slow(session)

    async def authorised(request: Request) -> None:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token is not None and not secrets.compare_digest(given.encode(), token.encode()):
            raise HTTPException(401, "the bearer token is missing or wrong")

    def begin_now() -> None:
        slow.start("the probe before training", lambda: session.begin(with_probe))

    async def between_steps(_: Request) -> None:
        if session.must_begin(with_probe) and not slow.running:
            begin_now()
        if slow.running:
            raise HTTPException(503, f"busy with {slow.name}")

    app = FastAPI(
        title="HarnessRL controller",
        description="What each rollout of a run is, and what it is worth.",
    )
    with_token: Responses = {401: _refusal(NO_TOKEN)}
    of_step: Responses = {409: _refusal(SENSELESS), 410: _refusal(ENDED), 503: _refusal(BUSY)}
    open_step = [Depends(between_steps)]
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(authorised)], responses=with_token)
    rollouts = APIRouter(  # of these there are hundreds a second
        prefix="/v1",
        dependencies=[Depends(authorised), *open_step],
        responses=with_token | of_step,
        route_class=_QuickRoute,
    )
    may_wait: Responses = {202: {"model": Progress, "description": WAIT}, **of_step}

    @app.exception_handler(ClaimError)
    async def senseless(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(RunEndedError)
    async def ended(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 410)

    @app.get("/health")
    async def health() -> Progress:
        """Is the service up?"""
        return DONE

    @v1.get("/state")
    async def state() -> StateReply:
        """Where the run stands."""
        return session.state()

    @v1.post("/begin", responses={202: may_wait[202], 503: of_step[503]})
    async def begin(response: Response) -> Progress:
        """Training starts up, so every endpoint is there: the probe before it starts too."""
        begin_now()
        return _coded(WORKING if slow.running else DONE, response)

    @rollouts.post("/claim")
    async def claim(where: SlotSample) -> ClaimReply:
        """What one rollout is: its task and its guidance. Asked again, the same."""
        return session.claim(where)

    @rollouts.post("/submit")
    async def submit(rollout: SubmitRequest) -> Progress:
        """Hand a rollout in. Handed in again, nothing changes."""
        session.submit(rollout)
        return DONE

    @v1.post(
        "/steps/{step}/redraw",
        response_model=RedrawReply,
        responses=may_wait,
        dependencies=open_step,
    )
    async def redraw(step: Step) -> Any:
        """Which slots to roll out anew, once everything is in and judged. None: the step stands.

        Asked again before their rollouts are in, the same.
        """
        return await _held(lambda: session.redraw(step))

    @v1.get(
        "/steps/{step}/advantages",
        response_model=AdvantagesReply,
        responses=may_wait,
        dependencies=open_step,
    )
    async def advantages(step: Step) -> Any:
        """Advantages and rewards of a step, once everything is in and judged."""
        return await _held(lambda: session.advantages(step))

    @v1.post("/steps/{step}/done", responses=may_wait)
    async def step_done(step: Step, report: StepReport, response: Response) -> Progress:
        """The trainer has taken a step: evidence into memory, and the evolver looks."""
        if step > session.step:
            raise ClaimError(f"step {step} is done before step {session.step}")
        if not slow.running:
            session.check_done(step)
        job = slow.finish(f"the end of step {step}", lambda: session.finish_step(step, report))
        return _coded(await job, response)

    @v1.post("/steps/{step}/saved", responses=may_wait, dependencies=open_step)
    async def saved(step: Step, checkpoint: Saved, response: Response) -> Progress:
        """A checkpoint of the trainer's after `step` steps is complete."""
        if session.looking:
            progress = await slow.finish(f"the look before checkpoint {step}", session.wait_for_look)
            if progress is not DONE:
                return _coded(progress, response)
        session.saved(step, checkpoint)
        return DONE

    @v1.post("/finish", responses={n: may_wait[n] for n in (202, 410, 503)})
    async def finish(policy: PolicyFolder, response: Response) -> Progress:
        """The trained policy lies in a folder: it is measured, and the report written."""
        job = slow.finish("the end of the run", lambda: session.finish(policy, with_probe))
        return _coded(await job, response)

    app.include_router(v1)
    app.include_router(rollouts)
    return app


class _QuickRoute(APIRoute):
    """A route of one model in and one out, with less work than on FastAPI's own way: one validation, by
    pydantic from the bytes, and no search for what each dependency needs.

    It is declared and described like any other. Its dependencies take the request and give nothing.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        assert self.body_field is not None
        model: Any = self.body_field.field_info.annotation
        needed: list[Any] = [one.dependency for one in self.dependencies]

        async def answer(request: Request) -> Response:
            for need in needed:
                await need(request)
            try:
                asked = model.model_validate_json(await request.body())
            except ValidationError as error:
                found = error.errors(include_url=False, include_input=False)
                told = [one | {"loc": ("body", *one["loc"])} for one in found]
                raise RequestValidationError(told) from None
            reply: Wire = await self.endpoint(asked)
            return Response(reply.model_dump_json(), media_type="application/json")

        return answer


class _Slow:
    """The one slow thing that happens at a time (a step's end, a probe), on a thread of its own.

    What goes wrong in one ends the run: nothing can be trained without it.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.name = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Is it at work?"""
        return self._task is not None and not self._task.done()

    def start(self, name: str, job: Callable[[], None]) -> asyncio.Task[None]:
        """Start a thing; asked for again, it is the one that runs, or ran."""
        if self.running and self.name != name:
            raise HTTPException(503, f"busy with {self.name}")
        if self._task is None or self.name != name:
            self.name = name
            self._task = asyncio.create_task(asyncio.to_thread(self._guarded, job))
        return self._task

    async def finish(self, name: str, job: Callable[[], None]) -> Progress:
        """Start it and wait for a while. Raises `RunEndedError`."""
        task = self.start(name, job)
        await asyncio.wait([task], timeout=HOLD)
        if not task.done():
            return WORKING
        if self.session.stopping:
            raise HTTPException(503, "the controller is about to end")
        self.session.alive()
        return DONE

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            if self.session.stopping:  # so was the frozen policy's server: that is no fault of the run
                return
            self.session.ended = f"{self.name}: {type(error).__name__}: {error}"
            self.session.say(f"the run ends: {self.session.ended}")


async def _held(ask: Callable[[], Wire | None]) -> Wire | JSONResponse:
    """Ask until there is an answer, or for so long that the answer is "working"."""
    until = asyncio.get_running_loop().time() + HOLD
    while (found := ask()) is None:
        if asyncio.get_running_loop().time() > until:
            return JSONResponse(WORKING.model_dump(), 202)
        await asyncio.sleep(0.02)
    return found


def _coded(progress: Progress, response: Response) -> Progress:
    response.status_code = 202 if progress.state == "working" else 200
    return progress
