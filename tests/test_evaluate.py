"""`harnessrl evaluate`: local and served policies, sets, resumption, what is unscored, bad input."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny
from measured import MEDQA, WORDS, held_out, n_of, n_stored, result, saying, score, write_rows
from scripted_endpoint import Body, Reply, ScriptedEndpoint, judging, nobody_there, question

# --- held-out tasks -------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_responses(
    spec: Callable[..., Path], tmp_path: Path, tiny_model: Path
) -> None:
    """From the written responses, counted again by hand; once in the process, once from a run folder."""
    out = tmp_path / "out"
    done = tiny.invoke(
        "evaluate", spec(held_out(6)), "--policy", tiny_model, "--samples", "2", "--out", out
    )
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    assert [line["mode"] for line in lines[:3]] == ["greedy", "sampled", "sampled"]
    (policy,) = result(out)["policies"]
    for mode, each in (("greedy", 1), ("sampled", 2)):
        by_task = np.reshape(
            [
                min(1.0, max(0.0, sum(v["points"] for v in line["verdicts"] if v["met"]) / 4))
                for line in lines
                if line["mode"] == mode
            ],
            (6, each),
        ).mean(axis=1)
        row = score(policy, "held-out", "rubric", mode)
        assert row["estimate"]["mean"] == pytest.approx(by_task.mean())
        assert (row["estimate"]["tasks"], row["responses"], row["unscored"]) == (6, 6 * each, 0)
    for name in ("evaluation.md", "evaluation.html"):
        assert "held-out" in (out / name).read_text()


def test_the_same_seed_gives_the_same_figures_and_asks_nothing_twice(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    file = spec(held_out(8))
    with ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS[: n_of(prompt) % 5]))) as policy:
        texts = []
        for _ in range(2):
            done = tiny.invoke("evaluate", file, "--policy", policy.base_url, "--out", tmp_path / "out")
            assert done.exit_code == 0, done.output
            texts.append((tmp_path / "out" / "evaluation.json").read_text())
        assert texts[0] == texts[1]
        assert len(policy.bodies) == 8 * 5
        temperatures = [body["temperature"] for body in policy.bodies]
        assert (temperatures.count(0.0), temperatures.count(1.0)) == (8, 32)
        seeds = {(question(body), body["seed"]) for body in policy.bodies}
        assert len(seeds) == 40, "every response has its own draws"
        tiny.invoke(
            "evaluate", file, "--policy", policy.base_url, "--out", tmp_path / "b", "--limit", "2"
        )
        assert len(policy.bodies) == 40 + 2 * 5
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "held-out", "rubric")["estimate"]["mean"] == pytest.approx(
        np.mean([i % 5 / 4 for i in range(8)])
    )
    domains = [row for row in found["rows"] if row["part"] == "domain-1" and row["mode"] == "greedy"]
    assert domains[0]["estimate"]["mean"] == pytest.approx(np.mean([i % 5 / 4 for i in (1, 3, 5, 7)]))


def test_negative_responses_are_clipped_one_by_one_and_healthbench_clips_their_mean(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    def texts(prompt: str) -> str:
        return "no!" if n_of(prompt) == 0 else " ".join(WORDS)

    with ScriptedEndpoint(saying(texts)) as policy:
        file = spec(held_out(4))
        done = tiny.invoke(
            "evaluate", file, "--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"
        )
    assert done.exit_code == 0, done.output
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "held-out", "rubric")["estimate"]["mean"] == pytest.approx(3 / 4)
    assert score(found, "held-out", "rubric, unclipped")["estimate"]["mean"] == pytest.approx(2 / 4)


def test_two_policies_are_compared_task_by_task(spec: Callable[..., Path], tmp_path: Path) -> None:
    better = ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS[: 1 + n_of(prompt) % 2])))
    worse = ScriptedEndpoint(saying(lambda prompt: WORDS[0]))
    with better, worse:
        file = spec(held_out(10))
        options = ["--policy", better.base_url, "--other", worse.base_url, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options)
    assert done.exit_code == 0, done.output
    (row,) = [
        row
        for row in result(tmp_path / "out")["comparison"]
        if (row["part"], row["mode"], row["metric"]) == ("", "greedy", "rubric")
    ]
    found = row["paired"]
    assert (found["wins"], found["ties"], found["losses"]) == (5, 5, 0)
    assert found["difference"] == pytest.approx(1 / 8)
    assert 0 < found["interval"][0] < 1 / 8 < found["interval"][1]
    assert "5 wins, 5 ties, 0 losses" in done.output


def test_a_policy_of_a_run_is_its_newest_one(finished: tiny.Finished, tmp_path: Path) -> None:
    done = tiny.invoke("evaluate", finished.spec, "--policy", finished.run, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (checkpoint,) = (finished.run / "checkpoints").iterdir()
    done = tiny.invoke(
        "evaluate", finished.spec, "--policy", checkpoint / "policy", "--out", tmp_path / "other"
    )
    first, second = (result(tmp_path / name)["policies"][0] for name in ("out", "other"))
    assert first["identity"] == second["identity"]
    assert first["rows"] == second["rows"]


# --- what is missing ------------------------------------------------------------------------------


def test_what_a_judge_cannot_say_is_counted_and_never_zero(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    """One of ten verdicts is garbled: it is dropped. For half of the tasks all are: no score."""
    tasks = [
        {**task, "rubric": [{"text": f"criterion {k}", "points": 1} for k in range(10)]}
        for task in held_out(6)
    ]

    def answer(body: Body) -> Reply:
        reply = judging(lambda response, criterion: criterion in ("criterion 1", "criterion 2"))(body)
        text = question(body)
        is_odd = any(f"number {n}." in text for n in (1, 3, 5))
        return Reply("gibberish") if is_odd or "criterion 7\n" in text else reply

    with (
        ScriptedEndpoint(answer) as judge,
        ScriptedEndpoint(saying(lambda prompt: "a response")) as policy,
    ):
        file = spec(tasks, roles={"judge": {"base_urls": [judge.base_url], "model": "scripted"}})
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options)
    assert done.exit_code == 0, done.output
    (found,) = result(tmp_path / "out")["policies"]
    row = score(found, "held-out", "rubric")
    assert row["estimate"]["mean"] == pytest.approx(2 / 9)
    assert (row["estimate"]["tasks"], row["responses"], row["unscored"]) == (3, 6, 3)
    (cause,) = row["causes"]
    assert "no verdict" in cause
    unscored = {row["task_id"]: row for row in found["criteria"] if row["text"] == "criterion 1"}
    assert unscored["held-1"]["good"] is None and unscored["held-0"]["good"] == 1.0


def test_responses_that_a_policy_does_not_give_are_counted_and_asked_for_again(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    is_down = [True]

    def answer(body: Body) -> Reply:
        broken = is_down[0] and n_of(question(body)) % 2 == 1
        return Reply("no such thing", status=400) if broken else Reply(" ".join(WORDS))

    with ScriptedEndpoint(answer) as policy:
        file = spec(held_out(6))
        options = ["--policy", policy.base_url, "--samples", 1, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options)
        assert "held-out: 6 of 12 responses missing, and in no table" in done.output
        (found,) = result(tmp_path / "out")["policies"]
        assert found["sampling"][0]["missing"] == 6
        assert score(found, "held-out", "rubric")["estimate"]["tasks"] == 3
        is_down[0], asked = False, len(policy.bodies)
        done = tiny.invoke("evaluate", file, *options)
        assert len(policy.bodies) == asked + 6
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "held-out", "rubric")["estimate"]["tasks"] == 6


def test_a_killed_evaluation_goes_on(spec: Callable[..., Path], tmp_path: Path) -> None:
    slow = [True]

    def answer(body: Body) -> Reply:
        is_late = slow[0] and n_of(question(body)) >= 10
        return Reply(WORDS[0], after=60.0 if is_late else 0.0)

    with ScriptedEndpoint(answer) as policy:
        file = spec(held_out(20))
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        process = tiny.start("evaluate", file, *options)
        tiny.wait_until(lambda: len(policy.bodies) >= 20, process)
        stored = tmp_path / "out" / "responses.sqlite"
        tiny.wait_until(lambda: n_stored(stored) == 10, process)
        process.kill()
        process.wait()
        slow[0], asked = False, len(policy.bodies)
        done = tiny.invoke("evaluate", file, *options)
        assert done.exit_code == 0, done.output
        assert sorted(n_of(question(body)) for body in policy.bodies[asked:]) == list(range(10, 20))


# --- evaluation-only sets -------------------------------------------------------------------------


def test_exact_match_and_who_does_not_answer(spec: Callable[..., Path], tmp_path: Path) -> None:
    said = ["The answer is (B).", "**B** or C?", "Answer: A", "B. the second"]
    write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)

    def texts(prompt: str) -> str:
        return next((said[i] for i in range(4) if f"number {i}?" in prompt), "nothing")

    with ScriptedEndpoint(saying(texts)) as policy:
        file = spec(held_out(1))
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options, "--set", "all")
    assert done.exit_code == 0, done.output
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "medqa", "exact match")["estimate"]["mean"] == pytest.approx(2 / 4)
    assert score(found, "medqa", "answered")["estimate"]["mean"] == pytest.approx(3 / 4)


def test_graded_sets_are_graded_on_their_own_scale(spec: Callable[..., Path], tmp_path: Path) -> None:
    bands = {f"{n}-{n + 1}": f"level {n}" for n in (1, 3, 5, 7, 9)}
    checklist = [{"name": f"c{k}", "criteria_description": f"thing {k}", **bands} for k in range(5)]
    rows = [{"index": i, "query": f"Write text number {i}.", "checklist": checklist} for i in range(3)]
    file_of_rows = write_rows(tmp_path / "writing.jsonl", rows)

    def grade(body: Body) -> Reply:
        text = question(body)
        assert body["response_format"]["json_schema"]["schema"]["properties"]["grade"]["enum"] == list(
            range(1, 11)
        )
        n = next(n for n in range(3) if f"number {n}." in text)
        k = next(k for k in range(5) if f"c{k}: thing {k}" in text)
        if n == 2 and k == 4:
            return Reply(json.dumps({"reason": "", "grade": 11}))
        return Reply(json.dumps({"reason": "because", "grade": 1 + n + k}))

    with ScriptedEndpoint(grade) as judge, ScriptedEndpoint(saying(lambda p: "a text")) as policy:
        file = spec(held_out(1), roles={"judge": {"base_urls": [judge.base_url], "model": "scripted"}})
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options, "--set", file_of_rows)
        assert done.exit_code == 0, done.output
        asked = len(judge.bodies)
        assert asked == 3 * 5 + 1  # the impossible grade was asked for once more
        tiny.invoke("evaluate", file, *options, "--set", file_of_rows)
        assert len(judge.bodies) == asked + 2, "grades are kept, what was none is asked for again"
    (found,) = result(tmp_path / "out")["policies"]
    row = score(found, "writingbench", "grade")
    assert row["estimate"]["mean"] == pytest.approx(
        np.mean([np.mean([1 + n + k for k in range(5)]) / 10 for n in (0, 1)])
    )
    assert row["unscored"] == 1


def test_role_play_is_scored_by_overlap_and_by_a_rubric(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    rows = [
        {
            "role": "Gandalf",
            "question": f"Who are you, number {i}?",
            "generated": ["I am a wizard", "x y"],
        }
        for i in range(2)
    ]
    file_of_rows = write_rows(tmp_path / "rolebench.jsonl", rows)
    judge = ScriptedEndpoint(judging(lambda response, criterion: "speaks as Gandalf" in criterion))
    with judge, ScriptedEndpoint(saying(lambda p: "I am a grey wizard")) as policy:
        file = spec(held_out(1), roles={"judge": {"base_urls": [judge.base_url], "model": "scripted"}})
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options, "--set", file_of_rows)
    assert done.exit_code == 0, done.output
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "rolebench", "rouge-l")["estimate"]["mean"] == pytest.approx(8 / 9)
    assert score(found, "rolebench", "rubric")["estimate"]["mean"] == pytest.approx(2 / 7)


def test_axes_come_from_the_tags_of_criteria(spec: Callable[..., Path], tmp_path: Path) -> None:
    tasks = held_out(4)
    for task in tasks:
        for criterion in task["rubric"]:
            axis = "style" if criterion["points"] < 0 else "content"
            criterion["tags"] = ["level:example", f"axis:{axis}"]
    with ScriptedEndpoint(saying(lambda prompt: f"{WORDS[0]}!")) as policy:
        file = spec(tasks)
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        assert tiny.invoke("evaluate", file, *options).exit_code == 0
    (found,) = result(tmp_path / "out")["policies"]
    axes = {row["part"]: row["estimate"]["mean"] for row in found["axes"]}
    assert axes == {"content": pytest.approx(1 / 4), "style": 0.0}


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--policy", "{folder}/nothing"], "no such folder"),
        (["--policy", "{nobody}"], "no connection"),
        (["--policy", "{model}", "--set", "medqa"], "medqa is no file and no set"),
        (["--policy", "{model}", "--set", "{folder}/tasks.yaml"], "not a data file"),
        (["--policy", "{model}", "--samples", "-1"], "greater than or equal to 0"),
    ],
)
def test_bad_input(
    spec: Callable[..., Path], tmp_path: Path, tiny_model: Path, options: list[str], said: str
) -> None:
    places = {"folder": tmp_path, "nobody": nobody_there(), "model": tiny_model}
    given = [option.format(**places) for option in options]
    done = tiny.invoke("evaluate", spec(held_out(1)), *given, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert said in done.output


def test_an_endpoint_that_gives_nothing_is_a_failure(spec: Callable[..., Path], tmp_path: Path) -> None:
    with ScriptedEndpoint(lambda body: Reply("no such thing", status=400)) as policy:
        options = ["--policy", policy.base_url, "--samples", 1, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", spec(held_out(3)), *options)
    assert done.exit_code == 1
    assert "6 of 6 responses missing, and in no table: 6 x policy: HTTP 400" in done.output
    assert "nothing could be measured" in done.output


def test_a_limit_takes_from_every_domain(spec: Callable[..., Path], tmp_path: Path) -> None:
    with ScriptedEndpoint(saying(lambda prompt: "a text")) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--limit", 4, "--out", tmp_path / "out"]
        assert tiny.invoke("evaluate", spec(held_out(9)), *options).exit_code == 0
        asked = [n_of(question(body)) % 2 for body in policy.bodies]
    assert sorted(asked) == [0, 0, 1, 1]


def test_nothing_to_evaluate_on(spec: Callable[..., Path], tmp_path: Path, tiny_model: Path) -> None:
    done = tiny.invoke("evaluate", spec([]), "--policy", tiny_model, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert "no held-out task" in done.output


def test_several_models_at_an_endpoint_have_to_be_told_apart(
    spec: Callable[..., Path], tmp_path: Path
) -> None:
    with ScriptedEndpoint(saying(lambda prompt: "a text")) as policy:
        file = spec(held_out(1))
        done = tiny.invoke(
            "evaluate", file, "--policy", f"{policy.base_url}#other", "--out", tmp_path / "o"
        )
        assert done.exit_code == 2
        assert "serves scripted, not other" in done.output
        named = f"{policy.base_url}#scripted"
        done = tiny.invoke("evaluate", file, "--policy", named, "--out", tmp_path / "o")
        assert done.exit_code == 0, done.output


def test_text_of_others_stays_text(spec: Callable[..., Path], tmp_path: Path) -> None:
    tasks = held_out(1)
    tasks[0]["rubric"][0]["text"] = "<script>alert(1)</script> | `x` \u202e"
    with ScriptedEndpoint(saying(lambda prompt: "\ud800 <b>")) as policy:
        file = spec(tasks)
        done = tiny.invoke("evaluate", file, "--policy", policy.base_url, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "out" / "evaluation.html").read_text()
    assert "<script>" not in page and "\u202e" not in page
    assert "<script>" not in (tmp_path / "out" / "evaluation.md").read_text()
    shutil.rmtree(tmp_path / "out")
