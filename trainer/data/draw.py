"""Draws a domain's tasks evenly over difficulty and length, and splits them; ids and a seed decide."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import regex

from ...specs.mix import Balance
from ...specs.tasks import Task

T = TypeVar("T", bound=Task)
Stratum = tuple[int, int]

_WORD = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}]|[^\s\p{Han}\p{Hiragana}\p{Katakana}]+")


def words_in(text: str) -> int:
    """Words of a text; a Chinese or Japanese character counts as one."""
    return len(_WORD.findall(text))


def shuffled(tasks: Sequence[T], seed: int) -> list[T]:
    """The tasks in an order that depends on nothing but their ids and the seed."""
    return sorted(tasks, key=lambda t: hashlib.sha256(f"{seed}|{t.id}".encode()).digest())


def draw(
    candidates: Mapping[str, Sequence[T]],
    shares: Mapping[str, float],
    n: int,
    balance: Balance,
    seed: int,
) -> list[T]:
    """`n` tasks (or all, where there are fewer) from several sources in their shares.

    Within a source the strata give in turn, so that rare lengths and rubric sizes are not drowned.
    """
    strata = strata_of([task for tasks in candidates.values() for task in tasks], balance)
    quotas = share_out({name: len(tasks) for name, tasks in candidates.items()}, shares, n)
    drawn: list[T] = []
    for name, tasks in candidates.items():
        drawn += _in_turn(shuffled(tasks, seed), strata)[: quotas[name]]
    return drawn


def share_out(available: Mapping[str, int], shares: Mapping[str, float], n: int) -> dict[str, int]:
    """How many of `n` each source gives: by its share, as far as it goes; others make up for it."""
    given = dict.fromkeys(available, 0)
    while (left := n - sum(given.values())) > 0:
        open_ = [name for name in available if given[name] < available[name]]
        if not open_:
            break
        total = sum(shares[name] for name in open_)
        portions = {name: left * shares[name] / total for name in open_}
        whole = {name: min(int(p), available[name] - given[name]) for name, p in portions.items()}
        if not any(whole.values()):  # fewer are left than there are sources: the largest fractions
            for name in sorted(open_, key=lambda s: -portions[s])[:left]:
                whole[name] = 1
        for name, count in whole.items():
            given[name] += count
    return given


def split(
    tasks: Sequence[T], train: int, held_out: int, balance: Balance, seed: int
) -> tuple[list[T], list[T]]:
    """Training and held-out tasks, both like the whole: every so many-th of the sorted tasks is held out.

    Where there are fewer than `train + held_out`, both parts shrink alike.
    """
    n = len(tasks)
    n_held = held_out if n >= train + held_out else round(n * held_out / (train + held_out))
    strata = strata_of(tasks, balance)
    ordered = sorted(shuffled(tasks, seed), key=lambda t: (t.source, strata[t.id]))
    at = {int((i + 0.5) * n / n_held) for i in range(n_held)}
    return (
        [task for i, task in enumerate(ordered) if i not in at],
        [task for i, task in enumerate(ordered) if i in at],
    )


def _in_turn(tasks: Sequence[T], strata: Mapping[str, Stratum]) -> list[T]:
    """One task of every stratum, then a second one of each, and so on."""
    rank: dict[Stratum, int] = defaultdict(int)
    turns = []
    for task in tasks:
        stratum = strata[task.id]
        turns.append((rank[stratum], task))
        rank[stratum] += 1
    return [task for _, task in sorted(turns, key=lambda turn: turn[0])]  # a stable sort


def strata_of(tasks: Sequence[Task], balance: Balance) -> dict[str, Stratum]:
    """Each task's part of the tasks by number of criteria and by length of the prompt, by task id."""
    difficulty = _bins([len(task.rubric) for task in tasks], balance.criteria_bins)
    length = _bins([words_in(task.prompt) for task in tasks], balance.length_bins)
    return {task.id: (d, w) for task, d, w in zip(tasks, difficulty, length, strict=True)}


def _bins(values: Sequence[int], n: int) -> list[int]:
    if not values:
        return []
    edges = np.quantile(values, np.linspace(0, 1, n + 1)[1:-1])
    return [int(i) for i in np.searchsorted(edges, values, side="left")]
