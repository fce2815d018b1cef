"""Every converter gives back every real row: the row is rebuilt from the task and compared whole."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harnessrl.specs.checks import IfevalCheck, WordsCheck
from harnessrl.specs.ood import OodTask
from harnessrl.specs.tasks import Criterion, Task, TrainTask
from harnessrl.trainer.data.converters import CONVERTERS, EVALUATION_ONLY, recognised
from harnessrl.trainer.data.converters.common import converted
from harnessrl.trainer.data.readers import read_raw
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import data_file

Row = dict[str, Any]


def original(name: str) -> list[tuple[str | None, Row]]:
    """Key and row, read without any of the code under test."""
    data = data_file(name).read_bytes().decode()
    if name.endswith(".jsonl"):
        return [(None, json.loads(line)) for line in data.split("\n") if line]
    plain = json.loads(data)
    return list(plain.items()) if isinstance(plain, dict) else [(None, row) for row in plain]


def task_of(source: str, row: Row, key: str | None = None) -> Task:
    task = converted(CONVERTERS[source], row, key)
    assert not isinstance(task, str), task
    return task


def more(task: Task) -> Row:
    assert task.origin is not None
    return task.origin.more


def origin_row(task: Task) -> str:
    assert task.origin is not None
    return task.origin.row


def messages(task: Task) -> list[Row]:
    if task.messages is None:
        return [{"role": "user", "content": task.prompt}]
    return [{"role": m.role, "content": m.content} for m in task.messages]


# --- how a row looked, told from the task alone ---------------------------------------------------


def healthbench(task: Task, row: Row) -> Row:
    kept = more(task)
    ideal = {
        "ideal_completion": task.reference,
        "ideal_completions_group": kept.get("ideal_completions_group"),
        "ideal_completions_ref_completions": kept.get("ideal_completions_ref_completions"),
    }
    return {
        "example_tags": kept["example_tags"],
        "ideal_completions_data": ideal if task.reference else None,
        "prompt": messages(task),
        "prompt_id": origin_row(task),
        "rubrics": [
            {"criterion": c.text, "points": c.points, "tags": list(c.tags or ())} for c in task.rubric
        ],
        "canary": task.origin and task.origin.canary,
    }


def researchqa(task: Task, row: Row) -> Row:
    kept = dict(more(task))
    cited = kept.pop("citation_metadata", {})
    rubric = []
    for c in task.rubric:
        item: Row = {
            "rubric_item": c.text,
            "type": [tag.removeprefix("type:") for tag in c.tags or ()],
        }
        rubric.append(item | ({"citation_metadata": cited[c.text]} if c.text in cited else {}))
    return {"id": origin_row(task), "query": task.prompt, "rubric": rubric, **kept}


def verl(task: Task, row: Row) -> Row:
    rubrics = [
        {"criterion": c.text, "points": c.points, "tags": old["tags"]}
        for c, old in zip(task.rubric, row["reward_model"]["rubrics"], strict=True)
    ]
    for c, old in zip(task.rubric, rubrics, strict=True):
        told = old["tags"] if isinstance(old["tags"], list) else [f"source:{old['tags'].get('source')}"]
        assert list(c.tags or ()) == told or "source" not in old["tags"]
    reward = {"ground_truth": task.reference or "", "rubrics": rubrics, "style": "rubric"}
    extra: Row = {"prompt": messages(task), "reward_model": reward}
    if "original_id" in row["extra_info"]:
        extra["original_id"] = int(origin_row(task))
    return {
        "prompt": messages(task),
        "data_source": more(task)["data_source"],
        "ability": more(task)["ability"],
        "reward_model": reward,
        "extra_info": extra,
    }


def writingbench(task: Task, row: Row) -> Row:
    assert isinstance(task, OodTask)
    checklist = [
        {"name": g.name, "criteria_description": g.text}
        | {f"{level.low}-{level.high}": level.text for level in g.levels}
        for g in task.grades
    ]
    return {"index": int(origin_row(task)), "query": task.prompt, "checklist": checklist, **more(task)}


def biggen(task: Task, row: Row) -> Row:
    assert isinstance(task, OodTask)
    (graded,) = task.grades
    said = {m["role"]: m["content"] for m in messages(task)}
    levels = {f"score{level.low}_description": level.text for level in graded.levels}
    return {
        "id": origin_row(task),
        "system_prompt": said["system"],
        "input": said["user"],
        "reference_answer": task.reference,
        "score_rubric": {"criteria": graded.text, **levels},
        **more(task),
    }


def instructions(task: Task, row: Row) -> Row:
    listed = (
        [one.model_dump() for one in task.instructions]
        if isinstance(task, OodTask)
        else more(task)["instructions"]
    )
    kwargs = [
        dict.fromkeys(given) | one["args"] for one, given in zip(listed, row["kwargs"], strict=True)
    ]
    return {
        "key": type(row["key"])(origin_row(task)),
        "prompt": task.prompt,
        "instruction_id_list": [one["id"] for one in listed],
        "kwargs": kwargs,
    }


def medqa(task: Task, row: Row) -> Row:
    assert isinstance(task, OodTask) and task.answer is not None
    key = task.answer
    return {
        **more(task),
        "options": key.choices,
        "answer": key.correct,
        "answer_text": key.choices[key.correct],
    }


def pubmedqa(task: Task, row: Row) -> Row:
    assert isinstance(task, OodTask) and task.answer is not None
    unset = {"YEAR": None}  # a null is not kept
    return {**unset, **more(task), "final_decision": task.answer.correct, "LONG_ANSWER": task.reference}


def rolebench(task: Task, row: Row) -> Row:
    assert isinstance(task, OodTask)
    return {**more(task), "generated": list(task.references)}


def longbench(task: Task, row: Row) -> Row:
    return {"prompt": task.prompt, **more(task)}


REAL: list[tuple[str, str, Callable[[Task, Row], Row]]] = [
    ("healthbench.jsonl", "healthbench", healthbench),
    ("researchqa_valid.json", "researchqa", researchqa),
    ("ruscarl_healthbench_verl.jsonl", "verl", verl),
    ("ruscarl_researchqa_verl.jsonl", "verl", verl),
    ("verinstruct_verl.jsonl", "verinstruct", verl),
    ("writingbench.jsonl", "writingbench", writingbench),
    ("biggen_bench.json", "biggen-bench", biggen),
    ("ifeval_input_data.jsonl", "ifeval", instructions),
    ("ifbench_test.jsonl", "ifbench", instructions),
    ("medqa_us_4options_test.jsonl", "medqa", medqa),
    ("pubmedqa_ori_pqal.json", "pubmedqa", pubmedqa),
    ("rolebench_eng_general.jsonl", "rolebench", rolebench),
    ("rolebench_eng_role_specific.jsonl", "rolebench", rolebench),
    ("rolebench_zh_role_specific.jsonl", "rolebench", rolebench),
    ("longbench_write.jsonl", "longbench-write", longbench),
]


@pytest.mark.parametrize(("name", "source", "restored"), REAL, ids=[name for name, *_ in REAL])
def test_every_real_row_can_be_rebuilt_from_its_task(
    name: str, source: str, restored: Callable[[Task, Row], Row]
) -> None:
    rows = original(name)
    read = [(raw.key, raw.fields) for raw in read_raw(data_file(name))]
    assert read == rows
    ids = set()
    for key, row in rows:
        assert recognised(row) is CONVERTERS[source]
        task = task_of(source, row, key)
        assert restored(task, row) == row
        assert isinstance(task, OodTask) == (source in EVALUATION_ONLY)
        assert task == task_of(source, json.loads(json.dumps(row)), key)
        assert type(task).model_validate_json(task.model_dump_json(exclude_defaults=True)) == task
        ids.add(task.id)
    assert len(ids) == len(rows)


@pytest.mark.parametrize("name", ["verinstruct_verl", "ruscarl_healthbench_verl"])
def test_parquet_and_json_lines_give_the_same_tasks(name: str) -> None:
    source = "verinstruct" if "verinstruct" in name else "verl"
    lines = {t.id: t for _, row in original(f"{name}.jsonl") for t in [task_of(source, row)]}
    rows = [raw.fields for raw in read_raw(data_file(f"{name}.parquet"))]
    assert rows
    for row in rows:
        assert isinstance(row, dict)
        task = task_of(source, row)
        assert task == lines[task.id]


def test_the_prompt_of_a_question_holds_no_answer_but_the_options() -> None:
    for _, row in original("medqa_us_4options_test.jsonl"):
        task = task_of("medqa", row)
        assert task.prompt.startswith(row["question"])
        assert task.prompt.count(row["answer_text"]) == row["question"].count(row["answer_text"])
    for key, row in original("pubmedqa_ori_pqal.json"):
        task = task_of("pubmedqa", row, key)
        assert row["LONG_ANSWER"] not in task.prompt
        assert all(text in task.prompt for text in [*row["CONTEXTS"], row["QUESTION"]])


@pytest.mark.parametrize(
    ("source", "name", "met"),
    [("writingbench", "writingbench.jsonl", 7), ("biggen-bench", "biggen_bench.json", 4)],
)
def test_grades_become_binary_at_the_declared_level(source: str, name: str, met: int) -> None:
    for key, row in original(name):
        task = task_of(source, row, key)
        assert isinstance(task, OodTask)
        assert len(task.rubric) == len(task.grades)
        for criterion, graded in zip(task.rubric, task.grades, strict=True):
            (level,) = [level for level in graded.levels if level.low == met]
            assert criterion.points == 1 and graded.text in criterion.text
            assert criterion.text.endswith(level.text)


# --- sets of which only invented rows are here ----------------------------------------------------


def stubs(name: str) -> list[Row]:
    path = data_file(f"schema_stubs/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_rubrichub_rows_by_domain_with_rules_as_checks() -> None:
    rows = stubs("rubrichub_rurl.SYNTHETIC.jsonl")
    tasks = [task_of("rubrichub", row) for row in rows]
    assert [recognised(row) for row in rows] == [CONVERTERS["rubrichub"]] * len(rows)
    domains = ["medical", "role-play", "instruction-following", "instruction-following"]
    assert [task.domain for task in tasks] == domains
    for task, row in zip(tasks, rows, strict=True):
        assert [c.points for c in task.rubric] == [r["points"] for r in row["Rubrics"]]
    rule, asked = tasks[2].rubric
    assert rule.check == IfevalCheck(kind="ifeval", id="punctuation:no_comma")
    assert asked.check is None and asked.text == rows[2]["Rubrics"][1]["criterion"]
    (words,) = tasks[3].rubric
    assert words.check == IfevalCheck(
        kind="ifeval",
        id="length_constraints:number_words",
        args={"num_words": 30, "relation": "at least"},
    )


def test_a_rule_that_nobody_knows_refuses_the_row() -> None:
    row = stubs("rubrichub_rurl.SYNTHETIC.jsonl")[2]
    row["reward_model"]["rubrics"][0]["criterion"] = "format:emoji"
    told = converted(CONVERTERS["rubrichub"], row)
    assert isinstance(told, str) and "unknown rule 'format:emoji'" in told


def with_rule(name: str, parameters: Any) -> Row:
    row = stubs("rubrichub_rurl.SYNTHETIC.jsonl")[2]
    row["reward_model"]["rubrics"][0] |= {
        "criterion": name,
        "tags": {"function": "Checker", "parameters": parameters, "verifier": "rule"},
    }
    return row


@pytest.mark.parametrize("as_json", [True, False])
def test_whole_numbers_that_came_as_floats_are_whole_again(as_json: bool) -> None:
    given = {"letter": "a", "let_frequency": 2.0, "let_relation": "at least", "num_words": None}
    row = with_rule("keywords:letter_frequency", json.dumps(given) if as_json else given)
    check = task_of("rubrichub", row).rubric[0].check
    assert isinstance(check, IfevalCheck)
    assert check.args == {"letter": "a", "let_frequency": 2, "let_relation": "at least"}
    assert isinstance(check.args["let_frequency"], int)


@pytest.mark.parametrize(("parameters", "says"), [("{", "are no JSON"), ("[1]", "are no mapping")])
def test_parameters_that_are_none_are_told(parameters: str, says: str) -> None:
    told = converted(CONVERTERS["rubrichub"], with_rule("punctuation:no_comma", parameters))
    assert isinstance(told, str) and "punctuation:no_comma" in told and says in told


def test_criteria_without_points_are_kept_apart() -> None:
    row = stubs("rubrichub_rurl.SYNTHETIC.jsonl")[0]
    row["reward_model"]["rubrics"][1]["points"] = 0
    task = task_of("rubrichub", row)
    assert [c.points for c in task.rubric] == [10.0]
    assert more(task)["without_points"] == [row["Rubrics"][1]["criterion"]]


def test_code_in_a_row_is_never_run() -> None:
    row = stubs("rubrichub_rurl.SYNTHETIC.jsonl")[3]
    entry = row["reward_model"]["rubrics"][0]
    entry["tags"]["function"] = "raise SystemExit(3)"
    entry["tags"]["parameters"] = "__import__('os').abort()"
    assert isinstance(converted(CONVERTERS["rubrichub"], row), str)  # not JSON
    row = stubs("rubrichub_rurl.SYNTHETIC.jsonl")[0] | {
        "functions": ["def evaluate(x): raise SystemExit"]
    }
    task_of("rubrichub", row)


def test_gpqa_options_are_in_an_order_that_only_the_row_decides(tmp_path: Path) -> None:
    (row,) = stubs("gpqa.SYNTHETIC.jsonl")
    task = task_of("gpqa", row)
    assert isinstance(task, OodTask) and task.answer is not None
    assert task.answer.choices[task.answer.correct] == row["Correct Answer"]
    assert sorted(task.answer.choices.values()) == ["A-first", "B", "C", "D"]
    letters = set()
    for n in range(40):
        other = task_of("gpqa", row | {"Record ID": f"rec{n}"})
        assert isinstance(other, OodTask) and other.answer is not None
        letters.add(other.answer.correct)
        assert all(f"{label}) {text}" in other.prompt for label, text in other.answer.choices.items())
    assert letters == set("ABCD")
    with (tmp_path / "gpqa_diamond.csv").open("w", newline="") as file:  # as its owners publish it
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerow(row)
    (raw,) = read_raw(tmp_path / "gpqa_diamond.csv")
    assert isinstance(raw.fields, dict) and task_of("gpqa", raw.fields) == task


def test_a_length_is_the_criterion_of_a_prompt_that_has_no_other() -> None:
    (row,) = stubs("longwriter_zero_prompt_only.SYNTHETIC.UNVERIFIED-SCHEMA.jsonl")
    task = task_of("longwriter-zero", row)
    assert isinstance(task, TrainTask)
    assert [c.check for c in task.rubric] == [WordsCheck(kind="words", min=1600, max=2400)]
    told = converted(CONVERTERS["longwriter-zero"], {"prompt": row["prompt"]})
    assert isinstance(told, str) and "nothing to score" in told
    chinese = task_of("longwriter-zero", {"prompt": "写一篇文章", "length": 800})
    assert chinese.rubric[0].check is None and "800 characters" in chinese.rubric[0].text


def test_medqa_as_its_owners_have_it() -> None:
    """There `answer` is the text and `answer_idx` the letter, and the question lists no options."""
    row = {
        "question": "Which vitamin?",
        "options": {"A": "A", "B": "C"},
        "answer": "C",
        "answer_idx": "B",
        "meta_info": "step1",
        "metamap_phrases": [],
    }
    task = task_of("medqa", row)
    assert isinstance(task, OodTask) and task.answer is not None
    assert task.answer.correct == "B"
    assert "Which vitamin?\n\nA) A\nB) C\n" in task.prompt
    assert isinstance(converted(CONVERTERS["medqa"], row | {"answer": "D"}), str)


# --- invented rows by the hundred -----------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60).filter(str.strip)
POINTS = st.integers(-10, 10).filter(bool)
TAGS = st.lists(st.sampled_from(["level:example", "axis:accuracy", "cluster:x_y"]), max_size=3)
CRITERIA = st.lists(
    st.fixed_dictionaries({"criterion": TEXT, "points": POINTS, "tags": TAGS}),
    min_size=1,
    max_size=6,
    unique_by=lambda c: c["criterion"],
)
TURNS = st.integers(0, 3).flatmap(
    lambda n: st.tuples(*[TEXT] * (2 * n + 1)).map(
        lambda said: [
            {"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)
        ]
    )
)


@settings(max_examples=200, deadline=None)
@given(TURNS, CRITERIA, st.none() | TEXT)
def test_any_healthbench_row_can_be_rebuilt(
    prompt: list[Row], rubrics: list[Row], ideal: str | None
) -> None:
    data = ideal and {
        "ideal_completion": ideal,
        "ideal_completions_group": "Group 1",
        "ideal_completions_ref_completions": None,
    }
    row = {
        "example_tags": ["theme:a"],
        "ideal_completions_data": data,
        "prompt": prompt,
        "prompt_id": "0-1",
        "rubrics": rubrics,
        "canary": "canary",
    }
    assert healthbench(task_of("healthbench", row), row) == row


@settings(max_examples=100, deadline=None)
@given(TURNS, CRITERIA)
def test_tags_as_a_mapping_say_the_same_as_a_list(prompt: list[Row], rubrics: list[Row]) -> None:
    def row(as_mapping: bool) -> Row:
        entries = [
            entry
            | {
                "tags": dict(tag.split(":") for tag in dict.fromkeys(entry["tags"]))
                if as_mapping
                else list(dict.fromkeys(entry["tags"]))
            }
            for entry in rubrics
        ]
        reward = {"ground_truth": "", "rubrics": entries, "style": "rubric"}
        return {
            "prompt": prompt,
            "data_source": "healthbench",
            "ability": "medical",
            "reward_model": reward,
        }

    first, second = (task_of("verl", row(kind)).rubric for kind in (False, True))
    assert [(c.text, c.points, c.tags) for c in first] == [(c.text, c.points, c.tags) for c in second]


@settings(max_examples=100, deadline=None)
@given(CRITERIA, st.integers(2, 3))
def test_a_criterion_listed_several_times_keeps_its_weight(rubrics: list[Row], times: int) -> None:
    reward = {"ground_truth": "", "rubrics": rubrics * times, "style": "rubric"}
    row = {"prompt": "Hm", "data_source": "x", "ability": "y", "reward_model": reward}
    task = task_of("verl", row)
    assert [c.points for c in task.rubric] == [times * entry["points"] for entry in rubrics]


NUMBER = st.integers(-10, 10).filter(bool) | st.floats(1e-6, 1e6) | st.floats(-1e6, -1e-6)
IDS = st.integers(-(10**18), 10**18)
WORD = TEXT.filter(str.strip)
CHECKLIST = dict.fromkeys(("name", "criteria_description", "1-2", "3-4", "5-6", "7-8", "9-10"), TEXT)
LEVELS = {"criteria": TEXT, **{f"score{n}_description": TEXT for n in range(1, 6)}}
INSTRUCTIONS = st.one_of(
    st.just(("punctuation:no_comma", {})),
    st.tuples(
        st.just("keywords:existence"), st.fixed_dictionaries({"keywords": st.lists(TEXT, min_size=1)})
    ),
    st.tuples(
        st.just("length_constraints:number_words"),
        st.fixed_dictionaries({"num_words": IDS, "relation": TEXT, "keywords": st.none()}),
    ),
)


def made(**fields: Any) -> st.SearchStrategy[Row]:
    return st.fixed_dictionaries(
        {k: v if hasattr(v, "example") else st.just(v) for k, v in fields.items()}
    )


def unique(key: str, items: st.SearchStrategy[Row]) -> st.SearchStrategy[list[Row]]:
    return st.lists(items, min_size=1, max_size=4, unique_by=lambda item: item[key])


@st.composite
def verl_rows(draw: st.DrawFn, data_source: st.SearchStrategy[str]) -> Row:
    rubrics = draw(unique("criterion", made(criterion=TEXT, points=NUMBER, tags=TAGS)))
    reward = {"ground_truth": draw(st.just("") | WORD), "rubrics": rubrics, "style": "rubric"}
    prompt = draw(TURNS)
    extra = {"prompt": prompt, "reward_model": reward} | draw(
        st.fixed_dictionaries({}, optional={"original_id": IDS, "index": IDS})
    )
    about = {"data_source": draw(data_source), "ability": draw(TEXT)}
    return {"prompt": prompt, "reward_model": reward, "extra_info": extra, **about}


@st.composite
def medqa_rows(draw: st.DrawFn) -> Row:
    options = dict(zip("ABCDE", draw(st.lists(TEXT, min_size=2, max_size=5)), strict=False))
    letter = draw(st.sampled_from([*options]))
    answer = {"options": options, "answer": letter, "answer_text": options[letter]}
    return {"question": draw(TEXT), "meta_info": draw(TEXT), **answer}


@st.composite
def ifeval_rows(draw: st.DrawFn) -> Row:
    listed = draw(st.lists(INSTRUCTIONS, min_size=1, max_size=4))
    named = {"instruction_id_list": [name for name, _ in listed], "kwargs": [args for _, args in listed]}
    return {"key": draw(IDS), "prompt": draw(TEXT), **named}


#: Of each set whose rows can be rebuilt: what its rows may be like, in its schema.
INVENTED: dict[str, tuple[Callable[[Task, Row], Row], st.SearchStrategy[Row]]] = {
    "researchqa": (
        researchqa,
        made(
            id=TEXT,
            query=TEXT,
            general_domain=TEXT,
            subdomain=TEXT,
            field=TEXT,
            date=TEXT,
            rubric=unique(
                "rubric_item",
                st.fixed_dictionaries(
                    {"rubric_item": TEXT, "type": st.lists(TEXT, max_size=2)},
                    optional={"citation_metadata": st.dictionaries(TEXT, TEXT, min_size=1, max_size=2)},
                ),
            ),
        ),
    ),
    "verl": (verl, verl_rows(TEXT.filter(lambda name: name.casefold() != "verinstruct"))),
    "verinstruct": (verl, verl_rows(st.just("verinstruct"))),
    "writingbench": (
        writingbench,
        made(
            index=IDS, query=TEXT, domain1=TEXT, domain2=TEXT, lang=TEXT,
            checklist=st.lists(made(**CHECKLIST), min_size=1, max_size=4),
        ),
    ),
    "biggen-bench": (
        biggen,
        made(
            id=TEXT, system_prompt=TEXT, input=TEXT, reference_answer=TEXT, capability=TEXT, task=TEXT,
            instance_idx=IDS, score_rubric=made(**LEVELS),
        ),
    ),
    "medqa": (medqa, medqa_rows()),
    "pubmedqa": (
        pubmedqa,
        made(
            QUESTION=TEXT, CONTEXTS=st.lists(TEXT), LABELS=st.lists(TEXT), MESHES=st.lists(TEXT),
            YEAR=st.none() | TEXT, reasoning_required_pred=TEXT, reasoning_free_pred=TEXT,
            final_decision=st.sampled_from(["yes", "no", "maybe"]), LONG_ANSWER=TEXT,
        ),
    ),
    "ifeval": (instructions, ifeval_rows()),
    "rolebench": (
        rolebench,
        made(role=TEXT, question=TEXT, type=TEXT, generated=st.lists(TEXT, min_size=1, max_size=3)),
    ),
    "longbench-write": (longbench, made(prompt=TEXT, length=IDS, type=TEXT)),
}  # fmt: skip


@pytest.mark.parametrize("source", INVENTED)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_row_can_be_rebuilt_from_its_task(source: str, data: st.DataObject) -> None:
    restored, rows = INVENTED[source]
    row = data.draw(rows)
    key = data.draw(TEXT) if source == "pubmedqa" else None
    assert recognised(row) is CONVERTERS[source]
    task = task_of(source, row, key)
    back = restored(task, row)
    if "extra_info" in row and "original_id" not in row["extra_info"] and "index" in row["extra_info"]:
        index, _, said = origin_row(task).rpartition("-")
        assert len(said) == 12
        back["extra_info"]["index"] = int(index)
    elif "extra_info" in row and "index" in row["extra_info"]:
        back["extra_info"]["index"] = row["extra_info"]["index"]  # it names nothing
    assert back == row
    if key is not None:
        assert origin_row(task) == key
    assert type(task).model_validate_json(task.model_dump_json(exclude_defaults=True)) == task


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def real_and_stub_rows() -> Iterator[tuple[str, Row]]:
    for name, source, _ in REAL:
        yield source, original(name)[0][1]
    yield "rubrichub", stubs("rubrichub_rurl.SYNTHETIC.jsonl")[3]
    yield "rar-science", stubs("rar_science.SYNTHETIC.jsonl")[0]
    yield "gpqa", stubs("gpqa.SYNTHETIC.jsonl")[0]


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_spoilt_row_is_a_task_or_a_reason_and_never_an_exception(data: st.DataObject) -> None:
    source, row = data.draw(st.sampled_from(list(real_and_stub_rows())))
    spoilt: Any = json.loads(json.dumps(row))
    here: Any = spoilt
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        key = data.draw(st.sampled_from(keys))
        below = here[key]
        if isinstance(below, dict | list) and below and data.draw(st.booleans()):
            here = below
            continue
        if isinstance(here, dict) and data.draw(st.booleans()):
            del here[key]
        else:
            here[key] = data.draw(JSON)
        break
    told = converted(CONVERTERS[source], spoilt)
    assert isinstance(told, Task) or (isinstance(told, str) and told)


def test_tags_are_no_part_of_a_criterion() -> None:
    assert Criterion(text="a", points=1).id == Criterion(text="a", points=1, tags=("axis:x",)).id
