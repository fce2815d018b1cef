"""The diagnosis in detail, held against a reference that goes pair by pair; and how long it takes."""

from __future__ import annotations

import itertools
import math
import runpy
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from harnessrl.agents.scoring.breakdown import BYS, Row, breakdown, criterion_counts
from harnessrl.agents.scoring.diagnosis import (
    CLASSES,
    SIGNAL_CLASSES,
    as_floats,
    by_class,
    class_counts,
    collapse,
    criterion_score,
    pair_classes,
    signal_interval,
    signal_rate,
    stacks,
)
from harnessrl.memory.records import Group
from harnessrl.specs.sampling import stream
from harnessrl.specs.tasks import Criterion
from hypothesis import given, settings
from hypothesis import strategies as st

X = math.nan
GOOD = Criterion(text="It is good.", points=2)
BAD = Criterion(text="It is bad.", points=-1)
KNOWN = {c.id: c for c in (GOOD, BAD)}
BENCHMARK = Path(__file__).parent.parent / "benchmarks" / "diagnosis.py"


# --- a reference in plain Python ------------------------------------------------------------------


def reference(score: Sequence[float], quality: Sequence[float]) -> dict[str, int]:
    """The classes of one group's pairs, straight from their table."""
    scored = [s for s in score if not math.isnan(s)]
    spread = any(a != b for a, b in itertools.combinations(scored, 2))
    counts: dict[str, int] = dict.fromkeys(CLASSES, 0)
    for (s1, q1), (s2, q2) in itertools.combinations(zip(score, quality, strict=True), 2):
        if any(math.isnan(value) for value in (s1, s2, q1, q2)):
            name = "unknown"
        elif s1 != s2 and q1 != q2:
            name = "informative" if (s1 < s2) == (q1 < q2) else "inversion"
        elif s1 != s2:
            name = "spurious"
        elif q1 == q2:
            name = "neutral"
        elif spread:
            name = "blind_spread"
        else:
            name = "blind_low" if s1 <= 0 else "blind_high" if s1 >= 1 else "blind_mid"
        counts[name] += 1
    return counts


scores = st.sampled_from([-0.5, 0.0, 0.25, 1.0, X])
qualities = st.sampled_from([0.1, 0.5, 0.9, X])
verdicts = st.sampled_from([True, False, None])


def many(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[tuple[list[float], list[float]]]]:
    """Groups of different sizes, each with ties often enough to collapse at times."""

    def group(size: int) -> st.SearchStrategy[tuple[list[float], list[float]]]:
        tied = values.map(lambda value: [value] * size)
        spread = st.lists(values, min_size=size, max_size=size)
        return st.tuples(tied | spread, st.lists(qualities, min_size=size, max_size=size))

    return st.lists(st.integers(1, 6).flatmap(group), min_size=1, max_size=12)


@given(many(scores))
def test_classes_of_many_groups_are_those_of_the_reference(
    groups: list[tuple[list[float], list[float]]],
) -> None:
    arrays = [(np.array(score), np.array(quality)) for score, quality in groups]
    expected = [reference(*group) for group in groups]
    assert [pair_classes(*pair) for pair in arrays] == expected
    total = {name: sum(counts[name] for counts in expected) for name in CLASSES}
    stacked = [class_counts(*stack) for stack in stacks(arrays)]
    assert by_class(np.concatenate(stacked)) == total
    for (score_MG, quality_MG, _), counts in zip(stacks(arrays), stacked, strict=True):
        assert [by_class(row) for row in counts] == [
            reference(score_G.tolist(), quality_G.tolist())
            for score_G, quality_G in zip(score_MG, quality_MG, strict=True)
        ]


def test_leading_axes_are_kept() -> None:
    rng = np.random.default_rng(1)
    score, quality = rng.integers(3, size=(4, 5, 6)) / 2, rng.integers(3, size=(4, 5, 6)) / 2
    counts = class_counts(score, quality)
    assert counts.shape == (4, 5, len(CLASSES)) and counts.sum() == 4 * 5 * 15
    assert by_class(counts[2, 3]) == pair_classes(score[2, 3], quality[2, 3])
    assert class_counts(score[:0], quality[:0]).shape == (0, 5, len(CLASSES))


# --- single criteria ------------------------------------------------------------------------------


def make_group(
    step: int,
    met: dict[str, list[bool | None]],
    quality: Sequence[float | None],
    rewards: Sequence[float | None] | None = None,
    task_id: str = "t",
    domain: str = "d",
) -> Group:
    rewards = rewards or [0.5] * len(quality)
    return Group(
        id=f"g-{step}-{task_id}",
        step=step,
        harness_version=0,
        slot=0,
        task_id=task_id,
        domain=domain,
        rewards=list(rewards),
        quality=list(quality),
        guided=[False] * len(quality),
        met=met,
        collapse=collapse(as_floats(rewards)),
        pairs=pair_classes(as_floats(rewards), as_floats(quality)),
    )


@given(
    st.integers(2, 6).flatmap(
        lambda size: st.lists(
            st.tuples(
                st.lists(verdicts, min_size=size, max_size=size),
                st.lists(verdicts, min_size=size, max_size=size),
                st.lists(qualities, min_size=size, max_size=size),
            ),
            min_size=1,
            max_size=6,
        )
    )
)
@settings(max_examples=60, deadline=None)
def test_the_criteria_of_records_are_those_of_the_reference(
    drawn: list[tuple[list[bool | None], list[bool | None], list[float]]],
) -> None:
    """A verdict that earns is 1: met, or for a penalty not met; unscored stays unknown."""
    groups, expected = [], {c.id: dict.fromkeys(CLASSES, 0) for c in KNOWN.values()}
    for step, (good, bad, quality) in enumerate(drawn):
        known = [None if math.isnan(q) else q for q in quality]
        groups.append(make_group(step, {GOOD.id: good, BAD.id: bad}, known))
        for criterion, met in ((GOOD, good), (BAD, bad)):
            earned = [X if m is None else float(m == (criterion.points > 0)) for m in met]
            for name, n in reference(earned, quality).items():
                expected[criterion.id][name] += n
    rows = {row.key: row for row in breakdown(groups, "criterion", KNOWN, seed=0)}
    assert {key: row.pairs for key, row in rows.items()} == expected
    counted = criterion_counts(groups, KNOWN)
    assert {key: by_class(counts) for key, counts in counted.items()} == expected
    for row in rows.values():
        assert row.signal_rate == signal_rate(row.pairs)
        assert (row.interval is None) or row.interval[0] <= row.interval[1]
        assert sum(row.collapse.values()) == row.groups == len(drawn)


def test_a_criterion_collapses_at_floor_and_ceiling_alone() -> None:
    assert criterion_score(np.array([1, 0, X]), -3).tolist()[:2] == [0, 1]
    quality = [0.1, 0.2, 0.3]
    never: list[bool | None] = [False] * 3
    groups = [make_group(0, {GOOD.id: never, BAD.id: never}, quality)]
    rows = {row.key: row for row in breakdown(groups, "criterion", KNOWN, seed=0)}
    assert rows[GOOD.id].collapse["collapsed-low"] == 1 and rows[GOOD.id].pairs["blind_low"] == 3
    assert rows[BAD.id].collapse["collapsed-high"] == 1 and rows[BAD.id].pairs["blind_high"] == 3
    assert rows[GOOD.id].share("blind_low", "blind_high") == 1.0


# --- the rows -------------------------------------------------------------------------------------


def some_groups(seed: int = 0, oracle: bool = True) -> list[Group]:
    """Two domains of two tasks over eight steps. GOOD follows quality, BAD has nothing to do with it."""
    rng = np.random.default_rng(seed)
    groups = []
    for step in range(8):
        for n, task_id in enumerate(("a1", "a2", "b1", "b2")):
            quality = rng.random(6)
            met = {
                GOOD.id: [bool(v) for v in quality + rng.normal(0, 0.2, 6) > 0.5],
                BAD.id: [bool(v) for v in rng.random(6) > 0.5],
            }
            rewards = ((quality if n < 2 else 1 - quality) + rng.normal(0, 0.1, 6)).tolist()
            known = quality.tolist() if oracle else [None] * 6
            groups.append(make_group(step, met, known, rewards, task_id, task_id[0]))
    return groups


def keys(rows: list[Row]) -> list[str]:
    return [row.key for row in rows]


def test_rows_by_criterion_task_domain_and_step() -> None:
    groups = some_groups()
    rows = {by: breakdown(groups, by, KNOWN, seed=3) for by in BYS}
    assert keys(rows["criterion"]) == [BAD.id, GOOD.id]  # the worst first
    assert keys(rows["domain"]) == ["b", "a"]
    assert set(keys(rows["task"])[:2]) == {"b1", "b2"}
    assert keys(rows["step"]) == [str(step) for step in range(8)]
    for by in ("task", "domain", "step"):
        assert sum(row.groups for row in rows[by]) == len(groups)
        pooled = by_class(sum(class_counts(as_floats(g.rewards), as_floats(g.quality)) for g in groups))
        assert {c: sum(row.pairs[c] for row in rows[by]) for c in CLASSES} == pooled
    for row in itertools.chain(*rows.values()):
        assert row.interval and row.signal_rate is not None
        assert row.interval[0] <= row.signal_rate <= row.interval[1]
        assert row.judged == row.groups
    assert rows["domain"][0].task_ids == ("b1", "b2")


def test_a_row_has_the_interval_of_its_groups_whatever_else_is_looked_at() -> None:
    groups = some_groups()
    of_a = [g for g in groups if g.domain == "a"]
    everything, alone = breakdown(groups, "domain", KNOWN, 3), breakdown(of_a, "domain", KNOWN, 3)
    assert everything[-1] == alone[0] == breakdown(of_a, "domain", KNOWN, 3)[0]
    assert breakdown(of_a, "domain", KNOWN, 4)[0].interval != alone[0].interval
    arrays = [(as_floats(g.rewards), as_floats(g.quality)) for g in of_a]
    assert alone[0].interval == signal_interval(arrays, stream(3, "breakdown", "domain", "a"))


def test_without_an_oracle_only_collapse_is_told() -> None:
    for row in breakdown(some_groups(oracle=False), "criterion", KNOWN, seed=0):
        assert (row.signal_rate, row.interval, row.known, row.judged) == (None, None, 0, 0)
        assert row.share("informative") is None
        assert sum(row.collapse.values()) == row.groups == 32 and row.collapse["spread"] > 20


def test_a_criterion_nobody_knows_is_left_out_and_no_groups_give_no_rows() -> None:
    assert keys(breakdown(some_groups(), "criterion", {GOOD.id: GOOD}, seed=0)) == [GOOD.id]
    assert all(breakdown([], by, KNOWN, seed=0) == [] for by in BYS)


def test_a_row_without_any_signal_pair_comes_last() -> None:
    tie = [0.5] * 4
    groups = [
        make_group(0, {}, [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], "worse"),
        make_group(0, {}, tie, tie, "neutral"),
        make_group(0, {}, [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4], "fine"),
    ]
    rows = breakdown(groups, "task", KNOWN, seed=0)
    assert [(row.key, row.signal_rate) for row in rows] == [("worse", 0), ("fine", 1), ("neutral", None)]


# --- how long it takes ----------------------------------------------------------------------------


def test_a_hundred_thousand_pairs_take_milliseconds() -> None:
    """The bar of benchmarks/diagnosis.py is 50 ms; five times that holds on a busy machine too."""
    made = runpy.run_path(str(BENCHMARK))["arrays"](3_572, 8)
    took = []
    for _ in range(5):
        started = time.perf_counter()
        counts = by_class(class_counts(*made))
        rate = signal_rate(counts)
        took.append(time.perf_counter() - started)
    assert sum(counts.values()) == 100_016
    expected = [reference(s.tolist(), q.tolist()) for s, q in zip(*(a[:200] for a in made), strict=True)]
    assert [by_class(c) for c in class_counts(*(a[:200] for a in made))] == expected
    assert rate == counts["informative"] / sum(counts[name] for name in SIGNAL_CLASSES)
    assert min(took) < 5 * 0.050


def test_the_benchmark_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert runpy.run_path(str(BENCHMARK))["main"](["--runs", "1", "--loose"]) == 0
    told = capsys.readouterr().out
    assert "100,016 pairs" in told and "table by criterion with intervals, 72 rows" in told
