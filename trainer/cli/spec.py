"""`harnessrl init | validate | schema`: writing a spec, before anything runs."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import BAD_INPUT, check_flags, check_policy, check_prompts, fail, load, say

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...agents.scoring.preflight import Finding
    from ...specs.schema import RunSpec
    from ..data.load import Tasks

SPECS = Path(__file__).parent.parent.parent / "specs"
#: What `init` copies: the quickstart, its tasks, and the schemas that the first line of a file names.
STARTER = (
    *("quickstart.yaml", "tasks/starter.yaml"),
    *(f"{name}.schema.json" for name in ("harness", "tasks", "update", "mix")),
)


class SchemaOf(StrEnum):
    """What there is a JSON Schema of."""

    harness = "harness"
    tasks = "tasks"
    update = "update"
    mix = "mix"


def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make.")] = Path("my-run"),
) -> None:
    """Copy the quickstart spec and its tasks into FOLDER, to edit.

    Example: harnessrl init my-run && harnessrl train my-run/quickstart.yaml --steps 6
    """
    targets = {SPECS / name: folder / name for name in STARTER}
    for target in targets.values():
        if target.exists():
            fail(f"{target} exists already; nothing was written", BAD_INPUT)
    try:
        for original, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, target)
    except OSError as error:
        fail(f"{folder}: cannot be written ({error.strerror})", BAD_INPUT)
    typer.echo(f"wrote {', '.join(str(t) for t in targets.values())}")
    typer.echo(f"next: harnessrl train {folder / 'quickstart.yaml'} --steps 6")


def validate(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Run spec (YAML).")],
    recipe: Annotated[str | None, typer.Option(help="Merge this recipe over the spec.")] = None,
    preflight: Annotated[
        bool, typer.Option("--preflight", help="Also ask every replica of each role.")
    ] = False,
) -> None:
    """Check a spec, its task files and the prompts without loading a model.

    \b
    Examples:
      harnessrl validate specs/quickstart.yaml
      harnessrl validate my-run/judged.yaml --preflight
    """
    from ...specs.loader import collector_paused

    with collector_paused():
        _validate(spec, recipe, preflight)


def _validate(spec: Path, recipe: str | None, preflight: bool) -> None:
    loaded, tasks = load(spec, recipe, {})
    check_policy(loaded)
    from ..advice import advice

    check_prompts(loaded)
    flags = check_flags(loaded) if loaded.spec.engine.kind == "openrlhf" else None
    validation = f", {len(tasks.validation)} for validation" if tasks.validation else ""
    typer.echo(f"{spec}: {len(tasks.train)} training tasks, {len(tasks.held_out)} held out{validation}")
    for line in advice(loaded.spec, tasks):
        say(line)
    _check_task_prompts(loaded.spec, tasks)
    if flags:
        typer.echo(flags)
    if preflight:
        _preflight(loaded.spec)


def _check_task_prompts(spec: RunSpec, tasks: Tasks) -> None:
    """Exit with 2 if the policy could not be shown a task; say so if its tokenizer is not here yet."""
    from ...agents.policy import PromptError
    from ...memory.events import fold_versions
    from ...prompts import fullest_prompt
    from ..chat import TEMPLATE_TOKENS, check_task_prompts, doubtful
    from ..local.model import chat_at_hand, tokenizer_at_hand
    from ..stored import run_started

    if spec.engine.kind == "sim":
        return
    (harness,) = fold_versions(tasks.train, [run_started(spec.name, "", spec, tasks)])
    prompts = [fullest_prompt(harness, task_id) for task_id in harness.tasks]
    model, limit = spec.roles.policy.model, spec.engine.max_prompt_tokens
    if max(len(prompt.encode()) for prompt in prompts) + TEMPLATE_TOKENS <= limit:
        return  # a token is a byte or more: no need to load a tokenizer
    folder = tokenizer_at_hand(model)
    if folder is None:
        typer.echo(f"engine.max_prompt_tokens: not checked, the tokenizer of {model} is not here yet")
        return
    look_at = doubtful(prompts, folder, limit)
    if not look_at:
        return
    chat = chat_at_hand(folder, limit, spec.roles.policy.chat_template_kwargs)
    try:
        check_task_prompts(lambda p: chat.check_prompt(p) if p in look_at else None, harness)
    except PromptError as error:
        fail(str(error), BAD_INPUT)


def _preflight(spec: RunSpec) -> None:
    """A line for each thing that was looked at; exits with 1 if one of them is not as it should be."""
    from ...agents.roles.client import KeyMissingError
    from ...agents.scoring.preflight import each_replica
    from ..preflight import look_at_policy, look_at_role

    endpoints = {"judge": spec.roles.judge, "oracle": spec.roles.oracle, "evolver": spec.roles.evolver}
    if not any(endpoints.values()):
        typer.echo("preflight: no role has an endpoint")
    bad = _told(look_at_policy(spec))
    for name, endpoint in endpoints.items():
        if endpoint is None:
            continue
        for replica in each_replica(endpoint):
            try:
                bad += _told(look_at_role(name, replica, spec))
            except KeyMissingError as error:
                fail(f"{name}: {error}", BAD_INPUT)
    if bad:
        raise typer.Exit(1)


def _told(findings: Iterable[Finding]) -> int:
    """Print a line for each; how many of them are not as they should be."""
    bad = 0
    for finding in findings:
        bad += not finding.ok
        say(f"{'ok  ' if finding.ok else 'FAIL'}  {finding.what}: {finding.detail}")
    return bad


def schema(
    of: Annotated[SchemaOf, typer.Argument(help="Of a run spec, a task file, an update or a mix.")] = (
        SchemaOf.harness
    ),
) -> None:
    """Print the JSON Schema by which an editor completes and checks.

    Example: harnessrl schema tasks > tasks.schema.json
    """
    from ...specs.reference import SCHEMAS, as_text

    typer.echo(as_text(SCHEMAS[of.value]()), nl=False)
