"""What the converters share: a row's id, its criteria, and why a row is no task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import regex
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from ....agents.scoring.plugins import fault
from ....specs.errors import shortened
from ....specs.ood import OodTask
from ....specs.tasks import Criterion, Message, Origin, TrainTask, as_prompt

Row = dict[str, Any]
T = TypeVar("T", TrainTask, OodTask)

_FOREIGN = regex.compile(r"[^A-Za-z0-9._-]+")  # what no id holds


class RowError(ValueError):
    """Why a row cannot become a task."""


@dataclass(frozen=True)
class Converter:
    """How the rows of one data set become tasks."""

    name: str
    domain: str
    convert: Callable[[Row, str | None], TrainTask | OodTask]
    """From a row and, in a file that is a mapping, its key. May raise what `converted` catches."""
    recognises: Callable[[Row], bool]
    """Is this row one of the data set's, by its keys?"""
    evaluation_only: bool = False
    """Training on it is refused."""
    local_only: bool = False
    """Its owners ask that copies stay private: it is read from a local file and never fetched."""


def converted(converter: Converter, row: Row, key: str | None = None) -> TrainTask | OodTask | str:
    """The row as a task, or the reason why it is none."""
    if not is_text(row):
        return "half of a surrogate pair is not text"
    try:
        return converter.convert(row, key)
    except ValidationError as error:
        return why(error)
    except RowError as error:
        return str(error)
    except RecursionError:  # the regex compiler's
        return "a regular expression is nested too deeply"
    except KeyError as error:
        return f"a field of the {converter.name} schema is missing: {error.args[0]}"
    except (AttributeError, IndexError, OverflowError, TypeError, ValueError):
        return f"a field of the {converter.name} schema is missing or has the wrong type"


def why(error: ValidationError) -> str:
    """The first thing wrong with a row, where, and the value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']} ({shortened(repr(first['input']))})"


def is_text(row: Row) -> bool:
    """JSON can name half of a surrogate pair, which no file could hold."""
    try:
        to_json(row, fallback=str, bytes_mode="base64", inf_nan_mode="constants")
    except PydanticSerializationError:
        return False
    return True


def task_id(source: str, row: str) -> str:
    """The same row has the same id in every build; a name that no id can hold gets a hash of it."""
    name = _FOREIGN.sub("-", row)
    if name != row or not name:
        name += "-" + hashlib.sha256(row.encode()).hexdigest()[:8]
    return f"{source}-{name}"


def content_id(*parts: Any) -> str:
    """A name for a row that has none: a hash of what it says."""
    content = json.dumps(parts, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def safe_id(name: str) -> str:
    """A name of somebody else's as a task id."""
    return regex.sub(r"^[^A-Za-z0-9]+", "", _FOREIGN.sub("-", name)) or "row"


def read_criterion(entry: Row) -> Criterion:
    """A criterion under this project's keys, or under those of HealthBench and verl (`criterion`).

    Raises `ValidationError`, or `KeyError`, `TypeError`, `ValueError`, `AttributeError`.
    """
    about = {key: entry[key] for key in entry.keys() & {"check", "extract", "gate"}}
    about |= {
        "text": entry["text"] if "text" in entry else entry["criterion"],
        "points": float(entry["points"]),
    }
    if tags := read_tags(entry.get("tags")):
        about["tags"] = tags
    return Criterion.model_validate(about, context=fault)


def read_tags(tags: Any) -> tuple[str, ...]:
    """A criterion's tags: a list of `axis:accuracy`, or a mapping from `axis` to `accuracy`."""
    if isinstance(tags, list):
        return tuple(str(tag) for tag in tags)
    if isinstance(tags, dict):
        plain = {key: value for key, value in tags.items() if isinstance(value, str) and value}
        return tuple(f"{key}:{value}" for key, value in plain.items() if key in TAG_KEYS)
    return ()


#: Keys of a mapping of tags that say something of the criterion (others steer a verifier).
TAG_KEYS = ("level", "axis", "cluster", "source")


def summed(rubric: Iterable[Criterion]) -> tuple[Criterion, ...]:
    """Each criterion once: one that is listed several times weighs what its copies weighed together."""
    rubric = tuple(rubric)
    if len({criterion.text for criterion in rubric}) == len(rubric):
        return rubric  # ids are slow to compute, and equal criteria have equal texts
    times: dict[str, list[Criterion]] = {}
    for criterion in rubric:
        times.setdefault(criterion.id, []).append(criterion)
    return tuple(
        Criterion.model_validate({**dict(same[0]), "points": sum(c.points for c in same)})
        for same in times.values()
    )


def read_messages(prompt: Any) -> tuple[str, tuple[Message, ...] | None]:
    """A prompt that is a text or a list of messages, as a text and, of several, the messages."""
    if isinstance(prompt, str):
        return prompt, None
    messages = tuple(Message(role=m["role"], content=m["content"]) for m in prompt)
    if not messages or messages[-1].role != "user":
        who = messages[-1].role if messages else "nobody"
        raise RowError(f"the last message is one of the {who}, not of the user")
    return as_prompt(messages), messages if len(messages) > 1 else None


def make(
    kind: type[T],
    source: str,
    row_id: str,
    domain: str,
    prompt: Any,
    rubric: Sequence[Criterion] = (),
    canary: str | None = None,
    more: Row | None = None,
    prefix: str | None = None,
    **fields: Any,
) -> T:
    """A task of `source`, whose id begins with `prefix` (or the source). Raises `ValidationError`."""
    text, messages = read_messages(prompt)
    kept = {key: value for key, value in (more or {}).items() if value is not None}
    return kind(
        id=task_id(safe_id(prefix or source), row_id),
        domain=domain,
        prompt=text,
        messages=messages,
        rubric=summed(rubric),
        source=source,
        origin=Origin(row=row_id, set=source, canary=canary, more=kept),
        **fields,
    )
