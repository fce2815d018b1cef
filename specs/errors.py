"""Values with their places in YAML files, and what is wrong there, as ``file:line:col: ...``."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from .faults import Fault, FaultsError, faults_of
from .secrets import masked

#: Stands in for the file name of a value that was given as an option.
COMMAND_LINE = "command line"

#: Keys and list indexes from the top of a file down to a value.
Steps = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a spec. `line` and `column` count from 1 (0: on the command line)."""

    file: str
    line: int
    column: int
    path: str
    """The place in the spec, such as ``train[3].rubric[0].check.kind``; empty for a whole file."""
    message: str

    def __str__(self) -> str:
        at = f":{self.line}:{self.column}" if self.line else ""
        place = f"{self.path}: " if self.path else ""
        return f"{self.file}{at}: {place}{self.message}"


class SpecError(Exception):
    """A YAML file or an option cannot be used. `problems` holds everything found, in file order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class Entry(NamedTuple):
    """A key of a mapping and its value."""

    key: Node
    value: Node


@dataclass(slots=True, eq=False)
class Node:
    """A value and the place where it is written. Aliases share the node of their anchor."""

    file: str
    line: int
    column: int
    value: str | int | float | bool | list[Node] | dict[str, Entry] | None
    written: str = ""
    """A scalar as it stands in the file (with its quotes)."""
    bad: bool = False
    """A problem was reported here: whatever else is found at this very node is a consequence."""

    def plain(self) -> Any:
        """The value as dicts, lists and scalars."""
        value = self.value
        if type(value) is dict:
            return {key: entry.value.plain() for key, entry in value.items()}
        if type(value) is list:
            return [item.plain() for item in value]
        return value

    def get(self, step: str | int) -> Node | None:
        """The value of a key, or the item at an index, where there is one."""
        if isinstance(self.value, dict) and isinstance(step, str):
            entry = self.value.get(step)
            return entry.value if entry else None
        if isinstance(self.value, list) and isinstance(step, int) and step < len(self.value):
            return self.value[step]
        return None

    def at(self, path: Steps) -> Node:
        """The value at `path`, or the last one on the way to it."""
        node = self
        for step in path:
            below = node.get(step)
            if below is None:
                break
            node = below
        return node

    def has(self, path: Steps) -> bool:
        """Is there a value at just this path?"""
        node: Node | None = self
        for step in path:
            node = node and node.get(step)
        return node is not None

    def problem(self, path: Steps, message: str) -> Problem:
        """A problem with this value, which stands at `path`."""
        return Problem(self.file, self.line, self.column, dotted(path), message)


def dotted(path: Steps) -> str:
    """``("train", 3, "id")`` as ``train[3].id``."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")


def shortened(text: str) -> str:
    """`text` on one printable line of at most 60 characters."""
    line = " ".join(text.split()).encode(errors="backslashreplace").decode()
    return line if len(line) <= 60 else line[:59] + "…"


def describe(node: Node) -> str:
    """The value as written, without secrets that show by their form, or what kind of value it is."""
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    return shortened(masked(node.written)) or "empty"


def near_miss(word: str, options: Iterable[str]) -> str | None:
    """The option that `word` was probably meant to be."""
    close = difflib.get_close_matches(word, list(options), n=1)
    return close[0] if close else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """``" (did you mean X?)"``, or nothing when no option comes close."""
    close = near_miss(word, options)
    return f" (did you mean {close}?)" if close else ""


# --- pydantic's errors --------------------------------------------------------------------------

M = TypeVar("M", bound=BaseModel)
_Models = list[type[BaseModel]]

#: What pydantic's type errors ask for, in the words of YAML.
_MUST_BE = {
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": "a string",
    "tuple_type": "a list",
}


def validate(
    model: type[M],
    source: Node,
    problems: list[Problem],
    more_keys: tuple[str, ...] = (),
    whole: bool = True,
    context: Any = None,
) -> M | None:
    """`source` as a `model`; if it is none, None, and every reason why goes to `problems`.

    `more_keys` are known at the top although the model does not have them. If `source` is not
    whole (a file it extends could not be read), missing keys are no problem of its own. `context` is
    what the model's own validators are given.
    """
    try:
        return model.model_validate(source.plain(), context=context)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        if not whole:
            details = [d for d in details if d["type"] not in ("missing", "union_tag_not_found")]
        if details and all(_faults(detail) for detail in details):
            details = _on_every_level(model, source, context) or details
        problems += _explain(model, source, details, more_keys)
    except RecursionError:  # the regex compiler's
        problems.append(source.problem((), "a regular expression is nested too deeply"))
    return None


def explained(model: type[BaseModel], source: Node, error: ValidationError) -> list[Problem]:
    """What `error` says of `source`, of which a `model` was to be made, in the words of YAML."""
    return list(_explain(model, source, error.errors(include_url=False, include_input=False), ()))


def _explain(
    model: type[BaseModel], source: Node, details: list[ErrorDetails], more_keys: tuple[str, ...]
) -> Iterator[Problem]:
    """A problem for each of pydantic's errors that is not a mere consequence of another."""
    above = {detail["loc"][:i] for detail in details for i in range(len(detail["loc"]))}
    misspelt: set[Steps] = set()  # missing keys that are there, but with a typo
    missing = []
    told: set[Steps] = set()  # a value of several allowed types fails to be each of them: one problem
    paths = {_without_tags(model, detail["loc"])[0] for detail in details}
    for detail in details:
        loc, kind = detail["loc"], detail["type"]
        path, models = _without_tags(model, loc)
        node = source.at(path)
        if faults := _faults(detail):
            yield from (placed(source, path, fault) for fault in faults)
        elif kind == "extra_forbidden":
            key, within = path[-1], _without_tags(model, loc[:-1])[1]
            allowed = [name for owner in within for name in owner.model_fields]
            allowed += more_keys if len(path) == 1 else ()
            parent = source.at(path[:-1])
            assert isinstance(key, str) and isinstance(parent.value, dict)
            if meant := near_miss(key, allowed):
                misspelt.add((*path[:-1], meant))
            kind_of = parent.get("kind")
            if kind_of is not None and (kinds := _kinds_with(model, path)):
                message = f"{key} is a key of kind {' or '.join(kinds)}, not of {describe(kind_of)}"
            else:
                message = f"unknown key {key}{did_you_mean(key, allowed)}"
            message += f"; allowed here: {', '.join(allowed)}"
            yield parent.value[key].key.problem(path, message)
        elif node.bad or (kind == "too_short" and loc in above):
            continue
        elif kind == "missing":
            missing.append((node, path))
        elif kind in ("union_tag_invalid", "union_tag_not_found"):
            yield _wrong_tag(node, path, models, detail)
        elif kind == "literal_error" and (tags := _tags(model, path)):
            yield node.problem(path, _not_one_of(node, tags))
        elif any(len(other) > len(path) and other[: len(path)] == path for other in paths):
            continue  # of several types one fits, but for something inside, which is told
        elif path not in told:
            told.add(path)
            messages = [_message(node, d) for d in details if _without_tags(model, d["loc"])[0] == path]
            yield node.problem(path, "; or ".join(dict.fromkeys(messages)))
    for node, path in missing:
        if path not in misspelt:
            yield node.problem(path, f"the key {path[-1]} is required, but missing")


def _faults(detail: ErrorDetails) -> tuple[Fault, ...]:
    """The faults that one of pydantic's errors stands for; () if it is another error."""
    error = detail.get("ctx", {}).get("error")
    return error.faults if isinstance(error, FaultsError) else ()


def _on_every_level(model: type[BaseModel], source: Node, context: Any) -> list[ErrorDetails]:
    """The faults of the outer models too, as one error; [] where they cannot be had."""
    try:
        found = faults_of(model, source.plain(), context)
    except ValidationError:  # of a model that finds its faults itself
        return []
    error = FaultsError(found)
    return [{"type": "value_error", "loc": (), "msg": str(error), "input": None, "ctx": {"error": error}}]


def placed(source: Node, above: Steps, fault: Fault) -> Problem:
    """A fault at the key that says it: one of the command line, or of the file that was named, first."""
    found = [(path, source.at(path)) for path in ((*above, *below) for below in fault.paths)]
    written = [(path, node) for path, node in found if source.has(path)]
    order = (COMMAND_LINE, source.file)
    written.sort(key=lambda one: order.index(one[1].file) if one[1].file in order else len(order))
    path, node = (written or found)[0]
    if written and not isinstance(node.value, dict | list):
        return node.problem(path, _with_value(node, fault.message) if fault.shown else fault.message)
    holder = source.at(path[:-1]).value  # of what goes over lines, its key says more than its first item
    if written and isinstance(holder, dict):
        node = holder[str(path[-1])].key
    return node.problem(path, fault.message)


def _without_tags(model: type[BaseModel], loc: Steps) -> tuple[Steps, _Models]:
    """Pydantic's `loc` as a path in the YAML file, and the models a value there may be.

    After the place of a tagged union pydantic inserts the tag: ``("check", "words", "max")``, and after
    that of any other union a name of the type it tried: ``("share", "constrained-float")``.
    """
    path: Steps = ()
    models: _Models = [model]
    type_name = key = False  # does the name of a type come next, or a key that stands for itself?
    values: Any = None  # what may stand under such a key
    for step in loc:
        if type_name:
            type_name = False
            continue
        if key:
            key, type_name, path = False, _is_union(values), (*path, step)
            continue
        if isinstance(step, str) and len(models) > 1:
            models = [m for m in models if any(step in tags for tags in _literals(m))]
            continue
        path = (*path, step)
        if isinstance(step, str):
            info = models[0].model_fields.get(step) if models else None
            models = list(_models_in(info.annotation)) if info else []
            type_name = info is not None and not models and _is_union(info.annotation)
            key = info is not None and get_origin(info.annotation) is dict
            values = get_args(info.annotation)[1] if info and key else None
    return path, models


def _may_stand(model: type[BaseModel], path: Steps) -> _Models:
    """All models that may stand at `path`, of whichever kind."""
    models: _Models = [model]
    for step in path:
        if isinstance(step, str):
            infos = [m.model_fields[step] for m in models if step in m.model_fields]
            models = [found for info in infos for found in _models_in(info.annotation)]
    return models


def _kinds_with(model: type[BaseModel], path: Steps) -> list[str]:
    """The kinds of mapping in which the last key of `path` is allowed; [] if there are none."""
    owners = [m for m in _may_stand(model, path[:-1]) if path[-1] in m.model_fields]
    kinds = [get_args(m.model_fields["kind"].annotation) for m in owners if "kind" in m.model_fields]
    return [str(tag) for tags in kinds for tag in tags]


def _tags(model: type[BaseModel], path: Steps) -> list[str]:
    """What the last key of `path` may be over all models that may stand there; [] if it is no tag."""
    models = _may_stand(model, path[:-1])
    infos = [m.model_fields[key] for m in models for key in path[-1:] if key in m.model_fields]
    if len(infos) < 2 or any(get_origin(info.annotation) is not Literal for info in infos):
        return []
    return list(dict.fromkeys(str(tag) for info in infos for tag in get_args(info.annotation)))


def _is_union(annotation: Any) -> bool:
    """Is a value of one of several types allowed (None does not count)?"""
    if hasattr(annotation, "__metadata__"):
        return _is_union(get_args(annotation)[0])
    kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
    return get_origin(annotation) in (Union, types.UnionType) and len(kinds) > 1


def _literals(model: type[BaseModel]) -> Iterator[tuple[Any, ...]]:
    return (get_args(info.annotation) for info in model.model_fields.values())


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models that occur in a type: of ``tuple[Criterion, ...] | None``, Criterion."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)


def _wrong_tag(node: Node, path: Steps, models: _Models, detail: ErrorDetails) -> Problem:
    """The key that says which kind of mapping this is, `kind`, is missing or unknown."""
    key = detail["ctx"]["discriminator"].strip("'")
    allowed = [tag for m in models for tag in get_args(m.model_fields[key].annotation)]
    value = node.get(key)
    if value is not None:
        return value.problem((*path, key), _not_one_of(value, allowed))
    message = f"the key {key} is required, but missing; allowed: {', '.join(allowed)}"
    return node.problem((*path, key), message)


def _not_one_of(node: Node, allowed: list[str]) -> str:
    guess = did_you_mean(str(node.value), allowed)
    return f"{describe(node)} is not allowed{guess}; allowed: {', '.join(allowed)}"


def _with_value(node: Node, text: str) -> str:
    """What a validator of ours says of a value; one that knows a list of values ends with it."""
    allowed = text.partition("allowed: ")[2].split(", ")
    return f"{describe(node)}{did_you_mean(str(node.value), allowed)}: {text}"


def _message(node: Node, detail: ErrorDetails) -> str:
    kind, text, context = detail["type"], detail["msg"], detail.get("ctx", {})
    value = describe(node)
    if kind == "literal_error":
        return _not_one_of(node, re.findall("'([^']*)'", context["expected"]))
    if kind == "value_error":
        text = str(context["error"])
        if isinstance(node.value, dict | list):
            return text
        return _with_value(node, text)
    if kind == "too_short":
        least, actual = context["min_length"], context["actual_length"]
        return f"must have at least {least} item{'s' * (least > 1)}, but has {actual}"
    hint = ""
    if kind == "string_type" and isinstance(node.value, bool | int | float):
        hint = f'; quote it: "{value}"'
    must = f"be {_MUST_BE[kind]}" if kind in _MUST_BE else re.sub(r"^\w+ should ", "", text)
    return f"must {must}, not {value}{hint}"
