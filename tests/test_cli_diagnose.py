"""`harnessrl diagnose` on a real run folder."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from harnessrl.memory.events import EventLog, read_log
from harnessrl.memory.records import Group


@pytest.fixture(scope="module")
def groups(finished: tiny.Finished) -> list[Group]:
    return [r for r in read_log(finished.run / "events.jsonl") if isinstance(r, Group)]


def diagnose(run: Path, *args: str) -> dict[str, Any]:
    done = tiny.invoke("diagnose", run, *args, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def with_quality(finished: tiny.Finished, to: Path, asked: int) -> Path:
    """A copy of the run whose oracle was asked about the first so many groups alone."""
    shutil.copytree(finished.run, to, ignore=shutil.ignore_patterns("chroma", "checkpoints"))
    records = read_log(to / "events.jsonl")
    (to / "events.jsonl").unlink()
    seen = 0
    for n, record in enumerate(records):
        if isinstance(record, Group):
            seen += 1
            if seen > asked:
                silent: list[float | None] = [None] * len(record.quality)
                records[n] = record.model_copy(update={"quality": silent})
    EventLog(to / "events.jsonl").append(records)
    return to


@pytest.mark.parametrize("by", ["criterion", "task", "domain", "step"])
def test_the_table_counts_every_group(by: str, finished: tiny.Finished, groups: list[Group]) -> None:
    found = diagnose(finished.run, "--by", by)
    assert (found["by"], found["groups"], found["interval_level"]) == (by, len(groups), 0.9)
    if by == "criterion":
        expected = {name: sum(name in g.met for g in groups) for g in groups for name in g.met}
        assert all(row["text"] and row["points"] for row in found["rows"])
    else:
        key = {"task": "task_id", "domain": "domain", "step": "step"}[by]
        expected = {}
        for group in groups:
            name = str(getattr(group, key))
            expected[name] = expected.get(name, 0) + 1
    assert {row["key"]: row["groups"] for row in found["rows"]} == expected
    if by == "task":
        for row in found["rows"]:
            pooled = [g.pairs for g in groups if g.task_id == row["key"]]
            assert row["pairs"] == {name: sum(p[name] for p in pooled) for name in pooled[0]}
    for row in found["rows"]:
        assert row["signal_rate"] is None or 0 <= row["signal_rate"] <= 1


def test_it_prints_what_json_says_and_repeats(finished: tiny.Finished) -> None:
    done = tiny.invoke("diagnose", finished.run)
    assert done.exit_code == 0
    assert done.output == tiny.invoke("diagnose", finished.run).output
    rows = diagnose(finished.run)["rows"]
    lines = done.output.splitlines()[-len(rows) :]
    for line, row in zip(lines, rows, strict=True):
        rate = "–" if row["signal_rate"] is None else f"{row['signal_rate']:.2f}"  # noqa: RUF001
        assert line.split()[0] == rate
        assert f"{row['points']:+g}  {row['text'][:40]}" in line


def test_one_task_and_the_last_steps(finished: tiny.Finished, groups: list[Group]) -> None:
    last = max(group.step for group in groups)
    found = diagnose(finished.run, "--by", "step", "--last", "2")
    assert [row["key"] for row in found["rows"]] == [str(last - 1), str(last)]
    task = groups[0].task_id
    alone = diagnose(finished.run, "--task", task, "--by", "task")
    assert [row["key"] for row in alone["rows"]] == [task]
    # A row is the same whatever else is in the table.
    beside = {row["key"]: row for row in diagnose(finished.run, "--by", "task")["rows"]}
    assert beside[task] == alone["rows"][0]
    wrong = tiny.invoke("diagnose", finished.run, "--task", "nope")
    assert wrong.exit_code == 2 and "nope" in wrong.output and task in wrong.output


def test_without_an_oracle_it_says_what_is_unknown(finished: tiny.Finished, tmp_path: Path) -> None:
    run = with_quality(finished, tmp_path / "silent", asked=0)
    told = tiny.invoke("diagnose", run, "--by", "domain").output
    assert "unknown without an oracle: signal rate and failure classes" in told
    for row in diagnose(run)["rows"]:
        assert (row["signal_rate"], row["interval"], row["known_pairs"]) == (None, None, 0)
        assert sum(row["collapse"].values()) == row["groups"]
    run = with_quality(finished, tmp_path / "asked", asked=3)
    assert "the oracle was asked about 3 of them" in tiny.invoke("diagnose", run).output


def test_a_run_without_groups_and_a_log_that_is_none(finished: tiny.Finished, tmp_path: Path) -> None:
    run = with_quality(finished, tmp_path / "run", asked=0)
    log = run / "events.jsonl"
    log.write_text(log.read_text().splitlines()[0] + "\n")
    done = tiny.invoke("diagnose", run)
    assert done.exit_code == 2 and "no group of rollouts is on record yet" in done.output


@pytest.mark.parametrize("width", [80, 140])
def test_on_a_terminal_it_fits(
    width: int, finished: tiny.Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A narrow one has no room for the classes, and is told so."""
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    told = re.sub(r"\x1b\[[0-9;]*m", "", tiny.invoke("diagnose", finished.run).output)
    table = told.splitlines()[2:]
    assert all(len(line) <= width for line in table)
    assert ("inver-" in told) == (width > 100)
    assert ("or --json" in told) == (width < 100)
