"""`harnessrl train | report`: a run, from its start or from where it stopped."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared import BAD_INPUT, RunArg, check_keys, check_policy, check_prompts, check_run, fail, load, say

if TYPE_CHECKING:
    from ..data.load import Tasks
    from ..runfolder import RunFolder
    from ..train import Result

SpecArg = Annotated[
    Path | None, typer.Argument(metavar="[SPEC]", help="Run spec (YAML).", show_default=False)
]


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
        fail("give a spec, e.g. `harnessrl train specs/quickstart.yaml`, or --resume RUN", 2)
    loaded, read = load(spec, recipe, options)
    if loaded.spec.engine.kind == "openrlhf":
        fail(str(loaded.problem(("engine", "kind"), "openrlhf: use `harnessrl launch`")), BAD_INPUT)
    check_policy(loaded)
    check_keys(loaded)
    check_prompts(loaded)
    from ..advice import advice
    from ..provenance import provenance
    from ..runfolder import RunFolder, new_run_folder
    from ..stored import write_start

    for line in advice(loaded.spec, read):
        say(line)
    try:
        root = new_run_folder(Path(loaded.spec.logging.folder), loaded.spec.name)
    except OSError as error:
        fail(f"{loaded.spec.logging.folder}: no run folder can be made ({error.strerror})", 2)
    run = RunFolder(root)
    with_probe = probe if probe is not None else steps is None
    write_start(run, loaded.spec, read, provenance(loaded.spec.seed, loaded.recipe, with_probe))
    _run(loaded.spec, loaded.recipe, read, run, resume=False, with_probe=with_probe)


def report(run: RunArg) -> None:
    """Write RUN/report.html again from the run folder.

    Example: harnessrl report runs/quickstart
    """
    check_run(run)
    from ...memory.events import LogError
    from ..report.build import build_report

    try:
        typer.echo(f"wrote {build_report(run)}")
    except LogError as error:
        fail(str(error), BAD_INPUT)


def _resume(
    root: Path,
    spec: Path | None,
    recipe: str | None,
    options: dict[str, Any],
    probe: bool | None,
    accept_changes: bool,
) -> None:
    """Go on with a run as it was started; a spec that says otherwise needs `--accept-changes`."""
    from ...memory.events import LogError
    from ...specs.harness import UpdateError
    from ...specs.loader import SpecError
    from .. import stored
    from ..runfolder import RunBusyError, RunFolder

    check_run(root)
    run = RunFolder(root)
    try:
        start = stored.read_stored(run)
    except (SpecError, LogError, stored.StoredError) as error:
        fail(str(error), BAD_INPUT)
    if start.spec.engine.kind == "openrlhf":
        fail(f"{root} was started by `harnessrl launch`: run its script again to go on", BAD_INPUT)
    run_spec, tasks, run_recipe, changed = start.spec, start.tasks, start.recipe, []
    if spec is not None:
        given, given_tasks = load(spec, recipe, options)
        if changed := stored.differences(start, given.spec, given_tasks):
            told = "\n  ".join(changed)
            if not accept_changes:
                fail(
                    f"{root} was started with another spec; nothing was resumed:\n  {told}\n"
                    "--accept-changes goes on under the new one",
                    BAD_INPUT,
                )
            typer.echo(f"going on with changes:\n  {told}")
            run_spec, tasks, run_recipe = given.spec, given_tasks, given.recipe
            try:
                stored.accept_changes(run, run_spec, run_recipe, tasks, changed)
            except (RunBusyError, UpdateError, stored.StoredError) as error:
                fail(str(error), BAD_INPUT)
    elif options or recipe:
        fail("--resume goes on with the run as it was started; give a SPEC to change it", BAD_INPUT)
    if start.finished and not changed:
        typer.echo(f"{root} is finished already; its report: {run.report}")
        return
    with_probe = start.with_probe if probe is None else probe
    _run(run_spec, run_recipe, tasks, run, resume=True, with_probe=with_probe)


def _run(spec: Any, recipe: str, tasks: Tasks, run: RunFolder, resume: bool, with_probe: bool) -> None:
    from ...agents.policy import PromptError
    from ...agents.roles.client import KeyMissingError
    from ...specs.harness import UpdateError
    from ..local.model import PolicyNotFoundError
    from ..metrics import NotFiniteError
    from ..runfolder import RunBusyError
    from ..train import UnscoredError
    from ..train import train as train_run

    try:
        result = train_run(spec, recipe, tasks, run, resume, with_probe)
    except (PolicyNotFoundError, PromptError, RunBusyError, UpdateError, KeyMissingError) as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        fail(f"stopped in the middle of a step; go on with: harnessrl train --resume {run.root}")
    except NotFiniteError as error:
        fail(str(error))
    except (OSError, UnscoredError, sqlite3.Error) as error:
        fail(f"{error}; go on with: harnessrl train --resume {run.root}")
    _tell_end(result)


def _tell_end(result: Result) -> None:
    run = result.run
    if not result.finished:
        typer.echo(f"stopped after {result.steps_done} steps; everything is saved in {run.root}")
        typer.echo(f"go on with: harnessrl train --resume {run.root}")
        return
    from ..runfolder import latest_checkpoint
    from ..summary import summary_lines

    for line in summary_lines(run):
        say(line)
    checkpoint = latest_checkpoint(run)
    typer.echo(f"run folder: {run.root}")
    if checkpoint is not None:
        policy = checkpoint[1] / "policy"
        kind = "a plain model folder" if (policy / "config.json").exists() else "the simulated policy"
        typer.echo(f"policy:     {policy} ({kind})")
    if run.best.is_dir():
        typer.echo(f"best:       {run.best / 'policy'} (by its validation score)")
    typer.echo(f"report:     {run.report}")
    typer.echo(
        "next: open the report; compare with a static harness by adding --recipe grpo; "
        "or `harnessrl init my-run` and edit the spec"
    )
