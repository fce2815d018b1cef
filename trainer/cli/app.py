"""The command line as a whole: which commands there are."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from ... import __version__
from . import data, diagnosing, evaluating, harness, judging, launching, memory, spec, studio, training

app = typer.Typer(
    name="harnessrl",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="GRPO on rubric rewards under a training-time harness that co-evolves with the policy.",
)
for command in (
    spec.init,
    spec.validate,
    training.train,
    launching.launch,
    training.report,
    diagnosing.diagnose,
    studio.studio,
    judging.judge,
    evaluating.evaluate,
    spec.schema,
):
    app.command()(command)
app.add_typer(data.app, name="data")
app.add_typer(harness.app, name="harness")
app.add_typer(memory.app, name="memory")


def main() -> None:
    """Entry point of the console script."""
    # Torch's threads spin while they wait, which beside any other busy process makes a run tens of
    # times slower; not to spin at all costs a fifth of the speed of a machine that has nothing else
    # to do. OpenMP reads both when torch is first imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"harnessrl {__version__}")
        raise typer.Exit()
