"""`harnessrl judge FILE`: score recorded responses, by checks and a judge."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import BAD_INPUT, fail, say
from .stopping import stopping

if TYPE_CHECKING:
    from ...specs.schema import Judge as JudgeSpec
    from ..judges import Rater
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
    What a judge says is kept beside the output, in a folder that ends in .cache: the same command goes
    on where it was stopped.
    Examples:
      harnessrl judge answers.jsonl --judge judge.yaml
      harnessrl judge answers.jsonl --judge judge.yaml --compare other.yaml
    """
    with stopping() as stopped:
        from ..judges import open_raters
        from ..judging import compare, summary

        rows = _read(file)
        paths = [by] if other is None else [by, other]
        specs = [_read_judge(path) for path in paths]  # all of them, before anything is asked
        target = out or file.with_suffix(".judged.jsonl")
        caches = target.with_suffix(".cache")
        templates = [Path(spec.prompt) for spec in specs if spec and spec.prompt]
        _check_target(target, caches, [file, *paths, *templates])
        stopped.kept = lambda: _kept(specs, caches)
        try:
            with open_raters(specs, caches) as raters:
                scored = _scored(rows, raters[0], by)
                _write(target, scored)
                for line in [*summary(scored), *raters[0].spent(), f"verdicts: {target}"]:
                    say(line)
                _check_scored(scored, by)
                for path, rater in zip(paths[1:], raters[1:], strict=True):
                    theirs = _scored(rows, rater, path)
                    typer.echo(f"beside {path}:")
                    for line in [*summary(theirs), *rater.spent()]:
                        say(f"  {line}")
                    for line in compare(scored, theirs):
                        say(line)
                    _check_scored(theirs, path)
        except BrokenPipeError:
            raise  # whoever reads the output wants no more of it
        except (OSError, sqlite3.Error) as error:
            fail(f"{caches}: what a judge says cannot be kept ({error})")


def _read(file: Path) -> list[ResponseRow]:
    from ...specs.loader import SpecError
    from ..judging import read_responses

    try:
        return read_responses(file)
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(f"{file}: cannot be read ({error.strerror})", BAD_INPUT)


def _read_judge(path: Path | None) -> JudgeSpec | None:
    """The judge in a file; exits with 2 if it cannot be asked: no key, or a prompt that is none."""
    from ...prompts import check_templates
    from ...specs.loader import SpecError, load_judge

    if path is None:
        return None
    try:
        spec = load_judge(path)
        check_templates(judge=spec.prompt, batch=spec.batch)
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    if spec.api_key_env and not os.environ.get(spec.api_key_env):
        fail(f"{path}: api_key_env: the environment variable {spec.api_key_env} is not set", BAD_INPUT)
    return spec


def _check_target(target: Path, caches: Path, given: Sequence[Path | None]) -> None:
    """Exit with 2 if verdicts would be written over what is read, by whatever path, or cannot be."""
    if target.is_dir():
        fail(f"{target} is a folder; --out names a file", BAD_INPUT)
    if target == caches:
        fail(f"--out {target}: that is the folder for what the judge says; use another name", BAD_INPUT)
    for path in given:
        if path is not None and target.exists() and target.samefile(path):
            fail(f"--out {target}: verdicts would be written over {path}", BAD_INPUT)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fail(f"{target}: cannot be written ({error.strerror})", BAD_INPUT)


def _scored(rows: Sequence[ResponseRow], rater: Rater, path: Path | None) -> list[ScoredRow]:
    """The rows scored, with bars while that takes; why verdicts are missing is told."""
    from ..judges import PURPOSE
    from ..judging import score
    from .bars import showing

    with showing({"verdicts": sum(len(row.rubric) for row in rows), "responses": len(rows)}) as begin:
        found = score(rows, rater, begin(_name(path)))
    for cause, n in list(rater.scorer.take_causes(PURPOSE).items())[:5]:
        say(f"unscored: {n} x {cause}", err=True)
    return found


def _name(path: Path | None) -> str:
    return "checks" if path is None else str(path)


def _write(target: Path, scored: Sequence[ScoredRow]) -> None:
    from ...memory.files import write_atomic

    try:
        write_atomic(target, "".join(one.as_json() + "\n" for one in scored))
    except OSError as error:
        fail(f"{target}: cannot be written ({error.strerror})")


def _check_scored(scored: Sequence[ScoredRow], path: Path | None) -> None:
    """Exit with 1 if no response has a score."""
    if all(one.reward is None for one in scored):
        fail(f"{_name(path)}: no response could be scored: see the causes above")


def _kept(specs: Sequence[JudgeSpec | None], caches: Path) -> str:
    from ..judges import kept
    from ..report.text import plural

    if not any(spec is not None and spec.cache for spec in specs):
        return "stopped: no verdict is kept"
    n = plural(kept(specs, caches), "verdict")
    return f"stopped: {n} are kept in {caches}: the same command goes on"
