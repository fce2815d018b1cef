"""`harnessrl harness ...`: look at a run's harness, change it, take it elsewhere."""

from __future__ import annotations

import getpass
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...specs.printable import one_line
from .shared import BAD_INPUT, RunArg, check_run, fail, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ...memory.records import AnyRecord, Decision
    from ...specs.faults import Fault
    from ...specs.harness import HarnessState
    from ...specs.schema import RunSpec
    from ...specs.updates import Update
    from ..data.load import Tasks
    from ..requests import HarnessRequest

app = typer.Typer(no_args_is_help=True, help="Look at a run's harness, change it, take it elsewhere.")

VersionOption = Annotated[int | None, typer.Option(help="A harness version; default: the newest.", min=0)]
AuthorOption = Annotated[str | None, typer.Option(help="Who asks; default: your user name.")]
WaitOption = Annotated[
    float, typer.Option(help="Seconds to wait for the run's answer; 0: do not wait.", min=0.0)
]


@app.command()
def show(
    run: RunArg,
    task: Annotated[str | None, typer.Option(help="Everything about this task.")] = None,
    version: VersionOption = None,
) -> None:
    """What the harness is: its changes at a glance, or all that holds for one task.

    \b
    Examples:
      harnessrl harness show runs/quickstart
      harnessrl harness show runs/quickstart --task blue-sky --version 3
    """
    from ..harnessview import overview, task_lines

    spec, tasks, _, versions = _read(run)
    state = _version(versions, version)
    floor = spec.interfaces.p.paused_weight
    if task is not None and task not in tasks.train:
        from ...specs.errors import did_you_mean

        fail(f"no training task {task}{did_you_mean(task, tasks.train)}", BAD_INPUT)
    for line in overview(state, floor) if task is None else task_lines(state, task, floor):
        say(line)


@app.command()
def diff(
    run: RunArg,
    a: Annotated[int, typer.Argument(metavar="A", help="A version.")],
    b: Annotated[int, typer.Argument(metavar="B", help="Another one.")],
) -> None:
    """What version B has otherwise than version A.

    Example: harnessrl harness diff runs/quickstart 0 7
    """
    from ..harnessview import diff_lines

    versions = _read(run)[3]
    for line in diff_lines(_version(versions, a), _version(versions, b)):
        say(line)


@app.command()
def log(run: RunArg) -> None:
    """Every version: since when, by whom, and what changed.

    Example: harnessrl harness log runs/quickstart
    """
    from ...memory.records import Accepted, Decision, Refused
    from ...specs.updates import describe

    records = _read(run)[2]
    asked = {record.id: record for record in records if isinstance(record, Decision) and record.request}
    for record in records:
        if isinstance(record, Accepted):
            say(f"version {record.harness_version}, from step {record.step + 2} on, by {record.author}")
            if record.rolled_back_to is not None:
                say(f"  back to version {record.rolled_back_to}")
            for update in record.updates:
                say(f"  {describe(update)}: {update.rationale}")
            for decision in (asked[i] for i in record.decision_ids if i in asked):
                _say_tasks(decision)
        if isinstance(record, Refused):
            say(f"refused, {record.author}: {record.reason}")
        if isinstance(record, Decision) and record.request and not record.accepted:
            say(f"rejected, {record.author}: {describe(record.update)}: {record.reason}")
            _say_tasks(record)


@app.command("apply")
def apply_update(
    run: RunArg,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An update (YAML).")],
    force: Annotated[bool, typer.Option("--force", help="Do not let the critic measure it.")] = False,
    author: AuthorOption = None,
    wait: WaitOption = 0.0,
) -> None:
    """Ask a run for one change of its harness. It is measured, and takes effect at a step boundary.

    A change of g or c is measured on fresh rollouts of every task it names, 16 tasks at most: the mean
    gain has to hold, and no task may pay for another. A change of p is measured on recorded rollouts.

    \b
    The file:
      update:
        op: add
        task_ids: [blue-sky]
        rationale: Answers leave the scattering out.
        criterion:
          text: The answer names scattering.
          points: 2
          check: {kind: mentions, terms: [scatter]}
    Example: harnessrl harness apply runs/quickstart update.yaml
    """
    from ...agents.scoring.plugins import fault
    from ...specs.loader import SpecError, load_update, places
    from ...specs.rules import forbidden, unmeasurable
    from ...specs.updates import describe, resolve, unknown_names
    from ..requests import UpdateRequest, new_id

    spec, tasks, records, versions = _read(run)
    _refuse_finished(run, records)
    try:
        update = load_update(file, fault)
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    unknown = list(unknown_names(update, tasks.train))
    update = update if unknown else resolve(update, tasks.train)
    unfit = [*unknown, *_misfits(update, versions[-1], spec)]
    if not unfit:  # it can be applied
        unfit += forbidden(update, tasks.train, spec.interfaces)
        unfit += [] if force else unmeasurable(update, versions[-1])
    if found := [*unfit, *([] if force else _too_many(update))]:
        fail("\n".join(map(str, places(file, found, ("update",)))), BAD_INPUT)
    say(describe(update))
    if not force and update.interface != "p":
        say(_cost(update, spec))
    request = UpdateRequest(
        id=new_id(),
        author=_author(author),
        after_step=_last_step(records),
        update=update,
        force=force,
    )
    _hand_in(run, request, wait)


@app.command()
def rollback(
    run: RunArg,
    version: Annotated[int, typer.Argument(metavar="N", help="The version to go back to.")],
    author: AuthorOption = None,
    wait: WaitOption = 0.0,
) -> None:
    """Ask a run for a new version with the content of version N.

    Example: harnessrl harness rollback runs/quickstart 3
    """
    from ..requests import RollbackRequest, new_id

    _, _, records, versions = _read(run)
    _refuse_finished(run, records)
    _version(versions, version)
    request = RollbackRequest(
        id=new_id(), author=_author(author), after_step=_last_step(records), version=version
    )
    _hand_in(run, request, wait)


@app.command()
def export(
    run: RunArg,
    to: Annotated[Path, typer.Option(help="Folder to make.")],
    version: VersionOption = None,
    include_unlicensed: Annotated[
        bool,
        typer.Option("--include-unlicensed", help="Write tasks of data sets that state no licence too."),
    ] = False,
) -> None:
    """Write a spec that starts a new run from this harness: spec.yaml, tasks.yaml, harness.yaml, and
    prompts/ with templates of your own.

    The folder needs nothing of the run, and can be moved. Weights that lie in a folder are not in it.
    Tasks of data sets that state no licence are left out: what is taken elsewhere is passed on.

    Example: harnessrl harness export runs/quickstart --to evolved
    """
    from ...memory.files import write_atomic
    from ..export import exported

    spec, tasks, _, versions = _read(run)
    state = _version(versions, version)
    try:
        taken = any(to.iterdir()) if to.is_dir() else to.exists()
    except OSError as error:
        fail(f"{to}: cannot be looked into ({error.strerror})", BAD_INPUT)
    if taken:
        fail(f"{to} exists already; nothing was written", BAD_INPUT)
    new = exported(spec, tasks, state, include_unlicensed)
    without = ", ".join(f"{n:,} of {source}" for source, n in sorted(new.unlicensed.items()))
    if not new.tasks.train:
        told = f"every training task is of a data set that states no licence ({without})"
        fail(f"{told}; nothing was written; --include-unlicensed writes them", BAD_INPUT)
    try:
        files = new.files()
    except OSError as error:
        fail(f"{error.filename}: cannot be read ({error.strerror}); nothing was written", BAD_INPUT)
    try:
        for name, text in files.items():
            write_atomic(to / name, text)
    except OSError as error:
        fail(f"{to}: cannot be written ({error.strerror})", BAD_INPUT)
    if without and include_unlicensed:
        say(f"{to} holds tasks that state no licence: {without}: do not pass them on", err=True)
    elif without:
        told = f"left out, since their sources state no licence: tasks: {without} (--include-unlicensed)"
        say(told, err=True)
    for key, folder in new.weights.items():
        told = f"not in {to}: {key}, {folder}; elsewhere, take that folder along and name it in spec.yaml"
        say(told, err=True)
    if new.spec.logging.evaluate_every != spec.logging.evaluate_every:
        say(
            "logging.evaluate_every is 0 there: no validation task is left, or can be set apart", err=True
        )
    say(f"wrote version {state.version} to {to}")
    say(f"next: harnessrl train {to / 'spec.yaml'}")


# --- what the commands share ------------------------------------------------------------------------


def _read(run: Path) -> tuple[RunSpec, Tasks, Sequence[AnyRecord], list[HarnessState]]:
    """The run's spec, tasks, records and every harness version; exits with 2 if they cannot be read."""
    check_run(run)
    from ...memory.events import LogError, fold_versions, read_log
    from ...specs.harness import UpdateError
    from ...specs.loader import SpecError
    from .. import stored
    from ..runfolder import RunFolder

    try:
        start = stored.read_stored(RunFolder(run))
        records = read_log(run / "events.jsonl")
        return start.spec, start.tasks, records, fold_versions(start.tasks.train, records)
    except (SpecError, LogError, UpdateError, stored.StoredError) as error:
        fail(str(error), BAD_INPUT)


def _say_tasks(decision: Decision) -> None:
    """What was measured on each of several tasks."""
    for task_id, found in decision.measured.tasks.items() if decision.measured else ():
        low, high = found.interval
        say(f"    on {task_id}: gain {found.gain:+.2f} ({low:+.2f} to {high:+.2f})")


def _misfits(update: Update, state: HarnessState, spec: RunSpec) -> Iterator[Fault]:
    """Everything for which an update does not fit the newest version of a run's harness, or the run."""
    from ...specs.faults import fault
    from ...specs.harness import misfits
    from ...specs.updates import brought_in
    from ..data.load import unscorable

    yield from misfits(state, update)
    for n, criterion in enumerate(brought_in(update)):
        if reason := unscorable([criterion], spec.roles.judge is not None):
            yield fault(reason, ("criterion",), ("criteria", n))


def _too_many(update: Update) -> Iterator[Fault]:
    from ...specs.faults import fault
    from ...specs.updates import MOST_MEASURED

    if update.interface != "p" and (n := len(update.task_ids)) > MOST_MEASURED:
        told = (
            f"{n:,} tasks, and a change of g or c is measured on {MOST_MEASURED} at most: name fewer of "
            "them, or apply it unmeasured with --force"
        )
        yield fault(told, ("task_ids",))


def _cost(update: Update, spec: RunSpec) -> str:
    """What measuring a change of g or c will take. The kinds of rollouts on a task are known to the run
    alone, since guidance fades; a change of g involves two at least."""
    n, critic = len(update.task_ids), spec.evolver.critic
    each = n * (1 if update.interface == "c" else 2)
    least, most = each * critic.rollouts, each * critic.extended_rollouts
    more = f", or {most:,} if that leaves it open" if most > least else ""
    at_least = "at least " if update.interface == "g" else ""
    return f"measuring on {n} task{'s' * (n > 1)}: {at_least}{least:,} rollouts{more}"


def _version(versions: Sequence[HarnessState], number: int | None) -> HarnessState:
    if number is None:
        return versions[-1]
    if not 0 <= number < len(versions):
        fail(f"there is no version {number}; allowed: 0 to {len(versions) - 1}", BAD_INPUT)
    return versions[number]


def _author(name: str | None) -> str:
    try:
        # An argument that is not UTF-8 could not be written down.
        return one_line(name or getpass.getuser())
    except (OSError, KeyError):  # a user id without a name
        return "somebody"


def _last_step(records: Sequence[AnyRecord]) -> int:
    from ...memory.records import StepSummary

    return max((r.step for r in records if isinstance(r, StepSummary)), default=-1)


def _refuse_finished(run: Path, records: Sequence[AnyRecord]) -> None:
    from ...memory.records import RunFinished

    if any(isinstance(record, RunFinished) for record in records):
        fail(
            f"{run} is finished, so nothing can act on it any more; "
            f"`harnessrl harness export {run} --to FOLDER` starts a new run from its harness",
            BAD_INPUT,
        )


def _hand_in(run: Path, request: HarnessRequest, wait: float) -> None:
    """Leave the request in the run folder, and say what becomes of it."""
    from ...memory.events import read_log
    from ...memory.records import Accepted, Decision, Refused
    from ..requests import hand_in
    from ..runfolder import RunFolder

    try:
        hand_in(RunFolder(run).requests, request)
    except OSError as error:
        fail(f"{run}: cannot be written ({error.strerror})")
    say(f"handed in as {request.id}; the run answers after the step it is at (or when it is resumed)")
    until = time.monotonic() + wait
    while time.monotonic() < until:
        for record in read_log(run / "events.jsonl"):
            if isinstance(record, Decision | Refused) and record.request == request.id:
                accepted = isinstance(record, Decision) and record.accepted
                say(f"{'accepted' if accepted else 'rejected'}: {record.reason}")
                raise typer.Exit(0 if accepted else 1)
            if isinstance(record, Accepted) and record.request == request.id and not record.updates:
                say(f"done: version {record.harness_version}")
                return
        time.sleep(0.2)
    if wait:
        fail(f"no answer in {wait:g} s; `harnessrl harness log {run}` will tell")
