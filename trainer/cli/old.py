"""The `harnessrl` command. Heavy imports happen inside the commands: `--help` answers at once."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from .. import __version__

if TYPE_CHECKING:
    from ..specs.loader import LoadedSpec
    from .data.load import Tasks
    from .runfolder import RunFolder
    from .train import Result

BAD_INPUT = 2  # exit codes: 0 done, 1 failed, 2 bad input

app = typer.Typer(
    name="harnessrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="GRPO on rubric rewards under a training-time harness that co-evolves with the policy.",
)
memory_app = typer.Typer(no_args_is_help=True, help="Look into a run's memory.")
app.add_typer(memory_app, name="memory")

SpecArg = Annotated[
    Path | None, typer.Argument(metavar="[SPEC]", help="Run spec (YAML).", show_default=False)
]
RunArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]


def main() -> None:
    """Entry point of the console script."""
    # Torch's threads spin while they wait, which beside any other busy process makes a run tens of
    # times slower. OpenMP reads this when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"harnessrl {__version__}")
        raise typer.Exit()


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")] = Path("my-run"),
) -> None:
    """Copy the quickstart spec and its tasks into FOLDER, to edit.

    Example: harnessrl init my-run && harnessrl train my-run/quickstart.yaml --steps 2
    """
    source = Path(__file__).parent.parent / "specs"
    targets = {
        source / "quickstart.yaml": folder / "quickstart.yaml",
        source / "tasks" / "starter.yaml": folder / "tasks" / "starter.yaml",
    }
    for target in targets.values():
        if target.exists():
            _fail(f"{target} exists already; nothing was written", BAD_INPUT)
    try:
        for original, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, target)
    except OSError as error:
        _fail(f"{folder}: cannot be written ({error.strerror})", BAD_INPUT)
    typer.echo(f"wrote {', '.join(str(t) for t in targets.values())}")
    typer.echo(f"next: harnessrl train {folder / 'quickstart.yaml'} --steps 2")


@app.command()
def validate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Run spec (YAML).")],
    recipe: Annotated[str | None, typer.Option(help="Merge this recipe over the spec.")] = None,
) -> None:
    """Check a spec and its task files without loading a model.

    Example: harnessrl validate specs/quickstart.yaml
    """
    loaded, tasks = _load(spec, recipe, {})
    typer.echo(f"{spec}: {len(tasks.train)} training tasks, {len(tasks.held_out)} held out")
    _tell_refusals(tasks)
    _tell_thin_evidence(loaded, tasks)
    if loaded.spec.oracle.kind == "none":
        typer.echo("no oracle: collapse will be visible, spurious reward will not")
    blind = [task.id for task in tasks.train.values() if task.quality is None]
    if blind and loaded.spec.oracle.kind == "embedded":
        typer.echo(f"no `quality`, so never diagnosed: {', '.join(blind)}")


@app.command()
def train(
    spec: SpecArg = None,
    recipe: Annotated[
        str | None, typer.Option(help="Merge specs/recipes/NAME.yaml over the spec, e.g. grpo.")
    ] = None,
    tasks: Annotated[
        list[Path] | None, typer.Option(help="Task files instead of the spec's (YAML or JSONL).")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Training steps; a trial run: skips the probes.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run folder is made; default: the spec's.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with this run folder.")
    ] = None,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume although the given SPEC differs.")
    ] = False,
    probe: Annotated[
        bool | None,
        typer.Option("--probe/--no-probe", help="Measure before and after training."),
    ] = None,
) -> None:
    """Train a policy under a living harness.

    \b
    Examples:
      harnessrl train specs/quickstart.yaml
      harnessrl train specs/quickstart.yaml --recipe grpo --seed 1
      harnessrl train specs/quickstart.yaml --tasks rows.jsonl --steps 2
      harnessrl train --resume runs/quickstart
      harnessrl train longer.yaml --resume runs/quickstart --accept-changes
    """
    options: dict[str, Any] = {}
    if steps is not None:
        options["engine"] = {"steps": steps}
    if seed is not None:
        options["seed"] = seed
    if name is not None:
        options["name"] = name
    if folder is not None:
        options["logging"] = {"folder": str(folder)}
    if tasks:
        options["tasks"] = {"files": [str(path) for path in tasks]}
    if resume is not None:
        _resume(resume, spec, recipe, options, probe, accept_changes)
        return
    if spec is None:
        _fail("give a spec, e.g. `harnessrl train specs/quickstart.yaml`, or --resume RUN", 2)
    loaded, read = _load(spec, recipe, options)
    _check_policy(loaded)
    _tell_refusals(read)
    _tell_thin_evidence(loaded, read)

    from .provenance import provenance
    from .runfolder import RunFolder, new_run_folder
    from .stored import write_start

    try:
        root = new_run_folder(Path(loaded.spec.logging.folder), loaded.spec.name)
    except OSError as error:
        _fail(f"{loaded.spec.logging.folder}: no run folder can be made ({error.strerror})", 2)
    run = RunFolder(root)
    with_probe = probe if probe is not None else steps is None
    write_start(run, loaded.spec, read, provenance(loaded.spec.seed, loaded.recipe, with_probe))
    _run(loaded.spec, loaded.recipe, read, run, resume=False, with_probe=with_probe)


@app.command()
def report(run: RunArg) -> None:
    """Write RUN/report.html again from the run folder.

    Example: harnessrl report runs/quickstart
    """
    _check_run(run)
    from ..memory.events import LogError
    from .report.build import build_report

    try:
        typer.echo(f"wrote {build_report(run)}")
    except LogError as error:
        _fail(str(error), BAD_INPUT)


@memory_app.command("rebuild")
def memory_rebuild(run: RunArg) -> None:
    """Make the Chroma index anew from the event log.

    Example: harnessrl memory rebuild runs/quickstart
    """
    _check_run(run)
    from ..memory.events import LogError, read_log
    from ..memory.index import MemoryIndex
    from .runfolder import RunBusyError, RunFolder, locked

    folder = RunFolder(run)
    try:
        records = read_log(folder.events)
        with locked(folder):
            index = MemoryIndex(folder.chroma)
            n = index.rebuild(records)
            index.close()
    except (LogError, RunBusyError) as error:
        _fail(str(error), BAD_INPUT)
    typer.echo(f"indexed {n} diagnoses and decisions")


@memory_app.command("search")
def memory_search(
    run: RunArg,
    text: Annotated[str, typer.Argument(help="What to look for, in plain words.")],
    limit: Annotated[int, typer.Option(help="Number of hits.", min=1)] = 5,
) -> None:
    """Find diagnoses and decisions that resemble TEXT.

    Example: harnessrl memory search runs/quickstart "short answers score higher"
    """
    _check_run(run)
    from ..memory.index import MemoryIndex
    from .runfolder import RunBusyError, RunFolder, locked

    folder = RunFolder(run)
    try:
        with locked(folder):
            index = MemoryIndex(folder.chroma)
            hits = index.search(text, limit)
            index.close()
    except RunBusyError as error:
        _fail(str(error), BAD_INPUT)
    if not hits:
        typer.echo(f"nothing found; `harnessrl memory rebuild {run}` makes the index from the log")
    for hit in hits:
        typer.echo(f"{hit.similarity:.2f}  {hit.record_id}  {hit.signature}")


# --- what the commands share ----------------------------------------------------------------------


def _load(spec: Path, recipe: str | None, options: dict[str, Any]) -> tuple[LoadedSpec, Tasks]:
    """The spec and its tasks; every problem is printed as file:line:col and exits with 2."""
    from ..specs.loader import SpecError, load_run_spec
    from .data.load import load_tasks

    try:
        loaded = load_run_spec(spec, recipe, options)
        return loaded, load_tasks(loaded)
    except SpecError as error:
        _fail(str(error), BAD_INPUT)


def _check_policy(loaded: LoadedSpec) -> None:
    from .local.model import PolicyNotFoundError, check_source

    try:
        check_source(loaded.spec.roles.policy.model)
    except PolicyNotFoundError as error:
        _fail(str(loaded.problem(("roles", "policy", "model"), str(error))), BAD_INPUT)


def _tell_refusals(tasks: Tasks) -> None:
    for line in tasks.refusal_lines():
        typer.echo(f"left out: {line}")


def _tell_thin_evidence(loaded: LoadedSpec, tasks: Tasks) -> None:
    """A harness cannot evolve on tasks that are hardly ever sampled: say so before the run."""
    evolver, n = loaded.spec.evolver, len(tasks.train)
    visits = evolver.max_staleness * loaded.spec.engine.tasks_per_step / n
    if loaded.spec.evolves and visits < evolver.min_groups:
        needed = -(-evolver.min_groups * n // loaded.spec.engine.tasks_per_step)
        typer.echo(
            f"with {n} tasks, a task has {visits:.1f} groups in evolver.max_staleness "
            f"{evolver.max_staleness} steps, and {evolver.min_groups} are needed to conclude "
            f"anything: set it to {needed} or more, or the harness will hardly change"
        )


def _resume(
    root: Path,
    spec: Path | None,
    recipe: str | None,
    options: dict[str, Any],
    probe: bool | None,
    accept_changes: bool,
) -> None:
    """Go on with a run as it was started; a spec that says otherwise needs `--accept-changes`."""
    from ..memory.events import LogError
    from ..specs.harness import UpdateError
    from ..specs.loader import SpecError
    from . import stored
    from .runfolder import RunBusyError, RunFolder

    _check_run(root)
    run = RunFolder(root)
    try:
        start = stored.read_stored(run)
    except (SpecError, LogError, stored.StoredError) as error:
        _fail(str(error), BAD_INPUT)
    run_spec, tasks, run_recipe, changed = start.spec, start.tasks, start.recipe, []
    if spec is not None:
        given, given_tasks = _load(spec, recipe, options)
        if changed := stored.differences(start, given.spec, given_tasks):
            told = "\n  ".join(changed)
            if not accept_changes:
                _fail(
                    f"{root} was started with another spec; nothing was resumed:\n  {told}\n"
                    "--accept-changes goes on under the new one",
                    BAD_INPUT,
                )
            typer.echo(f"going on with changes:\n  {told}")
            run_spec, tasks, run_recipe = given.spec, given_tasks, given.recipe
            try:
                stored.accept_changes(run, run_spec, run_recipe, tasks, changed)
            except (RunBusyError, UpdateError, stored.StoredError) as error:
                _fail(str(error), BAD_INPUT)
    elif options or recipe:
        _fail("--resume goes on with the run as it was started; give a SPEC to change it", BAD_INPUT)
    if start.finished and not changed:
        typer.echo(f"{root} is finished already; its report: {run.report}")
        return
    with_probe = start.with_probe if probe is None else probe
    _run(run_spec, run_recipe, tasks, run, resume=True, with_probe=with_probe)


def _run(spec: Any, recipe: str, tasks: Tasks, run: RunFolder, resume: bool, with_probe: bool) -> None:
    from ..agents.policy import PromptError
    from ..specs.harness import UpdateError
    from .local.model import PolicyNotFoundError
    from .runfolder import RunBusyError
    from .train import train as train_run

    try:
        result = train_run(spec, recipe, tasks, run, resume, with_probe)
    except (PolicyNotFoundError, PromptError, RunBusyError, UpdateError) as error:
        _fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        _fail(f"stopped in the middle of a step; go on with: harnessrl train --resume {run.root}")
    except OSError as error:
        _fail(f"{error}; go on with: harnessrl train --resume {run.root}")
    _tell_end(result)


def _tell_end(result: Result) -> None:
    run = result.run
    if not result.finished:
        typer.echo(f"stopped after {result.steps_done} steps; everything is saved in {run.root}")
        typer.echo(f"go on with: harnessrl train --resume {run.root}")
        return
    from .runfolder import latest_checkpoint
    from .summary import summary_lines

    for line in summary_lines(run):
        typer.echo(line)
    checkpoint = latest_checkpoint(run)
    typer.echo(f"run folder: {run.root}")
    if checkpoint is not None:
        typer.echo(f"policy:     {checkpoint[1] / 'policy'} (a plain model folder)")
    typer.echo(f"report:     {run.report}")
    typer.echo(
        "next: open the report; compare with a static harness by adding --recipe grpo; "
        "or `harnessrl init my-run` and edit the spec"
    )


def _check_run(root: Path) -> None:
    if not (root / "events.jsonl").is_file() or not (root / "spec.yaml").is_file():
        _fail(f"{root} is not a run folder (no events.jsonl and spec.yaml in it)", BAD_INPUT)


def _fail(message: str, code: int = 1) -> NoReturn:
    typer.echo(message, err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
