"""Is a pattern a regular expression? For most that is told without compiling them.

The library that searches compiles a pattern in about 100 us, which is 12 s for 120,000 of them. A
pattern of everyday syntax alone is one in any case, and recognised in 1 us.
"""

from __future__ import annotations

import re
from functools import lru_cache

import regex

MAX_PLAIN = 300  # characters; what is longer is compiled

#: Not everything that compiles: no group in a group, no references, Unicode properties or free ranges.
_QUANTIFIER = r"(?:[*+?]|\{\d{1,3},?\}|\{[01],[1-9]\d?\})\??+"
_RANGE = r"(?:a-z|A-Z|0-9|\\[dDsSwWntr.\-\]\[\\/*+?()]|[A-Za-z0-9_ .,;:!?*+/%$()'\"=<>@])"
_ATOM = r"(?:[^\\()\[\]{}*+?|^$]|\\[dDsSwWntr!-/:-@\[-`{-~]|\[\^?+-?+" + _RANGE + r"++-?+\])"
_ANCHOR = r"(?:[\^$]|\\[bB])"
_FLAT = rf"(?:{_ANCHOR}|\||{_ATOM}(?:{_QUANTIFIER})?+)*+"
_GROUP = rf"\((?:\?:)?+{_FLAT}\)(?:{_QUANTIFIER})?+"
_LOOK = rf"\(\?<?[=!]{_FLAT}\)"
_PLAIN = re.compile(
    rf"(?:\(\?i\))?+(?:{_ANCHOR}|\||{_ATOM}(?:{_QUANTIFIER})?+|{_GROUP}|{_LOOK})*+", re.ASCII
)


#: A group that is repeated, or a recursion; three things that are repeated. (Escapes count as well.)
_RISKY = re.compile(r"\)[*+{]|\(\?(?:R|&|P>|[-+]?\d)|(?:[*+}].*){3}", re.DOTALL)


@lru_cache(maxsize=4096)
def may_run_away(pattern: str) -> bool:
    """May a search take for ever even on a few lines? No is certain, yes is to be tried."""
    return _RISKY.search(pattern) is not None


def is_plain(pattern: str) -> bool:
    """Is it of everyday syntax alone, so that it compiles? No says nothing."""
    return len(pattern) <= MAX_PLAIN and _PLAIN.fullmatch(pattern) is not None


@lru_cache(maxsize=4096)  # rubrics repeat their patterns
def fault(pattern: str) -> str | None:
    """Why a pattern is no regular expression, or None. Raises `RecursionError` where nested deeply."""
    if is_plain(pattern):
        return None
    try:
        regex.compile(pattern)
    except regex.error as error:
        return f"not a regular expression ({error})"
    return None
