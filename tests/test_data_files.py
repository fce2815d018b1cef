"""What a data file may hold by accident: a build and a validation say where it is, and read on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import tiny
import yaml
from click.testing import Result
from harnessrl.specs.errors import Problem
from harnessrl.specs.loader import dump_yaml
from harnessrl.specs.tasks import TrainTask
from harnessrl.trainer.data.converters import CONVERTERS
from harnessrl.trainer.data.converters.common import converted
from harnessrl.trainer.data.load import Tasks, load_resolved
from harnessrl.trainer.data.mix import assemble
from harnessrl.trainer.data.readers import MAX_DEPTH, MAX_ROW, RawRow, read_raw
from harnessrl.trainer.data.rows import _is_plain, read_rows, unwritable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pydantic import ValidationError

GPQA = ("Question", "Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def own(n: int = 1, **keys: Any) -> dict[str, Any]:
    words = " ".join(f"w{n * k}" for k in range(1, 12))
    return {"id": f"t{n}", "prompt": words, "rubric": [{"text": "Is kind.", "points": 1.0}], **keys}


def nested(depth: int) -> str:
    return (
        json.dumps(own(2))[:-1]
        + ', "origin": {"row": "1", "more": {"a": '
        + "[" * depth
        + "]" * depth
        + "}}}"
    )


def validated(path: Path) -> Result:
    done = tiny.invoke("data", "validate", path)
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit | None)
    return done


def build(path: Path, converter: str = "tasks") -> Result:
    """A mix of the one file (or pattern), built beside it."""
    mix = {
        "name": "m",
        "folders": ["."],
        "sources": {
            "s": {
                "converter": converter,
                "licence": "MIT",
                "places": [{"kind": "local", "files": [path.name]}],
            }
        },
        "domains": {"d": {"train": 1, "sources": {"s": 1}}},
    }
    if CONVERTERS.get(converter) and CONVERTERS[converter].evaluation_only:
        del mix["domains"]
        mix["ood"] = {"o": {"source": "s", "domain": "d", "tasks": 1}}
    (path.parent / "mix.yaml").write_text(yaml.safe_dump(mix))
    done = tiny.invoke("data", "build", path.parent / "mix.yaml", "--out", path.parent / "out")
    assert "Traceback" not in done.output and isinstance(done.exception, SystemExit | None)
    return done


def deep(levels: int) -> dict[str, Any]:
    inside: dict[str, Any] = {}
    for _ in range(levels - 1):
        inside = {"a": inside}
    return inside


MANY_WORDS = {
    "kind": "ifeval",
    "id": "length_constraints:number_words",
    "args": {"num_words": 10**20, "relation": "less than"},
}
SPOILT: dict[str, tuple[Callable[[], bytes], str]] = {
    "no UTF-8": (lambda: b'{"prompt": "\xff"}', "byte 0xff is not UTF-8"),
    "UTF-16": (lambda: json.dumps(own(2)).encode("utf-16"), "is not UTF-8"),
    "a large line": (lambda: b'{"prompt": "' + b"x" * 50_000_000 + b'"}', "too large"),
    "NaN": (
        lambda: json.dumps(own(2, rubric=[{"text": "a", "points": float("nan")}])).encode(),
        "finite",
    ),
    "NaN kept": (
        lambda: json.dumps(own(2, origin={"row": "1", "more": {"year": float("nan")}})).encode(),
        "holds what JSON cannot",
    ),
    "Infinity": (
        lambda: json.dumps(own(2, origin={"row": "1", "more": {"year": [float("inf")]}})).encode(),
        "holds what JSON cannot",
    ),
    "1e999": (lambda: json.dumps(own(2)).replace("1.0", "1e999").encode(), "finite"),
    "a long number": (
        lambda: json.dumps(own(2)).replace("1.0", "9" * 5000).encode(),
        "not JSON that can be",
    ),
    "deep": (lambda: nested(100_000).encode(), "nested too deeply"),
    "rather deep": (lambda: nested(900).encode(), "nested too deeply"),
    "a little deep": (lambda: nested(MAX_DEPTH).encode(), "nested too deeply"),
    "deep in its origin": (  # a row may be so deep, a task two levels down in a run's tasks.yaml not
        lambda: json.dumps(own(2, origin={"row": "1", "more": deep(MAX_DEPTH - 2)})).encode(),
        "origin: nested more than 100 levels deep",
    ),
    "more than 64 bits": (
        lambda: json.dumps(own(2, origin={"row": "1", "more": {"group": [2**64 - 1]}})).encode(),
        "origin.more.group[0]: 18446744073709551615 is not allowed: must be a number of at most 64 bits",
    ),
    "an argument of more than 64 bits": (
        lambda: json.dumps(own(2, rubric=[{"text": "a", "points": 1.0, "check": MANY_WORDS}])).encode(),
        "rubric[0].check.args.num_words: 100000000000000000000 is not allowed",
    ),
    "half a pair": (lambda: json.dumps(own(2, reference="\ud800")).encode(), "half of a surrogate pair"),
    "NUL": (lambda: b"\0", "not JSON"),
    "NUL in a text": (lambda: json.dumps(own(2, reference="a\0b")).encode(), "NUL"),
    "NUL in a key": (lambda: json.dumps(own(2, origin={"row": "1", "more": {"\0": 1}})).encode(), "NUL"),
    "an empty criterion": (
        lambda: json.dumps(own(2, rubric=[{"text": "", "points": 1.0}])).encode(),
        "text",
    ),
    "no object": (lambda: b"[1]", "must be a JSON object"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_line_is_told_with_its_place_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    make, why = SPOILT[name]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([json.dumps(own(1)).encode(), make().replace(b"\n", b" "), b""]))
    done = validated(path)
    assert done.exit_code == 1
    (told,) = [line for line in done.output.splitlines() if line.startswith(f"  {path}:2:")]
    assert why in told and done.output.endswith("1 tasks, 1 finding\n")
    done = build(path)
    assert done.exit_code == 0
    (left,) = (tmp_path / "out" / "left_out.jsonl").read_text().splitlines()
    assert json.loads(left)["where"].startswith("rows.jsonl:2") and why in json.loads(left)["reason"]
    assert f"{path}:2:" in done.output and "t1" in (tmp_path / "out" / "train.jsonl").read_text()


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_marks_and_ends_of_lines_are_no_mistakes(
    suffix: str, end: bytes, mark: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        lines = [",".join(GPQA), "Why?,a,b,c,d", '"How,\nthen?",a,b,c,d']
        content = end.join(line.encode() for line in lines)
    else:
        some = [json.dumps(own(n), indent=None if suffix == "jsonl" else 1) for n in (1, 2)]
        text = "\n".join(some) if suffix == "jsonl" else f"[{','.join(some)}]"
        content = text.encode().replace(b"\n", end)
    path.write_bytes(mark + content)
    done = validated(path)
    assert (done.exit_code, done.output) == (0, "2 tasks, 0 findings\n")


EMPTY = {
    "a.jsonl": b"",
    "b.jsonl": b" \n\n",
    "c.json": b"[]",
    "d.csv": b"Question,Answer\n",
    "e.csv": b"",
}


@pytest.mark.parametrize("name", EMPTY)
def test_a_file_without_rows_is_told(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(EMPTY[name])
    done = validated(path)
    assert done.exit_code == 1 and f"  {path}:1: the file holds no row" in done.output
    done = build(path)
    assert f"missing: source s: {name} holds no row" in done.output
    assert done.exit_code == 1 and "no task came out; nothing was written" in done.output
    assert not (tmp_path / "out").exists()


WHOLE = {
    "a.json": (b'[{"a": 1},\n {"a"]', "2:6", "not JSON"),
    "b.json": (b"", "1:1", "not JSON"),
    "c.json": (b"7", "1:1", "must hold a list"),
    "d.json": (b'[\n "\xff"]', "2:3", "byte 0xff is not UTF-8"),
    "e.json": (b"[" * 100_000, "1:1", "not JSON that can be read: nested too deeply"),
    "f.json": (b"[\0]", "1:2", "not JSON"),
    "g.csv": (b"Question\n\xff\n", "2:1", "byte 0xff is not UTF-8"),
    "h.csv": (b"x" * (MAX_ROW + 1), "1:1", "not CSV: field larger"),
    "i.parquet": (b"PAR1xxxx", "1:1", "not parquet"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_file_that_cannot_be_read_is_told_and_the_next_one_is_read(name: str, tmp_path: Path) -> None:
    content, at, why = WHOLE[name]
    path = tmp_path / "data" / name
    path.parent.mkdir()
    path.write_bytes(content)
    (path.parent / "z.jsonl").write_text(json.dumps(own()) + "\n")
    done = validated(path.parent)
    assert done.exit_code == 1 and done.output.endswith("1 tasks, 1 finding\n")
    assert f"  {path}:{at.split(':')[0]}: {why}" in done.output
    done = tiny.invoke("data", "stats", path)
    assert done.exit_code == 2 and why in done.output and "no row can be used" in done.output
    done = build(path)
    assert done.exit_code == 2 and f"{path}:{at}: {why}" in done.output


def test_statistics_say_how_many_rows_they_leave_out(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        tiny.join([json.dumps(own(1)), "{", json.dumps(own(2, rubric=[])), json.dumps(own(3))])
    )
    done = tiny.invoke("data", "stats", path, "--tokenizer", "words", "--no-histograms")
    assert done.exit_code == 0 and "| general | 2 |" in done.stdout
    told = done.stderr.splitlines()
    assert told[0].startswith(f"malformed: {path}:2:2: not JSON")
    assert told[1].startswith(f"refused: {path}:3: rubric")
    assert told[2] == "2 of 4 rows were left out"


def test_what_a_mix_could_not_use_is_a_finding_too(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(tiny.join([json.dumps(own(1)), "{"]))
    build(path)
    done = validated(tmp_path / "mix.yaml")
    assert done.exit_code == 1 and f"  {path}:2:2: not JSON" in done.output


# --- single formats -------------------------------------------------------------------------------


def test_a_long_field_of_a_csv_is_read_and_too_long_a_one_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    questions = ["q" * 200_000, "x" * (MAX_ROW + 1), "Why\0?", "Who?"]
    path.write_text(tiny.join([",".join(GPQA), *(f"{question},a,b,c,d" for question in questions)]))
    first, second, *_ = rows = list(read_raw(path))
    assert [row.number for row in rows] == [2, 3, 4, 5]
    assert isinstance(first.fields, dict) and len(first.fields["Question"]) == 200_000
    assert isinstance(second.fields, Problem) and "field larger than field limit" in str(second.fields)
    assert str(second.fields).startswith(f"{path}:3:1: ")
    done = validated(path)
    assert "long prompt" not in done.output  # it is one word
    assert f"  {path}:3: not CSV" in done.output and f"  {path}:4: a NUL character" in done.output
    assert "2 tasks, 2 findings" in done.output
    done = build(path, "gpqa")
    assert "s: 4 rows read = 1 malformed + 1 refused + 1 unused + 1 ood" in done.output


def test_a_key_that_a_mapping_has_twice_is_told(tmp_path: Path) -> None:
    def abstract(n: int) -> str:
        words = own(n)["prompt"]
        return json.dumps({"QUESTION": words, "CONTEXTS": ["c"], "final_decision": "yes"})

    path = tmp_path / "rows.json"
    path.write_text("{" + f'"1": {abstract(1)}, "2": {abstract(2)}, "1": {abstract(3)}, "3": 7' + "}")
    rows = list(read_raw(path))
    assert [(row.where, isinstance(row.fields, dict)) for row in rows] == [
        (f"{path}[1]", True),
        (f"{path}[2]", True),
        (f"{path}[3]", False),
        (f"{path}[4]", False),
    ]
    assert str(rows[2].fields) == f"{path}:1:1: [3]: the key '1' names a row above already"
    assert f"  {path}[3]: the key '1'" in validated(path).output
    done = build(path, "pubmedqa")
    assert "s: 4 rows read = 2 malformed + 1 unused + 1 ood" in done.output


def test_a_value_of_parquet_that_cannot_be_read_costs_its_row(tmp_path: Path) -> None:
    texts = pyarrow.array([b"good", b"\xff", b"too"]).view(pyarrow.string())
    path = tmp_path / "rows.parquet"
    parquet.write_table(pyarrow.table({"prompt": texts}), path)
    rows = list(read_raw(path))
    assert [isinstance(row.fields, dict) for row in rows] == [True, False, True]
    assert "a value cannot be read" in str(rows[1].fields)


def test_a_row_of_just_the_limit_is_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    filled = json.dumps({"a": ""})
    at_most = json.dumps({"a": "x" * (MAX_ROW - len(filled) - 1)})
    path.write_text(tiny.join([at_most, at_most[:-2] + 'xx"}', at_most]))
    assert [isinstance(row.fields, dict) for row in read_raw(path)] == [True, False, True]
    row = f'{{"a": {"[" * (MAX_DEPTH - 2)}1{"]" * (MAX_DEPTH - 2)}}}'
    path.write_text(tiny.join([row, row.replace("1", "[1]")]))
    assert [isinstance(row.fields, dict) for row in read_raw(path)] == [True, False]


def test_a_number_that_no_float_holds_refuses_the_row() -> None:
    reward = {"rubrics": [{"criterion": "a", "points": 10**400}], "ground_truth": ""}
    told = converted(CONVERTERS["verl"], {"prompt": "Hm", "reward_model": reward})
    assert isinstance(told, str)
    assert isinstance(converted(CONVERTERS["longwriter-zero"], {"prompt": "Hm", "length": 10**400}), str)


def test_what_a_row_may_hold_is_read_back_from_the_run_s_tasks(tmp_path: Path) -> None:
    held = {**deep(MAX_DEPTH - 3), "<<": [-(2**63), 2**63 - 1], "f": [1e308, 5e-324], "t": "\x85\x1b 012"}
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(own(origin={"row": "1", "more": held})) + "\n")
    (row,) = read_rows(path)
    assert isinstance(row.task, TrainTask)
    tasks = Tasks({row.task.id: row.task})
    tasks_file = tmp_path / "tasks.yaml"
    tasks_file.write_text(dump_yaml(tasks.as_file().model_dump(mode="json", exclude_none=True)))
    assert load_resolved(tasks_file) == tasks


# --- mixes ----------------------------------------------------------------------------------------


def test_rows_that_only_their_index_names_are_told_apart(tmp_path: Path) -> None:
    """verl numbers the rows of every file from 0."""

    def rows(*questions: str) -> list[dict[str, Any]]:
        reward = {"rubrics": [{"criterion": "Is right", "points": 1.0, "tags": None}], "ground_truth": ""}
        return [
            {
                "data_source": "my",
                "ability": "x",
                "prompt": [{"role": "user", "content": question}],
                "reward_model": reward,
                "extra_info": {"index": n},
            }
            for n, question in enumerate(questions)
        ]

    first = rows(own(1)["prompt"], own(2)["prompt"])
    (tmp_path / "v1.jsonl").write_text(tiny.join(json.dumps(row) for row in first))
    second = rows(own(3)["prompt"], own(2)["prompt"])
    parquet.write_table(pyarrow.Table.from_pylist(second), tmp_path / "v2.parquet")
    build(tmp_path / "v*", "verl")
    mix = assemble(tmp_path / "mix.yaml")
    assert mix.counts["s"] == {"train": 1, "unused": 2, "duplicate": 1}  # v2[2] is v1:2 again
    (left,) = mix.left_out
    assert left.where.endswith("v2.parquet[2]") and "is the id of" in left.reason
    again = assemble(tmp_path / "mix.yaml")
    assert [task.id for task in again.train] == [task.id for task in mix.train]
    (raw, *_) = read_raw(tmp_path / "v1.jsonl")
    assert isinstance(raw, RawRow) and isinstance(raw.fields, dict)
    task = converted(CONVERTERS["verl"], raw.fields)
    assert not isinstance(task, str) and task.id.startswith("my-0-")


#: What may stand in JSON and in no file of a run: numbers out of range, half a pair, a NUL, many levels.
AWKWARD = ("1e400", "-1E+999", "9" * 19, "NaN", "-Infinity", r'"\ud800"', r'"a\u0000"', '"\\\\u0000"')
PLAIN = ("1", "-2.5e3", "true", '"a }, { b"', '"1e9"', "[]", "{}", '"\u00e9\U0001f600"')


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_what_is_plain_as_a_line_can_be_written(data: st.DataObject) -> None:
    value = data.draw(st.sampled_from((*AWKWARD, *PLAIN, *PLAIN)))
    siblings = data.draw(st.integers(0, 30))
    levels = data.draw(st.integers(0, MAX_DEPTH))
    inside = ", ".join(["{}"] * siblings + [value])
    more = '{"a": ' * levels + f"[{inside}]" + "}" * levels
    line = f'{json.dumps(own())[:-1]}, "origin": {{"row": "1", "more": {{"b": {more}}}}}}}'.encode()
    fields = json.loads(line)
    try:
        task = TrainTask.model_validate({"domain": "d", "source": "s", **fields})
    except ValidationError:
        return  # refused in any case
    if _is_plain(line):
        assert unwritable(task) is None
        assert value in PLAIN
    elif value in PLAIN and siblings + levels < MAX_DEPTH - 15:
        raise AssertionError("a plain line was looked at again")
