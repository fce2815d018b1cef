"""The embedded oracle: how good a response is, without a model and without looking at a rubric.

It stands in for a strong judge where none is configured. Its measures are its own (nothing here
calls `checks`), graded, and about what a rubric of format rules is blind to: is the answer about
the subject, does it do what the prompt asked, is it a finished thought, is it sound text. It reads
English prose only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import regex

from ...specs.tasks import Asks, Quality

WEIGHTS = {"topic": 0.30, "asks": 0.40, "complete": 0.15, "sound": 0.15}

#: What the other parts count for when the response covers none of the task's concepts. An off-topic
#: response gets at most 0.15 * 0.7, an on-topic sound one at least 0.15: on topic always wins.
OFF_TOPIC_SHARE = 0.15

#: What is kept when the text is degenerate: words of the subject in a heap are no answer.
DEGENERATE_SHARE = 0.5

#: A short answer cannot say everything: with this many of the concepts it is fully on topic.
ENOUGH_CONCEPTS = 2

#: Below this many words there is nothing to judge.
MIN_WORDS = 3


@dataclass(frozen=True)
class QualityScore:
    """`total` in [0, 1], and the parts (topic, asks, complete, sound), each in [0, 1]."""

    total: float
    parts: dict[str, float]


def measure_quality(quality: Quality, prompt: str, response: str) -> QualityScore:
    """Measure `response` to `prompt` against `quality`: deterministic, monotone in every part.

    The total is the weighted mean of the parts, cut down when the response is hardly or not on topic
    or degenerate (sound = 0). A response of fewer than three words scores 0 throughout.
    """
    text = _plain_quotes(response).strip()
    words = _words(text)
    if len(words) < MIN_WORDS:
        return QualityScore(0.0, dict.fromkeys(WEIGHTS, 0.0))
    parts = {
        "topic": topic_part(quality.topic, text),
        "asks": asks_part(quality.asks, text),
        "complete": complete_part(quality.complete_words, text),
        "sound": sound_part(_plain_quotes(prompt), text),
    }
    topic = parts["topic"]
    others = sum(WEIGHTS[name] * value for name, value in parts.items() if name != "topic")
    counts = OFF_TOPIC_SHARE if topic == 0.0 else 1.0
    total = WEIGHTS["topic"] * topic + counts * others
    if parts["sound"] == 0.0:
        total *= DEGENERATE_SHARE
    return QualityScore(round(total, 6), parts)


# --- topic ---------------------------------------------------------------------------------------


def topic_part(topic: Sequence[Sequence[str]], text: str) -> float:
    """Concepts covered (at least one of their word beginnings occurs), out of `ENOUGH_CONCEPTS`."""
    lowered = " ".join(text.lower().split())
    covered = sum(
        any(regex.search(r"\b" + regex.escape(stem.lower()), lowered) for stem in group)
        for group in topic
    )
    return min(1.0, covered / min(ENOUGH_CONCEPTS, len(topic)))


# --- asks ----------------------------------------------------------------------------------------


def asks_part(asks: Asks, text: str) -> float:
    """Mean of the graded measures (0, 0.5 or 1) of what the prompt asks; 1 when it asks nothing."""
    grades = list(_grades(asks, text))
    return sum(grades) / len(grades) if grades else 1.0


def _grades(asks: Asks, text: str) -> Iterable[float]:
    words = _words(text)
    if asks.lowercase:
        capitals = sum(letter.isupper() for letter in text)
        yield 1.0 if capitals == 0 else 0.5 if capitals <= max(1.0, 0.02 * len(text)) else 0.0
    if asks.no_commas:
        yield _falling(text.count(","))
    if asks.no_digits:
        yield _falling(len(regex.findall(r"\d+", text)))
    if asks.quoted:
        yield (text[0] == '"') * 0.5 + (len(text) > 1 and text[-1] == '"') * 0.5
    if asks.question:
        yield 1.0 if text.rstrip('"').endswith("?") else 0.5 if "?" in text else 0.0
    if asks.one_sentence:
        n_sentences = len(_sentences(text))
        yield 0.5 * (n_sentences == 1) + 0.5 * (n_sentences <= 2 and _is_finished(text))
    if asks.first_person:
        own = {word.split("'")[0] for word in words}
        yield 1.0 if own & {"i", "me", "my", "mine", "myself"} else 0.5 * bool(own & {"we", "our"})
    if asks.max_words is not None:
        yield _falling(2 * max(0.0, len(words) / asks.max_words - 1.0))
    if asks.min_words is not None:
        share = len(words) / asks.min_words
        yield 1.0 if share >= 1.0 else 0.5 if share >= 2 / 3 else 0.0
    if asks.starts_with is not None:
        opening = text.lower().lstrip("\"'*_ ")
        wanted = asks.starts_with.lower()
        yield 1.0 if opening.startswith(wanted) else 0.5 if wanted in opening[:80] else 0.0


def _falling(excess: float) -> float:
    """1 with no excess, 0.5 up to one unit of it, else 0."""
    return 1.0 if excess <= 0 else 0.5 if excess <= 1 else 0.0


# --- complete ------------------------------------------------------------------------------------


def complete_part(complete_words: int, text: str) -> float:
    """Half for ending like a finished sentence, half for at least `complete_words` words."""
    return 0.5 * _is_finished(text) + 0.5 * (len(_words(text)) >= complete_words)


def _is_finished(text: str) -> bool:
    return regex.search(r"[.!?]['\")*]*$", text) is not None and not text.endswith("...")


def _sentences(text: str) -> list[str]:
    pieces = regex.split(r"(?<=[.!?]['\")*]*)\s+|\n+", text)
    return [piece for piece in pieces if regex.search(r"\w", piece)]


# --- sound ---------------------------------------------------------------------------------------

# Talk of a chat assistant instead of an answer.
_CHAT = regex.compile(
    r"\bas an? (?:ai|language model|assistant)\b"
    r"|\bi(?: am|'m) (?:an ai|a language model|sorry|here to)"
    r"|\bi can(?:not|'t) (?:assist|help|provide|answer|do that)"
    r"|\b(?:sure|certainly|absolutely|of course)[,!.]"
    r"|\bhere(?:'s| is| are) (?:a|an|the|my|your|some|one)\b"
    r"|\b(?:let me know|feel free to|how can i (?:help|assist)|hope this helps)\b"
    r"|\bwhat(?:'s| is) your question\b"
)

# Talk about the instructions instead of following them.
_META = regex.compile(
    r"\b(?:upper|lower)[- ]?case\b"
    r"|\b(?:capital letters|commas?|quotation marks|word (?:count|limit))\b"
    r"|\b(?:at (?:most|least)|(?:no more|less|fewer) than|under) (?:\d+|[a-z]+) words\b"
    r"|\b(?:short|long|single|one|first|following|this)"
    r" (?:sentence|response|answer|prompt|instruction)s?\b"
    r"|\bthe (?:prompt|instructions?|response|answer is)\b|\b(?:the|your) (?:request|question)\b"
)

_FUNCTION_WORDS = frozenset(
    """
    a about after all also an and any are as at be because been before but by can could do does for
    from get had has have he her him his how i if in into is it its like may me more most my no not
    of on one or our out over she should so some such than that the their them then there these they
    this to up us was we were what when where which while who will with would you your
    """.split()
)


def sound_part(prompt: str, text: str) -> float:
    """1 for sound text, less 0.5 for each flaw and 1 for each gross one; not below 0."""
    words = _words(text)
    lowered = text.lower()
    letters = sum(letter.isalpha() for letter in text)
    visible = sum(not letter.isspace() for letter in text)
    repeats = 1.0 - len(set(itertools.pairwise(words))) / max(1, len(words) - 1)
    opening = words[:50]  # long sound text repeats words too
    variety = len(set(opening)) / len(opening)
    copied = _longest_copy(_words(prompt), words)
    odd_capitals = len(regex.findall(r"(?<=[^.!?\n]\s)\p{Lu}\p{L}+", text)) / len(words)
    plain_words = sum(word in _FUNCTION_WORDS for word in words) / len(words)
    flaws = (
        _grade(repeats, 0.12, 0.3)
        + _grade(1.0 - variety, 0.45, 0.6)
        + _grade(copied, 5, 8)
        + _grade(1.0 - letters / visible, 0.15, 0.35)
        + _grade(0.2 - plain_words, 0.0, 0.15)
        + _grade(odd_capitals, 0.25, 0.6)
        + (1.0 if _CHAT.search(lowered) else 0.0)
        + (0.5 if _META.search(lowered) else 0.0)
    )
    return max(0.0, 1.0 - flaws)


def _grade(value: float, flaw: float, gross: float) -> float:
    """0 up to `flaw`, 0.5 above it, 1 above `gross`."""
    return 1.0 if value > gross else 0.5 if value > flaw else 0.0


def _longest_copy(source: list[str], words: list[str]) -> int:
    """Length (words) of the longest run of `words` that stands in `source`."""
    best = 0
    lengths = [0] * (len(source) + 1)
    for word in words:
        previous = lengths[:]
        for i, other in enumerate(source, start=1):
            lengths[i] = previous[i - 1] + 1 if word == other else 0
        best = max(best, *lengths)
    return best


# --- text ----------------------------------------------------------------------------------------


def _plain_quotes(text: str) -> str:
    return text.translate(str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''"))


def _words(text: str) -> list[str]:
    return list(regex.findall(r"[\p{L}\p{N}]+(?:['-][\p{L}\p{N}]+)*", text.lower()))
