"""Sampling what is not known yet, and measuring each task as soon as it is there.

Sampling goes on in a thread of its own while responses are measured, so that neither endpoint waits for
the other. Everything that was sampled or judged is on disk at once; a killed evaluation goes on there.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ...specs.tasks import Task
from .measures import Group, Judged, Measure, Measured, Score
from .policies import Ask, Evaluated, Reply
from .store import ResponseStore

Mode = Literal["greedy", "sampled"]
#: Tasks measured at once: enough to keep a judge busy, few enough to show progress.
CHUNK = 64


@dataclass(frozen=True)
class Settings:
    """How responses are sampled."""

    samples: int  # a task, besides the greedy one
    temperature: float
    max_tokens: int
    seed: int

    def asks(self, task: Task) -> list[Ask]:
        """The greedy response first, then the sampled ones."""
        keys = [("evaluate", task.id, n) for n in range(1 + self.samples)]
        return [
            Ask(task.prompt, self.temperature if n else 0.0, self.max_tokens, self.seed, key)
            for n, key in enumerate(keys)
        ]


@dataclass(frozen=True)
class Response:
    """One response to a task, measured; or why there is none."""

    mode: Mode
    reply: Reply | str
    scores: dict[str, Score] = field(default_factory=dict)
    verdicts: tuple[Judged, ...] = ()
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """A task with all its responses, the greedy one first."""

    set_name: str
    task: Task
    responses: tuple[Response, ...]


Progress = Callable[[int, int], None]
#: Replies by the number of what was asked, as they come; or why no more will.
Arriving = queue.SimpleQueue[tuple[int, Reply | str] | BaseException]


def answer_all(
    policy: Evaluated,
    tasks: Sequence[tuple[str, Task]],
    measures: Sequence[Measure],
    settings: Settings,
    store: ResponseStore,
    progress: Progress = lambda sampled, measured: None,
) -> list[Answered]:
    """Every (set, task) with its responses measured, in order. `progress` hears of responses sampled and
    tasks measured. What a policy raises comes out of here."""
    asks = [ask for _, task in tasks for ask in settings.asks(task)]
    each = 1 + settings.samples
    arriving: Arriving = queue.SimpleQueue()
    left = []
    for n, ask in enumerate(asks):
        if known := store.get(policy.identity, ask):
            arriving.put((n, known))
        else:
            left.append(n)
    sampler = threading.Thread(target=_sample, args=(policy, asks, left, store, arriving), daemon=True)
    sampler.start()
    try:
        return _measure_all(tasks, each, arriving, measures, progress)
    finally:
        policy.stop()
        sampler.join()  # a thread that is inside torch when the process ends would abort it


def _measure_all(
    tasks: Sequence[tuple[str, Task]],
    each: int,
    arriving: Arriving,
    measures: Sequence[Measure],
    progress: Progress,
) -> list[Answered]:
    """Tasks measured as soon as all their replies (`each`) have arrived."""
    replies: dict[int, Reply | str] = {}
    found: dict[int, Answered] = {}
    missing = [each] * len(tasks)
    ready: list[int] = []
    while len(found) < len(tasks):
        wait = not ready
        while wait or (not arriving.empty() and len(ready) < CHUNK):
            item = arriving.get()
            if isinstance(item, BaseException):
                raise item
            n, replies[n] = item
            missing[n // each] -= 1
            if not missing[n // each]:
                ready.append(n // each)
                wait = False
            progress(len(replies), len(found))
        groups = [tasks[t] for t in ready]
        texts = [[replies[t * each + i] for i in range(each)] for t in ready]
        for t, answered in zip(ready, measured(groups, texts, measures), strict=True):
            found[t] = answered
        ready = []
        progress(len(replies), len(found))
    return [found[t] for t in range(len(tasks))]


def _sample(
    policy: Evaluated,
    asks: Sequence[Ask],
    left: Sequence[int],
    store: ResponseStore,
    arriving: Arriving,
) -> None:
    try:
        for k, reply in policy.replies([asks[n] for n in left]):
            if isinstance(reply, Reply):  # what went wrong is tried again by the next evaluation
                store.put(policy.identity, asks[left[k]], reply)
            arriving.put((left[k], reply))
    except BaseException as error:
        arriving.put(error)


def measured(
    tasks: Sequence[tuple[str, Task]],
    replies: Sequence[Sequence[Reply | str]],
    measures: Sequence[Measure],
) -> list[Answered]:
    """Tasks with their replies, by every measure that fits."""
    texts = [tuple(r.text for r in some if isinstance(r, Reply)) for some in replies]
    said: list[list[list[Measured]]] = [[[] for _ in some] for some in texts]
    for measure in measures:
        fitting = [t for t, (_, task) in enumerate(tasks) if texts[t] and measure.fits(task)]
        if not fitting:
            continue
        groups = [Group(tasks[t][1], texts[t]) for t in fitting]
        for t, rows in zip(fitting, measure.measure(groups), strict=True):
            for i, one in enumerate(rows):
                said[t][i].append(one)
    out = []
    for t, (set_name, task) in enumerate(tasks):
        left = iter(said[t])
        responses = tuple(
            _response("sampled" if n else "greedy", reply, next(left) if isinstance(reply, Reply) else [])
            for n, reply in enumerate(replies[t])
        )
        out.append(Answered(set_name, task, responses))
    return out


def _response(mode: Mode, reply: Reply | str, said: Sequence[Measured]) -> Response:
    scores = {name: score for one in said for name, score in one.scores.items()}
    verdicts = tuple(verdict for one in said for verdict in one.verdicts)
    detail = {name: value for one in said for name, value in one.detail.items()}
    return Response(mode, reply, scores, verdicts, detail)
