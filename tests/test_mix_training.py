"""A mix of the real rows, as a person uses it: built, looked at, validated, trained on."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.trainer import train
from harnessrl.trainer.data.folder import read_folder
from harnessrl.trainer.data.lint import findings
from scripted_endpoint import ScriptedEndpoint, judging
from tiny import data_file

SHORT = {"max_prompt_words": 40}
#: What the real rows can give, a source for each way to score: a judge, checks, and both splits of each.
MIX = {
    "name": "of-real-rows",
    "seed": 1,
    "sources": {
        "healthbench": ("healthbench", "healthbench.jsonl", "MIT", SHORT),
        "researchqa": ("researchqa", "researchqa_valid.json", "MIT", SHORT),
        "ifeval": ("ifeval", "ifeval_input_data.jsonl", "Apache-2.0", SHORT | {"checks_only": True}),
        "verinstruct": ("verinstruct", "verinstruct_verl.jsonl", None, {"max_prompt_words": 130}),
        "medqa": ("medqa", "medqa_us_4options_test.jsonl", "MIT", {}),
        "rolebench": ("rolebench", "rolebench_eng_general.jsonl", "Apache-2.0", {}),
    },
    "domains": {
        "medical": {"train": 6, "held_out": 1, "sources": {"healthbench": 1}},
        "science": {"train": 6, "held_out": 1, "sources": {"researchqa": 1}},
        "instruction-following": {
            "train": 8,
            "held_out": 2,
            "sources": {"ifeval": 1, "verinstruct": 1},
        },
    },
    "ood": {
        "medqa": {"source": "medqa", "domain": "medical", "tasks": 5},
        "rolebench": {"source": "rolebench", "domain": "role-play", "tasks": 5},
    },
}


def write_mix(folder: Path, **changes: Any) -> Path:
    content = json.loads(json.dumps(MIX | changes))
    content["sources"] = {
        name: {
            "converter": converter,
            "licence": licence,
            "places": [{"kind": "local", "files": [file]}],
            "filters": filters,
        }
        for name, (converter, file, licence, filters) in content["sources"].items()
    }
    path = folder / "mix.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the mix above."""
    folder = tmp_path_factory.mktemp("mix")
    real = data_file("healthbench.jsonl").parent
    done = tiny.invoke(
        "data", "build", write_mix(folder), "--folder", real, "--out", folder / "out", "--strict"
    )
    assert done.exit_code == 0, done.output
    assert "verinstruct: 40 rows read = " in done.output
    assert "do not pass them on" in done.output
    return folder / "out"


@pytest.fixture
def judge() -> Iterator[ScriptedEndpoint]:
    def decide(response: str, criterion: str) -> bool:
        return (len(response) + len(criterion)) % 3 > 0

    with ScriptedEndpoint(judging(decide)) as serving:
        yield serving


def test_it_trains(
    built: Path,
    judge: ScriptedEndpoint,
    tiny_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two steps on the local engine: criteria in words go to the judge, rules are checked here."""
    monkeypatch.setattr(train, "build_report", lambda root: root / "report.html")
    paths = tiny.write_spec(tmp_path, tiny_model, 2)
    spec = yaml.safe_load(paths.spec.read_text())
    files = sorted(f for f in built.rglob("*.jsonl") if f.stem in ("train", "held_out"))
    assert len(files) >= 3
    spec["tasks"]["files"] = [str(file) for file in files]
    spec["engine"] |= {"tasks_per_step": 4, "max_prompt_tokens": 900}
    spec["roles"]["judge"] = {"base_urls": [judge.base_url], "model": "scripted", "retries": 0}
    paths.spec.write_text(yaml.safe_dump(spec))
    valid = tiny.invoke("validate", paths.spec)
    assert valid.exit_code == 0, valid.output
    left_out = re.search(r"left out: (\d+) x a criterion cannot be scored on this machine", valid.output)
    n = 20 - (int(left_out[1]) if left_out else 0)  # some IFEval rules need NLTK's data
    assert n >= 18 and f": {n} training tasks, 4 held out" in valid.output
    assert "no `quality`" not in valid.output
    done = tiny.invoke("train", paths.spec, "--recipe", "grpo")
    assert done.exit_code == 0, done.output + repr(done.exception)
    steps = tiny.rows(paths.run / "metrics.jsonl")
    assert len(steps) == 2
    assert all(step["reward_mean"] is not None for step in steps)
    trained = {row["task_id"] for path in (paths.run / "rollouts").iterdir() for row in tiny.rows(path)}
    known = {row.task.id for row in read_folder(built) if not isinstance(row.task, str)}
    assert len(trained) >= 4 and trained <= known


def test_its_statistics_agree_with_an_independent_count(built: Path) -> None:
    """The table, against figures counted from the files and the real rows without the code under test."""
    rows = [r for f in built.rglob("train.jsonl") for r in tiny.rows(f)]
    medical = [r for r in rows if r["domain"] == "medical"]
    real = {r["prompt_id"]: r for r in tiny.rows(data_file("healthbench.jsonl"))}
    originals = [real[r["origin"]["row"]] for r in medical]
    criteria = [c for r in originals for c in r["rubrics"]]
    negative = sum(c["points"] < 0 for c in criteria) / len(criteria)
    ideals = [r["ideal_completions_data"] is not None for r in originals]
    assert all(len(r["prompt"]) == 1 for r in originals)
    words = [len(r["prompt"][0]["content"].split()) for r in originals]
    each = [len(c["criterion"].split()) for c in criteria]
    done = tiny.invoke("data", "stats", built, "--tokenizer", "words", "--no-histograms")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.output.splitlines() if line.startswith("| medical |")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1:6] == [
        f"{len(medical)}",
        f"{sum(words) / len(words):,.0f}",
        f"{len(criteria) / len(medical):.1f}",
        f"{sum(each) / len(each):.1f}",
        f"{negative:.1%}",
    ]
    assert cells[7] == f"{sum(ideals) / len(ideals):.1%}"
    assert "published | 3,000 | 121 | 12.4 | 43.4 | 21.0% | 322 | 67.7%" in done.output


def test_token_counts_are_those_of_the_named_tokenizer(built: Path, tiny_model: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    rows = [r for f in built.rglob("train.jsonl") for r in tiny.rows(f) if r["domain"] == "science"]
    counts = [len(tokenizer(r["prompt"])["input_ids"]) for r in rows]
    done = tiny.invoke("data", "stats", built, "--tokenizer", tiny_model)
    (line,) = [line for line in done.output.splitlines() if line.startswith("| science |")]
    assert line.split("|")[3].strip() == f"{sum(counts) / len(counts):,.0f}"
    assert done.output.startswith(f"tokens: {tiny_model}'s")
    assert "criteria of a training task" in done.output
    wrong = tiny.invoke("data", "stats", built, "--tokenizer", built / "nothing")
    assert wrong.exit_code == 2 and "--tokenizer" in wrong.output


def test_one_task_is_shown_as_yaml(built: Path) -> None:
    first = tiny.rows(built / "ood" / "medqa.jsonl")[0]
    done = tiny.invoke("data", "show", built, first["id"])
    assert done.exit_code == 0 and done.output.startswith("# ood")
    shown = yaml.safe_load(done.output)
    assert shown["answer"] == first["answer"] and shown["prompt"] == first["prompt"]
    wrong = tiny.invoke("data", "show", built, first["id"][:-1])
    assert wrong.exit_code == 2 and f"did you mean {first['id']}" in wrong.output


def test_a_mix_can_be_looked_at_without_being_written(tmp_path: Path) -> None:
    real = data_file("healthbench.jsonl").parent
    done = tiny.invoke("data", "stats", write_mix(tmp_path), "--folder", real, "--tokenizer", "words")
    assert done.exit_code == 0 and "| medical | 6 |" in done.output
    assert [f.name for f in tmp_path.iterdir()] == ["mix.yaml"]


def test_strict_writes_nothing(tmp_path: Path) -> None:
    real = data_file("healthbench.jsonl").parent
    domains = {"medical": {"train": 60, "sources": {"healthbench": 1}}}
    path = write_mix(tmp_path, domains=domains)
    out = tmp_path / "out"
    done = tiny.invoke("data", "build", path, "--folder", real, "--out", out, "--strict")
    assert done.exit_code == 1 and "medical train: " in done.output and not out.exists()
    done = tiny.invoke("data", "build", path, "--folder", real, "--out", out)
    assert done.exit_code == 0 and out.exists()
    assert "medical train: " in "".join(json.loads((out / "manifest.json").read_text())["missing"])


def test_bad_input_exits_with_2(tmp_path: Path) -> None:
    path = write_mix(tmp_path, seed="x")
    done = tiny.invoke("data", "build", path)
    assert done.exit_code == 2 and f"{path}:" in done.output and "seed" in done.output
    for wrong in (["--folder", tmp_path / "none"], ["--malformed", "maybe"]):
        assert tiny.invoke("data", "build", path, *wrong).exit_code == 2
    for args in (["stats", tmp_path / "none.jsonl"], ["stats", tmp_path / "none.yaml"]):
        done = tiny.invoke("data", *args)
        assert done.exit_code == 2, done.output


def test_findings_are_told_with_a_suggestion(tmp_path: Path) -> None:
    def row(name: str, *criteria: tuple[str, float], prompt: str | None = None) -> str:
        rubric = [{"text": text, "points": points} for text, points in criteria]
        return json.dumps({"id": name, "prompt": prompt or f"About {name * 9}.", "rubric": rubric})

    fine = ("Names the river.", 2.0)
    rows = [
        row("fine", fine, ("Is rude.", -1.0)),
        row("empty", fine, ("...", 1.0)),
        row("faulty", ("The response fails to name a river.", 3.0)),
        row("wanted", fine, ("The response should name a river.", -3.0)),
        row("both", fine, ("names the RIVER", -2.0)),
        row("twice", fine, ("names the river", 3.0)),
        row("penalties", ("Is rude.", -1.0)),
        row("copy", fine, prompt="about finefinefinefinefinefinefinefinefine"),
        row("spoilt", fine, prompt="Das ist sch\u00c3\u00b6n."),
        row("long", fine, prompt=" ".join(f"w{n}" for n in range(2500))),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text(tiny.join(rows))
    done = tiny.invoke("data", "validate", path)
    assert done.exit_code == 1
    kinds = dict(line.split(": ") for line in done.output.splitlines() if line[0] != " " and ": " in line)
    assert kinds == {
        "empty criterion": "1",
        "contradictory signs": "3",
        "duplicate criterion": "1",
        "only penalties": "1",
        "duplicate": "1",
        "mojibake": "1",
        "long prompt": "1",
    }
    assert "schön" in done.output  # the suggestion
    assert "fine:" not in done.output
    path.write_text(rows[0] + "\n")
    done = tiny.invoke("data", "validate", path)
    assert done.exit_code == 0 and done.output == "1 tasks, 0 findings\n"


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252"])
@pytest.mark.parametrize("text", ["Grüße aus Köln", "你好", "При", "“Ça va”, déjà"])
def test_text_that_was_read_in_the_wrong_encoding_is_found(text: str, encoding: str) -> None:
    spoilt = text.encode().decode(encoding, errors="replace")
    rubric = (Criterion(text="Is kind.", points=1.0),)
    for part in (spoilt, f"Please translate {spoilt} for me."):
        task = TrainTask(id="t", domain="d", prompt=part, rubric=rubric)
        (found,) = findings([("f:1", task)])
        assert found.kind == "mojibake" and found.detail.startswith("prompt: ")
    assert not list(findings([("f:1", TrainTask(id="t", domain="d", prompt=text, rubric=rubric))]))


@pytest.mark.parametrize(
    "text",
    [
        "No mention of dose",
        "Omitting the dose",
        "Failure to name it",
        "The response lacks a dose",
        "Lack of x",
    ],
)
def test_a_fault_that_earns_points_is_found(text: str) -> None:
    rubric = [Criterion(text=text, points=points) for points in (1.0, -1.0)]
    for criterion, n in zip(rubric, (1, 0), strict=True):
        other = Criterion(text="Is kind.", points=1.0)
        task = TrainTask(id="t", domain="d", prompt="Hm", rubric=(other, criterion))
        assert [found.kind for found in findings([("f:1", task)])] == ["contradictory signs"] * n


def test_the_real_rows_have_few_findings() -> None:
    """A check that cries wolf is read by nobody."""
    counts: Counter[str] = Counter()
    for name in ("healthbench.jsonl", "researchqa_valid.json", "verinstruct_verl.jsonl"):
        done = tiny.invoke("data", "validate", data_file(name), "--all")
        counts.update(
            line.split(":")[0] for line in done.output.splitlines() if line[0] != " " and ": " in line
        )
    assert sum(counts.values()) <= 3, counts


def test_the_data_sets_are_listed() -> None:
    output = tiny.invoke("data", "sources").output
    assert "healthbench" in output and len(output.splitlines()) == 19
    (gpqa,) = [line for line in output.splitlines() if line.startswith("gpqa")]
    assert "evaluation only, your own local file only" in gpqa
