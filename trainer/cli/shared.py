"""What the commands share: reading their input, and how they fail."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ...specs.printable import neutralise, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...specs.loader import LoadedSpec
    from ..data.load import Tasks

BAD_INPUT = 2  # exit codes: 0 done, 1 failed, 2 bad input
#: The exit code of a command that Ctrl-C stopped, as shells have it.
STOPPED = 128 + signal.SIGINT

RunArg = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.", show_default=False)]


def say(line: str, err: bool = False) -> None:
    """Print one line, whatever is in it."""
    typer.echo(one_line(line), err=err)


def fail(message: str, code: int = 1) -> NoReturn:
    """Say why, on a line or several, and exit."""
    typer.echo(neutralise(message), err=True)
    sys.exit(code)


def load(spec: Path, recipe: str | None, options: dict[str, Any]) -> tuple[LoadedSpec, Tasks]:
    """The spec and its tasks; every problem is printed as file:line:col and exits with 2."""
    from ...specs.loader import SpecError, load_run_spec
    from ..data.load import load_tasks

    try:
        loaded = load_run_spec(spec, recipe, options)
        return loaded, load_tasks(loaded)
    except SpecError as error:
        fail(str(error), BAD_INPUT)


def check_policy(loaded: LoadedSpec) -> None:
    """Exit with 2 if the policy's name can lead to no model (the simulated engine needs none)."""
    if loaded.spec.engine.kind == "sim":
        return
    from ..local.model import PolicyNotFoundError, check_source

    try:
        check_source(loaded.spec.roles.policy.model)
    except PolicyNotFoundError as error:
        fail(str(loaded.problem(("roles", "policy", "model"), str(error))), BAD_INPUT)


def check_prompts(loaded: LoadedSpec) -> None:
    """Exit with 2 if a prompt template cannot be rendered; every problem is printed with its place."""
    from ...prompts import check_templates
    from ...specs.loader import SpecError

    judge, oracle = loaded.spec.roles.judge, loaded.spec.oracle
    try:
        check_templates(
            loaded.spec.evolver.propose.prompt,
            judge.prompt if judge else None,
            judge.batch if judge else "",
            oracle.prompt,
            oracle.kind,
            loaded.spec.evolver.attribute.prompt,
        )
    except SpecError as error:
        fail(str(error), BAD_INPUT)


def check_keys(loaded: LoadedSpec, roles: Sequence[str] = ("judge", "oracle", "evolver")) -> None:
    """Exit with 2 if a role's key is to be found in an environment variable that is not set."""
    for name in roles:
        role = getattr(loaded.spec.roles, name)
        if role and role.api_key_env and not os.environ.get(role.api_key_env):
            at = ("roles", name, "api_key_env")
            told = f"the environment variable {role.api_key_env} is not set"
            fail(str(loaded.problem(at, told)), BAD_INPUT)


def check_flags(loaded: LoadedSpec) -> str:
    """How far OpenRLHF's command line could be checked; exits with 2 if OpenRLHF would refuse it."""
    from ..openrlhf.flags import installed_version, problems
    from ..openrlhf.versions import OPENRLHF

    if found := problems(loaded):
        fail("\n".join(map(str, found)), BAD_INPUT)
    version = installed_version()
    if version is None:
        return (
            "OpenRLHF is not installed here: the names of engine.args are checked in their form only "
            f"(`pip install --no-deps openrlhf=={OPENRLHF}` is enough for more)"
        )
    return f"OpenRLHF {version} accepts the arguments"


def check_run(root: Path) -> None:
    """Exit with 2 if `root` is no run folder."""
    if not (root / "events.jsonl").is_file() or not (root / "spec.yaml").is_file():
        fail(f"{root} is not a run folder (no events.jsonl and spec.yaml in it)", BAD_INPUT)
