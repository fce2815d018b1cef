# ruff: noqa: RUF001  (text of other scripts)
"""When two texts are the same text: what a leak is told by."""

from __future__ import annotations

import pytest
from harnessrl.specs.texts import letters, normalised, units
from hypothesis import assume, example, given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Why is the sky blue?", "why is the SKY blue"),
        ("Why is\tthe\u00a0sky\r\n blue?", "Why is the sky blue ?"),
        ("Say “hello” — twice…", "Say 'hello' -- twice..."),
        ("Don’t say it: no!", "Don't say it, no."),
        ("Beschreibe die STRASSE.", "beschreibe die Straße"),
        ("ﬁnd the Ångström", "find the \u212bngstro\u0308m"),
        ("Ｗｈａｔ　ｉｓ　２＋２？", "What is 2+2?"),
        ("What is 2+2?", "What is 2+2"),
        ("x²³ + y₁", "x^23 + y_1"),
        ("don´t", "don't"),
        ("x ?", "x"),
        ("Is it “good” ?", "Is it good"),
        ("a\u200bb\u00adc", "abc"),
        ("x − 4", "x - 4"),
        ("天空为什么是蓝色的？请解释。", "天空为什么是蓝色的 请解释".replace(" ", "，")),
        ("描述。", "描述"),
    ],
)
def test_what_says_the_same_is_equal(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Solve x^2-4=0.", "Solve x^2+4=0."),
        ("Solve x - 4.", "Solve x + 4."),
        ("Write it in C++.", "Write it in C#."),
        ("Write it in C.", "Write it in C++."),
        ("What is 3.5?", "What is 35?"),
        ("What is 5!", "What is 5"),
        ("Is a < b?", "Is a > b?"),
        ("Is f' odd?", "Is f odd?"),
        ("Take -3.", "Take 3."),
        ("Pay $5.", "Pay €5."),
        ("Use *args.", "Use **args."),
        ("Describe theriver", "Describe the river"),
        ("résumé", "resume"),
        ("写得好", "写的好"),
        ("count++ does it", "count-- does it"),
        ("Compute 2³.", "Compute 23."),
        ("CO₂", "CO2"),
        ("2³", "2₃"),
        ("git commit -- file", "git commit file"),
        ("ab - cd", "ab cd"),
        ("x - y", "x y"),
        ("5 -- 3", "5 - 3"),
        ("Is f ' odd?", "Is f odd?"),
    ],
)
def test_what_tells_texts_apart_is_kept(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)


@given(st.text())
@example("İ")
@example("ΐ ab?!")
def test_case_form_and_spacing_make_no_other_text(text: str) -> None:
    assert normalised(f"\n {text}\t") == normalised(text)
    assert normalised(" ".join(text.split())) == normalised(text)


@given(st.text() | st.text("e\u0301\u200b\u0345\u00b4İﬁ²ºΣς가ㅏ -'"))
@example("e\u200b\u0301 ᾳ x² İ")
def test_letters_are_the_same_in_the_normal_form(text: str) -> None:
    assert letters(text) == letters(normalised(text))


@given(st.text("ab12+^ ", min_size=1), st.text("ab12+^ ", min_size=1))
def test_other_signs_make_another_text(one: str, other: str) -> None:
    assume(one.split() != other.split())
    assert normalised(one) != normalised(other)


def test_units_are_words_and_characters() -> None:
    assert units("(The) state-of-the-art, #1: C# and 50%!") == [
        *("the", "state-of-the-art", "1", "c#", "and", "50%")
    ]
    assert units("用 Python 写代码。") == ["用", "python", "写", "代", "码"]
    assert units(" - ** ... ?! ") == []
    assert units("x^2 + 4") == ["x^2", "+", "4"]
