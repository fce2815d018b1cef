"""Building a mix: what is read is accounted for, splits are apart, and the seed decides."""

from __future__ import annotations

import json
import signal
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tiny
import yaml
from harnessrl.specs.checks import WordsCheck
from harnessrl.specs.loader import SpecError, load_run_spec
from harnessrl.specs.mix import Balance
from harnessrl.specs.tasks import Criterion, TrainTask
from harnessrl.trainer.data.draw import draw, share_out, split, strata_of, words_in
from harnessrl.trainer.data.duplicates import copies, near_duplicates, shingles_of, similarity, sketch
from harnessrl.trainer.data.folder import read_folder, write_folder
from harnessrl.trainer.data.load import load_tasks
from harnessrl.trainer.data.mix import FATES, Mix, assemble
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import data_file

ROOT = Path(__file__).resolve().parent.parent
WORDS = "river stone cloud market window garden engine letter harbour winter silver music".split()


def prompt(n: int) -> str:
    """Prompts that are no near-duplicates of each other."""
    return " ".join(WORDS[(n * k + k * k) % 12] + str(n * k) for k in range(1, 12))


def task_row(n: int, **keys: Any) -> dict[str, Any]:
    rubric = [
        {"text": f"criterion {n} {k}", "points": 1, "check": {"kind": "words", "min": k + 1}}
        for k in range(1 + n % 4)
    ]
    return {"id": f"t{n}", "prompt": prompt(n), "rubric": rubric, **keys}


def write_jsonl(path: Path, rows: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        tiny.join(r if isinstance(r, str) else json.dumps(r, ensure_ascii=False) for r in rows)
    )


def source(file: str, converter: str = "tasks", **keys: Any) -> dict[str, Any]:
    return {
        "converter": converter,
        "licence": "MIT",
        "places": [{"kind": "local", "files": [file]}],
        **keys,
    }


def mix_file(folder: Path, **changes: Any) -> Path:
    """A mix of two sources in one domain, and a set that is for evaluation only."""
    content = {
        "name": "tried",
        "folders": ["data"],
        "sources": {"a": source("a.jsonl"), "b": source("b.jsonl"), "exam": source("exam.jsonl")},
        "domains": {"d": {"train": 20, "held_out": 4, "sources": {"a": 2, "b": 1}}},
        "ood": {"exam": {"source": "exam", "domain": "d", "tasks": 3}},
    }
    path = folder / "mix.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "data" / "a.jsonl", [task_row(n) for n in range(1, 31)])
    write_jsonl(tmp_path / "data" / "b.jsonl", [task_row(n) for n in range(101, 121)])
    write_jsonl(tmp_path / "data" / "exam.jsonl", [task_row(n) for n in range(201, 205)])
    return tmp_path


def built(path: Path, **options: Any) -> Mix:
    return assemble(path, offline=True, **options)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# --- the whole ------------------------------------------------------------------------------------


def test_quotas_shares_and_counts(folder: Path) -> None:
    mix = built(mix_file(folder))
    assert Counter(t.source for t in [*mix.train, *mix.held_out]) == {"a": 16, "b": 8}
    assert (len(mix.train), len(mix.held_out), len(mix.ood["exam"])) == (20, 4, 3)
    assert not mix.missing()
    ids = [t.id for t in [*mix.train, *mix.held_out, *mix.ood["exam"]]]
    assert len(set(ids)) == len(ids)
    assert {t.domain for t in mix.train} == {"d"}
    assert {t.licence for t in mix.train} == {"MIT"}
    for name, rows in (("a", 30), ("b", 20), ("exam", 4)):
        assert mix.sources[name].rows == rows == sum(mix.counts[name].values())
    assert mix.counts["exam"] == {"ood": 3, "unused": 1}


def test_every_fate_of_a_row_is_counted(folder: Path) -> None:
    rows: list[Any] = [task_row(n) for n in range(1, 11)]
    rows[1] = "{not json"
    rows[2] = {"prompt": "no rubric"}
    rows[3] = task_row(4, prompt=prompt(7) + ".")  # as good as t7, which comes later
    rows[4] = task_row(5, rubric=[{"text": "kind", "points": 1}])
    rows[5] = task_row(1)  # an id again
    rows[8] = task_row(9, prompt=prompt(201).upper())  # of the exam
    write_jsonl(folder / "data" / "a.jsonl", rows)
    sources = {
        "a": source("a.jsonl", filters={"checks_only": True}),
        "exam": source("exam.jsonl"),
    }
    domains = {"d": {"train": 3, "held_out": 0, "sources": {"a": 1}}}
    mix = built(mix_file(folder, sources=sources, domains=domains))
    counts = mix.counts["a"]
    assert counts == {
        "malformed": 1,
        "refused": 1,
        "filtered": 1,
        "duplicate": 3,
        "train": 3,
        "unused": 1,
    }
    assert set(counts) <= set(FATES)
    told = {left.where.rpartition(":")[2]: left for left in mix.left_out}
    assert told["2"].fate == "malformed" and "not JSON" in told["2"].reason
    assert told["3"].fate == "refused" and "it has no rubric" in told["3"].reason
    assert told["5"].fate == "filtered" and "a judge" in told["5"].reason
    assert told["6"].fate == "duplicate" and "t1 is the id of" in told["6"].reason
    assert told["7"].reason == "t7 is close to t4 of a (similarity 1.00)"
    assert "t9 is close to t201 of exam" in told["9"].reason
    assert len(mix.left_out) == 6


def test_the_same_seed_builds_the_same_folder_and_another_one_does_not(folder: Path) -> None:
    for out, seed in (("one", 3), ("two", 3), ("three", 4)):
        write_folder(built(mix_file(folder, seed=seed)), folder / out)
    assert everything(folder / "one") == everything(folder / "two")
    assert everything(folder / "one")["train.jsonl"] != everything(folder / "three")["train.jsonl"]


def test_more_rows_leave_most_of_the_draw_as_it_was(folder: Path) -> None:
    """Ids alone decide, so the order of a file and rows that are added do not shuffle everything."""
    before = {t.id for t in built(mix_file(folder)).train}
    rows = [task_row(n) for n in range(1, 31)]
    write_jsonl(folder / "data" / "a.jsonl", [*reversed(rows)])
    assert {t.id for t in built(mix_file(folder)).train} == before
    write_jsonl(folder / "data" / "a.jsonl", [*rows, task_row(31)])
    assert len({t.id for t in built(mix_file(folder)).train} & before) >= 12


def test_a_folder_reads_back_and_trains(folder: Path) -> None:
    mix = built(mix_file(folder))
    manifest = write_folder(mix, folder / "out")
    rows = [row.task for row in read_folder(folder / "out")]
    assert sorted(rows, key=lambda t: t.id) == sorted(  # type: ignore[union-attr]
        [*mix.train, *mix.held_out, *mix.ood["exam"]], key=lambda t: t.id
    )
    assert manifest["files"]["train.jsonl"]["rows"] == 20
    assert manifest["licences"] == {"MIT": 27}
    paths = tiny.write_spec(folder / "spec", "smollm2-wheel")
    files = [str(folder / "out" / name) for name in ("train.jsonl", "held_out.jsonl")]
    tasks = load_tasks(load_run_spec(paths.spec, overrides={"tasks": {"files": files}}))
    assert (len(tasks.train), len(tasks.held_out)) == (20, 4)
    with pytest.raises(SpecError, match="is for evaluation only"):
        files.append(str(folder / "out" / "ood" / "exam.jsonl"))
        load_tasks(load_run_spec(paths.spec, overrides={"tasks": {"files": files}}))


def test_a_mix_replaces_a_mix_and_nothing_else(folder: Path) -> None:
    mix = built(mix_file(folder))
    write_folder(mix, folder / "out")
    write_folder(mix, folder / "out")  # as it was written, it may be written again
    (folder / "out" / "note.txt").write_text("x")
    with pytest.raises(FileExistsError, match=r"since it was built \(note.txt\): --overwrite"):
        write_folder(mix, folder / "out")
    (folder / "out" / "note.txt").unlink()
    train = folder / "out" / "train.jsonl"
    train.write_text(train.read_text().replace("criterion", "kriterion", 1))
    with pytest.raises(FileExistsError, match=r"\(train.jsonl\)"):
        write_folder(mix, folder / "out")
    write_folder(mix, folder / "out", overwrite=True)
    assert "kriterion" not in train.read_text()
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(FileExistsError):
        write_folder(mix, folder / "mine")
    assert [f.name for f in (folder / "mine").iterdir()] == ["thesis.txt"]
    assert not [f for f in folder.iterdir() if f.name.startswith(".")]


def test_a_mix_of_which_nothing_comes_writes_nothing(folder: Path) -> None:
    for name in ("a", "b", "exam"):
        (folder / "data" / f"{name}.jsonl").write_text('{"prompt": "no rubric"}\n')
    done = tiny.invoke("data", "build", mix_file(folder), "--out", folder / "out", "--offline")
    assert done.exit_code == 1 and "no task came out; nothing was written" in done.output
    assert not (folder / "out").exists()


def test_ctrl_c_ends_a_build_with_a_word(folder: Path) -> None:
    write_jsonl(folder / "data" / "a.jsonl", [task_row(n) for n in range(1000, 21_000)])
    process = tiny.start("data", "build", mix_file(folder), "--out", folder / "out", "--offline")
    assert process.stdout
    first = process.stdout.readline()  # a source is being read, the rest takes seconds
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and rest.endswith("stopped; nothing was written\n"), first + rest
    assert not (folder / "out").exists()


def test_show_lists_ids_and_shows_one(folder: Path) -> None:
    write_folder(built(mix_file(folder)), folder / "out")
    done = tiny.invoke("data", "show", folder / "out")
    lines = done.output.splitlines()
    assert done.exit_code == 0 and len(lines) == 20 + 4 + 3
    kinds = [line.split("\t")[1] for line in lines]
    assert (kinds.count("train"), kinds.count("held_out"), kinds.count("ood")) == (20, 4, 3)
    done = tiny.invoke("data", "show", folder / "out", lines[0].split("\t")[0])
    assert done.output.startswith(f"# {kinds[0]}\n") and "rubric:" in done.output


def test_a_task_that_is_shown_cannot_reorder_the_terminal(folder: Path) -> None:
    row = {**task_row(1), "id": "one", "prompt": "Say \u202egood\u202c."}
    write_jsonl(folder / "rows.jsonl", [row])
    done = tiny.invoke("data", "show", folder / "rows.jsonl", "one")
    assert done.exit_code == 0 and "prompt: Say ⟨U+202E⟩good⟨U+202C⟩." in done.output


def test_tasks_without_a_licence_are_used_and_kept_apart(folder: Path) -> None:
    sources = {
        "a": source("a.jsonl", licence=None),
        "b": source("b.jsonl"),
        "exam": source("exam.jsonl", licence=None),
    }
    mix = built(mix_file(folder, sources=sources))
    files = write_folder(mix, folder / "out")["files"]
    apart = files["not-for-export/train.jsonl"]["rows"]
    assert apart + files["train.jsonl"]["rows"] == 20 and apart > 10
    assert files["not-for-export/ood/exam.jsonl"]["rows"] == 3 and "ood/exam.jsonl" not in files
    shown = (folder / "out" / "train.jsonl").read_text()
    assert not any(json.dumps(t.prompt) in shown for t in mix.train if t.source == "a")
    assert len(list(read_folder(folder / "out"))) == 27
    files = write_folder(mix, folder / "all", include_unlicensed=True)["files"]
    assert files["train.jsonl"]["rows"] == 20 and not any("not-for" in name for name in files)


def test_what_is_left_out_of_a_source_without_a_licence_is_kept_apart_too(folder: Path) -> None:
    """The reason may quote the row."""
    secret = {"rubric": [{"text": "a secret", "points": 0}]}
    write_jsonl(folder / "data" / "a.jsonl", [task_row(1), task_row(2, **secret)])
    write_jsonl(folder / "data" / "b.jsonl", [task_row(3), task_row(4, rubric=[])])
    sources = {"a": source("a.jsonl", licence=None), "b": source("b.jsonl"), "exam": source("exam.jsonl")}
    mix = built(mix_file(folder, sources=sources))
    (one, other) = mix.left_out
    assert one.reason.startswith("rubric[0].points") and other.reason.startswith("rubric: ")
    write_folder(mix, folder / "out")
    for name, line in (("left_out.jsonl", other), ("not-for-export/left_out.jsonl", one)):
        (written,) = (folder / "out" / name).read_text().splitlines()
        assert json.loads(written)["reason"] == line.reason
    assert len(list(read_folder(folder / "out"))) == 5  # tasks alone are read
    files = write_folder(mix, folder / "all", include_unlicensed=True)["files"]
    assert files["left_out.jsonl"]["rows"] == 2 and not any("not-for" in name for name in files)


def test_no_file_is_empty(folder: Path) -> None:
    """An evaluation of all sets would stumble over one without rows."""
    (folder / "data" / "exam.jsonl").unlink()
    domains = {"d": {"train": 5, "sources": {"a": 1}}}
    mix = built(mix_file(folder, domains=domains))
    assert mix.ood == {"exam": []} and not mix.held_out
    manifest = write_folder(mix, folder / "out")
    assert {*everything(folder / "out")} == {"train.jsonl", "manifest.json"}
    assert {*manifest["files"]} == {"train.jsonl"} and manifest["ood"]["exam"]["tasks"] == 0


def test_a_mix_may_be_of_evaluation_only_sets_alone(folder: Path) -> None:
    path = mix_file(folder, domains={})
    mix = built(path)
    write_folder(mix, folder / "out")
    assert {*everything(folder / "out")} == {"ood/exam.jsonl", "manifest.json"}
    assert len(list(read_folder(folder / "out"))) == 3
    text = path.read_text().replace("domains: {}\n", "")
    path.write_text(text)
    assert built(path).spec == mix.spec
    done = tiny.invoke("data", "stats", path, "--tokenizer", "words")
    assert done.exit_code == 0 and "| exam | 3 |" in done.stdout


def test_what_cannot_be_had_is_missing_and_the_others_make_up_for_it(folder: Path) -> None:
    (folder / "data" / "b.jsonl").unlink()
    mix = built(mix_file(folder))
    assert (len(mix.train), len(mix.held_out)) == (20, 4)
    assert mix.missing() == ["source b: not had (local b.jsonl: no such file in the folders given)"]
    (folder / "data" / "a.jsonl").write_text(tiny.join(json.dumps(task_row(n)) for n in range(12)))
    mix = built(mix_file(folder))
    assert mix.missing()[1:] == [
        "d train: 10 of 20, 10 missing",
        "d held_out: 2 of 4, 2 missing",
    ]


def test_places_are_tried_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel is opened as an archive: nothing of it is installed, imported or run."""
    monkeypatch.setenv("HARNESSRL_CACHE", str(folder / "cache"))
    (folder / "cache" / "wheels").mkdir(parents=True)
    with zipfile.ZipFile(folder / "cache" / "wheels" / "some_data-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_data/__init__.py", "raise SystemExit('run!')")
        wheel.writestr(
            "some_data/rows/b.jsonl", tiny.join(json.dumps(task_row(n)) for n in range(101, 121))
        )
    inside = {"kind": "wheel", "requirement": "some-data==1.0", "files": ["some_data/*.jsonl"]}
    local = {"kind": "local", "files": ["b.jsonl"]}
    sources = {
        "a": source("a.jsonl"),
        "b": source("b.jsonl") | {"places": [local, inside]},
        "exam": source("exam.jsonl"),
    }
    path = mix_file(folder, sources=sources)
    assert assemble(path).sources["b"].place == "local b.jsonl"
    (folder / "data" / "b.jsonl").unlink()
    mix = assemble(path)
    assert mix.sources["b"].place == "wheel some-data==1.0"
    assert mix.sources["b"].rows == 20
    assert "not asked for" in built(path).sources["b"].missing


def test_evaluation_only_tasks_do_not_come_back_as_training_tasks(folder: Path) -> None:
    """Neither another mix's evaluation-only tasks nor a row that names such a set can be trained on."""
    write_folder(built(mix_file(folder)), folder / "out")
    exam = [json.loads(line) for line in (folder / "out" / "ood" / "exam.jsonl").read_text().splitlines()]
    write_jsonl(folder / "data" / "a.jsonl", [*exam, task_row(50, source="ifbench"), task_row(51)])
    sources = {"a": source("a.jsonl"), "b": source("b.jsonl")}
    mix = built(mix_file(folder, sources=sources, ood={}))
    assert mix.counts["a"] == Counter({"refused": 4, "train": 1})
    assert {left.reason for left in mix.left_out} == {"a task of a set that is for evaluation only"}
    reward = {"rubrics": [{"criterion": "kind", "points": 1}], "ground_truth": ""}
    verl = {"prompt": "Hm", "data_source": "ifbench", "ability": "x", "reward_model": reward}
    write_jsonl(folder / "data" / "a.jsonl", [verl])
    copy = {"a": source("a.jsonl", "verl"), "b": source("b.jsonl")}
    assert built(mix_file(folder, sources=copy, ood={})).counts["a"] == Counter({"refused": 1})
    write_jsonl(folder / "data" / "a.jsonl", [*exam, task_row(50, source="ifbench"), task_row(51)])
    sources["exam"] = source("a.jsonl")
    domains = {"d": {"train": 5, "sources": {"b": 1}}}
    mix = built(mix_file(folder, sources=sources, domains=domains))
    assert {t.id for t in mix.ood["exam"]} <= {"t50", "t51", *(row["id"] for row in exam)}
    assert len(mix.ood["exam"]) == 3


@pytest.mark.parametrize(
    "name",
    ["MedQA", "IFBench", "allenai/IFBench_test", "gpqa-diamond", "GPQA", "WritingBench", "Role Bench"],
)
def test_such_a_set_is_known_however_its_name_is_written(folder: Path, name: str) -> None:
    write_jsonl(folder / "data" / "a.jsonl", [task_row(50, source=name), task_row(51)])
    sources = {"a": source("a.jsonl"), "b": source("b.jsonl")}
    assert built(mix_file(folder, sources=sources, ood={})).counts["a"]["refused"] == 1


def test_a_benchmark_row_is_none_of_a_set_like_it(folder: Path) -> None:
    """LongBench-Write's rows have all that LongWriter-Zero's have."""
    rows: list[Any] = [{"prompt": f"Write {n} words on rain {n}.", "length": 100 + n} for n in range(4)]
    rows[1] |= {"type": "essay"}
    write_jsonl(folder / "data" / "a.jsonl", rows)
    sources = {"a": source("a.jsonl", "longwriter-zero"), "b": source("b.jsonl")}
    assert built(mix_file(folder, sources=sources, ood={})).counts["a"]["refused"] == 1


def test_a_mix_that_calls_it_otherwise_hides_nothing(folder: Path, tmp_path: Path) -> None:
    """Tasks that were built from a benchmark are known by it, whatever they are made to look like."""
    real = data_file("writingbench.jsonl").read_text().splitlines()[:3]
    (folder / "data" / "wb.jsonl").write_text(tiny.join(real))
    sources = {"b": source("b.jsonl"), "mine": source("wb.jsonl", "writingbench")}
    ood = {"mine": {"source": "mine", "domain": "d", "tasks": 3}}
    domains = {"d": {"train": 5, "sources": {"b": 1}}}
    write_folder(built(mix_file(folder, sources=sources, ood=ood, domains=domains)), tmp_path / "out")
    written = (tmp_path / "out" / "ood" / "mine.jsonl").read_text().splitlines()
    disguised = [{**json.loads(line), "split": "train", "source": "mine"} for line in written]
    for row in disguised:
        del row["grades"]
    write_jsonl(folder / "data" / "a.jsonl", disguised)
    sources = {"a": source("a.jsonl"), "b": source("b.jsonl")}
    assert built(mix_file(folder, sources=sources, ood={})).counts["a"] == Counter({"refused": 3})


# --- mixes that are wrong -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "at", "says"),
    [
        ({"sauces": {}}, "sauces", "unknown key sauces (did you mean sources?)"),
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"domains": {}, "ood": {}}, "domains", "a mix needs a domain, or a set under `ood`"),
        *(
            ({"sources": {"a": source("a", licence=name)}}, "sources.a.licence", "must name a licence")
            for name in ("", " ", " MIT", "-", "None", "unknown")
        ),
        (
            {"ood": {"exam": {"source": "a", "domain": "d", "tasks": 3}}},
            "ood.exam.source",
            "a is trained on",
        ),
        ({"ood": {"exam": {"source": "z", "domain": "d", "tasks": 3}}}, "ood.exam.source", "no source z"),
        ({"domains": {"d": {"train": 1, "sources": {"z": 1}}}}, "domains.d.sources.z", "no source z"),
        ({"sources": {"a": source("a", "healthbnch")}}, "sources.a.converter", "unknown converter"),
        (
            {"sources": {"a": source("a", "ifbench"), "b": source("b"), "exam": source("c")}},
            "domains.d.sources.a",
            "ifbench is for evaluation only",
        ),
        (
            {
                "sources": {
                    "a": source("a"),
                    "b": source("b"),
                    "exam": source("c", "gpqa")
                    | {"places": [{"kind": "hub", "repo": "a/b", "files": ["*"]}]},
                }
            },
            "sources.exam.places[0].kind",
            "never fetched",
        ),
        (
            {"sources": {"a": source("a") | {"places": [{"kind": "ftp", "files": ["x"]}]}}},
            "sources.a.places[0].kind",
            "allowed: local, wheel, hub",
        ),
    ],
)
def test_what_is_wrong_with_a_mix_is_told_with_its_place(
    changes: dict[str, Any], at: str, says: str, folder: Path
) -> None:
    path = mix_file(folder, **changes)
    with pytest.raises(SpecError) as caught:
        built(path)
    problem = next(p for p in caught.value.problems if p.path == at)
    assert says in problem.message
    assert problem.file == str(path) and problem.line >= 1


def test_malformed_rows_are_fatal_where_asked(folder: Path) -> None:
    write_jsonl(folder / "data" / "a.jsonl", [task_row(1), "{", task_row(2)])
    with pytest.raises(SpecError, match=r"a\.jsonl:2:2: a: not JSON"):
        built(mix_file(folder), malformed="fail")
    with pytest.raises(SpecError, match=r"a\.jsonl:2:2: a: not JSON"):
        built(mix_file(folder, malformed="fail"))
    assert built(mix_file(folder)).counts["a"]["malformed"] == 1


# --- parts ----------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcdef"), st.tuples(st.integers(0, 50), st.floats(0.1, 9)), min_size=1
    ),
    st.integers(0, 200),
)
def test_shares_are_met_as_far_as_the_sources_go(have: dict[str, tuple[int, float]], n: int) -> None:
    available = {name: count for name, (count, _) in have.items()}
    shares = {name: share for name, (_, share) in have.items()}
    given_out = share_out(available, shares, n)
    assert sum(given_out.values()) == min(n, sum(available.values()))
    assert all(0 <= given_out[name] <= available[name] for name in available)
    short = [name for name in available if given_out[name] == available[name]]
    total = sum(shares.values())
    for name in set(available) - set(short):  # who has more is not below its share
        assert given_out[name] >= int(n * shares[name] / total) - len(available)


def plain(n: int, criteria: int, words: int) -> TrainTask:
    check = [WordsCheck(kind="words", min=k + 1) for k in range(criteria)]
    rubric = tuple(Criterion(text=f"{k}", points=1.0, check=c) for k, c in enumerate(check))
    return TrainTask(id=f"t{n}", domain="d", prompt="word " * words, rubric=rubric, source="s")


def test_every_stratum_gives_the_same_as_far_as_it_goes() -> None:
    """Short prompts with small rubrics are common here, and long ones with small rubrics rare."""
    tasks = [plain(n, 1 + n % 3, 10 * (1 + n % 3) + n % 5) for n in range(150)]
    tasks += [plain(200 + n, 1, 30 + n) for n in range(6)] + [plain(300 + n, 3, 10 + n) for n in range(4)]
    drawn = draw({"s": tasks}, {"s": 1.0}, 60, Balance(criteria_bins=3, length_bins=3), seed=0)

    strata = strata_of(tasks, Balance())
    have, got = (Counter(strata[t.id] for t in some) for some in (tasks, drawn))
    assert sum(got.values()) == 60
    left = {stratum: got[stratum] for stratum in have if got[stratum] < have[stratum]}
    assert max(left.values()) - min(left.values()) <= 1
    assert all(got[stratum] <= min(left.values()) for stratum in have if stratum not in left)
    assert len(have) > 4 and {t.id for t in tasks[150:156]} <= {t.id for t in drawn}  # the rare ones


def test_both_parts_of_a_split_are_alike() -> None:
    tasks = [plain(n, 1 + n % 9, 5 + n % 60) for n in range(900)]
    train, held = split(tasks, 800, 100, Balance(), seed=1)
    assert (len(train), len(held)) == (800, 100)
    assert not {t.id for t in train} & {t.id for t in held}

    def mean(some: list[TrainTask]) -> tuple[float, float]:
        sizes = [len(t.rubric) for t in some]
        return sum(sizes) / len(some), sum(words_in(t.prompt) for t in some) / len(some)

    for a, b in zip(mean(train), mean(held), strict=True):
        assert abs(a - b) / a < 0.1


def test_near_duplicates_are_what_an_exhaustive_comparison_finds() -> None:
    rows = [
        json.loads(line) for line in data_file("medqa_us_4options_test.jsonl").read_text().splitlines()
    ]
    texts = [row["question"] for row in rows]
    texts += [text.replace(" the ", " a ", 2).upper() for text in texts[:20]]  # close
    texts += [text[: len(text) // 3] for text in texts[20:40]]  # not close
    found = {
        (m.index, m.kept): m.similarity for m in near_duplicates([sketch(text) for text in texts], 0.8)
    }
    sets = [set(shingles_of(text).tolist()) for text in texts]
    wanted, kept = {}, []
    for i, own in enumerate(sets):
        close = [(j, len(own & sets[j]) / len(own | sets[j])) for j in kept]
        match = next(((j, s) for j, s in close if s >= 0.8), None)
        if match is None:
            kept.append(i)
        else:
            wanted[(i, match[0])] = match[1]
    assert found == pytest.approx(wanted)
    assert len(found) == 20


@pytest.mark.parametrize("text", ["", "a", "ab", "abcde", "日本", "?!"])
def test_short_texts_have_shingles_too(text: str) -> None:
    assert len(shingles_of(text)) >= 1
    assert similarity(shingles_of(text), shingles_of(text)) == 1.0


def test_words_of_scripts_without_spaces() -> None:
    assert words_in("two words") == 2
    assert words_in("写一篇 500 字") == 5
    assert words_in("") == 0


# --- the published recipe -------------------------------------------------------------------------


def test_the_recipe_of_the_paper_has_its_quotas() -> None:
    mix = assemble(ROOT / "specs" / "mixes" / "rubric-mix-10k.yaml", offline=True).spec
    wanted = {name: (d.train, d.held_out) for name, d in mix.domains.items()}
    assert wanted == {
        "medical": (3000, 250),
        "science": (2000, 250),
        "writing": (1200, 250),
        "role-play": (1200, 250),
        "instruction-following": (1200, 250),
    }
    assert {name: (o.domain, o.tasks) for name, o in mix.ood.items()} == {
        "medqa": ("medical", 250),
        "gpqa-diamond": ("science", 198),
        "writingbench": ("writing", 250),
        "rolebench": ("role-play", 250),
        "ifbench": ("instruction-following", 250),
    }


def test_the_recipe_of_the_paper_on_the_real_rows(tmp_path: Path) -> None:
    real = data_file("healthbench.jsonl").parent
    mix = assemble(ROOT / "specs" / "mixes" / "rubric-mix-10k.yaml", [real], offline=True)
    counted = {
        "healthbench.jsonl": "healthbench",
        "medqa_us_4options_test.jsonl": "medqa",
        "writingbench.jsonl": "writingbench",
        "ifbench_test.jsonl": "ifbench",
    }
    for file, name in counted.items():
        assert mix.sources[name].rows == len((real / file).read_bytes().splitlines()) > 0
    assert len(mix.train) + len(mix.held_out) == 100
    assert sum(map(len, mix.ood.values())) == 250
    assert any(line.startswith("source gpqa: not had") for line in mix.missing())
    canaries = {t.origin.canary for t in mix.train if t.source == "healthbench" and t.origin}
    (canary,) = canaries
    assert canary is not None and canary.startswith("healthbench:")


def words(*changed: int) -> str:
    """A hundred words, some of them others."""
    return " ".join(f"zeta{i}" if i in changed else f"word{i}" for i in range(100))


def test_every_evaluation_task_is_compared_also_those_that_are_alike(folder: Path) -> None:
    first, second, leak = words(), words(*range(9)), words(*range(18))
    assert similarity(shingles_of(first), shingles_of(leak)) < 0.8
    assert similarity(shingles_of(second), shingles_of(leak)) >= 0.8
    write_jsonl(
        folder / "data" / "exam.jsonl", [task_row(201, prompt=first), task_row(202, prompt=second)]
    )
    write_jsonl(folder / "data" / "a.jsonl", [task_row(0, prompt=leak), task_row(1)])
    mix = built(mix_file(folder))
    assert mix.counts["a"]["duplicate"] == 1
    assert len(mix.ood["exam"]) == 2, "a benchmark loses nothing"


QUESTION = (
    "A man of fifty comes to the clinic with a cough that has lasted for three weeks, and with fever "
    "at night. He has lost weight. Which of the following is the most likely cause of what he has?"
)


@pytest.mark.parametrize(
    ("prompt", "is_copy"),
    [
        (QUESTION, True),
        (f"Think step by step, then answer in one word.\n\n{QUESTION}\n\nShow your work. " * 2, True),
        (QUESTION.replace("fifty", "sixty").upper(), True),
        ("Which of the following is the most likely cause of a cough?", False),
        (QUESTION[: len(QUESTION) // 2], False),
    ],
)
def test_a_question_is_found_without_its_options_and_inside_other_text(
    folder: Path, prompt: str, is_copy: bool
) -> None:
    options = {"A": "Tuberculosis of the lung", "B": "Asthma", "C": "A foreign body in the bronchus"}
    listed = "".join(f"\n{label}) {text}" for label, text in options.items())
    exam = {"question": QUESTION + listed, "options": options, "answer": "A"}
    write_jsonl(folder / "data" / "exam.jsonl", [exam])
    write_jsonl(folder / "data" / "a.jsonl", [task_row(0, prompt=prompt), task_row(1)])
    sources = {"a": source("a.jsonl"), "b": source("b.jsonl"), "exam": source("exam.jsonl", "medqa")}
    mix = built(mix_file(folder, sources=sources))
    assert mix.counts["a"]["duplicate"] == is_copy
    assert len(mix.ood["exam"]) == 1


def test_short_questions_are_part_of_many_prompts() -> None:
    short, long = sketch("What is your name?"), sketch(f"What is your name? {QUESTION}")
    assert copies([long], [short], 0.8) == []
    assert [m.holds for m in copies([long], [sketch(QUESTION)], 0.95)] == [True]


def test_the_order_of_a_file_decides_nothing(folder: Path) -> None:
    """Not even which of two near-duplicates stays."""
    rows = [task_row(n) for n in range(12)]
    rows += [task_row(50 + n, prompt=words(n, n + 1)) for n in range(12)]
    ids = []
    for order in (rows, rows[::-1]):
        write_jsonl(folder / "data" / "a.jsonl", order)
        mix = built(mix_file(folder))
        assert mix.counts["a"]["duplicate"] == 11
        ids.append([task.id for task in (*mix.train, *mix.held_out)])
    assert ids[0] == ids[1]
