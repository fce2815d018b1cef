"""Reading tasks: JSONL rows of several schemas, refusals with their reasons, and YAML files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.agents.scoring.checks import run_check
from harnessrl.agents.scoring.oracle import measure_quality
from harnessrl.specs.checks import MentionsCheck
from harnessrl.specs.loader import LoadedSpec, SpecError, dump_yaml, load_run_spec
from harnessrl.specs.ood import OodTask
from harnessrl.specs.tasks import HeldOutTask, TrainTask
from harnessrl.trainer.advice import advice
from harnessrl.trainer.data.derived import derive_pool, derive_quality, subject_words
from harnessrl.trainer.data.load import MOST, Tasks, load_resolved, load_tasks
from harnessrl.trainer.data.ood import asked_again, beside
from harnessrl.trainer.data.rows import read_rows
from tiny import data_file

ROOT = Path(__file__).resolve().parent.parent
STARTER = ROOT / "specs" / "tasks" / "starter.yaml"


def ifeval(key: Any = 1, prompt: str = "Describe the river Nile without commas.", **more: Any) -> str:
    row = {
        "key": key,
        "prompt": prompt,
        "instruction_id_list": ["punctuation:no_comma"],
        "kwargs": [{}],
    }
    return json.dumps({**row, **more})


def write_rows(folder: Path, *lines: str) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(tiny.join(lines))
    return path


def load(folder: Path, *files: Path) -> Tasks:
    """The tasks of a spec that names `files`."""
    return load_tasks(loaded_spec(folder, *files))


def loaded_spec(folder: Path, *files: Path) -> LoadedSpec:
    paths = tiny.write_spec(folder / "spec", "smollm2-wheel")
    given = [str(file) for file in files]
    return load_run_spec(paths.spec, overrides={"tasks": {"files": given}})


def only(path: Path) -> TrainTask | str:
    (row,) = read_rows(path)
    return row.task


# --- the real rows --------------------------------------------------------------------------------


def test_every_ifeval_row_becomes_a_task(tmp_path: Path) -> None:
    path = data_file("ifeval_input_data.jsonl")
    originals = [json.loads(line) for line in path.read_text().splitlines()]
    rows = list(read_rows(path))
    assert len(rows) == len(originals)
    for number, (row, original) in enumerate(zip(rows, originals, strict=True), 1):
        assert row.where == f"{path}:{number}"
        assert isinstance(row.task, TrainTask), row
        assert row.task.id == f"ifeval-{original['key']}"
        assert row.task.prompt == original["prompt"]
        assert row.task.source == "ifeval"
        checks = [c.check for c in row.task.rubric]
        assert {c.id for c in checks} == set(original["instruction_id_list"])  # type: ignore[union-attr]
        assert {c.points for c in row.task.rubric} == {1.0}


def test_ifeval_rows_are_trained_on_or_refused_with_a_reason(tmp_path: Path) -> None:
    path = data_file("ifeval_input_data.jsonl")
    n_rows = len(path.read_text().splitlines())
    tasks = load(tmp_path, path)
    assert len(tasks.train) + len(tasks.refused) == n_rows
    assert len(tasks.train) > 0.8 * n_rows
    assert not tasks.held_out
    for refusal in tasks.refused:
        assert refusal.where.startswith(f"{path.resolve()}:")
        assert "cannot be scored on this machine" in refusal.reason


def test_the_checks_of_real_rows_decide(tmp_path: Path) -> None:
    """Whatever was let in can be scored: no verdict of a plain answer stays open for want of data."""
    tasks = load(tmp_path, data_file("ifeval_input_data.jsonl"))
    answer = "The river flows north. It is long and people live beside it."
    for task in list(tasks.train.values())[:30]:
        for criterion in task.rubric:
            assert criterion.check is not None
            verdict = run_check(criterion.check, task.prompt, answer)
            assert verdict.met is not None, (task.id, criterion.check, verdict.cause)


VERL = ["verinstruct_verl.jsonl", "ruscarl_healthbench_verl.jsonl", "ruscarl_researchqa_verl.jsonl"]


@pytest.mark.parametrize("name", VERL)
def test_without_a_judge_rows_that_need_one_are_refused_for_that(name: str, tmp_path: Path) -> None:
    path = data_file(name)
    rows = [row for row in read_rows(path) if not isinstance(row.task, str)]
    assert rows
    with pytest.raises(SpecError, match=r"no task to train on: .*needs a judge role"):
        load(tmp_path, path)


@pytest.mark.parametrize("name", VERL)
def test_verl_rows_keep_every_criterion_and_its_sign(name: str) -> None:
    path = data_file(name)
    for line, row in zip(path.read_text().splitlines(), read_rows(path), strict=True):
        source = json.loads(line)
        assert isinstance(row.task, TrainTask)
        said = [message["content"] for message in source["prompt"]]
        if len(said) == 1:
            assert row.task.prompt == said[0] and row.task.messages is None
        else:
            assert [message.content for message in row.task.messages or ()] == said
            assert all(text in row.task.prompt for text in said)
        wanted = {(r["criterion"], float(r["points"])) for r in source["reward_model"]["rubrics"]}
        assert {(c.text, c.points) for c in row.task.rubric} == wanted


OOD = [
    "writingbench.jsonl",
    "biggen_bench.json",
    "ifbench_test.jsonl",
    "medqa_us_4options_test.jsonl",
    "pubmedqa_ori_pqal.json",
    "rolebench_eng_general.jsonl",
    "longbench_write.jsonl",
]


@pytest.mark.parametrize("name", OOD)
def test_a_run_on_an_evaluation_only_set_is_refused(name: str, tmp_path: Path) -> None:
    path = data_file(name)
    assert all(isinstance(row.task, OodTask) for row in read_rows(path))
    with pytest.raises(SpecError, match=r"is for evaluation only") as caught:
        load(tmp_path, path)
    assert f"({path.resolve()}" in str(caught.value)


@pytest.mark.parametrize("keys", [{"source": "ifbench"}, {"split": "ood"}])
def test_so_is_a_row_of_such_a_set_under_another_roof(keys: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"is for evaluation only"):
        load(tmp_path, write_rows(tmp_path, own(), own("Another.", **keys)))


def test_nor_may_such_a_set_choose_the_policy(tmp_path: Path) -> None:
    criterion = {"text": "a", "points": 1, "check": {"kind": "regex", "pattern": "a"}}
    known = {"id": "q", "domain": "d", "prompt": "Why?", "source": "MedQA", "rubric": [criterion]}
    mine = {**known, "id": "r", "prompt": "How?", "source": "mine"}
    path = tmp_path / "tasks.yaml"
    path.write_text(yaml.safe_dump({"train": [mine], "validation": [known]}))
    with pytest.raises(SpecError, match=r"a run that chose its policy by it could not be measured"):
        load(tmp_path, path)
    path.write_text(yaml.safe_dump({"train": [mine], "held_out": [known]}))
    assert list(load(tmp_path, path).held_out) == ["q"]  # it is only reported


def test_a_row_may_say_that_it_is_held_out(tmp_path: Path) -> None:
    tasks = load(tmp_path, write_rows(tmp_path, own(), own("Describe a lake.", split="held_out")))
    assert [*tasks.train, *tasks.held_out] == ["rows-1", "rows-2"]
    assert isinstance(tasks.held_out["rows-2"], HeldOutTask)
    assert "split: 'test' is not allowed" in str(only(write_rows(tmp_path, own(split="test"))))


def test_a_schema_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    assert "not a known schema" in str(only(write_rows(tmp_path, '{"text": "a row", "score": 1}')))


# --- single rows ----------------------------------------------------------------------------------


def test_one_row(tmp_path: Path) -> None:
    task = only(write_rows(tmp_path, ifeval(), ""))  # blank lines are skipped
    assert isinstance(task, TrainTask)
    assert (task.id, task.domain) == ("ifeval-1", "instruction-following")
    (criterion,) = task.rubric
    assert criterion.check is not None
    assert run_check(criterion.check, task.prompt, "one two").met is True
    assert run_check(criterion.check, task.prompt, "one, two").met is False


def test_missing_arguments_are_left_out(tmp_path: Path) -> None:
    task = only(
        write_rows(
            tmp_path,
            ifeval(
                instruction_id_list=["length_constraints:number_words", "punctuation:no_comma"],
                kwargs=[{"relation": "less than", "num_words": 9, "keywords": None}, None],
            ),
        )
    )
    assert isinstance(task, TrainTask)
    args = [c.check.args for c in task.rubric]  # type: ignore[union-attr]
    assert args == [{"relation": "less than", "num_words": 9}, {}]


def test_an_instruction_listed_twice_counts_once(tmp_path: Path) -> None:
    twice = {"instruction_id_list": ["punctuation:no_comma"] * 2, "kwargs": [{}, {}]}
    task = only(write_rows(tmp_path, ifeval(**twice)))
    assert isinstance(task, TrainTask)
    assert len(task.rubric) == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"instruction_id_list": ["no:such"]}, "unknown IFEval instruction"),
        ({"instruction_id_list": [], "kwargs": []}, "rubric"),
        ({"kwargs": []}, "one length"),
        ({"kwargs": {}}, "must be lists"),
        ({"instruction_id_list": "punctuation:no_comma"}, "must be lists"),
        ({"kwargs": ["x"]}, "wrong type"),
        ({"kwargs": [[1]]}, "wrong type"),
        ({"instruction_id_list": [7]}, "id"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "wrong type"),
        ({"prompt": 7}, "wrong type"),
        ({"prompt": ["a"]}, "wrong type"),
        ({"key": "a b/c"}, "id"),
    ],
)
def test_a_row_that_cannot_be_used_is_refused_with_a_reason(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    task = only(write_rows(tmp_path, ifeval(**changes)))
    assert isinstance(task, str)
    assert says in task


@pytest.mark.parametrize("num_words", [float("nan"), -3, "many", [], {}])
def test_senseless_arguments_are_refused(num_words: Any, tmp_path: Path) -> None:
    row = ifeval(
        instruction_id_list=["length_constraints:number_words"],
        kwargs=[{"relation": "less than", "num_words": num_words}],
    )
    with pytest.raises(SpecError, match="no task to train on"):
        load(tmp_path, write_rows(tmp_path, row))


@pytest.mark.parametrize(
    ("line", "at", "says"),
    [
        (b"[1, 2]", "2:1", "must be a JSON object, not list"),
        (b'{"key": 1,', "2:", "not JSON"),
        (b'{"key": "\xff"}', "2:10", "not UTF-8"),
        (b"[" * 100_000, "2:1", "nested too deeply"),
    ],
)
def test_a_line_that_is_no_json_object_is_an_error(
    line: bytes, at: str, says: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ifeval().encode() + b"\n" + line + b"\n")
    with pytest.raises(SpecError, match=says) as caught:
        list(read_rows(path))
    assert str(caught.value).startswith(f"{path}:{at}")


def test_rows_without_a_key_are_told_apart(tmp_path: Path) -> None:
    rows = [json.loads(ifeval(prompt=f"Describe the river {name}.")) for name in ("Nile", "Rhine")]
    for row in rows:
        del row["key"]
    tasks = load(tmp_path, write_rows(tmp_path, *map(json.dumps, rows)))
    assert len(tasks.train) + len(tasks.refused) == 2


def test_a_key_used_twice_in_one_file_is_said_so(tmp_path: Path) -> None:
    path = write_rows(tmp_path, ifeval(), ifeval(prompt="Another prompt about rivers."))
    with pytest.raises(SpecError) as caught:
        load(tmp_path, path)
    message = str(caught.value)
    assert f"{path}:2" in message
    assert "earlier task file" not in message  # there is only one


# --- rows in this project's own words -------------------------------------------------------------

WORDS = {"text": "Has two words or more.", "points": 2, "check": {"kind": "words", "min": 2}}
DIGITS = {"text": "A digit occurs.", "points": -1.5, "check": {"kind": "regex", "pattern": "\\d"}}


def own(prompt: str = "Describe the river Rhine.", **more: Any) -> str:
    return json.dumps({"prompt": prompt, "rubric": [WORDS, DIGITS], **more})


def test_a_row_may_be_a_task_as_it_stands_in_a_task_file(tmp_path: Path) -> None:
    keys = {
        "id": "rhine",
        "domain": "rivers",
        "rubric": [{**WORDS, "gate": 0.5}, DIGITS],
        "quality": {"topic": [["rhine", "rhein"], ["cologne"]], "asks": {"max_words": 30}},
        "pool": {"criteria": [{**WORDS, "points": 1}], "checklists": [["name a city", "be brief"]]},
        "tags": ["europe", "water"],
        "reference": "It runs past Cologne.",
        "source": "an atlas",
    }
    prompt = "Describe the Rhine."
    task = only(write_rows(tmp_path, own(prompt, **keys)))
    (tmp_path / "same.yaml").write_text(dump_yaml({"train": [{"prompt": prompt, **keys}]}))
    assert task == load_resolved(tmp_path / "same.yaml").train["rhine"]


def test_id_domain_and_source_come_from_the_file_and_the_line(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own(), "", own("Describe the Nile.", domain="africa"), own("Hm", id="hm"))
    tasks = load(tmp_path, path)
    assert list(tasks.train) == ["rows-1", "rows-3", "hm"]
    assert [t.domain for t in tasks.train.values()] == ["general", "africa", "general"]
    assert {t.source for t in tasks.train.values()} == {"rows.jsonl"}
    task = tasks.train["rows-1"]
    assert [c.points for c in task.rubric] == [2.0, -1.5]
    assert (task.quality, task.tags, task.reference) == (None, (), None)  # nothing is made up


def test_a_file_may_have_any_name(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own()).rename(tmp_path / "my rows (v2).jsonl")
    assert isinstance(only(path), TrainTask)


def test_both_schemas_may_stand_in_one_file(tmp_path: Path) -> None:
    tasks = load(tmp_path, write_rows(tmp_path, own(), ifeval()))
    assert list(tasks.train) == ["rows-1", "ifeval-1"]


@pytest.mark.parametrize(
    ("changes", "where", "why"),
    [
        ({"promt": "Describe."}, "promt", "unknown key"),
        ({"rubrics": []}, "rubrics", "unknown key"),
        ({"rubric": [{**WORDS, "weight": 1}]}, "rubric[0].weight", "unknown key"),
        ({"rubric": []}, "rubric", "at least 1 item"),
        ({"rubric": [WORDS, WORDS]}, "rubric[1]", "the same criterion twice"),
        ({"rubric": [WORDS, {**DIGITS, "points": 0}]}, "rubric[1].points", "other than 0"),
        ({"rubric": [{**WORDS, "points": 5e-324}]}, "rubric[0].points", "0.000001 to 1,000,000"),
        ({"rubric": [{**WORDS, "points": "2"}]}, "rubric[0].points", "must be a number"),
        ({"rubric": [{**WORDS, "points": float("nan")}]}, "rubric[0].points", "finite number"),
        ({"rubric": [{"points": 1}]}, "rubric[0].text", "required"),
        (
            {"rubric": [{**WORDS, "check": {"kind": "wrds"}}]},
            "rubric[0].check.kind",
            '"wrds" is not allowed (did you mean words?)',
        ),
        ({"rubric": [{**WORDS, "check": {"kind": "words"}}]}, "rubric[0].check", "needs `min`"),
        (
            {"rubric": [{**WORDS, "check": {"kind": "regex", "pattern": "(a"}}]},
            "rubric[0].check.pattern",
            "not a regular expression",
        ),
        (
            {"rubric": [{**WORDS, "check": {"kind": "ifeval", "id": "no:such"}}]},
            "rubric[0].check.id",
            "unknown IFEval instruction",
        ),
        ({"rubric": ["is kind"]}, "rubric[0]", "must be a mapping"),
        ({"prompt": ""}, "prompt", "at least 1 character"),
        ({"prompt": " \n"}, "prompt", "nothing but white space"),
        ({"id": "a b"}, "id", "pattern"),
        ({"id": 7}, "id", "must be a string"),
        ({"id": None}, "id", "must be a string"),
        ({"domain": ""}, "domain", "at least 1 character"),
        ({"tags": "x"}, "tags", "must be a list"),
        ({"quality": {"topic": []}}, "quality.topic", "at least 1 item"),
        ({"pool": {"checklist": []}}, "pool.checklist", "unknown key"),
        ({"reference": 3}, "reference", "must be a string"),
    ],
)
def test_a_row_with_a_mistake_is_refused_with_where_and_why(
    changes: dict[str, Any], where: str, why: str, tmp_path: Path
) -> None:
    path = write_rows(tmp_path, own("A good row."), own(**changes))
    with pytest.raises(SpecError) as caught:
        load(tmp_path, path)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(path.resolve()), 2, where)
    assert why in problem.message
    assert problem.column > 1 or "NaN" in problem.message  # which is no word of YAML's


def test_a_key_that_occurs_twice_is_no_row(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own(), '{"prompt": "A.", "prompt": "B.", "rubric": []}')
    with pytest.raises(SpecError, match=r"rows.jsonl:2:1: .*: the key 'prompt' occurs twice"):
        load(tmp_path, path)


def test_a_line_that_is_cut_short_is_at_fault_where_it_stops(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own(), '{"prompt": "A.", "rubric": [')
    with pytest.raises(SpecError, match=r"rows.jsonl:2:29: not JSON: Expecting value"):
        load(tmp_path, path)


@pytest.mark.parametrize("prompt", [None, 7, ["a"], {"role": "user"}])
def test_a_prompt_must_be_text(prompt: Any, tmp_path: Path) -> None:
    assert isinstance(only(write_rows(tmp_path, own(prompt))), str)


def test_a_pattern_that_is_nested_too_deeply(tmp_path: Path) -> None:
    deep = {**WORDS, "check": {"kind": "regex", "pattern": "(" * 3000 + ")" * 3000}}
    task = only(write_rows(tmp_path, own(rubric=[deep])))
    assert isinstance(task, str)
    assert "nested too deeply" in task


def test_criteria_in_words_alone_need_a_judge(tmp_path: Path) -> None:
    """A row is refused as a whole: half a rubric would be another rubric."""
    kind = {"text": "Is kind.", "points": 1}
    path = write_rows(tmp_path, own(rubric=[kind]), own("A.", rubric=[WORDS, kind]), own("B."))
    tasks = load(tmp_path, path)
    assert list(tasks.train) == ["rows-3"]
    (line,) = tasks.refusal_lines()
    assert line.startswith("2 x a criterion has no check and needs a judge role; none is configured")
    assert line.endswith(f"(first: {path.resolve()}:1)")
    with pytest.raises(SpecError, match=r"no task to train on: 1 x .*needs a judge"):
        load(tmp_path, write_rows(tmp_path, own(rubric=[kind])))


def test_an_id_that_two_rows_use_is_an_error(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own(id="a"), own("Another.", id="b"), own("A third.", id="a"))
    with pytest.raises(
        SpecError, match=r"rows\.jsonl:3:1: id: task id 'a' .* twice: .*rows\.jsonl:1 has"
    ):
        load(tmp_path, path)


def existence(words: Any) -> dict[str, Any]:
    return {"kind": "ifeval", "id": "keywords:existence", "args": {"keywords": words}}


@pytest.mark.parametrize(
    "row",
    [
        own("Half \ud800 of a pair."),
        own(rubric=[{**WORDS, "text": "\ud800"}]),
        own(tags=["\udfff"]),
        own(**{"\ud800": 1}),
        own(rubric=[{**WORDS, "check": {"kind": "regex", "pattern": "\ud800"}}]),
        own(rubric=[{**WORDS, "check": existence(["\ud800"])}]),
        own(rubric=[{**WORDS, "check": {**existence([]), "args": {"\ud800": 1}}}]),
        ifeval(prompt="Half \ud800 of a pair."),
        ifeval(instruction_id_list=["\ud800"]),
        ifeval(kwargs=[{"\ud800": 1}]),
        ifeval(instruction_id_list=["keywords:existence"], kwargs=[{"keywords": ["\ud800"]}]),
    ],
    ids=range(11),
)
def test_half_of_a_surrogate_pair_is_refused(row: str, tmp_path: Path) -> None:
    """JSON can spell what is no text. YAML cannot, and a run keeps its tasks in YAML."""
    task = only(write_rows(tmp_path, row))
    assert isinstance(task, str)
    assert "surrogate" in task


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    task = only(write_rows(tmp_path, own("A smile: \U0001f600.")))
    assert isinstance(task, TrainTask)
    assert task.prompt == "A smile: \U0001f600."


# --- nothing is held out that is trained on -------------------------------------------------------


def held_out(folder: Path, prompt: str) -> Path:
    path = folder / "held-out.yaml"
    task = {"id": "secret", "domain": "rivers", "prompt": prompt, "rubric": [WORDS]}
    path.write_text(dump_yaml({"held_out": [task]}))
    return path


@pytest.mark.parametrize(
    "prompt",
    [
        "Describe the river Rhine.",
        "describe the RIVER rhine",
        '  "Describe the\n river, Rhine !?"  ',
        "Describe\tthe\u00a0river\u2028Rhine\u2026",
    ],
)
def test_a_held_out_prompt_that_is_trained_on_is_an_error(prompt: str, tmp_path: Path) -> None:
    """Case, spacing and punctuation make no other prompt."""
    rows = write_rows(tmp_path, own(id="rhine"))
    for files in ((rows, held_out(tmp_path, prompt)), (held_out(tmp_path, prompt), rows)):
        with pytest.raises(SpecError) as caught:
            load(tmp_path, *files)
        (problem,) = caught.value.problems
        assert (problem.file, problem.path) == (str(tmp_path / "held-out.yaml"), "held_out[0].prompt")
        assert problem.line == 4 and f"secret is rhine ({rows}:1)" in problem.message


def test_letters_of_other_scripts_count_as_letters(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, own("Beschreibe die STRASSE.", id="a"), own("\u63cf\u8ff0", id="b"))
    for prompt in ("beschreibe die Stra\u00dfe", "\u63cf\u8ff0\u3002"):
        with pytest.raises(SpecError, match="secret is"):
            load(tmp_path, rows, held_out(tmp_path, prompt))
    load(tmp_path, rows, held_out(tmp_path, "\u63cf\u5199"))


@pytest.mark.parametrize(
    "prompt",
    ["Describe the river Rhine, please.", "Describe the rivers Rhine.", "Describe theriver Rhine."],
)
def test_another_prompt_may_be_held_out(prompt: str, tmp_path: Path) -> None:
    tasks = load(tmp_path, write_rows(tmp_path, own()), held_out(tmp_path, prompt))
    assert list(tasks.held_out) == ["secret"]


def test_one_prompt_may_be_trained_on_with_two_rubrics(tmp_path: Path) -> None:
    path = write_rows(tmp_path, own(), own(rubric=[WORDS]))
    assert len(load(tmp_path, path).train) == 2


def test_every_leak_is_told(tmp_path: Path) -> None:
    prompts = [f"Describe river {n}." for n in range(5)]
    path = tmp_path / "all.yaml"
    tasks = [
        {"id": f"{kind}{n}", "domain": "d", "prompt": prompt, "rubric": [WORDS]}
        for kind in ("t", "h")
        for n, prompt in enumerate(prompts)
    ]
    path.write_text(dump_yaml({"train": tasks[:5], "held_out": tasks[5:]}))
    with pytest.raises(SpecError) as caught:
        load(tmp_path, path)
    paths = [problem.path for problem in caught.value.problems]
    assert paths == [f"held_out[{n}].prompt" for n in range(5)]


def test_a_refused_task_leaks_nothing(tmp_path: Path) -> None:
    """It is not trained on."""
    judged = own(id="judged", rubric=[{"text": "Is kind.", "points": 1}])
    rows = write_rows(tmp_path, judged, own("Another prompt."))
    assert list(load(tmp_path, rows, held_out(tmp_path, "Describe the river Rhine.")).held_out) == [
        "secret"
    ]


def test_signs_make_another_prompt(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, own("Solve x^2-4=0 in C++.", id="a"))
    load(tmp_path, rows, held_out(tmp_path, "Solve x^2+4=0 in C++."))
    load(tmp_path, rows, held_out(tmp_path, "Solve x^2-4=0 in C#."))
    with pytest.raises(SpecError, match="secret is a"):
        load(tmp_path, rows, held_out(tmp_path, "\uff33olve x^2\u22124=0 in c++"))


def test_a_validation_prompt_is_neither_trained_on_nor_held_out(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    tasks = [
        {"id": name, "domain": "d", "prompt": prompt, "rubric": [WORDS]}
        for name, prompt in (("t", "Sing."), ("v1", "Sing!"), ("v2", "Dance."), ("h", "dance"))
    ]
    path.write_text(dump_yaml({"train": tasks[:1], "validation": tasks[1:3], "held_out": tasks[3:]}))
    with pytest.raises(SpecError) as caught:
        load(tmp_path, path)
    assert {p.path: p.message.split(" (")[0] for p in caught.value.problems} == {
        "validation[0].prompt": "Sing!: a validation task with the prompt of a training task: v1 is t",
        "held_out[0].prompt": "dance: a held-out task with the prompt of a validation task: h is v2",
    }


# --- sets that are only evaluated on --------------------------------------------------------------


def ood_set(folder: Path, *prompts: str, **more: Any) -> Path:
    """A file of an evaluation-only set in `folder`/ood."""
    path = folder / "ood" / "quiz.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = {"choices": {"A": "yes", "B": "no"}, "correct": "A"}
    rows = [
        {"id": f"q{n}", "split": "ood", "prompt": text, "answer": answer, **more}
        for n, text in enumerate(prompts)
    ]
    path.write_text(tiny.join([json.dumps(row) for row in rows]))
    return path


@pytest.mark.parametrize("apart", [False, True])
def test_a_prompt_of_an_evaluation_only_set_is_not_trained_on(apart: bool, tmp_path: Path) -> None:
    quiz = ood_set(
        tmp_path / "not-for-export" if apart else tmp_path, "Sing.", "describe the river RHINE"
    )
    rows = write_rows(tmp_path, own("Dance.", id="a"), own(id="b"))
    (line,) = told(tmp_path, rows)
    assert line == (
        f"{rows}:2:1: prompt: a training task with the prompt of an evaluation-only one: "
        f"b is q1 ({quiz}:2)"
    )
    ood_set(quiz.parent.parent, "Sing.", "Describe the river Rhone.")
    assert len(load(tmp_path, rows).train) == 2


def test_a_question_of_an_evaluation_only_set_is_not_trained_on_without_its_options(
    tmp_path: Path,
) -> None:
    more = {"question": "Which river is it? yes"}
    ood_set(tmp_path, "Which river is it? A: yes, B: no", origin={"row": "1", "more": more})
    (line,) = told(tmp_path, write_rows(tmp_path, own("Which river is it?", id="a")))
    assert "a is q0" in line


def test_a_prompt_of_an_evaluation_only_set_is_not_validated_on(tmp_path: Path) -> None:
    ood_set(tmp_path, "Sing!")
    path = tmp_path / "all.yaml"
    tasks = [
        {"id": name, "domain": "d", "prompt": prompt, "rubric": [WORDS]}
        for name, prompt in (("t", "Dance."), ("v", "Sing."), ("h", "Sing? No."))
    ]
    path.write_text(dump_yaml({"train": tasks[:1], "validation": tasks[1:2], "held_out": tasks[2:]}))
    (line,) = told(tmp_path, path)
    assert "validation[0].prompt: Sing.: a validation task with the prompt of an evaluation-only" in line


def test_a_file_that_is_no_set_is_told_and_rows_that_are_none_are_passed_over(tmp_path: Path) -> None:
    quiz = ood_set(tmp_path, "Sing.")
    quiz.write_text("{}\n" + quiz.read_text() + "{\n")
    rows = write_rows(tmp_path, own(id="a"))
    assert load(tmp_path, rows).unread == []
    other = quiz.with_name("other.parquet")
    other.write_text("no parquet")
    tasks = load(tmp_path, rows)
    (problem,) = tasks.unread
    assert str(problem).startswith(f"{other}:1:1: ") and len(tasks.train) == 1
    spec = loaded_spec(tmp_path, rows).spec
    assert f"not compared with the tasks: {problem}" in advice(spec, tasks)


def test_of_sets_with_one_name_none_hides_the_other(tmp_path: Path) -> None:
    quiz = ood_set(tmp_path, "Sing.")
    own_name = quiz.with_suffix(".csv")
    own_name.write_text("a,b\n1,2\n")
    rows = write_rows(tmp_path, own("Sing.", id="a"))
    (line,) = told(tmp_path, rows)
    assert line.endswith(f"a is q0 ({quiz}:1)")
    assert beside([rows]) == {str(own_name): own_name, str(quiz): quiz}


@pytest.mark.parametrize("text", ["ﬁrst:  Was ist die STRASSE ?", "First: was ist die Straße"])
def test_prompts_are_compared_in_their_normal_form(text: str, tmp_path: Path) -> None:
    ood_set(tmp_path, "First: was ist die Strasse?")
    (line,) = told(tmp_path, write_rows(tmp_path, own(text, id="a")))
    assert "a is q0" in line


def test_rows_of_sets_are_not_made_into_tasks_where_their_words_are_plain(tmp_path: Path) -> None:
    """10,000 of them take well under a second: every load of a spec reads them all."""
    more = {"origin": {"row": "1", "more": {"question": "Which river is it? yes"}}}
    prompts = [f"Question {n}: which river is it? A: yes, B: no" for n in range(10_000)]
    quiz = ood_set(tmp_path, *prompts, **more)
    start = time.process_time()
    assert [*asked_again([], [quiz], [])] == []
    assert time.process_time() - start < 2.0  # made into tasks: 6 s


# --- everything that is wrong, at once ------------------------------------------------------------


def told(folder: Path, *files: Path) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(folder, *files)
    return [str(problem) for problem in caught.value.problems]


def test_every_bad_row_of_every_file_is_told(tmp_path: Path) -> None:
    """And rows of data sets, or of nobody's schema, are left out as ever."""
    misspelt = json.dumps({**WORDS, "chek": WORDS["check"]})
    path = write_rows(
        tmp_path,
        own(),
        f'{{"prompt": "A.", "rubric": [{misspelt}], "domian": 1}}',
        '{"prompt": "A.", "prompt": "B."}',
        '{"prompt": ',
        '{"prompt": "\u4e2d \U0001f600", "rubrik": []}',
        '{"promt": "A.", "rubric": [{"text": "t", "points": "x"}], "split": "trian"}',
        ifeval(2, prompt=""),
        '{"rubrics": []}',
    )
    other = tmp_path / "other.yaml"
    other.write_text("train:\n- {id: a, domain: d, prompt: p, rubric: []}\n")
    column = 28 + misspelt.index('"chek"')
    end = 28 + len(misspelt)
    assert [line.partition(" ")[0] + line.split(": ")[1] for line in told(tmp_path, path, other)] == [
        f"{path}:2:{column + 1}:rubric[0].chek",
        f"{path}:2:{end + 4}:domian",
        f"{path}:3:1:not JSON that can be read",
        f"{path}:4:12:not JSON",
        f"{path}:5:19:rubrik",
        f"{path}:6:2:promt",
        f"{path}:6:52:rubric[0].points",
        f"{path}:6:68:split",
        f"{other}:2:41:train[0].rubric",
    ]


def test_a_key_that_is_misspelt_is_told_with_what_was_meant(tmp_path: Path) -> None:
    (line,) = told(tmp_path, write_rows(tmp_path, own(), '{"prompt": "A.", "rubrik": []}'))
    assert "unknown key rubrik (did you mean rubric?); allowed here: id, domain" in line


def test_rubrics_is_a_key_of_others(tmp_path: Path) -> None:
    (refusal,) = load(tmp_path, write_rows(tmp_path, own(), '{"prompt": "A.", "rubrics": ["b"]}')).refused
    assert refusal.reason.startswith("not a known schema (did you mean rubric, not rubrics?); known are")


def test_many_bad_rows_are_counted(tmp_path: Path) -> None:
    rows = [own(f"Prompt {n}.", domian="d") for n in range(500)]
    lines = told(tmp_path, write_rows(tmp_path, own(), *rows))
    assert len(lines) == MOST + 1
    assert lines[-1].split(":")[1] == str(MOST + 2)
    assert lines[-1].endswith(": 450 more problems from here on")


def test_rows_that_are_no_lines(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([json.loads(own()), json.loads(own("A.", domian=1))]))
    (line,) = told(tmp_path, path)
    assert line.startswith(f"{path}:1:1: [1].domian: unknown key".replace("[1]", "[2]"))
    path.write_text(json.dumps([json.loads(own(reference=2)), json.loads(own(rubric="é"))]))
    assert told(tmp_path, path) == [
        f'{path}:1:1: [1].reference: must be a string, not 2; quote it: "2"',
        f'{path}:1:1: [2].rubric: must be a list, not "é"',
    ]


def test_shares_leaks_and_a_start_that_does_not_fit_are_told_together(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, own(id="rhine", domain="rivers"))
    start = tmp_path / "start.yaml"
    start.write_text(
        "tasks:\n  rhein: {p: {paused: true}}\n  rhine:\n    c:\n      retired: [c-1]\n"
        "    g:\n    - {field: skill, lines: [a]}\n    - {field: skill, lines: [b]}\n"
    )
    spec = tmp_path / "run.yaml"
    spec.write_text(
        f"extends: {tiny.write_spec(tmp_path / 'spec', 'smollm2-wheel').spec}\n"
        f"tasks: {{files: ['{rows}', '{held_out(tmp_path, 'Describe the river Rhine.')}']}}\n"
        f"start: {start}\ninterfaces: {{p: {{domain_shares: {{rivrs: 1}}}}}}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_tasks(load_run_spec(spec))
    assert [(Path(p.file).name, p.line, p.path) for p in caught.value.problems] == [
        ("held-out.yaml", 4, "held_out[0].prompt"),
        ("run.yaml", 4, "interfaces.p.domain_shares.rivrs"),
        ("start.yaml", 2, "tasks.rhein"),
        ("start.yaml", 5, "tasks.rhine.c.retired[0]"),
        ("start.yaml", 8, "tasks.rhine.g[1].field"),
    ]
    assert "(did you mean rivers?)" in str(caught.value) and "(did you mean rhine?)" in str(caught.value)


def test_a_harness_file_to_start_from_leaks_no_reference(tmp_path: Path) -> None:
    reference = "Mercury is liquid because relativistic effects weaken its metallic bonds strongly."
    rows = write_rows(tmp_path, own("Why?", id="a", reference=reference), own("Who?", id="b"))
    start = tmp_path / "start.yaml"
    lines = "lines: [relativistic effects weaken its metallic bonds]"
    start.write_text(
        f"tasks:\n  b:\n    g: [{{field: skill, {lines}}}]\n"
        f"  a:\n    g:\n    - {{field: skill, lines: [Be kind.]}}\n    - field: outline\n      {lines}\n"
    )
    spec = tmp_path / "run.yaml"
    spec.write_text(
        f"extends: {tiny.write_spec(tmp_path / 'spec', 'smollm2-wheel').spec}\n"
        f"tasks: {{files: ['{rows}']}}\nstart: {start}\n"
    )
    with pytest.raises(SpecError) as caught:
        load_tasks(load_run_spec(spec))
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{start}:8:7: tasks.a.g[1].lines: a leak, 100% of it")


# --- what is derived from a prompt ----------------------------------------------------------------


def test_subject_words_say_what_a_prompt_is_about() -> None:
    prompt = "Write a short song about miniature trains, with exactly 20 sentences. MINIATURE!"
    assert {"miniature", "trains"} <= set(subject_words(prompt))
    assert not {"write", "about", "with", "sentences"} & set(subject_words(prompt))
    assert subject_words(prompt).count("miniature") == 1
    assert len(subject_words("rivers mountains glaciers volcanoes deserts forests lakes")) == 6
    assert subject_words("Answer in 3 sentences.") == []


def test_quality_is_derived_from_the_subject() -> None:
    quality = derive_quality("Describe the river Nile without commas.")
    assert quality is not None
    on = measure_quality(quality, "?", "The river Nile is long and it flows through the desert.")
    off = measure_quality(quality, "?", "My cat is old and it sleeps on the red sofa all day.")
    assert on.total > off.total
    assert derive_quality("Answer in 3 sentences.") is None


def test_the_pool_is_derived_too() -> None:
    prompt = "Describe rivers, mountains, glaciers and volcanoes without commas."
    pool = derive_pool(prompt)
    assert len(pool.criteria) == 7
    assert len({c.id for c in pool.criteria}) == 7
    quality = derive_quality(prompt)
    assert quality is not None
    stems = {stem for (stem,) in quality.topic}
    (mentions, *_) = [c.check.terms for c in pool.criteria if isinstance(c.check, MentionsCheck)]
    assert not stems & {term[:6] for term in mentions}  # the oracle looks for other words
    assert len({c.points for c in pool.criteria}) == 1  # points give nothing away
    assert all(c.check is not None for c in pool.criteria)
    bare = derive_pool("Answer in 3 sentences.")
    assert len(bare.criteria) == 5
    assert bare.checklists == ()


# --- files ----------------------------------------------------------------------------------------


def test_files_are_read_together(tmp_path: Path) -> None:
    tasks = load(tmp_path, STARTER, write_rows(tmp_path, ifeval()))
    assert len(tasks.train) == 13
    assert len(tasks.held_out) == 12
    assert all(type(t) is TrainTask for t in tasks.train.values())
    assert all(type(t) is HeldOutTask for t in tasks.held_out.values())


def test_an_id_in_two_files_is_an_error(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(
        "held_out:\n  - {id: ifeval-1, domain: x, prompt: Hm, rubric: [{text: t, points: 1, "
        "check: {kind: words, min: 1}}]}\n"
    )
    with pytest.raises(SpecError, match=r"task id 'ifeval-1' .*other\.yaml") as caught:
        load(tmp_path, write_rows(tmp_path, ifeval()), other)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.path) == (str(other), 2, "held_out[0].id")


@pytest.mark.parametrize("name", ["rows.txt", "rows", "rows.jsonl.gz"])
def test_other_kinds_of_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(ifeval())
    with pytest.raises(SpecError, match=r"allowed: \.yaml, \.yml, \.jsonl"):
        load(tmp_path, tmp_path / name)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_rows_is_no_task_list(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(SpecError, match="no task to train on"):
        load(tmp_path, path)


def test_yaml_tasks_without_a_check_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "judged.yaml"
    path.write_text(
        "train:\n"
        "  - {id: a, domain: x, prompt: Hm, rubric: [{text: Is kind, points: 1}]}\n"
        "  - {id: b, domain: x, prompt: Hm, rubric: "
        "[{text: t, points: 1, check: {kind: words, min: 1}}]}\n"
    )
    tasks = load(tmp_path, path)
    assert list(tasks.train) == ["b"]
    assert tasks.refusal_lines() == [
        f"1 x a criterion has no check and needs a judge role; none is configured (first: {path}: a)"
    ]


def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    path = write_rows(
        tmp_path,
        ifeval(),
        ifeval(2, prompt=""),
        json.dumps({"rubrics": []}),
        json.dumps({"checklist": []}),
    )
    tasks = load(tmp_path, path)
    lines = tasks.refusal_lines()
    assert lines[0].startswith("2 x not a known schema")
    assert lines[0].endswith(f"(first: {path}:3)")
    assert lines[1].startswith("1 x prompt")


def test_the_shared_pool_reaches_every_task_once(tmp_path: Path) -> None:
    paths = tiny.write_spec(tmp_path, "smollm2-wheel")
    tasks = load_tasks(load_run_spec(paths.spec))
    assert len(tasks.train) == 4
    for task in tasks.train.values():
        assert len(task.pool.criteria) == 4
        assert len(task.pool.checklists) == 2
    assert tasks.held_out["quick"].pool.criteria == ()


# --- the run folder's copy ------------------------------------------------------------------------


def through_the_run_folder(tasks: Tasks, folder: Path) -> Tasks:
    """As the command line writes tasks.yaml, and as a resume reads it."""
    path = folder / "resolved.yaml"
    path.write_text(dump_yaml(tasks.as_file().model_dump(mode="json", exclude_none=True)))
    return load_resolved(path)


@pytest.mark.parametrize("source", ["starter", "tiny", "ifeval"])
def test_a_resumed_run_reads_the_same_tasks(source: str, tmp_path: Path) -> None:
    if source == "tiny":
        tasks = load_tasks(load_run_spec(tiny.write_spec(tmp_path, "smollm2-wheel").spec))
    else:
        path = STARTER if source == "starter" else data_file("ifeval_input_data.jsonl")
        tasks = load(tmp_path, path)
    again = through_the_run_folder(tasks, tmp_path)
    assert again.train == tasks.train
    assert again.held_out == tasks.held_out
    assert list(again.train) == list(tasks.train)  # order matters to the probe
    for task_id, task in tasks.train.items():
        same = again.train[task_id]
        assert [c.id for c in same.rubric] == [c.id for c in task.rubric]
        assert [c.id for c in same.pool.criteria] == [c.id for c in task.pool.criteria]


@pytest.mark.parametrize(
    "prompt",
    [
        "two\nlines",
        " blanks around \n",
        "tab\there",
        "\u00e9\u4e2d\U0001f600 \u2028 \u0085 \u200b",
        "'quotes' \"double\" `back` # no comment: really",
        "yes",
        "1e-3",
        "- a\n- b",
        "{{ jinja }} {% x %}",
        "trailing colon:",
    ],
)
def test_awkward_prompts_survive_the_run_folder(prompt: str, tmp_path: Path) -> None:
    tasks = load(tmp_path, write_rows(tmp_path, ifeval(prompt=prompt)))
    assert through_the_run_folder(tasks, tmp_path).train == tasks.train


def test_criteria_keep_their_ids_through_the_run_folder(tmp_path: Path) -> None:
    """An argument left empty on purpose: the id is a hash, and a resume must find the same one."""
    path = tmp_path / "empty.yaml"
    path.write_text(
        "train:\n  - id: a\n    domain: x\n    prompt: Hm\n    rubric:\n      - text: t\n"
        "        points: 1\n"
        "        check: {kind: ifeval, id: 'punctuation:no_comma', args: {relation: null}}\n"
    )
    tasks = load(tmp_path, path)
    again = through_the_run_folder(tasks, tmp_path)
    assert [c.id for c in again.train["a"].rubric] == [c.id for c in tasks.train["a"].rubric]
