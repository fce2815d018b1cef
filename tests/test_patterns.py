"""Patterns are told from mistakes without compiling them, where that is safe."""

from __future__ import annotations

from time import process_time

import pytest
import regex
from harnessrl.specs.patterns import fault, is_plain
from hypothesis import given, settings
from hypothesis import strategies as st

ESCAPES = r"\b \d \S \. \- \] \< \x \p \1"
OPENINGS = "(?: (?i) (?< (?= (?! (?<= (?<!a) [[ [a-z] [^-a] a-z [z-a] && -- ++ *? {2} {2,} {0,3} {3,2}"
PIECES = st.sampled_from(
    [*"abzAZ09_ .,;:!?*+/%$()'\"=<>@#&~|-^[]{}\\\né`", *ESCAPES.split(), *OPENINGS.split()]
)


@settings(max_examples=3000, deadline=None)
@given(st.lists(PIECES, max_size=9).map("".join))
def test_a_plain_pattern_compiles_with_the_library_that_searches(pattern: str) -> None:
    if is_plain(pattern):
        for flags in (0, regex.IGNORECASE):
            regex.compile(pattern, flags, cache_pattern=False)


@pytest.mark.parametrize("code", range(33, 127))
def test_a_plain_escape_is_one(code: int) -> None:
    for pattern in (f"a\\{chr(code)}", f"[\\{chr(code)}]", f"[{chr(code)}a]", chr(code), f"{chr(code)}+"):
        if is_plain(pattern):
            regex.compile(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bword\b",
        r"(?:colour|color)s?",
        r"^\s*[-*] item [.:]",
        r"\d+(?:\.\d+)?\s*mg",
        r"https?://\S+",
        r"(?i)yes|no",
        r"x{1,12}",
        r"(?<!not |n't )\brecommend(?=ed|s)",
    ],
)
def test_everyday_syntax_is_plain(pattern: str) -> None:
    assert is_plain(pattern) and fault(pattern) is None


@pytest.mark.parametrize(
    "pattern",
    [r"(?<!(not|no) )a", r"(a)\1", r"\p{Lu}", "[c-f]", "((a)b)c", "a{3,7}", "", "a++", "x" * 5000],
)
def test_what_is_not_plain_may_be_right(pattern: str) -> None:
    assert fault(pattern) is None


@pytest.mark.parametrize(
    "pattern", ["(a", "a)", "[a", "*a", "a**", "a{3,2}", "(?<a", r"\p{Nonsense}", "[z-a]", "\\"]
)
def test_a_mistake_is_told(pattern: str) -> None:
    told = fault(pattern)
    assert told is not None and told.startswith("not a regular expression (")


def test_ten_thousand_patterns_cost_no_ten_thousand_compilations() -> None:
    started = process_time()
    assert not any(fault(rf"\b(?:word|term){n}(?:s|es)?\b") for n in range(10_000))
    assert process_time() - started < 0.5  # compiled: 1.5 s and more
