"""A Chroma index over signatures of the log's diagnoses and decisions. It can be rebuilt any time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..specs.updates import describe
from .embed import embed
from .records import AnyRecord, Decision, Diagnosis

COLLECTION = "signatures"
#: Chroma's approximate answer is re-ranked exactly, so it is asked for more than is wanted.
CANDIDATES_PER_HIT = 4


@dataclass(frozen=True)
class Hit:
    """A record that resembles the query; `similarity` is the cosine, in [-1, 1]."""

    record_id: str
    task_id: str
    signature: str
    similarity: float


#: After this, a rationale cites records by id and with figures: they would resemble anything.
REMEMBERED = "; remembered: "


def signature(record: Diagnosis | Decision) -> str:
    """What is embedded of a record: its failure, where, and what was tried. Never rollout text."""
    if isinstance(record, Diagnosis):
        return f"{record.failure} in {record.domain}: {record.sentence}"
    return f"tried {describe(record.update)} because {record.update.rationale.partition(REMEMBERED)[0]}"


class MemoryIndex:
    """Semantic search over one run's records. One process at a time writes (Chroma's limit)."""

    def __init__(self, folder: Path) -> None:
        os.environ.setdefault("ANONYMIZED_TELEMETRY", "False")
        import chromadb
        from chromadb.config import Settings

        folder.mkdir(parents=True, exist_ok=True)
        self._client: Any = chromadb.PersistentClient(
            path=str(folder), settings=Settings(anonymized_telemetry=False)
        )
        self._open()

    def _open(self) -> None:
        self._collection = self._client.get_or_create_collection(
            COLLECTION, embedding_function=None, metadata={"hnsw:space": "cosine"}
        )

    def add(self, records: Iterable[AnyRecord]) -> None:
        """Index the diagnoses and decisions among `records`; other records are passed over."""
        wanted = [r for r in records if isinstance(r, Diagnosis | Decision)]
        if not wanted:
            return
        most = int(self._client.get_max_batch_size())
        for start in range(0, len(wanted), most):
            part = wanted[start : start + most]
            texts = [signature(r) for r in part]
            self._collection.upsert(
                ids=[r.id for r in part],
                embeddings=embed(texts),
                documents=texts,
                metadatas=[{"task_id": r.task_id, "type": r.type, "step": r.step} for r in part],
            )

    def rebuild(self, records: Iterable[AnyRecord]) -> int:
        """Make the index anew from a log; the number of records in it."""
        self._client.delete_collection(COLLECTION)
        self._open()
        self.add(records)
        return int(self._collection.count())

    def search(
        self, text: str, limit: int, type: str | None = None, not_task: str | None = None
    ) -> list[Hit]:
        """The `limit` records nearest to `text`, nearest first, ties by id: the same every time."""
        clauses: list[dict[str, Any]] = []
        if type is not None:
            clauses.append({"type": type})
        if not_task is not None:
            clauses.append({"task_id": {"$ne": not_task}})
        where = None if not clauses else clauses[0] if len(clauses) == 1 else {"$and": clauses}
        total = int(self._collection.count())
        if total == 0:
            return []
        (query,) = embed([text])
        n = limit * CANDIDATES_PER_HIT
        hits = self._nearest(query, n, where)
        # Equal signatures are common: widen until no candidate outside could tie with the last hit.
        while len(hits) == n < total and _rank(hits[-1])[0] <= _rank(hits[limit - 1])[0]:
            n *= 2
            hits = self._nearest(query, n, where)
        return hits[:limit]

    def _nearest(self, query: Any, n: int, where: dict[str, Any] | None) -> list[Hit]:
        found = self._collection.query(
            query_embeddings=[query],
            n_results=n,
            where=where,
            include=["embeddings", "documents", "metadatas"],
        )
        columns = (found[name][0] for name in ("ids", "embeddings", "documents", "metadatas"))
        hits = [
            Hit(record_id, str(meta["task_id"]), document, float(vector @ query))
            for record_id, vector, document, meta in zip(*columns, strict=True)
        ]
        return sorted(hits, key=_rank)

    def close(self) -> None:
        """Let go of the folder."""
        self._client.clear_system_cache()


def _rank(hit: Hit) -> tuple[float, str]:
    """Sorts by similarity, nearest first; what differs by rounding only counts as a tie."""
    return -round(hit.similarity, 6), hit.record_id


def find(records: Sequence[AnyRecord], ids: Iterable[str]) -> list[AnyRecord]:
    """The records with these ids, in the order of the ids; unknown ids are left out."""
    by_id = {r.id: r for r in records}
    return [by_id[i] for i in ids if i in by_id]
