"""`harnessrl judge` and `validate --preflight`, on real rows and a scripted endpoint."""

from __future__ import annotations

import json
import re
import signal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.agents.scoring.preflight import KNOWN
from harnessrl.agents.scoring.reward import dataset_mean
from harnessrl.trainer.cli import bars
from harnessrl.trainer.judging import agreement
from measured import n_stored
from scripted_endpoint import Body, Reply, ScriptedEndpoint, copying, judging, question, verdict

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
    assert done.exit_code == 1 and "checks: no response could be scored" in done.output
    assert "1 unscored" in done.output and "needs a judge role" in done.output
    (only,) = scored(tmp_path / "rows.judged.jsonl")
    assert only["reward"] is None and only["verdicts"][0]["met"] is None


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


# --- what is written ------------------------------------------------------------------------------


def in_words(*texts: str, response: str = "an answer") -> dict[str, Any]:
    """A row whose criteria only a judge can decide."""
    return {"prompt": "Say.", "response": response, "rubric": [{"text": t, "points": 1} for t in texts]}


def test_a_verdict_has_its_reason_and_an_unscored_one_its_cause(tmp_path: Path) -> None:
    def answer(body: Body) -> Reply:
        if criterion_of(body) == "fails":
            return Reply("overloaded", status=503)
        return verdict(criterion_of(body) == "yes", f"it is {criterion_of(body)}")

    row = in_words("yes", "no", "fails")
    row["rubric"] += [{**WORDS, "points": 10}]
    path, out = write(tmp_path / "rows.jsonl", row), tmp_path / "rows.judged.jsonl"
    with ScriptedEndpoint(answer) as endpoint:
        args = ["judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint, retries="0")]
        for _ in range(2):  # asked, and then from the cache
            done = tiny.invoke(*args)
            assert done.exit_code == 0, done.output
            yes, no, fails, checked = scored(out)[0]["verdicts"]
            assert yes == {"criterion": "yes", "points": 1.0, "met": True, "reason": "it is yes"}
            assert no == {"criterion": "no", "points": 1.0, "met": False, "reason": "it is no"}
            assert fails.keys() == {"criterion", "points", "met", "cause"} and fails["met"] is None
            assert "HTTP 503" in fails["cause"] and "overloaded" in fails["cause"]
            assert checked.keys() == {"criterion", "points", "met"}
    assert [criterion_of(body) for body in endpoint.bodies[3:]] == ["fails"]


def test_a_judge_that_only_fails_is_no_success(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"), in_words("b"))
    with ScriptedEndpoint(lambda body: Reply(status=500)) as endpoint:
        dead = judge_file(tmp_path / "dead.yaml", endpoint, retries="0")
        done = tiny.invoke("judge", path, "--judge", dead)
    assert done.exit_code == 1 and f"{dead}: no response could be scored" in done.output
    assert "unscored: 2 x judge: HTTP 500" in done.output
    assert all(
        "HTTP 500" in row["verdicts"][0]["cause"] for row in scored(tmp_path / "rows.judged.jsonl")
    )


def test_another_judge_that_only_fails_is_no_success_either(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    with (
        ScriptedEndpoint(lambda body: verdict(True)) as good,
        ScriptedEndpoint(lambda body: Reply(status=500)) as bad,
    ):
        alive = judge_file(tmp_path / "alive.yaml", good)
        dead = judge_file(tmp_path / "dead.yaml", bad, retries="0")
        done = tiny.invoke("judge", path, "--judge", alive, "--compare", dead)
    assert done.exit_code == 1 and f"{dead}: no response could be scored" in done.output
    assert "score 1.000" in done.output and "no verdict of both" in done.output


def test_a_repeated_criterion_counts_as_often_as_it_stands(tmp_path: Path) -> None:
    """As in HealthBench's formula; the judge is asked once."""
    entries = [
        ("A", 5, "axis:first"),
        ("A", 5, "axis:second"),
        ("A", 3, "axis:first"),
        ("B", 4, "axis:first"),
    ]
    row = {
        "prompt": "Say.",
        "response": "an answer",
        "rubrics": [
            {"criterion": text, "points": n, "tags": [f"axis:{axis}"]} for text, n, axis in entries
        ],
    }
    path = write(tmp_path / "rows.jsonl", row)
    with ScriptedEndpoint(lambda body: verdict(criterion_of(body) == "A")) as endpoint:
        done = tiny.invoke("judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint))
    assert done.exit_code == 0, done.output
    (found,) = scored(tmp_path / "rows.judged.jsonl")
    assert found["reward"] == pytest.approx(13 / 17, abs=1e-12)
    assert [(v["criterion"], v["points"]) for v in found["verdicts"]] == [(t, n) for t, n, _ in entries]
    assert "first: 0.67 met of 3" in done.output and "second: 1.00 met of 1" in done.output
    assert sorted(map(criterion_of, endpoint.bodies)) == ["A", "B"]


def test_an_axis_may_stand_in_a_mapping_of_tags(tmp_path: Path) -> None:
    entry = {"criterion": WORDS["text"], "points": 2, "check": WORDS["check"], "tags": {"axis": "length"}}
    row = {"prompt": "Say.", "response": "one two three", "rubrics": [entry]}
    done = tiny.invoke("judge", write(tmp_path / "rows.jsonl", row))
    assert done.exit_code == 0 and "length: 1.00 met of 1" in done.output


@pytest.mark.parametrize("how", ["itself", "another path", "link", "hard link", "judge", "template"])
def test_verdicts_are_never_written_over_what_is_read(how: str, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        template = tmp_path / "own.md"
        template.write_text("{{ prompt }} {{ response }} {{ criterion }} {{ fence }}")
        judge = judge_file(tmp_path / "j.yaml", endpoint, prompt="own.md")
        out = tmp_path / "out.jsonl"
        if how == "itself":
            out = path
        elif how == "another path":
            (tmp_path / "folder").mkdir()
            out = tmp_path / "folder" / ".." / "rows.jsonl"
        elif how == "link":
            out.symlink_to(path)
        elif how == "hard link":
            out.hardlink_to(path)
        else:
            out = judge if how == "judge" else template
        before = out.read_bytes()
        done = tiny.invoke("judge", path, "--judge", judge, "--out", out)
        assert done.exit_code == 2 and "would be written over" in done.output
        assert out.read_bytes() == before and not endpoint.bodies


def test_an_out_that_is_the_judges_own_folder_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint)
        done = tiny.invoke("judge", path, "--judge", judge, "--out", tmp_path / "x.cache")
        assert done.exit_code == 2 and "use another name" in done.output, done.output
        assert not endpoint.bodies and not (tmp_path / "x.cache").exists()


def test_another_template_is_another_judge(tmp_path: Path) -> None:
    """Also where nothing shows of it before a response is put in."""
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    own = tmp_path / "own.md"
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint, prompt="own.md")
        for n, said in enumerate(["{{ response }}", "{{ response | upper }}"], 1):
            own.write_text(f"{{{{ fence }}}} {{{{ prompt }}}} {said} {{{{ criterion }}}}")
            for _ in range(2):
                assert tiny.invoke("judge", path, "--judge", judge).exit_code == 0
                assert len(endpoint.bodies) == n


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"rubric": []}, "the rubric is no list of criteria"),
        ({"rubric": [{"text": "", "points": 1}]}, "text: String should have at least 1 character"),
        ({"rubric": [{"text": "a", "points": 1, "chek": {}}]}, "chek: Extra inputs are not permitted"),
        ({"prompt": None}, "the prompt is neither text nor chat messages"),
        ({"prompt": [{"role": "user", "content": None}]}, "the content of a chat message is no text"),
        (
            {"prompt": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "the content of a chat message is no text",
        ),
    ],
)
def test_a_row_that_is_none_says_why(row: dict[str, Any], told: str, tmp_path: Path) -> None:
    whole = {"prompt": "Say.", "response": "one two three", "rubric": [WORDS]}
    done = tiny.invoke("judge", write(tmp_path / "rows.jsonl", whole, whole | row))
    assert done.exit_code == 2 and "rows.jsonl:2:1: " in done.output and told in done.output, done.output


def test_a_message_in_parts_is_their_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "First."}, {"type": "text", "text": "Second."}]
    row = in_words("a") | {"prompt": [{"role": "user", "content": parts}]}
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint)
        assert tiny.invoke("judge", write(tmp_path / "r.jsonl", row), "--judge", judge).exit_code == 0
        assert "First.\n\nSecond." in question(endpoint.bodies[0])


def test_an_out_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    for out in (tmp_path, path / "out.jsonl"):
        done = tiny.invoke("judge", path, "--out", out)
        assert done.exit_code == 2 and str(out) in done.output, done.output


# --- what is asked --------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--judge", "--compare"])
@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            {"api_key_env": "NO_SUCH_KEY"},
            "bad.yaml: api_key_env: the environment variable NO_SUCH_KEY is not set",
        ),
        ({"prompt": "broken.md"}, "broken.md:1:1: roles.judge.prompt: not a Jinja2 template"),
    ],
)
def test_a_judge_that_cannot_be_asked_ends_it_before_anything_is_asked(
    more: dict[str, str], says: str, option: str, tmp_path: Path
) -> None:
    (tmp_path / "broken.md").write_text("{{ criterion")
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        good = judge_file(tmp_path / "good.yaml", endpoint)
        bad = judge_file(tmp_path / "bad.yaml", endpoint, **more)
        other = "--compare" if option == "--judge" else "--judge"
        done = tiny.invoke("judge", path, option, bad, other, good)
    assert done.exit_code == 2 and says in done.output
    assert not endpoint.bodies and not (tmp_path / "rows.judged.jsonl").exists()


def test_the_same_judge_is_asked_once_and_what_it_took_is_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a", "b"), in_words("c"))
    with ScriptedEndpoint(lambda body: verdict(True, "one two three")) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint, prices="{input: 1000, output: 10000}")
        done = tiny.invoke("judge", path, "--judge", judge, "--compare", judge)
    assert done.exit_code == 0, done.output
    assert len(endpoint.bodies) == 3
    tokens_in = sum(len(question(body).split()) for body in endpoint.bodies)
    tokens_out = 3 * len(json.dumps({"reason": "one two three", "met": True}).split())
    cost = tokens_in / 1000 + tokens_out / 100
    spent = (
        f"3 calls, {tokens_in:,} tokens in, {tokens_out} out, cost {cost:.4g}; 0 verdicts from the cache"
    )
    assert f"judge: {spent}\n" in done.output
    assert "judge: 0 calls, 0 tokens in, 0 out, cost 0; 3 verdicts from the cache" in done.output
    assert "all criteria: agreement 1.00" in done.output


def test_judges_of_one_name_at_two_addresses_are_two_judges(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    for met in (True, False):
        with ScriptedEndpoint(lambda body, met=met: verdict(met)) as endpoint:
            tiny.invoke("judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint))
        assert scored(tmp_path / "rows.judged.jsonl")[0]["verdicts"][0]["met"] is met


def test_cache_bounds_what_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a", "b", "c"))
    for size, known in ((0, 0), (2, 2)):
        with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
            judge = judge_file(tmp_path / "j.yaml", endpoint, cache=str(size))
            for _ in range(2):
                done = tiny.invoke("judge", path, "--judge", judge)
        assert f"{known} verdicts from the cache" in done.output, done.output
        assert len(endpoint.bodies) == 3 + 3 - known
        assert (tmp_path / "rows.judged.cache").exists() == (size > 0)


def test_a_cache_that_cannot_be_used_is_told_before_anything_is_asked(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    (tmp_path / "rows.judged.cache").write_text("a file")
    with ScriptedEndpoint(lambda body: verdict(True)) as endpoint:
        done = tiny.invoke("judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint))
    assert done.exit_code == 1 and "rows.judged.cache: what a judge says cannot be kept" in done.output
    assert not endpoint.bodies


def test_what_is_extracted_is_kept_as_well(tmp_path: Path) -> None:
    check = {"kind": "regex", "pattern": "^42$"}
    entry = {"text": "It is 42.", "points": 1, "extract": "the number", "check": check}
    row = {"prompt": "Say.", "response": "It is 42.", "rubric": [entry]}
    path = write(tmp_path / "rows.jsonl", row)
    with ScriptedEndpoint(copying(lambda response, part: "42")) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint)
        for known in (0, 1):
            done = tiny.invoke("judge", path, "--judge", judge)
            assert done.exit_code == 0 and re.search(rf"\b{known} verdicts? from the cache", done.output)
    assert len(endpoint.bodies) == 1


# --- stopping -------------------------------------------------------------------------------------


def test_ctrl_c_keeps_verdicts_and_the_same_command_goes_on(tmp_path: Path) -> None:
    slow = [True]

    def answer(body: Body) -> Reply:
        late = slow[0] and criterion_of(body).startswith("late")
        return Reply(judging(lambda response, criterion: True)(body).text, after=60.0 if late else 0.0)

    path = write(tmp_path / "rows.jsonl", in_words("a", "b", "late 1"), in_words("c", "late 2"))
    out, cache = tmp_path / "rows.judged.jsonl", tmp_path / "rows.judged.cache"
    with ScriptedEndpoint(answer) as endpoint:
        args = ["judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint)]
        process = tiny.start(*args)
        tiny.wait_until(
            lambda: sum(n_stored(file, "verdicts") for file in cache.glob("*/verdicts.sqlite")) == 3,
            process,
        )
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 130 and "Traceback" not in output, output
        assert f"stopped: 3 verdicts are kept in {cache}: the same command goes on" in output
        assert not out.exists()
        slow[0], asked = False, len(endpoint.bodies)
        done = tiny.invoke(*args)
    assert done.exit_code == 0 and "3 verdicts from the cache" in done.output, done.output
    assert sorted(map(criterion_of, endpoint.bodies[asked:])) == ["late 1", "late 2"]
    assert all(v["reason"] == "because" for row in scored(out) for v in row["verdicts"])


def test_ctrl_c_says_when_nothing_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", in_words("a"))
    with ScriptedEndpoint(lambda body: Reply(after=60.0)) as endpoint:
        process = tiny.start(
            "judge", path, "--judge", judge_file(tmp_path / "j.yaml", endpoint, cache="0")
        )
        tiny.wait_until(lambda: bool(endpoint.bodies), process)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and output.endswith("stopped: no verdict is kept\n"), output


def test_a_line_now_and_then_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bars, "EVERY", 0.1)
    path = write(tmp_path / "rows.jsonl", in_words("quick", "late"))

    def answer(body: Body) -> Reply:
        return Reply(verdict(True).text, after=0.6 if criterion_of(body) == "late" else 0.0)

    with ScriptedEndpoint(answer) as endpoint:
        judge = judge_file(tmp_path / "j.yaml", endpoint)
        done = tiny.invoke("judge", path, "--judge", judge)
    assert f"{judge}: 0 of 2 verdicts, 0 of 1 responses\n" in done.stderr
    assert re.search(r"1 of 2 verdicts \([\d.e-]+ a second\), 0 of 1 responses\n", done.stderr)


# --- preflight ------------------------------------------------------------------------------------


def right(body: Body) -> Reply:
    """A judge that knows the known verdicts."""
    text = question(body)
    (known,) = [k for k in KNOWN if k.criterion in text and k.response in text]
    return verdict(known.met)


def preflight(folder: Path, policy: Path, *endpoints: ScriptedEndpoint, model: str = "scripted") -> Any:
    paths = tiny.write_spec(folder / "spec", policy)
    urls = [endpoint.base_url for endpoint in endpoints] or ["http://127.0.0.1:9/v1"]
    role = f"roles:\n  judge: {{base_urls: {urls}, model: {model}, retries: 0, timeout: 2}}\n"
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
    line = f"FAIL  judge {endpoint.base_url} known verdict: 'The response names a planet.'"
    assert line in done.output


def test_a_judge_without_structure_fails_it(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(lambda body: Reply("met, I think")) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint)
    assert done.exit_code == 1
    assert f"FAIL  judge {endpoint.base_url} structured output" in done.output


def test_a_model_that_is_not_served_and_a_dead_endpoint_fail_it(tmp_path: Path, tiny_model: Path) -> None:
    with ScriptedEndpoint(right) as endpoint:
        done = preflight(tmp_path, tiny_model, endpoint, model="other")
    assert done.exit_code == 1 and "no other; it serves scripted" in done.output
    done = preflight(tmp_path, tiny_model)
    assert done.exit_code == 1 and "no connection" in done.output


def test_each_replica_is_asked_by_itself(tmp_path: Path, tiny_model: Path) -> None:
    with (
        ScriptedEndpoint(right) as good,
        ScriptedEndpoint(lambda body: verdict(True)) as gullible,
        ScriptedEndpoint(lambda body: Reply("no such model", status=404)) as wrong,
        ScriptedEndpoint(right) as silent,
    ):
        silent.models = Reply(status=503)
        done = preflight(tmp_path, tiny_model, good, gullible, wrong, silent)
        assert [len(one.bodies) for one in (good, gullible, wrong, silent)] == [len(KNOWN)] * 3 + [0]
    assert done.exit_code == 1

    def told(endpoint: ScriptedEndpoint) -> list[str]:
        return [line for line in done.output.splitlines() if f" judge {endpoint.base_url}" in line]

    assert all(line.startswith("ok ") for line in told(good)) and len(told(good)) == 2 + len(KNOWN)
    failed = [line for line in told(gullible) if line.startswith("FAIL")]
    assert len(failed) == 3 and all("known verdict" in line for line in failed)
    assert "0 of 5 answers are verdicts (judge: HTTP 404" in told(wrong)[1]
    (line,) = told(silent)
    assert line.startswith("FAIL") and "HTTP 503" in line
