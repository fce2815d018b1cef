"""`harnessrl launch`: a run on OpenRLHF, with everything around it, as one bash script."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .shared import BAD_INPUT, check_flags, check_keys, check_policy, check_prompts, fail, load, say

if TYPE_CHECKING:
    from ...specs.schema import RunSpec
    from ..runfolder import RunFolder

#: Environment variable that names the Python which has OpenRLHF, vLLM and Ray.
OPENRLHF_PYTHON = "OPENRLHF_PYTHON"


class Device(StrEnum):
    """`engine.device`."""

    cuda = "cuda"
    cpu = "cpu"


def launch(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Run spec with engine.kind openrlhf.")],
    recipe: Annotated[
        str | None, typer.Option(help="Merge specs/recipes/NAME.yaml over the spec, e.g. grpo.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Make the run folder and write the script, but do not run it."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the script; nothing is written.")
    ] = False,
    device: Annotated[
        Device | None, typer.Option(help="engine.device: `cpu` to try a spec out without a GPU.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run folder.")] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where the run folder is made; default: the spec's.")
    ] = None,
) -> None:
    """Train with OpenRLHF: start the controller, the vLLM servers, Ray and training, with health checks.

    OPENRLHF_PYTHON names the Python that has OpenRLHF, vLLM and Ray (default: this one). The run folder
    keeps the script as launch.sh; run that again to resume.

    \b
    Examples:
      harnessrl launch specs/qwen3.5-4b.yaml --dry-run
      harnessrl launch specs/smoke-1gpu.yaml
      harnessrl launch my-spec.yaml --device cpu
      harnessrl launch specs/qwen3.5-9b.yaml --script run.sh && sbatch run.sh
    """
    options: dict[str, Any] = {}
    engine: dict[str, Any] = {"device": None if device is None else device.value, "steps": steps}
    if given := {key: value for key, value in engine.items() if value is not None}:
        options["engine"] = given
    if seed is not None:
        options["seed"] = seed
    if name is not None:
        options["name"] = name
    if folder is not None:
        options["logging"] = {"folder": str(folder)}
    loaded, tasks = load(spec, recipe, options)
    if loaded.spec.engine.kind != "openrlhf":
        told = f"{loaded.spec.engine.kind}: use `harnessrl train`"
        fail(str(loaded.problem(("engine", "kind"), told)), BAD_INPUT)
    check_policy(loaded)
    check_prompts(loaded)
    if not dry_run and script is None:
        check_keys(loaded)
    from ..advice import advice
    from ..provenance import provenance
    from ..runfolder import RunFolder, new_run_folder
    from ..stored import write_start

    for line in (*advice(loaded.spec, tasks), check_flags(loaded)):
        say(line, err=True)
    parent = Path(loaded.spec.logging.folder)
    if dry_run:
        run = RunFolder(parent.absolute() / loaded.spec.name)
        typer.echo(_script(_with_weights(loaded.spec, fetch=False), run), nl=False)
        return
    fetched = _with_weights(loaded.spec, fetch=True)
    _script(fetched, RunFolder(parent.absolute() / loaded.spec.name))  # refuses before a folder is made
    try:
        run = RunFolder(new_run_folder(parent, loaded.spec.name).absolute())
        write_start(run, loaded.spec, tasks, provenance(loaded.spec.seed, loaded.recipe, probe=True))
        written = _write(_script(fetched, run), loaded.spec, run, script)
    except OSError as error:
        fail(f"{error.filename or parent}: cannot be written ({error.strerror})", BAD_INPUT)
    typer.echo(f"run folder: {run.root}", err=True)
    if script is not None:
        typer.echo(f"wrote {script}; start or resume the run with: bash {script}", err=True)
        return
    sys.stdout.flush()
    os.execvp("bash", ["bash", str(written)])


def _script(spec: RunSpec, run: RunFolder) -> str:
    from ..openrlhf.script import ScriptError, launch_script

    python = os.environ.get(OPENRLHF_PYTHON, sys.executable)
    if os.sep in python:  # not a command's name: the script may be run from anywhere
        python = os.path.abspath(python)
    try:
        return launch_script(spec, run, sys.executable, python)
    except ScriptError as error:
        fail(str(error), BAD_INPUT)


def _write(text: str, spec: RunSpec, run: RunFolder, script: Path | None) -> Path:
    """Everything in the run folder that the script relies on, and the script: there, and at `script`."""
    from ...memory.files import write_atomic
    from ..openrlhf.slots_file import write_slots

    run.openrlhf.mkdir(parents=True)
    run.logs.mkdir()
    write_slots(run.openrlhf / "slots.jsonl", spec.engine.steps, spec.engine.tasks_per_step)
    for path in (run.root / "launch.sh", script):
        if path is not None:
            write_atomic(path, text)
            path.chmod(0o755)
    return run.root / "launch.sh"


def _with_weights(spec: RunSpec, fetch: bool) -> RunSpec:
    """The spec with the policy as a name that OpenRLHF knows: a folder, or a model hub id."""
    from ..local.model import WHEEL_NAME, PolicyNotFoundError, resolve, wheel_folder

    policy = spec.roles.policy
    if policy.model != WHEEL_NAME:
        return spec
    try:
        model = str(resolve(policy.model) if fetch else wheel_folder())
    except PolicyNotFoundError as error:
        fail(str(error), BAD_INPUT)
    roles = spec.roles.model_copy(update={"policy": policy.model_copy(update={"model": model})})
    return spec.model_copy(update={"roles": roles})
