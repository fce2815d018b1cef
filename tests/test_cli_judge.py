"""`harnessrl judge` and `validate --preflight`, on real rows and a scripted endpoint."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.agents.scoring.preflight import KNOWN
from harnessrl.agents.scoring.reward import dataset_mean
from harnessrl.trainer.judging import agreement
from scripted_endpoint import Body, Reply, ScriptedEndpoint, question, verdict

WORDS = {"text": "Has three words or more.", "points": 2, "check": {"kind": "words", "min": 3}}
KIND = {"text": "Is kind.", "points": 1}


def criterion_of(body: Body) -> str:
    """What a request asks about."""
    return question(body).rsplit("CRITERION", 2)[1].split("\n")[1]


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judge_file(path: Path, endpoint: ScriptedEndpoint, **more: str) -> Path:
    lines = [f"base_urls: ['{endpoint.base_url}']", "model: scripted"]
    path.write_text("\n".join([*lines, *(f"{key}: {value}" for key, value in more.items())]) + "\n")
    return path


def scored(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_checks_alone_need_no_judge(tmp_path: Path) -> None:
    rows = [
        {"id": "long", "prompt": "Say.", "response": "one two three", "rubric": [WORDS]},
        {"prompt": "Say.", "response": "one", "rubric": [WORDS]},
    ]
    done = tiny.invoke("judge", write(tmp_path / "rows.jsonl", *rows))
    assert done.exit_code == 0, done.output
    assert "2 responses, 2 verdicts, 0 unscored" in done.output and "score 0.500" in done.output
    first, second = scored(tmp_path / "rows.judged.jsonl")
    assert (first["id"], first["reward"], second["id"]) == ("long", 1.0, "rows-2")
    assert first["verdicts"] == [{"criterion": WORDS["text"], "points": 2.0, "met": True}]


def test_without_a_judge_criteria_in_words_are_unscored_not_unmet(tmp_path: Path) -> None:
    row = {"prompt": "Say.", "response": "hello", "rubric": [KIND]}
    done = tiny.invoke("judge", write(tmp_path / "rows.jsonl", row))
    assert "1 unscored" in done.output and "needs a judge role" in done.output
    assert scored(tmp_path / "rows.judged.jsonl")[0]["reward"] is None


def test_two_judges_are_compared_per_axis(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": "Say.",
            "response": f"answer {n}",
            "rubrics": [
                {"criterion": f"A{n}", "points": 1, "tags": ["axis:first"]},
                {"criterion": f"B{n}", "points": 1, "tags": ["axis:second"]},
            ],
        }
        for n in range(6)
    ]
    path = write(tmp_path / "rows.jsonl", *rows)

    def ours(body: Body) -> Reply:
        return verdict(int(criterion_of(body)[1:]) < 3)

    def theirs(body: Body) -> Reply:
        text = criterion_of(body)
        return verdict((int(text[1:]) < 3) == text.startswith("A"))

    with ScriptedEndpoint(ours) as a, ScriptedEndpoint(theirs) as b:
        one, two = judge_file(tmp_path / "a.yaml", a), judge_file(tmp_path / "b.yaml", b)
        done = tiny.invoke("judge", path, "--judge", one, "--compare", two, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "all criteria: agreement 0.50, kappa 0.00 (12 verdicts)" in done.output
    assert "first: agreement 1.00, kappa 1.00 (6 verdicts)" in done.output
    assert "second: agreement 0.00, kappa -1.00 (6 verdicts)" in done.output


def test_kappa_of_judges_that_always_say_one_thing_is_not_a_number() -> None:
    assert agreement([(True, True), (True, True)]).kappa is None
    assert agreement([(None, True)]).agree is None


def test_healthbench_scores_equal_the_published_formula(tmp_path: Path) -> None:
    """Each example: points met over positive points, unclipped; the data set: their mean, clipped."""
    rows = [json.loads(line) for line in tiny.data_file("healthbench.jsonl").read_text().splitlines()]
    with ScriptedEndpoint(lambda body: verdict(len(criterion_of(body)) % 3 > 0)) as endpoint:
        path = write(tmp_path / "rows.jsonl", *({**row, "response": "An answer."} for row in rows))
        done = tiny.invoke("judge", path, "--judge", judge_file(tmp_path / "judge.yaml", endpoint))
        assert done.exit_code == 0, done.output
    found = scored(tmp_path / "rows.judged.jsonl")
    wanted = []
    for row, mine in zip(rows, found, strict=True):
        met = {v["criterion"]: v["met"] for v in mine["verdicts"]}
        given = {r["criterion"]: r["points"] for r in row["rubrics"]}
        assert {v["criterion"]: v["points"] for v in mine["verdicts"]} == given
        gained = sum(Fraction(points) for text, points in given.items() if met[text])
        wanted.append(gained / sum(Fraction(points) for points in given.values() if points > 0))
        assert mine["reward"] == pytest.approx(float(wanted[-1]), abs=1e-12)
    mean = max(Fraction(0), min(Fraction(1), sum(wanted) / len(wanted)))
    assert f"score {float(mean):.3f} " in done.output
    assert min(wanted) < 0  # unclipped: it shows
    assert dataset_mean([-3.0, 1.0]) == 0.0 and dataset_mean([2.0, 1.0]) == 1.0


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("nope", "rows.jsonl:1:1: not JSON"),
        ('{"prompt": "x"}', "rows.jsonl:1:1"),
        ('{"prompt": "x", "response": 3, "rubric": []}', "rows.jsonl:1:1"),
        ('{"prompt":"x","response":"y","rubric":[{"text":"t","points":0}]}', "points"),
        ("", "holds no row"),
    ],
)
def test_rows_that_are_none_are_errors_with_their_place(row: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(row + "\n")
    done = tiny.invoke("judge", path)
    assert done.exit_code == 2 and says in done.output and "Traceback" not in done.output
    assert not (tmp_path / "rows.judged.jsonl").exists()


def test_a_judge_file_is_read_strictly(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "x", "response": "y", "rubric": [KIND]})
    (tmp_path / "judge.yaml").write_text("base_urls: [localhost]\nmodle: x\n")
    done = tiny.invoke("judge", path, "--judge", tmp_path / "judge.yaml")
    assert done.exit_code == 2
    assert "judge.yaml:1:13" in done.output and "did you mean model?" in done.output


# --- preflight ------------------------------------------------------------------------------------


def right(body: Body) -> Reply:
    """A judge that knows the known verdicts."""
    text = question(body)
    (known,) = [k for k in KNOWN if k.criterion in text and k.response in text]
    return verdict(known.met)


def preflight(
    folder: Path, policy: Path, endpoint: ScriptedEndpoint | None, model: str = "scripted"
) -> Any:
    paths = tiny.write_spec(folder / "spec", policy)
    url = endpoint.base_url if endpoint else "http://127.0.0.1:9/v1"
    role = f"roles:\n  judge: {{base_urls: ['{url}'], model: {model}, retries: 0, timeout: 2}}\n"
    text = paths.spec.read_text().replace("roles:\n", role)
    paths.spec.write_text(text)
    return tiny.invoke("validate", paths.spec, "--preflight")


def test_a_good_judge_passes_the_preflight(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(right) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint)
    assert done.exit_code == 0, done.output
    assert "serves scripted" in done.output and "FAIL" not in done.output
    assert done.output.count("known verdict") == len(KNOWN)
    assert "ok    policy: the sampler: log-probabilities of" in done.output


def test_a_policy_whose_copy_has_other_weights_fails_it(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harnessrl.trainer.local import engine

    def spoiled(model: Any) -> Any:
        copy = frozen_copy(model)
        next(copy.parameters()).data.mul_(3.0)
        return copy

    frozen_copy = engine.bf16_copy
    monkeypatch.setattr(engine, "bf16_copy", spoiled)
    with ScriptedEndpoint(right) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint)
    assert done.exit_code == 1
    assert "FAIL  policy: the sampler" in done.output


def test_a_policy_that_cannot_be_had_fails_it(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with ScriptedEndpoint(right) as endpoint:
        done = preflight(tmp_path, tmp_path / "empty", endpoint)
    assert done.exit_code == 1
    assert "FAIL  policy: " in done.output and "cannot be loaded" in done.output


def test_a_gullible_judge_fails_it(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint)
    assert done.exit_code == 1
    assert "FAIL  judge known verdict: 'The response names a planet.'" in done.output


def test_a_judge_without_structure_fails_it(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(lambda body: Reply("met, I think")) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint)
    assert done.exit_code == 1 and "FAIL  judge structured output" in done.output


def test_a_model_that_is_not_served_and_a_dead_endpoint_fail_it(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(right) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint, model="other")
    assert done.exit_code == 1 and "no other; it serves scripted" in done.output
    done = preflight(tmp_path, tiny_model, None)
    assert done.exit_code == 1 and "no connection" in done.output
