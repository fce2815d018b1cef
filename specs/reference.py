"""What the spec language is, generated from the models: JSON Schemas for editors, a page for people.

python -m harnessrl.specs.reference     writes both (tests fail while they are out of date)
"""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
import types
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .harnessfile import HarnessFile
from .mix import MixSpec
from .schema import RunSpec
from .tasks import TaskFile
from .updates import UpdateFile

HERE = Path(__file__).parent
DRAFT = "https://json-schema.org/draft/2020-12/schema"
EXTENDS = "Another spec to read first; this file's values go over it, key by key. Relative to this file."


@cache
def meanings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings under a model's fields, by field.

    Pydantic would collect them (`use_attribute_docstrings`) as the models are made, at every start.
    """
    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if part is BaseModel or not issubclass(part, BaseModel):
            continue
        (written,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        assert isinstance(written, ast.ClassDef)
        for field, below in pairwise(written.body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def described(root: type[BaseModel]) -> dict[str, Any]:
    """A model's JSON Schema in which every field says what it means."""
    schema = root.model_json_schema()
    known = {model.__name__: model for model in _reached(root, set())}
    for name, part in ((root.__name__, schema), *schema.get("$defs", {}).items()):
        for key, meaning in meanings(known[name]).items():
            field = part["properties"][key] | {"description": meaning}
            part["properties"][key] = dict(sorted(field.items()))
    return schema


def run_schema() -> dict[str, Any]:
    """JSON Schema of a run spec.

    Nothing is required: a file may extend another one or be a recipe, and `harnessrl validate`, which
    sees the whole chain, says what is missing.
    """
    schema = described(RunSpec)
    properties = {"extends": {"type": "string", "description": EXTENDS}, **schema["properties"]}
    schema |= {"$schema": DRAFT, "title": "HarnessRL run spec", "properties": properties}
    layers = _reached_without_lists(schema)
    for name, part in schema["$defs"].items():
        if name in layers:
            part.pop("required", None)
    schema.pop("required", None)
    # Half an engine (a layer without its `kind`) may fit several kinds.
    engine = schema["properties"]["engine"]
    engine["anyOf"] = engine.pop("oneOf")
    return schema


def tasks_schema() -> dict[str, Any]:
    """JSON Schema of a task file."""
    return described(TaskFile) | {"$schema": DRAFT, "title": "HarnessRL tasks"}


def update_schema() -> dict[str, Any]:
    """JSON Schema of an update that a person writes."""
    return described(UpdateFile) | {"$schema": DRAFT, "title": "HarnessRL update"}


def mix_schema() -> dict[str, Any]:
    """JSON Schema of a mix."""
    return described(MixSpec) | {"$schema": DRAFT, "title": "HarnessRL mix"}


SCHEMAS = {"harness": run_schema, "tasks": tasks_schema, "update": update_schema, "mix": mix_schema}


def as_text(schema: dict[str, Any]) -> str:
    """A schema as it stands in its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _reached_without_lists(schema: dict[str, Any]) -> set[str]:
    """Definitions that stand for a section of the spec (and not for an item of a list)."""
    found: set[str] = set()
    queue: list[Any] = [schema["properties"]]
    while queue:
        node = queue.pop()
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                queue.append(schema["$defs"][name].get("properties", {}))
            queue += [value for key, value in node.items() if key != "items"]
        elif isinstance(node, list):
            queue += node
    return found


# --- the page --------------------------------------------------------------------------------------

HEAD = """# Spec reference

Generated from the docstrings of `specs/` by `make schema`; do not edit. Every key with its type, its
default (or *required*) and its meaning. Unknown keys are errors.

A run spec is one YAML file. `extends: other.yaml` reads another one first; `--recipe NAME` puts
[specs/recipes/NAME.yaml](../specs/recipes) over it. Paths are relative to the file that names them.
Scalars are YAML 1.2's: `1e-3` is a number, `yes` is a string.
"""


def page() -> str:
    """docs/spec.md."""
    parts = [HEAD]
    for title, model in (
        ("Run spec", RunSpec),
        ("Task file", TaskFile),
        ("Update file", UpdateFile),
        ("Harness file", HarnessFile),
        ("Mix", MixSpec),
    ):
        parts.append(f"\n## {title}\n")
        parts += _sections(model, "", set())
    return "\n".join(parts) + "\n"


def _sections(model: type[BaseModel], path: str, seen: set[type[BaseModel]]) -> Iterator[str]:
    if model in seen:
        return
    seen.add(model)
    if path:
        yield f"\n### {path}\n"
    about = " ".join((model.__doc__ or "").split())
    yield f"{about}\n"
    told = meanings(model)
    rows = [
        _row(name, info, told.get(name, about if _tag(info) else ""))  # what a tag means is its mapping
        for name, info in model.model_fields.items()
        if not _is_tag(info, name in told)
    ]
    if rows:
        yield "| key | type | default | meaning |\n| --- | --- | --- | --- |"
        yield "\n".join(rows)
    for name, info in model.model_fields.items():
        inner = list(_models(info.annotation))
        for below in inner:
            where = f"{path}.{name}".removeprefix(".")
            if len(inner) > 1:
                tag = next((t for f in below.model_fields.values() if (t := _tag(f))), below.__name__)
                where += f" ({tag})"
            yield from _sections(below, where, seen)


def _row(name: str, info: FieldInfo, told: str) -> str:
    default = "*required*" if info.is_required() else _default(info)
    meaning = " ".join(told.split()).replace("|", "\\|")
    return f"| `{name}` | {_type(info.annotation, info.metadata)} | {default} | {meaning} |"


def _default(info: FieldInfo) -> str:
    value = info.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    if value is None:
        return "-"
    return f"`{json.dumps(value)}`"


def _tag(info: FieldInfo) -> str | None:
    """The one value that a field can have, e.g. `words` of a check's `kind`."""
    if get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1:
        return str(get_args(info.annotation)[0])
    return None


def _is_tag(info: FieldInfo, is_told: bool) -> bool:
    # A tag with a default need not be written; one without says which kind of mapping this is.
    return _tag(info) is not None and not info.is_required() and not is_told


def _type(annotation: Any, metadata: list[Any]) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " \\| ".join(f"`{arg}`" for arg in args)
    if origin in (Union, types.UnionType):
        kinds = [_type(arg, []) for arg in args if arg is not type(None)]
        return " \\| ".join(dict.fromkeys(kinds)) + _bounds(metadata)
    if hasattr(annotation, "__metadata__"):
        return _type(args[0], list(annotation.__metadata__))
    if origin is tuple:
        return f"list of {_type(args[0], [])}"
    if origin is dict:
        return f"mapping to {_type(args[1], [])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        tag = next((t for f in annotation.model_fields.values() if (t := _tag(f))), None)
        return f"`{tag}` mapping" if tag else "mapping"
    names = {int: "integer", float: "number", str: "string", bool: "`true` \\| `false`", Any: "any"}
    return names.get(annotation, str(annotation)) + _bounds(metadata)


def _bounds(metadata: list[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = []
    for item in metadata:
        parts = getattr(item, "metadata", None) or [item]
        for part in parts:
            for name, sign in signs.items():
                if (value := getattr(part, name, None)) is not None:
                    found.append(f"{sign} {value:g}")
    return f" {', '.join(found)}" if found else ""


def _reached(model: type[BaseModel], seen: set[type[BaseModel]]) -> set[type[BaseModel]]:
    """A model and all that stand in it."""
    if model not in seen:
        seen.add(model)
        for info in model.model_fields.values():
            for below in _models(info.annotation):
                _reached(below, seen)
    return seen


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def main() -> None:
    """Write the schemas into specs/ and the page into docs/."""
    for name, schema in SCHEMAS.items():
        (HERE / f"{name}.schema.json").write_text(as_text(schema()), encoding="utf-8")
    docs = HERE.parent / "docs"
    docs.mkdir(exist_ok=True)
    (docs / "spec.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
