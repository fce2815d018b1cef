"""JSONL rows as tasks: in this project's own words, in IFEval's schema, or in verl's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import regex
from pydantic import ValidationError

from ...agents.scoring.plugins import fault
from ...specs.errors import Problem, shortened
from ...specs.loader import SpecError
from ...specs.tasks import (
    Criterion,
    IfevalCheck,
    MentionsCheck,
    Pool,
    Quality,
    RegexCheck,
    RepetitionCheck,
    TrainTask,
    WordsCheck,
)

#: Words that say what to do rather than what about.
_TASK_WORDS = frozenset(
    """
    a about above after all also an and answer any are as at be before being below between both
    but by can capital comma commas could do does each end entire english every few first follow
    following for from give had has have her here his how i if in include into is it its itself
    just least less letter letters like line lowercase make many may me more most must my need
    no not of on once one only or other our out over paragraph paragraphs please phrase possible
    provide question repeat request respond response same say second sentence sentences should
    show so some start such sure than that the their them then there these they this those three
    times title to two under up us use used using very want was we were what when where which
    who why will with within without word words would write your you
    """.split()
)
SUBJECT_WORDS = 6  # every other one is for the oracle, the rest for the pool


@dataclass(frozen=True)
class Row:
    """One row: `file:line`, and the task or the reason why it is refused."""

    where: str
    task: TrainTask | str


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a JSONL file; a row without a key is named by its line.

    Raises `SpecError` (`file:line:col`) where a line is no JSON object.
    """
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield Row(f"{path}:{number}", _task(parse_row(path, number, line), path, number))


def parse_row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The JSON object in a line. Raises `SpecError` with `file:line:col`."""
    column, message = 1, ""
    try:
        row = json.loads(line.decode("utf-8"))
        if isinstance(row, dict):
            return row
        message = f"a row must be a JSON object, not {type(row).__name__}"
    except UnicodeDecodeError as error:
        column, message = error.start + 1, f"byte {line[error.start]:#x} is not UTF-8"
    except json.JSONDecodeError as error:
        column, message = error.colno, f"not JSON: {error.msg}"
    except RecursionError:
        message = "nested too deeply"
    except ValueError as error:  # a number too long to read
        message = f"not JSON that can be read: {error}"
    raise SpecError([Problem(str(path), number, column, "", message)])


def _task(row: dict[str, Any], path: Path, number: int) -> TrainTask | str:
    if not _is_text(row):
        return "half of a surrogate pair is not text"
    if {"prompt", "instruction_id_list", "kwargs"} <= row.keys():
        return _from_ifeval(row, path, number)
    if {"prompt", "rubric"} <= row.keys() and isinstance(row["prompt"], str):
        return _from_task_row(row, path, number)
    if isinstance(row.get("reward_model"), dict) and "rubrics" in row["reward_model"]:
        return _from_verl(row, path, number)
    if {"rubric", "rubrics", "checklist"} & row.keys():
        return "its criteria are in words, in a schema that is not read yet"
    return (
        "not a known schema; so far: a task (prompt, rubric and the other keys of a task file), IFEval "
        "(key, prompt, instruction_id_list, kwargs), or verl (prompt, reward_model.rubrics)"
    )


def _from_verl(row: dict[str, Any], path: Path, number: int) -> TrainTask | str:
    """A row as RuscaRL's data has it: chat messages, and criteria in words with signed points."""
    messages: Any = row.get("prompt")
    if isinstance(messages, list) and len(messages) > 1:
        return "a conversation of several messages; a task has one"
    try:
        if isinstance(messages, list) and messages[0].get("role", "user") != "user":
            return f"the only message is one of the {messages[0]['role']}, not of the user"
        prompt = messages[0]["content"] if isinstance(messages, list) else messages
        extra = row.get("extra_info") or {}
        names = (extra.get("original_id"), extra.get("index"), f"line-{number}")
        name = next(name for name in names if name is not None)
        source = str(row.get("data_source") or path.stem)
        rubric = [read_criterion(entry) for entry in row["reward_model"]["rubrics"]]
        domain = str(row.get("ability") or "general")
        return _derived(_task_id(f"{source}-{name}"), domain, prompt, rubric, path)
    except ValidationError as error:
        return _why(error)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError):
        return "a field of the verl schema is missing or has the wrong type"


def read_criterion(entry: dict[str, Any]) -> Criterion:
    """A criterion under this project's keys, or under those of HealthBench and verl (`criterion`).

    Raises `ValidationError`, or `KeyError`, `TypeError`, `ValueError`, `AttributeError`.
    """
    about = {key: entry[key] for key in entry.keys() & {"check", "extract", "gate"}}
    about |= {"text": entry.get("text") or entry["criterion"], "points": float(entry["points"])}
    return Criterion.model_validate(about, context=fault)


def _derived(name: str, domain: str, prompt: str, rubric: Sequence[Criterion], path: Path) -> TrainTask:
    """A task whose quality and pool come from the words of its prompt. Raises `ValidationError`."""
    distinct = {criterion.id: criterion for criterion in rubric}
    return TrainTask(
        id=name,
        domain=domain,
        prompt=prompt,
        rubric=tuple(distinct.values()),
        quality=derive_quality(prompt),
        pool=derive_pool(prompt),
        source=path.name,
    )


def _why(error: ValidationError) -> str:
    """The first thing wrong with a row, where, and the value."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']} ({shortened(repr(first['input']))})"


def _task_id(name: str) -> str:
    """A name of somebody else's as a task id."""
    return regex.sub(r"^[^A-Za-z0-9]+", "", regex.sub(r"[^A-Za-z0-9._-]+", "-", name)) or "row"


def _is_text(row: dict[str, Any]) -> bool:
    """JSON can name half of a surrogate pair, which no file could hold."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _from_task_row(row: dict[str, Any], path: Path, number: int) -> TrainTask | str:
    """A row with the keys of a task in a task file; without an `id` it is named by file and line."""
    named = {"id": _task_id(f"{path.stem}-{number}"), "domain": "general", "source": path.name}
    try:
        return TrainTask.model_validate(named | row, context=fault)
    except ValidationError as error:
        return _why(error)
    except RecursionError:  # the regex compiler's
        return "a regular expression is nested too deeply"


def _from_ifeval(row: dict[str, Any], path: Path, number: int) -> TrainTask | str:
    ids, arguments = row["instruction_id_list"], row["kwargs"]
    if not isinstance(ids, list) or not isinstance(arguments, list) or len(ids) != len(arguments):
        return "instruction_id_list and kwargs must be lists of one length"
    try:
        rubric = [
            Criterion(
                text=f"follows the instruction {name}",
                points=1.0,
                check=IfevalCheck(
                    kind="ifeval",
                    id=name,
                    args={k: v for k, v in (given or {}).items() if v is not None},
                ),
            )
            for name, given in zip(ids, arguments, strict=True)
        ]
        name = f"ifeval-{row.get('key', f'line-{number}')}"
        return _derived(name, "instruction-following", row["prompt"], rubric, path)
    except ValidationError as error:
        return _why(error)
    except (AttributeError, TypeError):
        return "a field has the wrong type"


def subject_words(prompt: str) -> list[str]:
    """The longest words of a prompt that say what it is about, in its order; at most `SUBJECT_WORDS`."""
    words = [w for w in regex.findall(r"\p{L}{4,}", prompt.lower()) if w not in _TASK_WORDS]
    distinct = list(dict.fromkeys(words))
    longest = sorted(distinct, key=lambda w: (-len(w), distinct.index(w)))[:SUBJECT_WORDS]
    return sorted(longest, key=distinct.index)


def derive_quality(prompt: str) -> Quality | None:
    """What the oracle can know without anybody describing a good answer: the prompt's subject.

    Word stems (six letters) stand in for concepts. None when the prompt has no subject words. The
    pool takes the other subject words, so that no criterion repeats what the oracle looks for.
    """
    concepts = [(word[:6],) for word in subject_words(prompt)[::2]]
    return Quality(topic=tuple(concepts)) if concepts else None


def derive_pool(prompt: str) -> Pool:
    """Candidate criteria and a checklist from the prompt's words alone; some help, some do not."""
    words = tuple(subject_words(prompt)[1::2])
    criteria = [
        Criterion(text=text, points=2.0, check=check)
        for text, check in (
            ("is at least 12 words long", WordsCheck(kind="words", min=12)),
            ("is at most 10 words long", WordsCheck(kind="words", max=10)),
            ("repeats few word pairs", RepetitionCheck(kind="repetition", max_share=0.1)),
            ("ends like a sentence", RegexCheck(kind="regex", pattern=r"[.!?][\"')]*\s*$")),
            ("contains an exclamation mark", RegexCheck(kind="regex", pattern="!")),
        )
    ]
    if not words:
        return Pool(criteria=tuple(criteria))
    one = MentionsCheck(kind="mentions", terms=words)
    criteria.append(Criterion(text=f"mentions one of {', '.join(words)}", points=2.0, check=one))
    if len(words) > 1:
        two = MentionsCheck(kind="mentions", terms=words, at_least=2)
        criteria.append(Criterion(text=f"mentions two of {', '.join(words)}", points=2.0, check=two))
    checklist = (f"write about {', '.join(words)}", "finish your sentence")
    return Pool(criteria=tuple(criteria), checklists=(checklist, ("be brief", "be polite")))
