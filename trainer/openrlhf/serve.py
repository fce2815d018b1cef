"""`python -m harnessrl.trainer.openrlhf.serve RUN`: the controller of a run on OpenRLHF.

It listens on loopback; anywhere else it needs a token. Started again while the trainer lives, it goes on
after the last step on record (the trainer waits for it); `--resume` goes back to the newest checkpoint,
as the trainer does when it is started again.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import ipaddress
import os
import shutil
import signal
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path

import uvicorn

from ...agents.policy import PromptError
from ...agents.roles.client import KeyMissingError
from ...memory.events import LogError
from ...memory.files import write_atomic
from ...specs.errors import SpecError
from ...specs.openrlhf import OpenrlhfEngine
from ...specs.printable import one_line
from ...specs.schema import PolicyRole
from ..chat import Chat
from ..local.model import PolicyNotFoundError, resolve
from ..runfolder import RunBusyError, RunFolder, locked
from ..start import assemble, begin_or_resume
from ..stored import StoredError, read_stored
from .frozen import FrozenPolicy
from .service import build_app
from .session import Session
from .wire import TOKEN_ENV, Saved


class ExposedError(Exception):
    """The service would be open to other machines without a token."""


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


def serve(root: Path, host: str, port: int, resume: bool, say: Callable[[str], None]) -> None:
    """Serve a run until it is ended. Raises `ExposedError`, and what `assemble` raises."""
    token = os.environ.get(TOKEN_ENV, "").strip() or None  # an empty one would be everybody's
    if token is None and not _is_loopback(host):
        raise ExposedError(f"{host} can be reached from other machines: set {TOKEN_ENV}")
    run = RunFolder(root)
    stored = read_stored(run)
    spec, tasks, engine = stored.spec, stored.tasks, stored.spec.engine
    if not isinstance(engine, OpenrlhfEngine):
        raise StoredError(f"{root}: engine.kind is {engine.kind}; this serves runs on openrlhf")
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(run))
        begun = run.events.exists()
        past = begin_or_resume(
            spec, stored.recipe, tasks, run, "no" if not begun else "checkpoint" if resume else "log"
        )
        if resume:
            set_back(run, past.checkpoint)
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
        done = session.step
        if done and session.validation.is_due(done) and done not in session.validation.done:
            say(f"the evaluation after step {done} was cut short; it is left out")
        app = build_app(session, token, stored.with_probe)
        # What is there by now stays; looking through it for garbage would hold requests up.
        gc.collect()
        gc.freeze()
        say(f"the controller of {root} listens on http://{host}:{port}; {session.step} steps are done")
        uvicorn.run(app, host=host, port=port, log_level="warning")


def set_back(run: RunFolder, checkpoint: Path | None) -> None:
    """Let OpenRLHF go on from the controller's checkpoint: it may have one that the controller missed.

    What it handed in for the step after that it will roll out again.
    Raises `StoredError` if that is gone.
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


def _chat(model: Path, policy: PolicyRole, engine: OpenrlhfEngine) -> Chat:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    return Chat(tokenizer, engine.max_prompt_tokens, policy.chat_template_kwargs)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {one_line(text)}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m harnessrl.trainer.openrlhf.serve")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("--resume", action="store_true", help="go back to the newest checkpoint")
    given = parser.parse_args()
    # The server of the frozen policy is ended on the way out.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        serve(given.run, given.host, given.port, given.resume, _say)
    except BAD_INPUT as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
