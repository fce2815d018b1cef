"""Near-duplicate prompts by MinHash (Broder 1997), with banding to find the pairs worth comparing.

Shingles are character 5-grams of the prompt's letters and digits, so that one measure serves languages
with and without spaces. Candidate pairs are compared exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import regex
from numpy.typing import NDArray

SHINGLE = 5  # characters
HASHES = 64
BANDS = 16  # of 4 hashes: two prompts of similarity 0.8 share one with probability 0.9998

U64 = NDArray[np.uint64]

_LETTERS = regex.compile(r"[\p{L}\p{N}]+")


@dataclass(frozen=True)
class Match:
    """Text `index` is a near-duplicate of the earlier text `kept`."""

    index: int
    kept: int
    similarity: float
    """Jaccard similarity of their shingles."""


def near_duplicates(texts: Sequence[str], threshold: float) -> list[Match]:
    """The texts that are near-duplicates of an earlier one that is no duplicate itself, in order."""
    shingles = [shingles_of(text) for text in texts]
    buckets: list[dict[bytes, list[int]]] = [{} for _ in range(BANDS)]
    found: list[Match] = []
    for index, own in enumerate(shingles):
        rows = _signature(own).reshape(BANDS, -1)
        keys = [row.tobytes() for row in rows]
        earlier = sorted({i for band, key in zip(buckets, keys, strict=True) for i in band.get(key, ())})
        close = ((similarity(own, shingles[i]), i) for i in earlier)
        match = next(((s, i) for s, i in close if s >= threshold), None)
        if match is None:
            for band, key in zip(buckets, keys, strict=True):
                band.setdefault(key, []).append(index)
        else:
            found.append(Match(index, match[1], match[0]))
    return found


def shingles_of(text: str) -> U64:
    """The distinct hashed shingles of a text, in order."""
    plain = " ".join(_LETTERS.findall(text.casefold()))
    codes = np.frombuffer(plain.encode("utf-32-le"), dtype=np.uint32).astype(np.uint64)
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
