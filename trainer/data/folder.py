"""A built mix as a folder: written whole or not at all, and read back.

train.jsonl, held_out.jsonl, ood/NAME.jsonl   the tasks, one a line
left_out.jsonl                                every row that is in none of them, and why
not-for-export/...                            the same, of sources that state no licence
manifest.json                                 counts, licences, hashes

No file is empty: what there is nothing to write of is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ... import __version__
from ...specs.errors import Problem
from ...specs.loader import SpecError, load_task_file
from ...specs.tasks import Task
from .mix import FATES, LeftOut, Mix
from .ood import APART
from .readers import FORMATS, sha256_of
from .rows import Row, read_rows

ABOUT = ("left_out.jsonl", "manifest.json")  # about tasks, and no tasks


def write_folder(
    mix: Mix, target: Path, include_unlicensed: bool = False, overwrite: bool = False
) -> dict[str, Any]:
    """Write the mix to `target`, replacing a mix that is there, and return its manifest.

    Raises `OSError`, and `FileExistsError` where `target` holds something else, or (unless `overwrite`) a
    built mix with files that were changed or added since.
    """
    if (
        target.exists()
        and not (target / "manifest.json").is_file()
        and (not target.is_dir() or any(target.iterdir()))
    ):
        raise FileExistsError(f"{target} is there already and is no built mix")
    if target.exists() and not overwrite and (changed := _changed(target)):
        some = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
        raise FileExistsError(
            f"{target} was changed since it was built ({some}): --overwrite replaces it, --out FOLDER "
            "leaves it"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
    try:
        os.chmod(new, 0o755)
        files = {name: _write(new / name, lines) for name, lines in _files(mix, include_unlicensed)}
        manifest = _manifest(mix, files)
        _write(new / "manifest.json", [json.dumps(manifest, indent=1, ensure_ascii=False)])
        _swap(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    return manifest


def is_mix(path: Path) -> bool:
    """Is this a mix to be built, and not a file of tasks?"""
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    return any(line.startswith(b"sources:") for line in path.read_bytes().splitlines())


def read_folder(path: Path) -> Iterator[Row]:
    """The tasks of a built mix, of a folder of task files, or of one file; what is no row is malformed.

    Raises `SpecError` where there is no such file, and for a task file in YAML that is wrong.
    """
    if path.is_dir():
        built = {"train.jsonl", "held_out.jsonl", "ood"}
        roots = [path, path / APART] if (path / "manifest.json").is_file() else []
        found = [
            f
            for root in roots
            for f in sorted(root.rglob("*.jsonl"))
            if f.relative_to(root).parts[0] in built
        ]
        others = sorted(f for f in path.iterdir() if f.suffix in FORMATS and f.name not in ABOUT)
        for file in found or others:
            yield from _read_on(file)
    elif path.suffix in (".yaml", ".yml"):
        tasks = load_task_file(path)
        yield from (Row(f"{path}: {task.id}", task) for task in tasks.train)
        yield from (Row(f"{path}: {task.id}", task) for task in tasks.held_out)
    elif path.is_file() and path.suffix in FORMATS:
        yield from _read_on(path)
    elif path.is_file():
        yield from read_rows(path)  # says which formats there are
    else:
        raise SpecError([Problem(str(path), 1, 1, "", "there is no such file or folder")])


def _read_on(file: Path) -> Iterator[Row]:
    """The rows of a file, with the file itself as a malformed row where it holds none."""
    n = 0
    try:
        for row in read_rows(file, read_on=True):
            n += 1
            yield row
    except SpecError as error:
        for one in error.problems:
            yield Row(f"{one.file}:{one.line}", one.message, malformed=True)
    else:
        if not n:
            yield Row(f"{file}:1", "the file holds no row", malformed=True)


def as_line(task: Task, split: str) -> str:
    """A task as a line of JSON: what is not set is left out."""
    plain = task.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"split": split, **plain}, ensure_ascii=False)


def _files(mix: Mix, include_unlicensed: bool) -> Iterator[tuple[str, Iterable[str]]]:
    splits: list[tuple[str, str, Sequence[Task]]] = [
        ("train.jsonl", "train", mix.train),
        ("held_out.jsonl", "held_out", mix.held_out),
        *((f"ood/{name}.jsonl", "ood", tasks) for name, tasks in mix.ood.items()),
    ]
    for name, split, tasks in splits:
        kept_apart = [not include_unlicensed and task.licence is None for task in tasks]
        yield from _both(name, [as_line(task, split) for task in tasks], kept_apart)
    # A reason may quote the row, so it is kept where the row would be.
    kept_apart = [
        not include_unlicensed and mix.spec.sources[left.source].licence is None for left in mix.left_out
    ]
    yield from _both("left_out.jsonl", [_left_out_line(left) for left in mix.left_out], kept_apart)


def _both(
    name: str, lines: Sequence[str], kept_apart: Sequence[bool]
) -> Iterator[tuple[str, Sequence[str]]]:
    """A file, and the one of that name that is not for export; no file is empty."""
    for prefix, wanted in (("", False), (f"{APART}/", True)):
        if some := [line for line, apart in zip(lines, kept_apart, strict=True) if apart is wanted]:
            yield prefix + name, some


def _left_out_line(left: LeftOut) -> str:
    # The file's name alone: the same mix is the same folder on every machine.
    return json.dumps({**vars(left), "where": Path(left.where).name}, ensure_ascii=False)


def _write(path: Path, lines: Iterable[str]) -> dict[str, Any]:
    """Write lines, synced to disk, and say how many there were and their hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, n = hashlib.sha256(), 0
    with path.open("wb") as file:
        for line in lines:
            data = (line + "\n").encode()
            file.write(data)
            digest.update(data)
            n += 1
        file.flush()
        os.fsync(file.fileno())
    return {"rows": n, "sha256": digest.hexdigest()}


def _changed(target: Path) -> list[str]:
    """The files of a built mix that are no more as they were written, and those that were added."""
    try:
        known = json.loads((target / "manifest.json").read_bytes())["files"]
        written = {name: about["sha256"] for name, about in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return [] if not any(target.iterdir()) else ["manifest.json"]
    there = {str(f.relative_to(target)): f for f in target.rglob("*") if f.is_file()}
    there.pop("manifest.json")
    return sorted(name for name, file in there.items() if sha256_of(file) != written.get(name))


def _swap(new: Path, target: Path) -> None:
    old = None
    if target.exists():
        old = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.old."))
        os.replace(target, old / "mix")
    try:
        os.replace(new, target)
    except OSError:
        if old is not None:
            os.replace(old / "mix", target)
        raise
    finally:
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)


def _manifest(mix: Mix, files: dict[str, Any]) -> dict[str, Any]:
    """Nothing in it depends on when or where it was built."""
    content = json.dumps(mix.spec.model_dump(mode="json"), sort_keys=True)
    splits: dict[str, Sequence[Task]] = {"train": mix.train, "held_out": mix.held_out}
    every: list[Task] = [*mix.train, *mix.held_out, *(t for some in mix.ood.values() for t in some)]
    return {
        "name": mix.spec.name,
        "seed": mix.spec.seed,
        "harnessrl": __version__,
        "mix_sha256": hashlib.sha256(content.encode()).hexdigest(),
        "sources": {
            name: {
                "converter": read.spec.converter,
                "licence": read.spec.licence,
                "stated_licence": read.stated_licence,
                "place": read.place or None,
                "revision": read.revision,
                "missing": read.missing or None,
                "files": read.files,
                "read": read.rows,
                **{fate: mix.counts[name][fate] for fate in FATES},
            }
            for name, read in mix.sources.items()
        },
        "domains": {
            name: {
                "wanted": {"train": domain.train, "held_out": domain.held_out},
                **{
                    split: dict(Counter(task.source for task in tasks if task.domain == name))
                    for split, tasks in splits.items()
                },
            }
            for name, domain in mix.spec.domains.items()
        },
        "ood": {
            name: {"source": one.source, "wanted": one.tasks, "tasks": len(mix.ood[name])}
            for name, one in mix.spec.ood.items()
        },
        "missing": mix.missing(),
        "licences": dict(sorted(Counter(task.licence or "none stated" for task in every).items())),
        "files": files,
    }
