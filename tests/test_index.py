"""The offline embedding and the Chroma index: deterministic, filtered, rebuildable, no network."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harnessrl.memory import embed as embed_module
from harnessrl.memory import index as index_module
from harnessrl.memory.embed import DIMENSION, embed
from harnessrl.memory.index import Hit, MemoryIndex, find, signature
from harnessrl.memory.records import AnyRecord, Decision, Diagnosis, StepSummary
from harnessrl.specs.updates import Add, Mount, Pause
from scripted import make_decision, make_diagnosis, make_task, says


@pytest.fixture
def index(tmp_path: Path) -> Iterator[MemoryIndex]:
    opened = MemoryIndex(tmp_path / "chroma")
    yield opened
    opened.close()


SENTENCES = {
    "medicine": "all rollouts score at the ceiling although their quality differs",
    "poems": "higher scores go to worse responses",
    "lakes": "a duck swam over the quiet lake at dawn",
}


def diagnosis(task: str, sentence: str, step: int = 1) -> Diagnosis:
    found = make_diagnosis(make_task(task), "blind_high", ["c"], step=step)
    return found.model_copy(update={"sentence": sentence})


def decision(task: str, word: str, rationale: str, step: int = 1) -> Decision:
    update = Add(task_ids=(task,), rationale=rationale, criterion=says(word))
    return make_decision(update, step=step)


RECORDS: list[AnyRecord] = [
    *(diagnosis(task, sentence) for task, sentence in SENTENCES.items()),
    *(decision(task, "beta", sentence) for task, sentence in SENTENCES.items()),
]


# --- the embedding -------------------------------------------------------------------------------


def test_vectors_are_unit_and_repeat_exactly() -> None:
    texts = ["one criterion is blind", "", "漢字 \U0001f408", "word " * 500]
    vectors = embed(texts)
    assert vectors.shape == (4, DIMENSION) and vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(4), abs=1e-5)
    assert np.isfinite(vectors).all()
    assert (embed(texts) == vectors).all()
    assert embed([]).shape == (0, DIMENSION)


def test_a_vector_does_not_depend_on_its_batch() -> None:
    texts = ["short", "a much longer text about rubrics and rewards", "short and sweet"]
    together = embed(texts)
    alone = np.concatenate([embed([text]) for text in texts])
    backwards = embed(texts[::-1])[::-1]
    assert (together == alone).all() and (together == backwards).all()


def test_vectors_mean_something() -> None:
    query, near, far = embed(
        [
            "every response gets the highest score",
            "all rollouts score at the ceiling",
            "a duck swam over the quiet lake",
        ]
    )
    assert query @ near > query @ far + 0.2


# --- the index -----------------------------------------------------------------------------------


def test_the_nearest_come_first_with_their_cosine(index: MemoryIndex) -> None:
    index.add(RECORDS)
    query = "scores at the ceiling, but of different quality"
    hits = index.search(query, 6)
    vectors = embed([signature(r) for r in RECORDS])  # type: ignore[arg-type]
    cosines = dict(zip([r.id for r in RECORDS], (vectors @ embed([query])[0]).tolist(), strict=True))
    assert [h.record_id for h in hits] == sorted(cosines, key=lambda i: -cosines[i])
    for hit in hits:
        assert hit.similarity == pytest.approx(cosines[hit.record_id], abs=1e-5)
    assert hits[0].task_id == "medicine" and SENTENCES["medicine"] in hits[0].signature
    assert index.search(query, 2) == hits[:2]


def test_search_repeats(index: MemoryIndex) -> None:
    index.add(RECORDS)
    first = index.search("worse responses", 4)
    assert all(index.search("worse responses", 4) == first for _ in range(3))


def test_filters(index: MemoryIndex) -> None:
    index.add(RECORDS)

    def found(**filters: str) -> set[tuple[str, str]]:
        hits = index.search("scores", 10, **filters)
        return {(h.record_id[0], h.task_id) for h in hits}

    every = {(kind, task) for kind in "du" for task in SENTENCES}
    assert found() == every
    assert found(type="decision") == {pair for pair in every if pair[0] == "u"}
    assert found(not_task="poems") == {pair for pair in every if pair[1] != "poems"}
    assert found(type="diagnosis", not_task="lakes") == {("d", "medicine"), ("d", "poems")}
    assert found(type="accepted") == set()


def test_an_empty_index_finds_nothing(index: MemoryIndex) -> None:
    assert index.search("anything", 5) == []
    summary = StepSummary(id="s", step=0, harness_version=0, metrics={})
    index.add([summary])  # passed over: no signature
    assert index.search("anything", 5) == [] and index.rebuild([summary]) == 0


def test_equal_records_are_ordered_by_id(index: MemoryIndex) -> None:
    same = [diagnosis(f"t{i}", SENTENCES["poems"]) for i in range(6)]
    random.Random(1).shuffle(same)
    index.add(same)
    hits = index.search("higher scores", 4)
    assert [h.record_id for h in hits] == [f"d-000001-t{i}" for i in range(4)]


def test_more_equal_records_than_candidates_are_ordered_by_id_too(tmp_path: Path) -> None:
    """A long run repeats itself: 40 equal signatures, two wanted, in any order of insertion."""
    same = [diagnosis(f"t{i:02d}", SENTENCES["poems"]) for i in range(40)]
    random.Random(1).shuffle(same)
    index = MemoryIndex(tmp_path / "chroma")
    index.add(same)
    hits = index.search("higher scores", 2)
    index.close()
    assert [h.record_id for h in hits] == ["d-000001-t00", "d-000001-t01"]


def test_adding_again_changes_nothing(index: MemoryIndex) -> None:
    index.add(RECORDS)
    before = index.search("scores", 10)
    index.add(RECORDS[:3])
    assert index.search("scores", 10) == before


def test_a_rebuilt_index_answers_like_the_grown_one(tmp_path: Path) -> None:
    words = "score rubric ceiling floor quality worse better answer length topic medical poem".split()
    rng = random.Random(4)
    records: list[AnyRecord] = [
        diagnosis(f"t{i:02d}", " ".join(rng.choices(words, k=6))) for i in range(50)
    ]
    grown, rebuilt = MemoryIndex(tmp_path / "grown"), MemoryIndex(tmp_path / "rebuilt")
    for record in records:
        grown.add([record])
    rebuilt.add([diagnosis("void", "of an attempt that was cut short")])
    assert rebuilt.rebuild(records) == 50
    for query in ("poem quality", "the score is worse", "length of a medical answer"):
        hits = grown.search(query, 8)
        assert rebuilt.search(query, 8) == hits
        # ... and both like an exact search over everything.
        vectors = embed([signature(r) for r in records])  # type: ignore[arg-type]
        cosine = np.round(vectors @ embed([query])[0], 6)
        exact = sorted(range(50), key=lambda i: (-cosine[i], records[i].id))[:8]
        assert [h.record_id for h in hits] == [records[i].id for i in exact]
    grown.close()
    rebuilt.close()


def test_an_index_is_there_after_reopening(tmp_path: Path) -> None:
    first = MemoryIndex(tmp_path / "chroma")
    first.add(RECORDS)
    hits = first.search("scores", 10)
    first.close()
    again = MemoryIndex(tmp_path / "chroma")
    assert again.search("scores", 10) == hits
    again.close()


def test_a_long_log_is_indexed_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chroma takes a limited number of records at once; a long run has more of them."""
    index = MemoryIndex(tmp_path / "chroma")
    most = index._client.get_max_batch_size()
    upsert = index._collection.upsert
    sizes: list[int] = []

    def limited(**columns: Any) -> None:
        sizes.append(len(columns["ids"]))
        assert sizes[-1] <= most, f"{sizes[-1]} records at once, {most} are allowed"
        if sum(sizes) <= 200:  # enough to see that what goes in is taken
            upsert(**columns)

    vector = np.eye(1, DIMENSION, dtype=np.float32)
    monkeypatch.setattr(index_module, "embed", lambda texts: np.repeat(vector, len(texts), axis=0))
    monkeypatch.setattr(index._collection, "upsert", limited)
    index.add([diagnosis("t", "x", step) for step in range(most + 1)])
    index.close()
    assert sum(sizes) == most + 1


def test_signatures_name_the_failure_and_what_was_tried() -> None:
    found = signature(diagnosis("t", SENTENCES["poems"]))
    assert found == "blind_high in d: higher scores go to worse responses"
    tried = signature(decision("t", "beta", "why"))
    assert tried.startswith("tried c add 'The response says beta.'") and tried.endswith("because why")
    pause = make_decision(Pause(task_ids=("t",), rationale="why"))
    assert signature(pause) == "tried p pause (t) because why"
    mount = make_decision(Mount(task_ids=("t",), rationale="why", lines=("a",), share=0.5))
    assert "g mount" in signature(mount)


def test_find_keeps_the_order_asked_for() -> None:
    ids = [r.id for r in RECORDS]
    assert find(RECORDS, [ids[4], "unknown", ids[0]]) == [RECORDS[4], RECORDS[0]]
    assert find(RECORDS, []) == []


def test_nothing_asks_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def refuse(*args: object, **_: object) -> None:
        asked.append(args)
        raise OSError("no network in this test")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    embed_module._model.cache_clear()
    index = MemoryIndex(tmp_path / "chroma")
    index.add(RECORDS)
    assert isinstance(index.search("scores", 3)[0], Hit)
    index.close()
    assert asked == []
