"""`harnessrl evaluate`: what a policy is worth on tasks that it was never trained on."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from .shared import BAD_INPUT, check_keys, check_prompts, fail, say
from .stopping import stopping


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
            help="What to evaluate on, instead of the held-out tasks: a file of rows, the name of a set "
            "in `ood/` beside the task files, `held-out`, or `all` of these. May be given again.",
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
        typer.Option(
            help="Where results and caches go; default: caches in evaluations/NAME of the spec, results "
            "in a folder in it that is named after the policy."
        ),
    ] = None,
) -> None:
    """Measure a policy on the held-out tasks of a spec, or on evaluation-only sets.

    \b
    Full rubrics, no guidance, greedy and sampled. What was sampled and judged is kept: the same command
    goes on where it was stopped. An endpoint's key, if it wants one: environment variable POLICY_API_KEY.
    Examples:
      harnessrl evaluate specs/quickstart.yaml --policy runs/quickstart
      harnessrl evaluate my.yaml --policy runs/b --other runs/a
      harnessrl evaluate my.yaml --policy runs/b --set medqa.jsonl                 not the held-out tasks
      harnessrl evaluate my.yaml --policy runs/b --set medqa.jsonl --set held-out  both
      harnessrl evaluate my.yaml --policy http://localhost:8000/v1 --set all --max-tokens 1024
    """
    with stopping() as stopped:
        from ...agents.roles.client import KeyMissingError
        from ...specs.loader import SpecError, load_run_spec
        from ..evaluate import evaluation
        from ..evaluate.folders import OtherResultsError, check_results, results_in
        from ..evaluate.policies import PolicyMissingError, find_policy
        from ..evaluate.run import Settings
        from ..evaluate.seen import seen
        from ..evaluate.sets import HELD_OUT, limited, read_sets, read_tasks
        from ..evaluate.write import lines, write
        from ..local.model import PolicyNotFoundError
        from .bars import showing

        try:
            loaded = load_run_spec(spec)
            own = read_tasks(loaded)
            named = read_sets(loaded, own, sets or [HELD_OUT])
        except SpecError as error:
            fail(str(error), BAD_INPUT)
        run_spec, refused = loaded.spec, named.refused
        tasks = limited(named.tasks, limit, run_spec.seed)
        if not tasks:
            why = f" ({refused[0]})" if refused else ""
            wanted = "no such task" if sets else "no held-out task, and no --set"
            fail(f"{spec}: nothing to evaluate on: {wanted}{why}", BAD_INPUT)
        check_keys(loaded, evaluation.asked_roles(run_spec, tasks))
        check_prompts(loaded)
        longest = max_tokens or run_spec.engine.max_new_tokens
        temperature = getattr(run_spec.engine, "temperature", 1.0)
        settings = Settings(samples, temperature, longest, run_spec.seed)
        known = seen(tasks, own.trained)
        for told in known:
            say(f"WARNING: {told}", err=True)
        names = [name for name in (policy, other) if name is not None]
        caches = out or Path("evaluations") / run_spec.name
        try:
            template_kwargs = run_spec.roles.policy.chat_template_kwargs
            found = [find_policy(name, concurrency, longest, template_kwargs) for name in names]
            question = evaluation.Question(run_spec, tasks, found, settings)
            folder = out or results_in(caches, names, question.as_data())
            check_results(folder, question.as_data())
            stopped.kept = lambda: _kept(evaluation.kept(question, caches), caches)
            totals = {"responses": len(tasks) * (1 + samples), "tasks measured": len(tasks)}
            with showing(totals) as begin:
                result = evaluation.evaluate(question, known, refused, caches, folder, begin)
            files = write(result, folder)
        except (
            PolicyMissingError,
            PolicyNotFoundError,
            KeyMissingError,
            evaluation.EndpointMissingError,
            evaluation.FolderBusyError,
            OtherResultsError,
        ) as error:
            fail(str(error), BAD_INPUT)
        except (OSError, sqlite3.Error) as error:
            fail(f"{error}; what was done is kept in {caches}: the same command goes on")
        for line in lines(result):
            say(line)
        for line in refused:
            say(f"left out: {line}", err=True)
        for file in [*files, folder / "responses.jsonl"]:
            typer.echo(f"wrote {file}")
        if not any(row.estimate for one in result.policies for row in one.rows):
            fail("nothing could be measured: see the causes above")


def _kept(counts: tuple[int, int, int], folder: Path) -> str:
    from ..report.text import plural

    responses, every, verdicts = counts
    return (
        f"stopped: {responses:,} of {every:,} responses and {plural(verdicts, 'verdict')} are kept in "
        f"{folder}: the same command goes on"
    )
