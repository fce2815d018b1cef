"""The layers of a run spec: a file, those it `extends`, and one merged over the other.

Every value keeps the place where it was written.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from .errors import Entry, Node, Problem, SpecError, describe
from .yamlnodes import read

YAML = (".yaml", ".yml")
#: Suffixes of files of rows, which people take for specs.
ROWS = (".jsonl", ".parquet", ".csv")


def read_file(path: Path, problems: list[Problem]) -> Node | None:
    """The mapping in a YAML file, or None. What is wrong with the file goes to `problems`."""
    file = str(path)
    if path.suffix in ROWS and path.is_file():
        message = (
            f"a {path.suffix} file holds rows of data (`harnessrl data` looks at it); this takes YAML"
        )
        problems.append(Problem(file, 1, 1, "", message))
        return None
    try:
        text = path.read_bytes().decode("utf-8")
        root, found = read(text.removeprefix("\ufeff"), file)
    except FileNotFoundError:
        message = f"the file does not exist{_similar_file(path)}"
    except IsADirectoryError:
        message = "this is a folder, not a file"
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: {error.reason} at byte {error.start + 1}"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        message = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
    except SpecError as error:
        problems += error.problems
        return None
    else:
        problems += found
        if isinstance(root.value, dict):
            return root
        if root.value is None:
            message = "the file is empty"
        else:
            message = f"the file must hold a mapping (key: value), not {describe(root)}"
    problems.append(Problem(file, 1, 1, "", message))
    return None


def no_file(name: Node, path: Path) -> str:
    """What is wrong with a `name` that leads to `path`, where there is no file."""
    if name.value == "":
        return "must be the path of a file, not empty"
    if os.path.isdir(path):
        inside = [file for file in ("train.jsonl", "held_out.jsonl") if os.path.isfile(path / file)]
        names = ", ".join(f"{path.name}/{file}" for file in inside)
        hint = f"; name its files: {names}" if names else ""
        return f"{describe(name)} is a folder, not a file{hint}"
    return f"{describe(name)} does not exist{_similar_file(path, name.file)}"


def _similar_file(path: Path, named_in: str = "") -> str:
    """Another file of its kind that `path` was probably meant to be; never the one that names it."""
    kinds: tuple[str, ...] = (path.suffix,)
    if path.suffix not in ("", *ROWS, ".json", ".md"):
        kinds += YAML  # `.yml` for `.yaml`, or one that is misspelt
    try:
        there = [
            file for file in sorted(path.parent.iterdir()) if file.suffix in kinds and file.is_file()
        ]
    except (OSError, ValueError):
        return ""
    own = Path(named_in).name if named_in and Path(named_in).parent == path.parent else ""
    # By their stems: the same suffix would make any two names alike.
    by_stem = {file.stem: file.name for file in there if file.name != own}
    stem = next(iter(difflib.get_close_matches(path.stem, by_stem, n=1, cutoff=0.75)), None)
    return f" (did you mean {by_stem[stem]}?)" if stem else ""


def read_chain(path: Path, problems: list[Problem]) -> tuple[Node, bool]:
    """The file at `path` over those it `extends`; False if the chain breaks off with a problem.

    Raises `SpecError` if the first file cannot be read.
    """
    merged = read_file(path, problems)
    if merged is None:
        raise SpecError(problems)
    chain = [path]
    target = _take_extends(merged)
    while target is not None:
        if not isinstance(target.value, str):
            message = f"must be the path of another spec, not {describe(target)}"
            problems.append(target.problem(("extends",), message))
            return merged, False
        file = chain[-1].parent / target.value
        if not os.path.isfile(file):
            problems.append(target.problem(("extends",), no_file(target, file)))
            return merged, False
        chain.append(file)
        if any(os.path.samefile(file, earlier) for earlier in chain[:-1]):
            message = f"the chain is a circle: {' -> '.join(str(file) for file in chain)}"
            problems.append(target.problem(("extends",), message))
            return merged, False
        parent = read_file(file, problems)
        if parent is None:
            return merged, False
        target = _take_extends(parent)
        merged = merge(parent, merged, place=merged)
    return merged, True


def _take_extends(root: Node) -> Node | None:
    """The value of the key `extends`, which says how to read a file and is no part of the spec."""
    entry = root.value.pop("extends", None) if isinstance(root.value, dict) else None
    return entry.value if entry else None


def merge(low: Node, high: Node, place: Node) -> Node:
    """`high` over `low`: mappings of one `kind` key by key, everything else replaced whole.

    A merged mapping stands where `place` (one of the two) does: there its missing keys are missed.
    """
    if not (isinstance(low.value, dict) and isinstance(high.value, dict)):
        return high
    kinds = [node.get("kind") for node in (low, high)]
    if all(kinds) and len({kind.value for kind in kinds if kind and isinstance(kind.value, str)}) == 2:
        return high  # another kind of thing: the keys of the one mean nothing to the other
    entries = dict(low.value)
    for name, entry in high.value.items():
        below = entries.get(name)
        if below is None:
            entries[name] = entry
        else:
            at = below if place is low else entry
            entries[name] = Entry(at.key, merge(below.value, entry.value, place=at.value))
    return Node(place.file, place.line, place.column, entries, bad=low.bad or high.bad)
