"""Checks: each kind, hostile input, blank responses, and the causes of an unscored verdict."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest
from harnessrl.agents.scoring.checks import TRIAL_TEXT, Verdict, missing_resource, run_check
from harnessrl.specs.checks import (
    IFEVAL_IDS,
    Check,
    IfevalCheck,
    MentionsCheck,
    RegexCheck,
    RepetitionCheck,
    WordsCheck,
)
from harnessrl.specs.patterns import may_run_away
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError


def ifeval(id: str, **args: object) -> IfevalCheck:
    # Unvalidated: a check must stand arguments that the types would have refused.
    return IfevalCheck.model_construct(kind="ifeval", id=id, args=args)


def pattern(text: str, present: bool = True) -> RegexCheck:
    return RegexCheck(kind="regex", pattern=text, present=present)


def words(min: int | None = None, max: int | None = None) -> WordsCheck:
    return WordsCheck(kind="words", min=min, max=max)


def mentions(*terms: str, at_least: int = 1) -> MentionsCheck:
    return MentionsCheck(kind="mentions", terms=terms, at_least=at_least)


def repetition(max_share: float) -> RepetitionCheck:
    return RepetitionCheck(kind="repetition", max_share=max_share)


ENGLISH = "drinking water keeps the body cool on a warm summer day"

CASES: list[tuple[Check, str, bool]] = [
    (ifeval("change_case:english_lowercase"), ENGLISH, True),
    (ifeval("change_case:english_lowercase"), ENGLISH.capitalize(), False),
    (ifeval("change_case:english_capital"), "WE WALK TO THE MARKET EVERY MORNING", True),
    (ifeval("change_case:english_capital"), ENGLISH, False),
    (ifeval("punctuation:no_comma"), "one two", True),
    (ifeval("punctuation:no_comma"), "one, two", False),
    (ifeval("startend:quotation"), ' "quoted" ', True),
    (ifeval("startend:quotation"), '"open', False),
    (ifeval("startend:end_checker", end_phrase="The end."), "So it was. the end.", True),
    (ifeval("length_constraints:number_words", num_words=3, relation="less than"), "a b", True),
    (ifeval("length_constraints:number_words", num_words=3, relation="less than"), "a b c", False),
    (ifeval("keywords:existence", keywords=["salt", "pepper"]), "pepper and salt", True),
    (ifeval("keywords:existence", keywords=["salt", "pepper"]), "salt", False),
    (ifeval("keywords:forbidden_words", forbidden_words=["salt"]), "salt", False),
    (ifeval("detectable_format:number_bullet_lists", num_bullets=2), "* a\n* b", True),
    (ifeval("detectable_format:title"), "<<a title>>\ntext", True),
    (pattern("WATER"), "some water", True),
    (pattern("(?-i:[A-Z])", present=False), "no capitals", True),
    (pattern("(?-i:[A-Z])", present=False), "A capital", False),
    (pattern("(?m)^two$"), "one\ntwo\nthree", True),
    (words(max=3), "one two  three\n", True),
    (words(max=3), "one two three four", False),
    (words(min=2, max=3), "one", False),
    (mentions("hydrat"), "Stay HYDRATED", True),
    (mentions("hydrat"), "dehydrated", False),
    (mentions("rain", "snow", at_least=2), "rain and rain", False),
    (mentions("rain", "snow", at_least=2), "snow, then rain", True),
    (mentions("good morning"), "Good\n  morning!", True),
    (mentions("über"), "U\u0308ber allem", True),  # decomposed umlaut
    (mentions("uber"), "über", False),
    (mentions("don't"), "Don\u2019t go", True),
    (mentions("straße"), "STRASSE", True),
    (mentions("water"), "_water_ and more", True),
    (mentions("建议"), "医生建议多喝水", True),
    (mentions("c++"), "I write C++ daily", True),
    (repetition(0.0), "one", True),
    (repetition(0.0), "one two three", True),
    (repetition(0.3), "go on go on go on", False),
    (repetition(0.6), "go on Go on, go on.", True),  # pairs: go-on x3, on-go x2: 3 of 5 repeat
    (repetition(0.59), "go on Go on, go on.", False),
    (repetition(0.1), "!!! !!! !!! !!!", False),
]


@pytest.mark.parametrize(("check", "response", "met"), CASES)
def test_decides(check: Check, response: str, met: bool) -> None:
    assert run_check(check, "the prompt", response) == Verdict(met)


@pytest.mark.parametrize("blank", ["", " \n\t", "\u00a0\u2003"])
@pytest.mark.parametrize(
    "check",
    [
        ifeval("punctuation:no_comma"),
        pattern("x", present=False),
        words(max=5),
        mentions("x"),
        repetition(1.0),
    ],
)
def test_a_blank_response_meets_nothing(check: Check, blank: str) -> None:
    assert run_check(check, "p", blank) == Verdict(False)


def test_missing_nltk_data_is_unscored_with_the_cause_on_every_response() -> None:
    check = ifeval("length_constraints:number_sentences", num_sentences=1, relation="at least")
    cause = missing_resource(check)
    if cause is None:
        pytest.skip("this machine has NLTK's data")
    assert "NLTK" in cause and "\n" not in cause
    for response in ("One. Two.", "", "   "):
        assert run_check(check, "p", response) == Verdict(None, cause)


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (ifeval("length_constraints:number_words", num_words=3), "takes num_words, relation"),
        (ifeval("length_constraints:number_words", num_words=None, relation="less than"), "takes"),
        (ifeval("length_constraints:number_words", num_words=-3, relation="less than"), "-3"),
        (ifeval("length_constraints:number_words", num_words=3, relation="over"), "refuses"),
        (
            ifeval("keywords:letter_frequency", letter="ab", let_frequency=1, let_relation="less than"),
            "letter='ab'",
        ),
        (ifeval("punctuation:no_comma", commas=0), "takes no arguments"),
        (ifeval("keywords:existence", keywords=5), "refuses"),
    ],
)
def test_senseless_arguments_are_unscored_and_draw_nothing(check: Check, part: str) -> None:
    state = random.getstate()
    verdict = run_check(check, "p", "some words")
    assert verdict.met is None and part in verdict.cause
    assert missing_resource(check) == verdict.cause
    assert run_check(check, "p", "") == verdict
    assert random.getstate() == state


def test_null_arguments_are_left_out() -> None:
    check = ifeval("punctuation:no_comma", num_words=None, relation=None)
    assert run_check(check, "p", "fine") == Verdict(True)


def test_repeat_prompt_takes_the_prompt_unless_told() -> None:
    own = ifeval("combination:repeat_prompt")
    assert run_check(own, "Say hello.", "Say hello. Hello!") == Verdict(True)
    assert run_check(own, "Say bye.", "Say hello. Hello!") == Verdict(False)
    told = ifeval("combination:repeat_prompt", prompt_to_repeat="Say")
    assert run_check(told, "Hi", "Say it") == Verdict(True)


def test_a_runaway_pattern_is_unscored_in_time() -> None:
    started = time.monotonic()
    verdict = run_check(pattern(r"(a|aa|a?)+(b|c)+$"), "p", "a" * 5000 + "d")
    assert verdict.met is None and "0.5 s" in verdict.cause
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("source", [r"((a|.)|\s)*[#~]", r"(a|.|\s)+(#|~)$", r"(.|\w|\s)*(#|~)"])
def test_a_pattern_that_runs_away_on_a_few_lines_is_told_before_a_run(source: str) -> None:
    assert "0.5 s" in (missing_resource(pattern(source)) or "")


@given(st.text(st.sampled_from("ab.\\w()[]*+?{}2|^$#-"), max_size=14))
@settings(max_examples=300, deadline=None)
def test_no_other_pattern_runs_away_on_a_few_lines(source: str) -> None:
    try:
        check = pattern(source)
    except ValidationError:
        return
    if not may_run_away(source):
        assert run_check(check, TRIAL_TEXT, TRIAL_TEXT).met is not None


HOSTILE = [
    "\x00\x01\x02",
    "\ud800 lone surrogate",
    "[" * 20_000,
    "a" * 50_000,
    "🍏🍐" * 200,
    "\u202eright to left",
    "<<>>" * 500 + "***",
    "%s %d {} {0} \\ $1",
    "123 456",
    "\r\n\r\n.",
]


@pytest.mark.parametrize("response", HOSTILE, ids=range(len(HOSTILE)))
def test_nothing_escapes(response: str, capfd: pytest.CaptureFixture[str]) -> None:
    checks: list[Check] = [ifeval(id) for id in IFEVAL_IDS]
    checks += [
        ifeval("language:response_language", language="en"),
        ifeval("detectable_format:multiple_sections", section_spliter="(", num_sections=2),
        ifeval("keywords:existence", keywords=["(unclosed", "[a"]),
        pattern("."),
        words(min=1),
        mentions("x", "\u0301"),
        repetition(0.2),
    ]
    for check in checks:
        verdict = run_check(check, response, response)
        assert (verdict.met is None) == bool(verdict.cause), check
    assert capfd.readouterr() == ("", "")


def test_no_language_is_unscored_not_met() -> None:
    verdict = run_check(ifeval("language:response_language", language="en"), "p", "123 456")
    assert verdict == Verdict(None, "no language can be detected in the response")


def test_a_language_verdict_repeats() -> None:
    check = ifeval("change_case:english_lowercase")
    for text in ("rain on tin", "a cat naps in the sun", "no more bread tonight"):
        assert len({run_check(check, "p", text).met for _ in range(20)}) == 1


def test_the_library_loads_on_first_use_only() -> None:
    code = (
        "import sys, harnessrl.agents.scoring.checks as c, harnessrl.specs.checks as s\n"
        "c.run_check(s.WordsCheck(kind='words', min=1), 'p', 'x')\n"
        "assert not {'if_verifiable', 'datasets', 'langdetect', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
