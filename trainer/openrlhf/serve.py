"""`python -m harnessrl.trainer.openrlhf.serve RUN`: the controller of a run on OpenRLHF.

It listens on loopback; anywhere else it needs a token. Started again while the trainer lives, it goes on
after the last step on record (the trainer waits for it); `--resume` goes back to the newest checkpoint,
as the trainer does when it is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import re
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI

from ...agents.policy import PromptError
from ...agents.roles.address import is_loopback
from ...agents.roles.client import KeyMissingError
from ...memory.events import LogError
from ...memory.files import write_atomic
from ...specs.errors import SpecError
from ...specs.openrlhf import OpenrlhfEngine
from ...specs.printable import one_line
from ...specs.schema import PolicyRole
from ..chat import Chat
from ..local.model import PolicyNotFoundError, resolve
from ..report.build import build_report
from ..runfolder import RunBusyError, RunFolder, locked
from ..start import assemble, begin_or_resume
from ..stored import Stored, StoredError, read_stored
from .frozen import FrozenPolicy
from .service import build_app
from .session import Session
from .wire import FINISHED, TOKEN_ENV, Saved


class ExposedError(Exception):
    """The service would be open to other machines without a token."""


class FinishedError(Exception):
    """The run is finished already: it is not touched."""


#: What is wrong with what was asked, rather than with the run.
BAD_INPUT = (
    ExposedError,
    KeyMissingError,
    LogError,
    PolicyNotFoundError,
    PromptError,
    RunBusyError,
    SpecError,
    StoredError,
)
#: Groups judged at once. Each asks for all its verdicts together; a judge's own limits hold for them all.
JUDGING_THREADS = 8
#: Seconds that requests which are being answered get when the service ends.
LEAVE = 5


def serve(root: Path, host: str, port: int, resume: bool, say: Callable[[str], None]) -> None:
    """Serve a run until it is ended. Raises `ExposedError`, and what `check` and `assemble` raise."""
    token = os.environ.get(TOKEN_ENV, "").strip() or None  # an empty one would be everybody's
    if token is None and not is_loopback(host):
        raise ExposedError(f"{host} can be reached from other machines: set {TOKEN_ENV}")
    run = RunFolder(root)
    stored = check(run)
    spec, tasks, engine = stored.spec, stored.tasks, stored.spec.engine
    assert isinstance(engine, OpenrlhfEngine)
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(run))
        begun = run.events.exists()
        past = begin_or_resume(
            spec, stored.recipe, tasks, run, "no" if not begun else "checkpoint" if resume else "log"
        )
        if resume:
            set_back(run, past.checkpoint, past.steps_done)
        elif begun:
            for step in range(max(0, past.steps_done - spec.evolver.lag), past.steps_done):
                if spec.looks_after(step) and step != past.look:
                    say(f"the evolver's look after step {step} was cut short; it is left out")
        model = resolve(spec.roles.policy.model)
        frozen = FrozenPolicy(
            engine,
            model,
            _chat(model, spec.roles.policy, engine),
            root / "policy-server.log",
            0 if not past.steps_done else -1,
        )
        stack.callback(frozen.close)
        judges = stack.enter_context(ThreadPoolExecutor(JUDGING_THREADS, "judging"))
        runner: Callable[[Callable[[], None]], Future[None]] = partial(judges.submit)
        parts = stack.enter_context(assemble(spec, tasks, run, past, frozen, runner))
        session = Session(spec, tasks, run, parts, frozen, say, past.records)
        stack.callback(session.close)
        app = build_app(session, token, stored.with_probe)
        # What is there by now stays; looking through it for garbage would hold requests up.
        gc.collect()
        gc.freeze()
        say(f"the controller of {root} listens on http://{host}:{port}; {session.step} steps are done")
        _Server(app, host, port, session, frozen).run()


class _Server(uvicorn.Server):
    """Ends in bounded time, however busy it is, and the frozen policy's server with it."""

    def __init__(
        self, app: FastAPI, host: str, port: int, session: Session, frozen: FrozenPolicy
    ) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host,
                port,
                log_level="warning",
                access_log=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LEAVE,
            )
        )
        self.session = session
        self.frozen = frozen

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM, or Ctrl-C."""
        if not self.session.stopping:
            self.session.stopping = True
            threading.Thread(target=self._end, daemon=True).start()
        super().handle_exit(sig, frame)

    def _end(self) -> None:
        """GPUs are let go of first; whatever waits for the frozen policy waits no longer then."""
        self.frozen.close()
        time.sleep(2 * LEAVE)
        # A thread still waits for something, a judge for one. All that was acknowledged is on disk.
        os._exit(0)


def check(run: RunFolder) -> Stored:
    """A run that can be served. Raises `FinishedError`, `StoredError`, `SpecError` or `LogError`.

    A finished run gets its report where it has none: its controller was ended before it could write one.
    """
    stored = read_stored(run)
    kind = stored.spec.engine.kind
    if kind != "openrlhf":
        raise StoredError(f"{run.root}: engine.kind is {kind}; this serves runs on openrlhf")
    if stored.finished:
        if not run.report.is_file():
            build_report(run.root)
        raise FinishedError(f"{run.root} is finished already; its report: {run.report}")
    return stored


def set_back(run: RunFolder, checkpoint: Path | None, steps_done: int) -> None:
    """Let OpenRLHF go on from the controller's checkpoint: it may have one that the controller missed.

    What it handed in for the step after that it will roll out again. States and models of later steps are
    removed: beside them the one that is gone back to would be the oldest, which OpenRLHF deletes first.
    Raises `StoredError` if it is gone.
    """
    run.submitted.unlink(missing_ok=True)
    if checkpoint is None:
        shutil.rmtree(run.openrlhf / "checkpoints", ignore_errors=True)
        return
    saved = Saved.model_validate_json((checkpoint / "openrlhf.json").read_bytes())
    states = Path(saved.path) / "_actor"
    if not (states / saved.tag).is_dir():
        raise StoredError(f"{states / saved.tag}: gone, and the run's newest checkpoint counts on it")
    write_atomic(states / "latest", saved.tag)  # DeepSpeed reads there what to load
    for later in (*states.iterdir(), *Path(saved.path).iterdir()):
        number = re.fullmatch(r"global_step(\d+)(_hf)?", later.name)
        if number and int(number[1]) > steps_done:
            if later.is_dir() and not later.is_symlink():
                shutil.rmtree(later)
            else:
                later.unlink()


def _chat(model: Path, policy: PolicyRole, engine: OpenrlhfEngine) -> Chat:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return Chat(tokenizer, engine.max_prompt_tokens, policy.chat_template_kwargs)


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {one_line(text)}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m harnessrl.trainer.openrlhf.serve")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--resume", action="store_true", help="go back to the newest checkpoint")
    parser.add_argument(
        "--check",
        action="store_true",
        help=f"only say whether there is something to serve: exit status 0, {FINISHED} if the run is "
        "finished already, 2 if it cannot be served",
    )
    given = parser.parse_args()
    # The server of the frozen policy is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        if given.check:
            check(RunFolder(given.run))
        else:
            serve(given.run, given.host, given.port, given.resume, _say)
    except FinishedError as error:
        print(error, file=sys.stderr)
        sys.exit(FINISHED)
    except BAD_INPUT as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        sys.exit(2)  # not Python's own 1, which says that there is no harnessrl to run


if __name__ == "__main__":
    main()
