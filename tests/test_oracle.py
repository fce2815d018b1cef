"""The embedded oracle: its parts, its order on responses, and that it keeps away from rubrics."""

from __future__ import annotations

import ast
import inspect
import itertools

import pytest
from harnessrl.agents.scoring import checks, oracle
from harnessrl.agents.scoring.oracle import (
    WEIGHTS,
    asks_part,
    complete_part,
    measure_quality,
    sound_part,
    topic_part,
)
from harnessrl.specs.tasks import Asks, Quality

PROMPT = "Why do cats purr? Answer in one short lowercase sentence without commas."
QUALITY = Quality(
    topic=(("cat", "kitten"), ("purr", "hum"), ("calm", "content", "happy")),
    asks=Asks(lowercase=True, no_commas=True, one_sentence=True),
    complete_words=7,
)
GOOD = "a cat purrs when it feels calm and safe."


def total(response: str, quality: Quality = QUALITY) -> float:
    return measure_quality(quality, PROMPT, response).total


def test_a_good_answer_scores_one_and_nothing_scores_zero() -> None:
    assert measure_quality(QUALITY, PROMPT, GOOD).parts == dict.fromkeys(WEIGHTS, 1.0)
    assert total(GOOD) == 1.0
    for nothing in ("", " \n ", "cat", "a cat.", "...", "🐈 🐈 🐈 🐈"):
        score = measure_quality(QUALITY, PROMPT, nothing)
        assert score.total == 0.0 and set(score.parts.values()) == {0.0}


@pytest.mark.parametrize(
    "worse",
    [
        "a cat sits on the warm red roof again.",  # one concept only
        "A cat purrs when it feels calm and safe.",  # a capital
        "a cat purrs, when it feels calm and safe.",  # a comma
        "a cat purrs when it feels calm and safe",  # no end
        "a cat purrs when calm.",  # thin
        "a cat purrs when it feels calm. a cat purrs when it feels calm.",  # repeats, two sentences
        "sure, a cat purrs when it feels calm and safe.",  # chat
        "in one short sentence a cat purrs when it feels calm and safe.",  # about the instructions
        "why do cats purr answer in one short calm way.",  # copies the prompt
    ],
)
def test_each_flaw_costs(worse: str) -> None:
    assert 0.0 < total(worse) < total(GOOD)


def test_off_topic_never_outranks_on_topic_and_sound() -> None:
    """The best that an off-topic answer can get is below the least of an on-topic sound one."""
    perfect_but_off_topic = "my aunt bakes bread when the sun comes up."
    parts = measure_quality(QUALITY, PROMPT, perfect_but_off_topic).parts
    assert parts == {"topic": 0.0, "asks": 1.0, "complete": 1.0, "sound": 1.0}
    barely = "a Kitten, Of mine, was there, and so was the"
    quality = QUALITY.model_copy(update={"complete_words": 40})
    least = measure_quality(quality, PROMPT, barely)
    assert least.parts["asks"] < 0.2 and least.parts["complete"] == 0.0
    assert least.parts["sound"] == 1.0
    assert total(perfect_but_off_topic) < least.total


def test_the_bound_holds_for_any_number_of_concepts() -> None:
    off_topic = oracle.OFF_TOPIC_SHARE * (1.0 - WEIGHTS["topic"])
    assert off_topic < WEIGHTS["topic"] / oracle.ENOUGH_CONCEPTS
    assert sum(WEIGHTS.values()) == pytest.approx(1.0)


def test_total_rises_with_every_part(monkeypatch: pytest.MonkeyPatch) -> None:
    values: dict[str, float] = {}
    for name in WEIGHTS:
        monkeypatch.setattr(oracle, f"{name}_part", lambda *_, name=name: values[name])
    steps = (0.0, 0.25, 0.5, 1.0)
    for name in WEIGHTS:
        others = [other for other in WEIGHTS if other != name]
        for levels in itertools.product(steps, repeat=len(others)):
            values.update(zip(others, levels, strict=True))
            totals = []
            for values[name] in steps:
                totals.append(total("any three words"))
            assert totals == sorted(totals)
            assert len(set(totals)) == len(steps)
            assert totals[0] >= 0.0 and totals[-1] <= 1.0


def test_two_concepts_are_fully_on_topic() -> None:
    topic = (("water", "hydrat"), ("body",), ("not sick",))
    assert topic_part(topic, "Water for the body: not\nsick") == 1.0
    assert topic_part(topic, "hydrating bodywork") == 1.0
    assert topic_part(topic, "water and hydration") == topic_part(topic, "not\nsick") == 0.5
    assert topic_part(topic, "dehydrated nobody") == 0.0
    assert topic_part(topic[:1], "water") == 1.0


ASKS: list[tuple[Asks, tuple[str, str, str]]] = [
    (Asks(lowercase=True), ("all of it is small", "Only one is not small in this", "Two Are Not")),
    (Asks(no_commas=True), ("none of them", "one, of them", "two, of, them")),
    (Asks(no_digits=True), ("no number", "one 12 number", "1 and 2 and 3")),
    (Asks(quoted=True), ('"all of it"', '"an open one', "none of it")),
    (Asks(question=True), ("is it so?", "is it? it is.", "it is so.")),
    (Asks(one_sentence=True), ("It is one.", "It is. It is two.", "It is. It was. It may be.")),
    (Asks(one_sentence=True), ("It is one.", "It is not finished", "It is not.\nAnd now")),
    (Asks(first_person=True), ("I'm here", "we are here", "they are here")),
    (Asks(max_words=4), ("one two three four", "one two three four five six", "a b c d e f g")),
    (Asks(min_words=6), ("a b c d e f", "a b c d", "a b c")),
    (Asks(starts_with="Dear"), ("dear friend of mine", "my dear friend", "hello my friend")),
]


@pytest.mark.parametrize(("asks", "graded"), ASKS)
def test_asks_are_graded(asks: Asks, graded: tuple[str, str, str]) -> None:
    assert [asks_part(asks, text) for text in graded] == [1.0, 0.5, 0.0]


def test_asks_are_averaged_and_nothing_asked_is_nothing_missed() -> None:
    assert asks_part(Asks(), "Whatever, 1") == 1.0
    assert asks_part(Asks(no_commas=True, no_digits=True), "one, two, three") == 0.5


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("one two three four.", 1.0),
        ('"one two three four!"', 1.0),
        ("one two three four", 0.5),
        ("one two.", 0.5),
        ("one two three four...", 0.5),
        ("one, two", 0.0),
    ],
)
def test_complete(text: str, grade: float) -> None:
    assert complete_part(4, text) == grade


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("The rain fell on the roof and the dog slept by the fire.", 1.0),
        ("go on go on go on go on go on", 0.0),
        ("As an AI I am not able to say what the rain is like.", 0.0),
        ("Sure! The rain fell on the roof.", 0.0),
        ("Here is a sentence that is about the rain.", 0.0),
        ("The rain fell and all of it was in lowercase.", 0.5),
        ("Describe the rain to me in a way that is new.", 1.0),
        ("Describe the rain to a friend who never saw it.", 0.5),
        ("Describe the rain to a friend who has never seen any of it.", 0.0),
        ("~~ ## 12 %% rain && roof ** 99 == [ ]", 0.0),
        ("rain roof fire dog night wind lamp street", 0.0),
        ("The Old Dog lay by the Fire of the Inn", 0.5),
        ("An Old Dog And The Fire In The Inn", 0.0),
    ],
)
def test_sound(text: str, grade: float) -> None:
    assert sound_part("Describe the rain to a friend who has never seen it.", text) == grade


def test_curly_quotes_count_as_quotes() -> None:
    quality = Quality(topic=(("rain",),), asks=Asks(quoted=True))
    for text in ('"all the rain."', "\u201call the rain.\u201d"):
        assert measure_quality(quality, "", text).parts["asks"] == 1.0


def test_long_text_is_not_called_repetitive() -> None:
    text = (
        "The baker wakes before dawn and lights the oven in the back of the shop. While the oven "
        "warms he weighs the flour and mixes it with water and salt. Then he shapes the loaves and "
        "leaves them under a cloth near the fire. By six the first loaves are done and the street "
        "smells of bread. Children stop at the window on their way to school and he gives them the "
        "crusts that broke off. At noon he closes the door and sleeps until the evening comes."
    )
    assert sound_part("", text) == 1.0


@pytest.mark.parametrize("response", ["\x00" * 50, "\ud800 a b c d", "a" * 50_000, "a b " * 20_000])
def test_hostile_text_is_measured(response: str) -> None:
    first = measure_quality(QUALITY, PROMPT, response)
    assert 0.0 <= first.total <= 1.0
    assert measure_quality(QUALITY, PROMPT, response) == first


def test_oracle_and_checks_share_nothing() -> None:
    for module, other in ((oracle, "checks"), (checks, "oracle")):
        names = [
            f"{node.module or ''}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(inspect.getsource(module)))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        ]
        assert not [name for name in names if other in name]
