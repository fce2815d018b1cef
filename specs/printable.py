"""Text of others on the page and on the terminal: what it hides is shown, and a line stays a line.

Task files, rubrics, responses, answers of models and what people write into updates are all untrusted:
whatever prints them goes through here.
"""

from __future__ import annotations

import unicodedata

#: Invisible characters that scripts and emoji need; they cannot reorder what stands around them.
_HARMLESS = {"\n", "\t", "\u200c", "\u200d"}
#: Control, format (bidi overrides among them), surrogate, line and paragraph separator.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def neutralise(text: str) -> str:
    """Make control, bidi and invisible characters visible, as in ``⟨U+202E⟩``.

    A terminal would obey an escape sequence, a bidi override could make a page read differently from
    what it holds, and a lone surrogate (legal in JSON) cannot be written as UTF-8 at all.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        f"⟨U+{ord(char):04X}⟩"
        if char not in _HARMLESS and unicodedata.category(char) in _UNSAFE
        else char
        for char in text.replace("\r\n", "\n")
    )


def one_line(text: str) -> str:
    """`text`, neutralised, on one line with the indent of its first: nobody adds lines to a listing."""
    first, *more = neutralise(text).split("\n")
    return " ".join([first, *(line.strip() for line in more if line.strip())]).rstrip()


def short_line(text: str, most: int = 300) -> str:
    """`text`, neutralised, on one line of at most `most` characters: for a record's reason or cause."""
    return " ".join(one_line(text[: 10 * most]).split())[:most]
