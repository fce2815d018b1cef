"""p_t and the draws from it: keyed streams, expected counts, fixed domain shares, the paused floor."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from harnessrl.specs.harness import HarnessState, apply
from harnessrl.specs.sampling import draw_another, draw_tasks, effective_tasks, probabilities, stream
from harnessrl.specs.updates import Boost, Pause, Resume, Update
from hypothesis import given
from hypothesis import strategies as st
from scripted import harness_of, make_task

DOMAINS = {"a": "one", "b": "one", "c": "one", "d": "two", "e": "two", "f": "three"}
SIX = harness_of(*(make_task(name, domain) for name, domain in DOMAINS.items()))


def boost(task: str, factor: float) -> Boost:
    return Boost(task_ids=(task,), rationale="", factor=factor)


def pause(*tasks: str) -> Pause:
    return Pause(task_ids=tasks, rationale="")


def shares(p: dict[str, float]) -> dict[str, float]:
    out: dict[str, float] = {}
    for task, value in p.items():
        out[DOMAINS[task]] = out.get(DOMAINS[task], 0.0) + value
    return out


# --- streams -------------------------------------------------------------------------------------


def test_a_stream_is_its_name() -> None:
    first = stream(3, "tasks", 5, "x").random(4).tolist()
    stream(3, "critic", 5, "x").random(1000)  # whatever else is drawn in between
    assert stream(3, "tasks", 5, "x").random(4).tolist() == first


def test_a_stream_is_the_same_on_every_machine() -> None:
    """Philox keyed by the name's SHA-256: drawn once, and the same wherever this test runs."""
    assert stream(3, "tasks", 5).integers(10**6, size=4).tolist() == [60724, 693005, 767284, 553694]
    assert stream(0).integers(10**6, size=4).tolist() == [834548, 944087, 174408, 709132]


def test_streams_with_different_keys_are_different_and_uncorrelated() -> None:
    keys: list[tuple[int | str, ...]] = [
        ("tasks", 1),
        ("tasks", 2),
        ("tasks", 12),
        ("tasks", 1, 2),
        ("tasks", "1x"),
        ("critic", 1),
        ("critic", 1, "plain"),
        (),
    ]
    names = [(0, k) for k in keys] + [(1, k) for k in keys] + [(10, ("tasks", 1))]
    draws = np.array([stream(seed, *key).standard_normal(2000) for seed, key in names])
    correlation = np.corrcoef(draws)
    np.fill_diagonal(correlation, 0.0)
    assert np.abs(correlation).max() < 0.1
    assert len({row[0] for row in draws.tolist()}) == len(names)


def test_neighbouring_steps_give_uniform_first_draws() -> None:
    first = np.array([stream(0, "tasks", step).random() for step in range(3000)])
    assert np.histogram(first, 10, (0, 1))[0].min() > 240  # 300 expected, sd 16
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 0.06


# --- probabilities -------------------------------------------------------------------------------


def test_unchanged_every_task_is_as_likely() -> None:
    assert probabilities(SIX, {}, 0.1) == pytest.approx(dict.fromkeys(DOMAINS, 1 / 6))


def test_domain_shares_are_kept_and_split_inside() -> None:
    p = probabilities(SIX, {"one": 2.0, "two": 1.0, "three": 1.0}, 0.1)
    assert shares(p) == pytest.approx({"one": 0.5, "two": 0.25, "three": 0.25})
    assert p["a"] == pytest.approx(0.5 / 3) and p["d"] == pytest.approx(0.125)


def test_boosts_and_pauses_move_mass_inside_their_domain_only() -> None:
    state = apply(SIX, [boost("a", 4.0), pause("d"), pause("f")])
    p = probabilities(state, {}, 0.1)
    assert shares(p) == pytest.approx({"one": 3 / 6, "two": 2 / 6, "three": 1 / 6})
    assert p["a"] == pytest.approx(3 / 6 * 4 / 6) and p["b"] == pytest.approx(3 / 6 / 6)
    assert p["d"] == pytest.approx(2 / 6 * 0.1 / 1.1) and p["e"] == pytest.approx(2 / 6 / 1.1)
    assert p["f"] == pytest.approx(1 / 6)  # alone in its domain: its share is its own


changes = st.lists(
    st.one_of(
        st.builds(boost, st.sampled_from("abcdef"), st.floats(1.1, 10.0)),
        st.builds(pause, st.sampled_from("abcdef")),
        st.builds(lambda t: Resume(task_ids=(t,), rationale=""), st.sampled_from("abcdef")),
    ),
    max_size=12,
)


@given(changes, st.booleans(), st.floats(0.01, 0.9))
def test_no_update_moves_mass_between_domains_or_loses_a_task(
    updates: list[Update], given_shares: bool, floor: float
) -> None:
    state: HarnessState = SIX
    for update in updates:
        try:
            state = apply(state, [update])
        except ValueError:
            continue
    wanted = {"one": 0.2, "two": 0.3, "three": 0.5} if given_shares else {}
    p = probabilities(state, wanted, floor)
    assert sum(p.values()) == pytest.approx(1.0)
    expected = wanted or {"one": 1 / 2, "two": 1 / 3, "three": 1 / 6}
    assert shares(p) == pytest.approx(expected)
    assert min(p.values()) > 0
    for one, other in itertools.combinations("abc", 2):
        ratio = state.weight(one, floor) / state.weight(other, floor)
        assert p[one] / p[other] == pytest.approx(ratio)


@pytest.mark.parametrize("given_shares", [{"one": 1.0, "two": 1.0}, {"elsewhere": 1.0}])
def test_a_domain_without_a_share_is_told_never_starved_in_silence(
    given_shares: dict[str, float],
) -> None:
    """Shares that leave a domain of the tasks out (or name none of them) are bad input."""
    try:
        p = probabilities(SIX, given_shares, 0.1)
    except ValueError as error:
        assert "three" in str(error)
    else:
        assert min(p.values()) > 0


# --- draws ---------------------------------------------------------------------------------------


def test_expected_counts_are_n_p() -> None:
    """... in every step of a round, not only over whole rounds (of two steps here)."""
    p = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.07, "e": 0.03}
    n_rounds, n = 4000, 4
    for offset in (0, 1):
        counts: Counter[str] = Counter()
        for k in range(n_rounds):
            counts.update(draw_tasks(p, n, 0, 2 * k + offset))
        for task, chance in p.items():
            mean = counts[task] / n_rounds
            assert mean == pytest.approx(n * chance, abs=0.045)  # about 4 standard errors


weights = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=12)


@given(weights, st.integers(1, 20), st.integers(0, 10**6), st.integers(0, 50))
def test_counts_of_a_round_stay_within_one_of_their_expectation(
    values: list[float], n: int, seed: int, which: int
) -> None:
    """A round is the least number of steps that draw as often as there are tasks."""
    total = sum(values)
    p = {f"t{i}": value / total for i, value in enumerate(values)}
    steps = math.ceil(len(p) / n)
    batches = [draw_tasks(p, n, seed, which * steps + k) for k in range(steps)]
    assert all(len(batch) == n for batch in batches)
    drawn = Counter(itertools.chain(*batches))
    for task, chance in p.items():
        assert abs(drawn[task] - n * steps * chance) < 1 + 1e-9


def test_uniform_rounds_visit_every_task_once() -> None:
    p = dict.fromkeys("abcdefghijkl", 1 / 12)
    for k in range(100):
        batches = [draw_tasks(p, 4, 1, 3 * k + i) for i in range(3)]
        assert sorted(itertools.chain(*batches)) == sorted(p)
    assert sorted(draw_tasks(p, 12, 1, 0)) == sorted(p)


def test_rounds_are_drawn_anew() -> None:
    """Who meets whom in a batch, and in which step of its round a task comes, is left to chance."""
    p = dict.fromkeys("abcdef", 1 / 6)
    batches = [draw_tasks(p, 2, 2, step) for step in range(1500)]
    met = Counter(frozenset(batch) for batch in batches)
    assert len(met) == 15 and min(met.values()) > 60  # 100 expected each
    turns = Counter(step % 3 for step, batch in enumerate(batches) if "a" in batch)
    assert min(turns.values()) > 120  # 500 rounds, 167 expected each


def test_a_draw_depends_on_seed_step_and_p_only() -> None:
    p = {"a": 0.5, "b": 0.3, "c": 0.2}
    turned = {task: p[task] for task in "cab"}
    every = [draw_tasks(p, 2, 5, step) for step in range(40)]
    assert every == [draw_tasks(turned, 2, 5, step) for step in range(40)]
    assert every[::-1] == [draw_tasks(p, 2, 5, step) for step in range(39, -1, -1)]  # resumable
    assert every != [draw_tasks(p, 2, 6, step) for step in range(40)]


def test_a_change_of_p_acts_in_the_next_step() -> None:
    """... also in the middle of a round: expected counts follow the new p at once."""
    before = dict.fromkeys("abcdef", 1 / 6)
    after = {"a": 0.5} | dict.fromkeys("bcdef", 0.1)
    counts = Counter(
        task for k in range(2000) for task in draw_tasks(after if k % 2 else before, 2, 0, 3 * k + 1)
    )
    assert counts["a"] / 2000 == pytest.approx((1 / 6 + 1 / 2) * 2 / 2, abs=0.05)


def test_a_task_without_any_chance_is_never_drawn() -> None:
    p = {"a": 0.0, "b": 0.5, "c": 0.0, "d": 0.5, "e": 0.0}
    for step in range(300):
        assert set(draw_tasks(p, 3, 0, step)) <= {"b", "d"}


def test_a_paused_task_is_probed_again_and_again() -> None:
    """The floor: 4 slots a step at p = 3/6 * 0.1/2.1 are one probe in about 10.5 steps."""
    p = probabilities(apply(SIX, [pause("a")]), {}, 0.1)
    seen = [step for step in range(2000) if "a" in draw_tasks(p, 4, 0, step)]
    assert len(seen) == pytest.approx(2000 * 4 * 0.5 * 0.1 / 2.1, rel=0.25)
    assert max(np.diff([0, *seen])) < 120


# --- effective tasks -----------------------------------------------------------------------------


def test_effective_tasks_by_hand() -> None:
    assert effective_tasks([0.25] * 4) == pytest.approx(4.0)
    assert effective_tasks([1.0, 0.0, 0.0]) == pytest.approx(1.0)
    assert effective_tasks([0.5, 0.25, 0.25]) == pytest.approx(1 / 0.375)
    assert effective_tasks([2.0, 1.0, 1.0]) == pytest.approx(1 / 0.375)  # normalised


@given(weights)
def test_effective_tasks_lie_between_one_and_all(values: list[float]) -> None:
    found = effective_tasks(values)
    assert 1 - 1e-9 <= found <= len(values) + 1e-9


# --- redraws --------------------------------------------------------------------------------------


def test_another_task_is_unseen_then_untied_then_any() -> None:
    p = {"a": 0.5, "b": 0.3, "c": 0.2}

    def drawn(seen: str, tied: str) -> set[str]:
        return {draw_another(p, seen, tied, stream(0, "x", i)) for i in range(200)}

    assert drawn("a", "a") == {"b", "c"}
    assert drawn("abc", "ab") == {"c"}
    assert drawn("abc", "abc") == {"a", "b", "c"}


def test_another_task_follows_p() -> None:
    p = {"a": 0.5, "b": 0.3, "c": 0.2}
    found = Counter(draw_another(p, "a", "a", stream(0, "x", i)) for i in range(4000))
    assert found["b"] / 4000 == pytest.approx(0.6, abs=0.03)
