"""`harnessrl evaluate` as people use it: stopping, folders, what a set needs, what figures say."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from harnessrl.trainer.cli import bars
from harnessrl.trainer.evaluate.stats import paired
from measured import MEDQA, WORDS, held_out, n_of, n_stored, result, saying, score, write_rows
from scripted_endpoint import Body, Reply, ScriptedEndpoint, judging, nobody_there, question

Spec = Callable[..., Path]


def judge_role(judge: ScriptedEndpoint | str) -> dict[str, Any]:
    """The spec's roles with a judge."""
    url = judge if isinstance(judge, str) else judge.base_url
    return {"judge": {"base_urls": [url], "model": "scripted"}}


def in_words(tasks: list[dict[str, Any]], n: int = 2) -> list[dict[str, Any]]:
    """The tasks with `n` criteria that only a judge can decide."""
    rubric = [{"text": f"criterion {k}", "points": 1} for k in range(n)]
    return [{**task, "rubric": rubric} for task in tasks]


def responses(out: Path) -> list[dict[str, Any]]:
    """The written responses."""
    return tiny.rows(out / "responses.jsonl")


# --- stopping -------------------------------------------------------------------------------------


def test_ctrl_c_keeps_what_an_endpoint_sent(spec: Spec, tmp_path: Path) -> None:
    slow = [True]

    def answer(body: Body) -> Reply:
        is_late = slow[0] and n_of(question(body)) >= 10
        return Reply(WORDS[0], after=60.0 if is_late else 0.0)

    with ScriptedEndpoint(answer) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        file = spec(held_out(20))
        process = tiny.start("evaluate", file, *options)
        tiny.wait_until(lambda: n_stored(tmp_path / "out" / "responses.sqlite") == 10, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 130, output
        assert "10 of 20 responses and 0 verdicts are kept" in output and "Traceback" not in output
        slow[0], asked = False, len(policy.bodies)
        assert tiny.invoke("evaluate", file, *options).exit_code == 0
        assert len(policy.bodies) == asked + 10


def test_ctrl_c_keeps_verdicts_that_came_in_the_middle_of_a_batch(spec: Spec, tmp_path: Path) -> None:
    """All criteria are asked at once: what is decided is kept although others are still open."""

    def answer(body: Body) -> Reply:
        reply = judging(lambda response, criterion: True)(body)
        return Reply(reply.text, after=50.0 if "criterion 1" in question(body) else 0.0)

    kept = tmp_path / "out" / "verdicts.sqlite"
    with ScriptedEndpoint(answer) as judge, ScriptedEndpoint(saying(lambda p: "a text")) as policy:
        file = spec(in_words(held_out(1)), roles=judge_role(judge))
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        process = tiny.start("evaluate", file, *options)
        tiny.wait_until(lambda: n_stored(kept, "verdicts") == 1, process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130, output
    assert "1 of 1 responses and 1 verdict are kept" in output


def test_ctrl_c_in_the_middle_of_local_sampling(spec: Spec, tmp_path: Path, tiny_model: Path) -> None:
    """The first responses are on disk while others of their batch are still being written."""
    out = tmp_path / "out"
    options = ["--policy", tiny_model, "--samples", 4, "--max-tokens", 800, "--out", out]
    process = tiny.start("evaluate", spec(held_out(40)), *options)
    tiny.wait_until(lambda: n_stored(out / "responses.sqlite") >= 1, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "terminate called" not in output and "Traceback" not in output
    (kept,) = re.findall(r"stopped: (\d+) of 200 responses and 0 verdicts", output)
    assert 1 <= int(kept) < 200


def test_a_second_ctrl_c_ends_at_once() -> None:
    program = (
        "import time\n"
        "from harnessrl.trainer.cli.stopping import stopping\n"
        "with stopping():\n"
        "    try:\n"
        "        print('now', flush=True)\n"
        "        time.sleep(120)\n"
        "    finally:\n"
        "        print('again', flush=True)\n"
        "        time.sleep(120)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for said in ("now\n", "again\n"):
        assert process.stdout.readline() == said
        process.send_signal(signal.SIGINT)
    assert process.wait(timeout=20) == 130


def test_a_line_now_and_then_where_no_bars_can_be_drawn(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bars, "EVERY", 0.1)
    with ScriptedEndpoint(lambda body: Reply("a", after=0.6 * n_of(question(body)))) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", spec(held_out(2)), *options)
    assert "0 of 2 responses, 0 of 2 tasks measured" in done.stderr
    assert re.search(r"1 of 2 responses \([\d.e-]+ a second\), 1 of 2 tasks measured", done.stderr)


# --- folders --------------------------------------------------------------------------------------


def test_every_policy_has_a_folder_of_its_own(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    better = ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS)))
    worse = ScriptedEndpoint(saying(lambda prompt: WORDS[0]))
    with better, worse:
        file = spec(held_out(4))

        def evaluate(*options: object) -> str:
            done = tiny.invoke("evaluate", file, *map(str, options))
            assert done.exit_code == 0, done.output
            (wrote,) = re.findall(r"wrote (\S+)/evaluation.json", done.output)
            return str(wrote)

        one = evaluate("--policy", better.base_url, "--samples", 1)
        before = Path(one, "evaluation.json").read_text()
        two = evaluate("--policy", worse.base_url, "--samples", 1)
        assert one != two and Path(one, "evaluation.json").read_text() == before
        other_settings = evaluate("--policy", better.base_url, "--samples", 2)
        assert other_settings == f"{one}-2" and Path(one, "evaluation.json").read_text() == before
        asked = len(better.bodies) + len(worse.bodies)
        assert evaluate("--policy", better.base_url, "--samples", 1) == one
        both = evaluate("--policy", better.base_url, "--other", worse.base_url, "--samples", 1)
        assert both.endswith(f"-vs-{Path(two).name}")
        assert len(better.bodies) + len(worse.bodies) == asked, "nothing is asked twice"
        assert Path(one).parent == Path("evaluations/measured")


@pytest.mark.parametrize("differing", ["policy", "samples", "sets", "judge"])
def test_a_given_folder_with_other_results_is_refused(spec: Spec, tmp_path: Path, differing: str) -> None:
    first = ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS)))
    second = ScriptedEndpoint(saying(lambda prompt: WORDS[0]))
    with first, second:
        out = tmp_path / "out"
        file = spec(held_out(3))
        options = {"--policy": first.base_url, "--samples": "1", "--out": str(out)}
        assert tiny.invoke("evaluate", file, *sum(options.items(), ())).exit_code == 0
        assert tiny.invoke("evaluate", file, *sum(options.items(), ())).exit_code == 0  # to go on
        kept, asked = (out / "evaluation.json").read_text(), len(first.bodies)
        if differing == "policy":
            options["--policy"] = second.base_url
        elif differing == "samples":
            options["--samples"] = "3"
        elif differing == "sets":
            options["--limit"] = "2"
        else:
            file = spec(held_out(3), roles=judge_role(first))
        done = tiny.invoke("evaluate", file, *sum(options.items(), ()))
    assert done.exit_code == 2, done.output
    said = {
        "policy": f"its policies: {first.base_url} scripted; now: {second.base_url} scripted",
        "samples": "its samples: 1; now: 3",
        "sets": "now: held-out (2 tasks",
        "judge": "its judge: None; now: scripted",
    }
    assert said[differing] in done.output
    assert (out / "evaluation.json").read_text() == kept
    assert (len(first.bodies), len(second.bodies)) == (asked, 0)


# --- sets, and what they need ---------------------------------------------------------------------


def test_a_set_needs_no_judge_for_the_tasks_of_training(spec: Spec, tmp_path: Path) -> None:
    write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)
    train = in_words([{**held_out(1)[0], "id": "t", "prompt": "Train."}])
    with ScriptedEndpoint(saying(lambda p: "The answer is B.")) as policy:
        file = spec(in_words(held_out(2)), train=train)
        options = ["--policy", policy.base_url, "--samples", 0]
        done = tiny.invoke("evaluate", file, *options, "--set", "medqa", "--out", tmp_path / "out")
        assert done.exit_code == 0, done.output
        assert len(policy.bodies) == 4
        done = tiny.invoke("evaluate", file, *options, "--out", tmp_path / "other")
        assert done.exit_code == 2 and "needs a judge role; none is configured" in done.output
    (found,) = result(tmp_path / "out")["policies"]
    assert {row["set_name"] for row in found["rows"]} == {"medqa"}


@pytest.mark.parametrize(
    ("wanted", "sets"),
    [
        ([], {"held-out"}),
        (["medqa"], {"medqa"}),
        (["medqa", "held-out"], {"medqa", "held-out"}),
        (["all"], {"medqa", "held-out"}),
        (["all", "medqa", "held-out"], {"medqa", "held-out"}),
    ],
)
def test_what_is_named_is_evaluated_on(
    spec: Spec, tmp_path: Path, wanted: list[str], sets: set[str]
) -> None:
    write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)
    with ScriptedEndpoint(saying(lambda p: "The answer is B.")) as policy:
        options = ["--policy", policy.base_url, "--samples", "0", "--out", tmp_path / "out"]
        named = [word for name in wanted for word in ("--set", name)]
        done = tiny.invoke("evaluate", spec(held_out(2)), *options, *named)
        assert done.exit_code == 0, done.output
    (found,) = result(tmp_path / "out")["policies"]
    assert {row["set_name"] for row in found["sampling"]} == sets
    assert len(policy.bodies) == 2 * ("held-out" in sets) + 4 * ("medqa" in sets)


def test_of_sets_with_one_name_each_is_named_by_its_path(spec: Spec, tmp_path: Path) -> None:
    one = write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)
    other = write_rows(tmp_path / "ood" / "medqa.json", [])
    other.write_text(json.dumps(MEDQA))
    file = spec(held_out(2))
    with ScriptedEndpoint(saying(lambda p: "The answer is B.")) as policy:
        options = ["--policy", policy.base_url, "--samples", "0", "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options, "--set", "medqa")
        assert done.exit_code == 2 and str(one) in done.output and str(other) in done.output
        done = tiny.invoke("evaluate", file, *options, "--set", "all")
        assert done.exit_code == 0, done.output
    assert len(policy.bodies) == 2 + 2 * 4


@pytest.mark.parametrize("where", ["held-out", "set"])
def test_wrong_rows_of_our_own_form_are_an_error_as_in_training(
    spec: Spec, tmp_path: Path, where: str
) -> None:
    """And every one is told, at its place, before any policy is asked."""
    good = held_out(1)[0] | {"split": "held_out"}
    bad = [good | {"id": "b", "domian": "d"}, good | {"id": "c", "rubric": []}]
    path = write_rows(tmp_path / "mine.jsonl", [good, *bad])
    file, options = spec(held_out(1)), ["--set", path]
    if where == "held-out":
        file, options = tmp_path / "mine.yaml", []
        file.write_text("extends: spec.yaml\ntasks: {files: [mine.jsonl]}\n")
    done = tiny.invoke("evaluate", file, "--policy", nobody_there(), *options, "--out", tmp_path / "out")
    assert done.exit_code == 2
    first, second = done.output.strip().splitlines()
    assert first.startswith(f"{path}:2:") and "unknown key domian (did you mean domain?)" in first
    assert second.startswith(f"{path}:3:") and "rubric: must have at least 1 item" in second


def test_a_judge_that_is_not_there_is_told_before_anything_is_asked(spec: Spec, tmp_path: Path) -> None:
    write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)
    with ScriptedEndpoint(saying(lambda p: "B")) as policy:
        file = spec(in_words(held_out(2)), roles=judge_role(nobody_there()))
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", file, *options)
        assert done.exit_code == 2, done.output
        assert "the judge does not answer" in done.output and "no connection" in done.output
        assert not policy.bodies
        done = tiny.invoke("evaluate", file, *options, "--set", "medqa")
        assert done.exit_code == 0, "nobody needs it"


def test_a_judge_that_does_not_serve_the_model(spec: Spec, tmp_path: Path) -> None:
    with ScriptedEndpoint(saying(lambda p: "B")) as policy:
        roles = {"judge": {"base_urls": [policy.base_url], "model": "another"}}
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", spec(in_words(held_out(2)), roles=roles), *options)
    assert done.exit_code == 2 and "no another; it serves scripted" in done.output


def test_a_simulated_policy_is_told_as_one(tmp_path: Path, spec: Spec) -> None:
    path = Path(__file__).parent.parent / "specs" / "sim.yaml"
    done = tiny.invoke("train", path, "--folder", tmp_path / "runs", "--steps", 1)
    assert done.exit_code == 0, done.output
    (run,) = (tmp_path / "runs").iterdir()
    (policy,) = run.glob("checkpoints/*/policy")
    for name in (run, policy):
        done = tiny.invoke("evaluate", spec(held_out(1)), "--policy", name, "--out", tmp_path / "out")
        assert done.exit_code == 2
        assert "a simulated policy" in done.output and "engine.kind" in done.output


# --- what is said of the figures ------------------------------------------------------------------


def test_tasks_that_are_no_new_ones_are_told_everywhere(spec: Spec, tmp_path: Path) -> None:
    train = [{**task, "id": f"t{i}"} for i, task in enumerate(held_out(5))]
    rows = [
        {**held_out(1)[0], "id": "a", "prompt": "WRITE about  task, number 2?"},
        {**held_out(1)[0], "id": "b", "prompt": "Write about task number 3."},
        {**held_out(1)[0], "id": "t4", "prompt": "Write about something else 4."},
        {**held_out(1)[0], "id": "c", "prompt": "Write about what is new 5."},
    ]
    named = write_rows(tmp_path / "mine.jsonl", rows)
    out = tmp_path / "out"
    with ScriptedEndpoint(saying(lambda p: WORDS[0])) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", out]
        file = spec([{**held_out(1)[0], "prompt": "Held out 1."}], train=train)
        done = tiny.invoke("evaluate", file, *options, "--set", named, "--set", "held-out")
    assert done.exit_code == 0, done.output
    told = "mine: 3 of 4 tasks are training tasks of this spec"
    assert f"WARNING: {told}" in done.stdout and f"WARNING: {told}" in done.stderr
    for name in ("evaluation.md", "evaluation.html"):
        assert told in (out / name).read_text()
    (seen,) = result(out)["seen"]
    assert (seen["seen"], seen["tasks"], seen["by_id_alone"]) == (3, 4, 1)


def test_every_cause_of_what_is_unscored_once(spec: Spec, tmp_path: Path) -> None:
    bands = {f"{n}-{n + 1}": f"level {n}" for n in (1, 3, 5, 7, 9)}
    checklist = [{"name": f"c{k}", "criteria_description": f"thing {k}", **bands} for k in range(5)]
    rows = [{"index": i, "query": f"Write text number {i}.", "checklist": checklist} for i in range(9)]
    named = write_rows(tmp_path / "writing.jsonl", rows)
    bad = {
        0: Reply(json.dumps({"reason": "", "grade": 11})),
        1: Reply("word"),
        2: Reply("no", status=400),
        3: Reply("no", status=400),
    }

    def grade(body: Body) -> Reply:
        n = next(n for n in range(9) if f"number {n}." in question(body))
        return bad.get(n, Reply(json.dumps({"reason": "", "grade": 5})))

    out = tmp_path / "out"
    with ScriptedEndpoint(grade) as judge, ScriptedEndpoint(saying(lambda p: "a text")) as policy:
        options = ["--policy", policy.base_url, "--samples", 1, "--out", out]
        file = spec(held_out(1), roles=judge_role(judge))
        done = tiny.invoke("evaluate", file, *options, "--set", named)
    assert done.exit_code == 0, done.output
    causes = (
        "4 x judge: HTTP 400",
        "2 x the judge's grade is not within 1 to 10",
        "2 x the judge's answer",
    )
    html = (out / "evaluation.html").read_text().replace("&#39;", "'")
    for text in (done.stdout, (out / "evaluation.md").read_text(), html):
        assert "writingbench grade: 8 of 18 responses unscored" in text
        assert [text.count(cause) for cause in causes] == [1, 1, 1]
    (found,) = result(out)["policies"]
    assert sum(found["unscored"][0]["causes"].values()) == found["unscored"][0]["unscored"] == 8


def test_a_response_can_be_reviewed_from_its_line_alone(spec: Spec, tmp_path: Path) -> None:
    answer = judging(lambda response, criterion: criterion == "criterion 1")
    tasks = [{**task, "reference": "A good text."} for task in in_words(held_out(2))]
    write_rows(tmp_path / "ood" / "medqa.jsonl", MEDQA)
    with ScriptedEndpoint(answer) as judge, ScriptedEndpoint(saying(lambda p: "B")) as policy:
        file = spec(tasks, roles=judge_role(judge))
        options = ["--policy", policy.base_url, "--samples", 2, "--out", tmp_path / "out"]
        for _ in range(2):  # reasons are kept like verdicts
            assert tiny.invoke("evaluate", file, *options, "--set", "all").exit_code == 0
            lines = responses(tmp_path / "out")
            mine = [line for line in lines if line["task"] == "held-1"]
            assert [(line["sample"], line["mode"]) for line in mine] == [
                (0, "greedy"),
                (1, "sampled"),
                (2, "sampled"),
            ]
            assert mine[0]["prompt"] == "Write about task number 1."
            assert mine[0]["domain"] == "domain-1" and mine[0]["reference"] == "A good text."
            assert [v["met"] for v in mine[0]["verdicts"]] == [False, True]
            assert {v["reason"] for v in mine[0]["verdicts"]} == {"because"}
    choice = next(line for line in lines if line["set"] == "medqa")
    assert choice["answer"] == {"label": "B", "text": "the second"} and choice["given"] == "B"


def test_healthbenchs_own_score_is_compared_too(spec: Spec, tmp_path: Path) -> None:
    """One policy shouts on one task of four, which costs it a whole task's points there."""
    calm = ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS)))
    loud = ScriptedEndpoint(saying(lambda prompt: "no!" if n_of(prompt) == 0 else " ".join(WORDS)))
    with calm, loud:
        options = ["--policy", calm.base_url, "--other", loud.base_url, "--samples", 0]
        done = tiny.invoke("evaluate", spec(held_out(4)), *options, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    rows = [row for row in result(tmp_path / "out")["comparison"] if not row["part"]]
    gaps = {row["metric"]: row["paired"]["difference"] for row in rows if row["mode"] == "greedy"}
    assert gaps["rubric"] == pytest.approx(1 / 4)
    assert gaps["rubric, unclipped"] == pytest.approx(2 / 4)
    assert "held-out rubric, unclipped (greedy)" in done.output.partition(" less ")[2]


def test_a_difference_of_clipped_means() -> None:
    """The mean of each is clipped, not each task's score."""
    first, second = [-1.0, -0.5, 0.0], [0.5, 0.5, 0.2]
    found = paired(first, second, [1.0] * 3, seed=0, clipped=True)
    assert found is not None and found.difference == pytest.approx(0.0 - 0.4)
    assert found.interval is not None and found.interval[0] >= -0.5 - 1e-9
    plain = paired(first, second, [1.0] * 3, seed=0)
    assert plain is not None and plain.difference == pytest.approx(-0.9)


def test_criteria_earned_least_are_listed_once_each(spec: Spec, tmp_path: Path) -> None:
    """Four words that a response may hold: the first is always there, the others ever more rarely."""
    with ScriptedEndpoint(saying(lambda prompt: " ".join(WORDS[: 1 + n_of(prompt) % 4]))) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        assert tiny.invoke("evaluate", spec(held_out(8)), *options).exit_code == 0
    (found,) = result(tmp_path / "out")["policies"]
    worst = [(row["text"], row["good"], row["tasks"]) for row in found["worst"]]
    assert worst == [("says cloud", 0.25, 8), ("says stone", 0.5, 8), ("says river", 0.75, 8)]
    text = (tmp_path / "out" / "evaluation.md").read_text()
    assert "The 3 criteria earned least:" in text
    assert "The 3 criteria earned least<" in (tmp_path / "out" / "evaluation.html").read_text()


def test_an_axis_is_averaged_within_a_task_and_then_over_tasks(spec: Spec, tmp_path: Path) -> None:
    """A task with one criterion, which is met, and one with three, which are not."""
    tasks = held_out(2)
    for task, words in zip(tasks, (WORDS[:1], WORDS[1:]), strict=True):
        task["rubric"] = [c for c in task["rubric"] if c["text"].removeprefix("says ") in words]
        for criterion in task["rubric"]:
            criterion["tags"] = ["axis:content"]
    with ScriptedEndpoint(saying(lambda prompt: WORDS[0])) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        assert tiny.invoke("evaluate", spec(tasks), *options).exit_code == 0
    (found,) = result(tmp_path / "out")["policies"]
    (row,) = found["axes"]
    assert row["estimate"]["mean"] == pytest.approx(np.mean([1.0, 0.0]))
    assert (row["estimate"]["tasks"], row["responses"]) == (2, 4)
    assert row["estimate"]["interval"] == [0.0, 1.0]


def test_over_how_many_tasks_a_figure_is(spec: Spec, tmp_path: Path) -> None:
    tasks = held_out(5)
    for task in tasks[:2]:
        task["quality"] = {"topic": [["lamp"], ["river"]]}
    with ScriptedEndpoint(saying(lambda prompt: WORDS[0])) as policy:
        options = ["--policy", policy.base_url, "--samples", 0, "--out", tmp_path / "out"]
        done = tiny.invoke("evaluate", spec(tasks), *options)
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stdout.splitlines() if "oracle quality" in line]
    assert "over 2 of 5 tasks" in line
    assert "over" not in next(line for line in done.stdout.splitlines() if "held-out rubric" in line)
    assert "| 2 of 5 |" in (tmp_path / "out" / "evaluation.md").read_text()
    assert ">2 of 5<" in (tmp_path / "out" / "evaluation.html").read_text()
    (found,) = result(tmp_path / "out")["policies"]
    assert score(found, "held-out", "oracle quality")["tasks"] == 5
