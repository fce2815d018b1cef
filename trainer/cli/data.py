"""`harnessrl data build | stats | show | validate | sources`: suites of tasks from public data sets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import BAD_INPUT, STOPPED, fail, say

if TYPE_CHECKING:
    from ..data.mix import Mix
    from ..data.rows import AnyTask, Row

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Build and look at suites of tasks.")
SHOWN = 20  # of a list that may be long

MixArg = Annotated[Path, typer.Argument(metavar="MIX", help="A mix (YAML).", show_default=False)]
TasksArg = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", help="A built mix, a task or data file, or a mix (YAML).", show_default=False
    ),
]
FolderOption = Annotated[
    list[Path] | None, typer.Option("--folder", help="A folder with local files; may be repeated.")
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Ask neither package index nor hub.")]


@app.command()
def build(
    mix: MixArg,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder to write (default: the mix's name).")
    ] = None,
    folder: FolderOption = None,
    offline: OfflineOption = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit with 1, writing nothing, if a quota is missed."),
    ] = False,
    malformed: Annotated[
        str | None, typer.Option(help="skip | fail: what to do about rows that cannot be used.")
    ] = None,
    include_unlicensed: Annotated[
        bool,
        typer.Option("--include-unlicensed", help="Do not keep apart tasks that state no licence."),
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a built folder also if it was changed by hand.")
    ] = False,
) -> None:
    """Build a suite of tasks into a folder: training, held-out and evaluation-only tasks.

    \b
    Examples:
      harnessrl data build specs/mixes/rubric-mix-10k.yaml --folder my-data
      harnessrl data build my-mix.yaml --out suites/mine --strict
    """
    from ..data.folder import write_folder
    from ..data.ood import APART

    if malformed not in (None, "skip", "fail"):
        fail(f"--malformed: {malformed} is not allowed; allowed: skip, fail", BAD_INPUT)
    built = _assemble(mix, folder, offline, malformed)
    target = out or Path(built.spec.name)
    missing = built.missing()
    for line in _accounts(built):
        say(line)
    for line in missing:
        say(f"missing: {line}")
    if strict and missing:
        fail(f"{len(missing)} quotas or sources are missing (--strict); nothing was written")
    if not (built.train or built.held_out or any(built.ood.values())):
        fail("no task came out; nothing was written")
    try:
        manifest = write_folder(built, target, include_unlicensed, overwrite)
    except FileExistsError as error:
        fail(str(error), BAD_INPUT)
    except OSError as error:
        fail(f"{target}: cannot be written ({error.strerror})", BAD_INPUT)
    for name, about in manifest["files"].items():
        typer.echo(f"{target / name}: {about['rows']:,} rows")
    if any(name.startswith(APART) for name in manifest["files"]):
        typer.echo(f"{target / APART} holds tasks whose sources state no licence: do not pass them on")


@app.command()
def stats(
    path: TasksArg,
    tokenizer: Annotated[
        str, typer.Option(help="minilm (packaged), words, or a model's folder or id.")
    ] = "minilm",
    folder: FolderOption = None,
    offline: OfflineOption = False,
    histograms: Annotated[bool, typer.Option(help="Lengths and rubric sizes as text.")] = True,
) -> None:
    """The columns of the paper's Table 1 for a suite, beside the published figures.

    Example: harnessrl data stats rubric-mix-10k --tokenizer Qwen/Qwen3-4B
    """
    from ...specs.ood import OodTask
    from ...specs.tasks import TrainTask
    from ..data.stats import by_domain, figures, histogram, table, tokenizer_named

    try:
        named, count = tokenizer_named(tokenizer, offline)
    except (OSError, ValueError) as error:
        fail(f"--tokenizer {tokenizer}: {str(error).splitlines()[0]}", BAD_INPUT)
    tasks = _tasks(path, folder, offline)
    typer.echo(f"tokens: {named}")
    train = [task for task in tasks if isinstance(task, TrainTask)]
    if train:
        typer.echo("\ntraining tasks")
        typer.echo(table(figures(name, some, count) for name, some in by_domain(train).items()))
    others = [task for task in tasks if not isinstance(task, TrainTask)]
    groups: dict[str, list[AnyTask]] = {}
    for task in others:
        groups.setdefault(
            task.source if isinstance(task, OodTask) else f"{task.domain} held out", []
        ).append(task)
    if groups:
        typer.echo("\nheld-out and evaluation-only tasks")
        typer.echo(table((figures(name, some, count) for name, some in groups.items()), published=False))
    if histograms and train:
        typer.echo("\n" + histogram("criteria of a training task", [len(task.rubric) for task in train]))
        typer.echo(
            "\n" + histogram("tokens of a training prompt", [count(task.prompt) for task in train])
        )


@app.command()
def show(
    path: TasksArg,
    task: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The task's id; none: all of them.", show_default=False),
    ] = None,
    folder: FolderOption = None,
    offline: OfflineOption = False,
) -> None:
    """One task as it would be trained on or evaluated with; without an id, a line for each task.

    \b
    Examples:
      harnessrl data show rubric-mix-10k | head
      harnessrl data show rubric-mix-10k healthbench-3a896889-9029-4ef8-8684-ca378da4702b
    """
    from ...specs.errors import did_you_mean, shortened
    from ...specs.loader import dump_yaml
    from ...specs.printable import neutralise

    known = {one.id: one for one in _tasks(path, folder, offline)}
    if task is None:
        for one in known.values():
            say(f"{one.id}\t{_kind(one)}\t{one.domain}\t{shortened(one.prompt)}")
        return
    if task not in known:
        fail(f"there is no task {task} in {path}{did_you_mean(task, known)}", BAD_INPUT)
    typer.echo(f"# {_kind(known[task])}")
    text = dump_yaml(known[task].model_dump(mode="json", exclude_defaults=True))
    typer.echo(neutralise(text), nl=False)


@app.command()
def validate(
    path: TasksArg,
    folder: FolderOption = None,
    offline: OfflineOption = False,
    every: Annotated[bool, typer.Option("--all", help=f"Not only the first {SHOWN} of a kind.")] = False,
) -> None:
    """What looks wrong: rows of no use, signs, duplicates, mojibake, lengths. Exits with 1 if anything.

    Example: harnessrl data validate my-rows.jsonl
    """
    from ..data.lint import Finding, findings, unusable

    rows = _rows(path, folder, offline)
    tasks = [(row.where, row.task) for row in rows if not isinstance(row.task, str)]
    kinds: dict[str, list[Finding]] = {}
    for finding in (*unusable(rows), *findings(tasks)):
        kinds.setdefault(finding.kind, []).append(finding)
    for kind, found in kinds.items():
        typer.echo(f"{kind}: {len(found):,}")
        for one in found if every else found[:SHOWN]:
            say(f"  {one.where}: {one.detail}: {one.suggestion}")
    n = sum(map(len, kinds.values()))
    typer.echo(f"{len(tasks):,} tasks, {n:,} finding{'s' * (n != 1)}")
    if kinds:
        raise typer.Exit(1)


@app.command()
def sources() -> None:
    """The data sets whose rows can be converted.

    Example: harnessrl data sources
    """
    from ..data.converters import CONVERTERS

    typer.echo(f"{'converter':16} {'domain':22} remarks (docs/data.md has licences and traps)")
    typer.echo(f"{'tasks':16} {'as each row says':22} rows in this project's own form")
    for one in CONVERTERS.values():
        notes = ["evaluation only"] * one.evaluation_only + ["your own local file only"] * one.local_only
        typer.echo(f"{one.name:16} {one.domain:22} {', '.join(notes)}".rstrip())


def _kind(task: AnyTask) -> str:
    """The split that a task is of, in the words of a row."""
    from ..data.rows import SPLITS

    return next(name for name, kind in SPLITS.items() if type(task) is kind)


def _assemble(path: Path, folder: list[Path] | None, offline: bool, malformed: str | None = None) -> Mix:
    from ...specs.loader import SpecError
    from ..data.mix import assemble

    for one in folder or []:
        if not one.is_dir():
            fail(f"--folder {one}: there is no such folder", BAD_INPUT)
    try:
        return assemble(path, folder or [], offline, malformed, lambda line: say(line, err=True))
    except SpecError as error:
        fail(str(error), BAD_INPUT)
    except KeyboardInterrupt:
        fail("stopped; nothing was written", STOPPED)


def _tasks(path: Path, folder: list[Path] | None, offline: bool) -> list[AnyTask]:
    """The tasks among the rows of `path`; those that are none are told. Exits with 2 if all are."""
    rows = _rows(path, folder, offline)
    tasks = [row.task for row in rows if not isinstance(row.task, str)]
    bad = [row for row in rows if isinstance(row.task, str)]
    for row in bad[:SHOWN]:
        say(f"{'malformed' if row.malformed else 'refused'}: {row.where}: {row.task}", err=True)
    if bad:
        typer.echo(f"{len(bad):,} of {len(rows):,} rows were left out", err=True)
    if bad and not tasks:
        fail(f"{path}: no row can be used", BAD_INPUT)
    return tasks


def _rows(path: Path, folder: list[Path] | None, offline: bool) -> list[Row]:
    """The rows of a built mix or a file, or of a mix that is built for this alone."""
    from ...specs.loader import SpecError
    from ..data.folder import is_mix, read_folder
    from ..data.rows import Row

    if is_mix(path):
        built = _assemble(path, folder, offline)
        tasks: list[AnyTask] = [*built.train, *built.held_out]
        tasks += [task for some in built.ood.values() for task in some]
        bad = [left for left in built.left_out if left.fate in ("malformed", "refused")]
        return [
            *(Row(task.source, task) for task in tasks),
            *(Row(left.where, left.reason, left.fate == "malformed") for left in bad),
        ]
    try:
        return list(read_folder(path))
    except SpecError as error:
        fail(str(error), BAD_INPUT)


def _accounts(mix: Mix) -> list[str]:
    """Of each source what became of its rows, then the first rows that could not be used."""
    from ..data.mix import FATES

    lines = []
    for name, read in mix.sources.items():
        if not read.missing:
            parts = [f"{mix.counts[name][fate]:,} {fate}" for fate in FATES if mix.counts[name][fate]]
            lines.append(f"{name}: {read.rows:,} rows read = {' + '.join(parts) or '0'}")
    bad = [left for left in mix.left_out if left.fate in ("malformed", "refused")]
    lines += [f"{left.fate}: {left.where}: {left.reason}" for left in bad[:SHOWN]]
    if len(bad) > SHOWN:
        lines.append(f"{len(bad) - SHOWN:,} more such rows; all of them are in left_out.jsonl")
    return lines
