"""Near-duplicate prompts by MinHash (Broder 1997), with banding to find the pairs worth comparing, and
questions of benchmarks inside other prompts.

Shingles are character 5-grams of the letters, digits and the signs `+#^=<>` in the prompt's normal form
(specs/texts.py), so that one measure serves languages with and without spaces. Candidate pairs are
compared exactly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex
from numpy.typing import NDArray

from ...specs.texts import normalised

SHINGLE = 5  # characters
HASHES = 64
BANDS = 16  # of 4 hashes: two prompts of similarity 0.8 share one with probability 0.9998
#: Share of a question's shingles by which a prompt holds it, and the fewest shingles of such a question:
#: what is shorter is part of many prompts.
HOLDS, LONG_ENOUGH = 0.9, 60
SAMPLED = 8  # one shingle in so many is looked up to find the questions that a prompt may hold

U64 = NDArray[np.uint64]

_LETTERS = regex.compile(r"[\p{L}\p{M}\p{N}+#^=<>]+")


@dataclass(frozen=True)
class Match:
    """Text `index` is close to text `kept`."""

    index: int
    kept: int
    similarity: float
    """Jaccard similarity of their shingles."""
    holds: bool = False
    """It holds that text whole, among others."""


@dataclass(frozen=True)
class Sketch:
    """What texts are compared by."""

    shingles: U64
    bands: tuple[bytes, ...]


def sketch(text: str) -> Sketch:
    """A text's shingles, and its keys by which similar texts find each other."""
    shingles = shingles_of(text)
    rows = _signature(shingles).reshape(BANDS, -1)
    return Sketch(shingles, tuple(row.tobytes() for row in rows))


def near_duplicates(sketches: Sequence[Sketch], threshold: float) -> list[Match]:
    """The texts that are near-duplicates of an earlier one that is no duplicate itself, in order."""
    earlier = _Texts()
    found: list[Match] = []
    for index, own in enumerate(sketches):
        if match := earlier.close_to(own, threshold):
            found.append(Match(index, *match))
        else:
            earlier.add(index, own)
    return found


def copies(sketches: Sequence[Sketch], questions: Sequence[Sketch], threshold: float) -> list[Match]:
    """The texts that are near-duplicates of a question, or hold one; `kept` counts the questions."""
    known, inside = _Texts(), _Questions()
    for index, question in enumerate(questions):
        known.add(index, question)
        inside.add(index, question)
    found: list[Match] = []
    for index, own in enumerate(sketches):
        if match := known.close_to(own, threshold):
            found.append(Match(index, *match))
        elif (held := inside.held_by(own)) is not None:
            alike = similarity(own.shingles, questions[held].shingles)
            found.append(Match(index, held, alike, holds=True))
    return found


class _Texts:
    """Texts that others are compared with."""

    def __init__(self) -> None:
        self._sketches: dict[int, Sketch] = {}
        self._buckets: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]

    def add(self, index: int, own: Sketch) -> None:
        self._sketches[index] = own
        for band, key in zip(self._buckets, own.bands, strict=True):
            band.setdefault(key, []).append(index)

    def close_to(self, own: Sketch, threshold: float) -> tuple[int, float] | None:
        """The first text that is so similar, and how similar it is."""
        pairs = zip(self._buckets, own.bands, strict=True)
        for i in sorted({i for band, key in pairs for i in band.get(key, ())}):
            if (alike := similarity(own.shingles, self._sketches[i].shingles)) >= threshold:
                return i, alike
        return None


class _Questions:
    """Questions that other texts may hold whole."""

    def __init__(self) -> None:
        self._questions: dict[int, U64] = {}
        self._by_shingle: dict[int, list[int]] = {}

    def add(self, index: int, own: Sketch) -> None:
        if len(own.shingles) < LONG_ENOUGH:
            return
        self._questions[index] = own.shingles
        for shingle in _sampled(own.shingles):
            self._by_shingle.setdefault(shingle, []).append(index)

    def held_by(self, own: Sketch) -> int | None:
        """The first question that a text holds."""
        hits = Counter(i for shingle in _sampled(own.shingles) for i in self._by_shingle.get(shingle, ()))
        for i in sorted(hits):
            question = self._questions[i]
            if 2 * hits[i] < len(_sampled(question)):
                continue
            common = len(np.intersect1d(question, own.shingles, assume_unique=True))
            if common >= HOLDS * len(question):
                return i
        return None


def _sampled(shingles: U64) -> list[int]:
    """The same few shingles of whatever text has them."""
    chosen: list[int] = shingles[shingles % np.uint64(SAMPLED) == 0].tolist()
    return chosen


def shingles_of(text: str) -> U64:
    """The distinct hashed shingles of a text, in order."""
    letters = " ".join(_LETTERS.findall(normalised(text)))
    codes = np.frombuffer(letters.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
    if len(codes) <= SHINGLE:
        codes = np.pad(codes, (0, SHINGLE + 1 - len(codes)))
    hashed = np.zeros(len(codes) - SHINGLE + 1, dtype=np.uint64)
    for i in range(SHINGLE):
        hashed = hashed * np.uint64(0x100000001B3) + codes[i : i + len(hashed)]
    return np.unique(_mixed(hashed))


def similarity(a: U64, b: U64) -> float:
    """Jaccard similarity of two sets of shingles."""
    common = len(np.intersect1d(a, b, assume_unique=True))
    return common / (len(a) + len(b) - common)


def _mixed(x: U64) -> U64:
    """A bijection that spreads its bits (the finaliser of SplitMix64)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


_SALTS = _mixed(np.arange(1, HASHES + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _signature(shingles: U64) -> U64:
    """The smallest of the shingles' hashes under each of `HASHES` hash functions."""
    return np.array([((shingles ^ salt) * np.uint64(0xD6E8FEB86659FD93)).min() for salt in _SALTS])
