"""Rouge-L: how long a common subsequence of words a response has with a reference."""

from __future__ import annotations

import regex

#: A run of letters and digits; of scripts that put no space between words each character is one.
_TOKEN = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}]|[\p{L}\p{M}\p{N}--[\p{Han}\p{Hiragana}\p{Katakana}]]+",
    regex.VERSION1,
)


def rouge_l(reference: str, response: str) -> float:
    """F1 of the longest common subsequence of words (Lin 2004, section 3.1, with beta = 1), in [0, 1]."""
    wanted, given = tokens(reference), tokens(response)
    common = common_subsequence(wanted, given)
    return 2 * common / (len(wanted) + len(given)) if common else 0.0


def tokens(text: str) -> list[str]:
    """Words, whatever their case; punctuation is none."""
    return list(_TOKEN.findall(text.casefold()))


def common_subsequence(first: list[str], second: list[str]) -> int:
    """Length of the longest common subsequence, a bit a word of `first` (Hyyro 2004): a million pairs
    of words take a millisecond."""
    where: dict[str, int] = {}
    for i, word in enumerate(first):
        where[word] = where.get(word, 0) | (1 << i)
    all_ones = (1 << len(first)) - 1
    row = all_ones
    for word in second:
        matches = row & where.get(word, 0)
        row = ((row + matches) | (row - matches)) & all_ones
    return len(first) - row.bit_count()
