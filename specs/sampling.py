"""p_t: which tasks enter a step, and the keyed random streams everything draws from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from .harness import HarnessState, check_shares


def stream(seed: int, *key: int | str) -> np.random.Generator:
    """A random stream named by the seed and a key that starts with its purpose, e.g. ("tasks", 3).

    The same name gives the same stream on every machine and in every order of use, so critic and
    probe draws cannot move training's, and a resumed run draws what the uninterrupted one drew.
    """
    name = "\x1f".join(str(part) for part in (seed, *key))
    digest = hashlib.sha256(name.encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def probabilities(
    state: HarnessState, domain_shares: Mapping[str, float], paused_weight: float
) -> dict[str, float]:
    """p_t(x) for every training task, summing to 1.

    Inside a domain p(x) is proportional to the task's weight; the domain's share is fixed (default:
    proportional to its number of tasks), so no update on p can move mass between domains.
    Raises `ValueError` for shares that do not name just the tasks' domains.
    """
    domains: dict[str, list[str]] = {}
    for task_id, task in state.tasks.items():
        domains.setdefault(task.domain, []).append(task_id)
    if problem := check_shares(domain_shares, domains):
        raise ValueError(problem)
    shares = domain_shares or {name: float(len(ids)) for name, ids in domains.items()}
    total = sum(shares.values())
    out: dict[str, float] = {}
    for name, ids in domains.items():
        weights = {i: state.weight(i, paused_weight) for i in ids}
        mass = sum(weights.values())
        for task_id in ids:
            out[task_id] = shares[name] / total * weights[task_id] / mass
    return out


def draw_tasks(p: Mapping[str, float], n: int, seed: int, step: int) -> list[str]:
    """The `n` tasks of a step: E[count of x] = n p(x), with little variance from step to step.

    Systematic sampling (one uniform offset, equal spacing) over a random order of the tasks, spread
    over a round of so many steps that a round draws about as often as there are tasks: uniform p
    visits every task once a round, and any p comes within 1 of its expected count. Order, offset and
    who is drawn in which step are redrawn each round; a change of p acts from the next step on. A
    task repeats inside a step only where n p(x) > 1.
    """
    steps = -(-len(p) // n)
    rng = stream(seed, "tasks", step // steps)
    ids = sorted(p)
    order = [ids[i] for i in rng.permutation(len(ids))]
    edges = np.cumsum([p[i] for i in order])
    # The round's points are (u + 0, 1, 2, ...) / (n steps); a step takes every `steps`-th of them.
    offset = rng.random() + rng.permutation(steps)[step % steps]
    points = (offset + steps * np.arange(n)) / (n * steps) * edges[-1]
    picks = np.minimum(np.searchsorted(edges, points, side="right"), len(order) - 1)
    return [order[i] for i in picks]


def draw_another(
    p: Mapping[str, float], seen: Collection[str], tied: Collection[str], rng: np.random.Generator
) -> str:
    """A task ~ p, but none of `seen` as long as there are others; after that none of `tied`."""
    for barred in (seen, tied, ()):
        if left := sorted(p.keys() - set(barred)):
            break
    p_X = np.array([p[task_id] for task_id in left])
    return left[rng.choice(len(left), p=p_X / p_X.sum())]


def effective_tasks(p: Sequence[float]) -> float:
    """Effective number of tasks, 1 / sum p^2: how many equally likely tasks p is worth."""
    p_X = np.asarray(p, dtype=float)
    return float(1.0 / np.square(p_X / p_X.sum()).sum())
