"""The generated half of the spec language: JSON Schemas and docs/spec.md say what the models say."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import tiny
from harnessrl.specs import reference
from harnessrl.specs.harnessfile import HarnessFile
from harnessrl.specs.loader import RECIPES, load_run_spec, load_task_file, load_update
from harnessrl.specs.schema import RunSpec
from harnessrl.specs.tasks import TaskFile
from harnessrl.specs.updates import UPDATE, UpdateFile
from harnessrl.specs.yamlnodes import read
from pydantic import BaseModel

SPECS = RECIPES.parent
SHIPPED = {
    "harness": [*sorted(SPECS.glob("*.yaml")), *sorted(RECIPES.glob("*.yaml"))],
    "tasks": sorted((SPECS / "tasks").glob("*.yaml")),
}
FILES = [(kind, path) for kind, paths in SHIPPED.items() for path in paths]
MODELS: dict[str, type[BaseModel]] = {"harness": RunSpec, "tasks": TaskFile, "update": UpdateFile}
UPDATE_YAML = """\
update:
  op: add
  task_ids: [fox]
  rationale: Answers leave the scattering out.
  criterion:
    text: The answer names scattering.
    points: 2
    check: {kind: mentions, terms: [scatter]}
"""


def data(text: str) -> dict[str, Any]:
    """YAML as the loader reads it (PyYAML alone takes 1e-3 for a string)."""
    node, problems = read(text, "x")
    assert not problems
    plain = node.plain()
    assert isinstance(plain, dict)
    return plain


def errors(kind: str, content: Any) -> list[str]:
    """What the JSON Schema finds wrong with a file's content."""
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(reference.SCHEMAS[kind]())
    return [error.message for error in validator.iter_errors(content)]


def models_in(model: type[BaseModel], seen: dict[str, type[BaseModel]]) -> dict[str, type[BaseModel]]:
    """A model and every one that a field of it can hold, by name."""

    def within(annotation: Any) -> Iterator[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield annotation
        for argument in get_args(annotation):
            yield from within(argument)

    if model.__name__ not in seen:
        seen[model.__name__] = model
        for info in model.model_fields.values():
            for below in within(info.annotation):
                models_in(below, seen)
    assert seen[model.__name__] is model, "two models of one name"
    return seen


EVERY_MODEL: dict[str, type[BaseModel]] = {}
for root in (*MODELS.values(), HarnessFile):
    models_in(root, EVERY_MODEL)


# --- nothing has drifted --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", reference.SCHEMAS)
def test_a_schema_file_is_what_the_models_say(kind: str) -> None:
    written = (SPECS / f"{kind}.schema.json").read_text(encoding="utf-8")
    generated = reference.as_text(reference.SCHEMAS[kind]())
    assert written == generated, "out of date: make schema"


def test_the_page_is_what_the_models_say() -> None:
    written = (SPECS.parent / "docs" / "spec.md").read_text(encoding="utf-8")
    assert written == reference.page(), "out of date: make schema"


def test_writing_them_writes_all_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "specs").mkdir()
    monkeypatch.setattr(reference, "HERE", tmp_path / "specs")
    reference.main()
    names = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert names == {"docs/spec.md", *(f"specs/{kind}.schema.json" for kind in reference.SCHEMAS)}


@pytest.mark.parametrize("kind", reference.SCHEMAS)
def test_the_command_line_prints_the_same(kind: str) -> None:
    done = tiny.invoke("schema", kind)
    assert done.exit_code == 0
    assert json.loads(done.output) == reference.SCHEMAS[kind]()
    assert done.output == reference.as_text(reference.SCHEMAS[kind]())


# --- everything is described ----------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_every_key_is_described_or_a_tag(name: str) -> None:
    model = EVERY_MODEL[name]
    assert (model.__doc__ or "").strip(), "the model itself says nothing"
    for key, info in model.model_fields.items():
        is_tag = get_origin(info.annotation) is Literal and len(get_args(info.annotation)) == 1
        assert is_tag or reference.meanings(model).get(key), f"{name}.{key} has no docstring"


def test_the_page_names_every_key_with_its_meaning() -> None:
    page = reference.page()
    for model in EVERY_MODEL.values():
        for key, told in reference.meanings(model).items():
            meaning = " ".join(told.split()).replace("|", "\\|")
            assert re.search(rf"^\| `{key}` \|.*\| {re.escape(meaning)} \|$", page, re.MULTILINE), key


def test_the_page_says_what_each_kind_means() -> None:
    rows = [line for line in reference.page().splitlines() if line.startswith("| `kind` |")]
    assert len(rows) > 10 and not [row for row in rows if row.endswith("|  |")]
    assert any("`words`" in row and "between `min` and `max` words" in row for row in rows)


def test_the_tables_of_the_page_are_whole() -> None:
    """A bar in a type or a meaning would start another column."""
    for line in reference.page().splitlines():
        if line.startswith("|"):
            assert len(re.findall(r"(?<!\\)\|", line)) == 5, line
    assert "<class" not in reference.page()
    assert "typing." not in reference.page()
    assert "PydanticUndefined" not in reference.page()


@pytest.mark.parametrize(
    "line",
    [
        "| `steps` | integer ≥ 1 | `28` | Training steps. |",
        "| `share` | number > 0, < 1 \\| `ramp` | `0.5` |",
        "| `threads` | integer ≥ 1 | - |",
        "| `model` | string | *required* |",
        "| `domain_shares` | mapping to number > 0 | `{}` |",
        "| `topic` | list of list of string | *required* |",
        '| `train_on` | `plain` \\| `guided` | `"plain"` |',
        "### interfaces.g.start.fade (sigmoid)",
        "### shared_pool.criteria.check (ifeval)",
    ],
)
def test_the_page_reads_well(line: str) -> None:
    assert any(row.startswith(line) for row in reference.page().splitlines())


# --- the shipped files ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", reference.SCHEMAS)
def test_the_schemas_are_schemas(kind: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(reference.SCHEMAS[kind]())


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda value: getattr(value, "name", value))
def test_a_shipped_file_fits_its_schema(kind: str, path: Path) -> None:
    assert errors(kind, data(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda value: getattr(value, "name", value))
def test_a_shipped_file_names_its_schema(kind: str, path: Path) -> None:
    """The first line is what an editor goes by."""
    first = path.read_text(encoding="utf-8").splitlines()[0]
    match = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", first)
    assert match, first
    schema = path.parent / match[1]
    assert schema.is_file()
    assert schema.resolve() == SPECS / f"{kind}.schema.json"


def test_what_init_writes_names_schemas_that_are_there(tmp_path: Path) -> None:
    assert tiny.invoke("init", tmp_path / "mine").exit_code == 0
    files = sorted((tmp_path / "mine").rglob("*.yaml"))
    assert len(files) == 2
    schemas = {path.name for path in (tmp_path / "mine").glob("*.schema.json")}
    assert schemas == {f"{kind}.schema.json" for kind in reference.SCHEMAS}
    for path in files:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert (path.parent / first.rpartition("$schema=")[2]).is_file()


def test_an_update_fits_its_schema(tmp_path: Path) -> None:
    (tmp_path / "u.yaml").write_text(UPDATE_YAML)
    load_update(tmp_path / "u.yaml")
    assert errors("update", data(UPDATE_YAML)) == []


@pytest.mark.parametrize(
    "update",
    [
        {"op": "boost", "tags": ["x"], "factor": 2.0},
        {"op": "dampen", "domains": ["x"], "factor": 0.5},
        {"op": "pause", "task_ids": ["x"]},
        {"op": "resume", "task_ids": ["x"]},
        {"op": "mount", "task_ids": ["x"], "lines": ["a"], "share": 0.5, "fade": {"kind": "success"}},
        {"op": "mount", "task_ids": ["x"], "lines": "rubric", "share": "ramp", "field": "skill"},
        {"op": "edit", "task_ids": ["x"], "lines": ["a"]},
        {"op": "fade", "task_ids": ["x"], "fade": {"kind": "linear", "steps": 3}},
        {"op": "unmount", "task_ids": ["x"]},
        {
            "op": "rewrite",
            "task_ids": ["x"],
            "criterion_id": "c",
            "criterion": {"text": "t", "points": 1},
        },
        {"op": "reweight", "task_ids": ["x"], "criterion_id": "c", "points": -2.5},
        {"op": "gate", "task_ids": ["x"], "criterion_id": "c", "cap": None},
        {"op": "retire", "task_ids": ["x"], "criterion_id": "c"},
        {"op": "restore", "task_ids": ["x"], "criterion_id": "c"},
    ],
    ids=lambda update: update["op"],
)
def test_every_update_fits_and_no_misspelt_one(update: dict[str, Any]) -> None:
    whole = {"rationale": "", **update}
    UPDATE.validate_python(whole)
    assert errors("update", {"update": whole}) == []
    assert errors("update", {"update": {**whole, "rational": ""}})
    assert errors("update", {"update": {**whole, "op": whole["op"] + "x"}})


# --- what a schema refuses ------------------------------------------------------------------------


def mappings(content: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every mapping in plain data, with where it stands."""
    if isinstance(content, dict):
        yield path, content
        for key, value in content.items():
            yield from mappings(value, f"{path}.{key}")
    elif isinstance(content, list):
        for n, item in enumerate(content):
            yield from mappings(item, f"{path}[{n}]")


#: Mappings whose keys are the user's own.
FREE = re.compile(r"domain_shares$|\.args$|\.extra_body|\.chat_template_kwargs")


@pytest.mark.parametrize(("kind", "path"), FILES, ids=lambda value: getattr(value, "name", value))
def test_a_misspelt_key_is_refused_wherever_it_stands(kind: str, path: Path) -> None:
    original = data(path.read_text(encoding="utf-8"))
    seen: set[tuple[str, ...]] = set()
    for n, (place, mapping) in enumerate(mappings(original)):
        if FREE.search(place) or not mapping or tuple(mapping) in seen:
            continue  # many tasks look alike
        seen.add(tuple(mapping))
        changed = copy.deepcopy(original)
        _, target = list(mappings(changed))[n]
        key = next(iter(target))
        target[key + "x"] = target.pop(key)
        assert errors(kind, changed), (place, key)
    assert seen


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("harness", "group_size: 8", "group_size: 1"),
        ("harness", "group_size: 8", "group_size: eight"),
        ("harness", "learning_rate: 2e-5", "learning_rate: 0"),
        ("harness", "kind: local", "kind: lokal"),
        ("harness", "share: 0.5", "share: 1"),
        ("harness", "{evolve: true}", "{evolve: 1}"),
        ("harness", "[tasks/starter.yaml]", "[]"),
        ("harness", "name: quickstart", "name: quick start"),
        ("tasks", "kind: words", "kind: wrds"),
        ("tasks", "points: 1", "points: one"),
        ("tasks", "domain: medical", "domain: ''"),
        ("tasks", "    prompt: >-", "    promt: >-"),
    ],
)
def test_a_bad_value_is_refused_by_the_schema_as_by_the_loader(kind: str, old: str, new: str) -> None:
    shipped = {"harness": SPECS / "quickstart.yaml", "tasks": SPECS / "tasks" / "starter.yaml"}
    text = shipped[kind].read_text(encoding="utf-8")
    assert old in text
    content = data(text.replace(old, new, 1))
    with pytest.raises(ValueError):
        MODELS[kind].model_validate(content)
    assert errors(kind, content)


def test_a_part_of_a_spec_fits_but_a_part_of_a_list_item_does_not() -> None:
    """A recipe gives what it changes; an entry of a list is whole, since lists are replaced whole."""
    assert errors("harness", {}) == []
    assert errors("harness", {"extends": "other.yaml", "evolver": {"every": 3}}) == []
    assert errors("harness", {"roles": {"policy": {}}}) == []
    assert errors("harness", {"interfaces": {"g": {"start": [{"field": "skill"}]}}})  # no lines
    fade = {"field": "skill", "lines": ["a"], "fade": {"kind": "linear"}}  # over how many steps?
    assert errors("harness", {"interfaces": {"g": {"start": [fade]}}})
    assert errors("tasks", {"train": [{"id": "a"}]})
    assert errors("tasks", {}) == []


def test_a_part_of_the_engine_fits_without_its_kind() -> None:
    assert errors("harness", {"engine": {"kind": "local", "steps": 3}}) == []
    assert errors("harness", {"engine": {"kind": "local", "stepz": 3}})
    assert errors("harness", {"engine": {"steps": 3}}) == []
    assert errors("harness", {"engine": {"stepz": 3}})


def test_without_jsonschema_the_keys_are_known_all_the_same() -> None:
    """A check of keys by the schema alone: every one that a shipped spec uses is listed there."""
    for path in SHIPPED["harness"]:
        properties = reference.run_schema()["properties"]
        assert data(path.read_text(encoding="utf-8")).keys() <= properties.keys()


def test_the_shipped_files_load() -> None:
    """What the schema lets pass is the loader's to accept; here both do."""
    for path in SPECS.glob("*.yaml"):
        load_run_spec(path)
    for path in SHIPPED["tasks"]:
        load_task_file(path)
