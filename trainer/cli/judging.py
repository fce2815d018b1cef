"""`harnessrl judge FILE`: score recorded responses, by checks and a judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import BAD_INPUT, fail

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...specs.schema import Judge as JudgeSpec
    from ..judging import ResponseRow, ScoredRow


def judge(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSONL: prompt, rubric and response.")],
    by: Annotated[
        Path | None,
        typer.Option("--judge", help="YAML with the keys of roles.judge; default: checks only."),
    ] = None,
    other: Annotated[
        Path | None, typer.Option("--compare", help="Another judge's YAML, on the same verdicts.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write verdicts here (JSONL); default: FILE.judged.jsonl.")
    ] = None,
) -> None:
    """Score a file of responses with their rubrics.

    \b
    Rows: {"prompt": ..., "response": ..., "rubric": [{"text": ..., "points": ..., "check": ...}]}, or
    with HealthBench's or verl's rubrics. judge.yaml: base_urls: [http://localhost:8000/v1], model: ...
    Examples:
      harnessrl judge answers.jsonl --judge judge.yaml
      harnessrl judge answers.jsonl --judge judge.yaml --compare other.yaml
    """
    from ...memory.files import write_atomic
    from ...specs.loader import SpecError
    from ..judging import compare, read_responses, summary

    try:
        rows = read_responses(file)
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(f"{file}: cannot be read ({error.strerror})", BAD_INPUT)
    judges = [_read(path) for path in (by, other)]  # both, before anything is asked
    scored = _scored(rows, judges[0])
    target = out or file.with_suffix(".judged.jsonl")
    try:
        write_atomic(target, "".join(s.as_json() + "\n" for s in scored))
    except OSError as error:
        fail(f"{target}: cannot be written ({error.strerror})")
    for line in summary(scored):
        typer.echo(line)
    typer.echo(f"verdicts: {target}")
    if other is not None:
        theirs = _scored(rows, judges[1])
        typer.echo(f"beside {other}:")
        for line in [*(f"  {line}" for line in summary(theirs)), *compare(scored, theirs)]:
            typer.echo(line)


def _read(path: Path | None) -> JudgeSpec | None:
    from ...specs.loader import SpecError, load_judge

    try:
        return None if path is None else load_judge(path)
    except SpecError as error:
        fail(str(error), BAD_INPUT)


def _scored(rows: Sequence[ResponseRow], spec: JudgeSpec | None) -> list[ScoredRow]:
    """The rows, scored, with a bar while that takes."""
    from rich.console import Console
    from rich.progress import Progress

    from ...agents.roles.client import KeyMissingError, Role
    from ...agents.scoring.judge import Judge
    from ...agents.scoring.scorer import Scorer
    from ...agents.usage import Usage
    from ...specs.schema import Oracle, Reward
    from ..judging import score

    usage, role, judge = Usage(), None, None
    if spec is not None:
        try:
            role = Role("judge", spec, usage)
        except KeyMissingError as error:
            fail(str(error), BAD_INPUT)
        judge = Judge(role, spec, None)
    scorer = Scorer(Oracle(kind="none"), usage, Reward().max_dropped, judge)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("judging", total=len(rows))
        found = list(score(rows, scorer, lambda n: bar.update(task, completed=n)))
    for cause, n in list(scorer.take_causes("judge").items())[:5]:
        typer.echo(f"unscored: {n} x {cause}", err=True)
    if role is not None:
        role.close()
    return found
