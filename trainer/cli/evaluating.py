"""`harnessrl evaluate`: what a policy is worth on tasks that it was never trained on."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared import BAD_INPUT, check_keys, check_prompts, fail, load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..evaluate.policies import Evaluated
    from ..evaluate.run import Progress


def evaluate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Run spec (YAML).", show_default=False)],
    policy: Annotated[
        str,
        typer.Option(
            metavar="PATH|ENDPOINT",
            help="A model folder, a run folder (its newest policy), or http://HOST:PORT/v1[#MODEL].",
        ),
    ],
    other: Annotated[
        str | None,
        typer.Option(metavar="PATH|ENDPOINT", help="Another policy, compared task by task."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME|FILE",
            help="An evaluation-only set: a file of rows, or its name in `ood/` beside the task files; "
            "`all` of them.",
        ),
    ] = None,
    samples: Annotated[
        int, typer.Option(min=0, help="Sampled responses a task, besides the greedy one.")
    ] = 4,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many tasks of each set.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Longest response; default: engine.max_new_tokens.")
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight to an endpoint.")] = 64,
    out: Annotated[
        Path | None,
        typer.Option(help="Where results and caches go; default: evaluations/NAME of the spec."),
    ] = None,
) -> None:
    """Measure a policy on the held-out tasks of a spec, and on evaluation-only sets.

    \b
    Full rubrics, no guidance, greedy and sampled. What was sampled and judged is kept: the same command
    goes on where it was stopped. An endpoint's key, if it wants one: environment variable POLICY_API_KEY.
    Examples:
      harnessrl evaluate specs/quickstart.yaml --policy runs/quickstart
      harnessrl evaluate my.yaml --policy runs/b --other runs/a --set medqa.jsonl
      harnessrl evaluate my.yaml --policy http://localhost:8000/v1 --set all --max-tokens 1024
    """
    from ...agents.roles.client import KeyMissingError
    from ...specs.loader import SpecError
    from ..evaluate.evaluation import FolderBusyError
    from ..evaluate.evaluation import evaluate as evaluate_all
    from ..evaluate.policies import PolicyMissingError, open_policy
    from ..evaluate.run import Settings
    from ..evaluate.sets import held_out, limited, read_sets
    from ..evaluate.write import lines, write
    from ..local.model import PolicyNotFoundError

    loaded, read = load(spec, None, {})
    check_keys(loaded, ("judge", "oracle"))
    check_prompts(loaded)
    run_spec = loaded.spec
    try:
        named = read_sets(loaded, sets or [])
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    tasks = limited([*held_out(read), *named.tasks], limit, run_spec.seed)
    refused = [*read.refusal_lines(), *named.refused]
    if not tasks:
        why = f" ({refused[0]})" if refused else ""
        fail(f"{spec}: nothing to evaluate on: no held-out task, and no --set{why}", BAD_INPUT)
    longest = max_tokens or run_spec.engine.max_new_tokens
    temperature = getattr(run_spec.engine, "temperature", 1.0)
    settings = Settings(samples, temperature, longest, run_spec.seed)
    folder = out or Path("evaluations") / run_spec.name

    def opening(name: str) -> Callable[[], Evaluated]:
        return lambda: open_policy(name, concurrency, longest)

    policies = [opening(name) for name in (policy, other) if name is not None]
    try:
        with _bars(len(tasks), 1 + samples) as begin:
            found = evaluate_all(run_spec, tasks, refused, policies, settings, folder, begin)
        files = write(found, folder)
    except (PolicyMissingError, PolicyNotFoundError, KeyMissingError, FolderBusyError) as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        fail(f"stopped; what was done is kept in {folder}: the same command goes on")
    except (OSError, sqlite3.Error) as error:
        fail(f"{error}; what was done is kept in {folder}: the same command goes on")
    for line in lines(found):
        typer.echo(line)
    for line in refused:
        typer.echo(f"left out: {line}", err=True)
    for file in files:
        typer.echo(f"wrote {file}")
    if not any(row.estimate for result in found.policies for row in result.rows):
        fail("nothing could be measured: see the causes above")


def _bars(tasks: int, each: int) -> Any:
    """Progress on standard error: responses sampled, tasks measured."""
    import contextlib

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextlib.contextmanager
    def showing() -> Iterator[Callable[[str], Progress]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:

            def begin(name: str) -> Any:
                sampling = bars.add_task(f"{name}: responses", total=tasks * each)
                measuring = bars.add_task(f"{name}: tasks measured", total=tasks)

                def progress(sampled: int, measured: int) -> None:
                    bars.update(sampling, completed=sampled)
                    bars.update(measuring, completed=measured)

                return progress

            yield begin

    return showing()
