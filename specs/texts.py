"""When two texts say the same: one normal form for every question whether a text is known already."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

import regex

#: Letters of scripts that put no space between words.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_UNSPACED = regex.compile(f"[{UNSPACED}]")
#: What stands above or below the line, of which NFKC would leave no trace: `2³` is not 23.
_RAISED = regex.compile(r"\p{dt=super}+")
_LOWERED = regex.compile(r"\p{dt=sub}+")
#: Quotes and dashes of every shape as the plain ones, and characters that nobody sees as none.
_SHAPES = str.maketrans(
    dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb\u300c\u300d\u300e\u300f", '"')
    | dict.fromkeys("\u2018\u2019\u201a\u201b`\u00b4", "'")
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212", "-")
    | dict.fromkeys("\u00ad\u200b\u2060\ufeff")
)
#: What ends a sentence or part of one, or quotes it, in a word. After a single letter or a digit fewer
#: marks are such: `5!` and `f'` say something else than `5` and `f`.
_MARKS = regex.compile(
    rf"(?:(?<=\p{{L}}[\p{{L}}\p{{M}}])|(?<=[{UNSPACED}]))[.,;:?!\"'。、]+(?=$|[{UNSPACED}])"
    rf"|(?<=[\p{{L}}\p{{M}}\p{{N}}\p{{S}})#%])[.,;:?。、]+(?=$|[{UNSPACED}])"
    rf"|^[\"']+(?=\p{{L}}[\p{{L}}\p{{M}}])"
)
_ALONE = regex.compile(r"[.,;:?!\"'。、]+")
_DASHES = regex.compile(r"-+")
#: ASCII's punctuation that may stand around a word.
_AROUND = "!\"&'()*,-./:;?@[\\]_{}"
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalnum())
_NO_LETTER = regex.compile(r"[^\p{L}\p{N}]+")
_UNITS = regex.compile(
    rf"[{UNSPACED}]\p{{M}}*|[^{UNSPACED}\p{{P}}](?:[^{UNSPACED}]*[^{UNSPACED}\p{{P}}])?[#%]?"
)


def normalised(text: str) -> str:
    """The form in which texts that say the same are equal.

    Equal are texts up to case (casefold), Unicode's compatible forms (NFKC: the ligature ﬁ is fi, but
    `x²` is x^2 and `x₂` x_2), the shape of quotes and dashes, white space between words, and the
    punctuation of sentences: `.,;:?` at the end of a word, `!` and quotes at a word of two letters or
    more, also where a space stands before them.
    Everything else tells texts apart: `x^2-4` and `x^2+4`, `C++` and `C#`, `3.5` and `35`, `5!` and `5`,
    `git commit -- file` and `git commit file`.
    """
    if text.isascii():
        plain = text.lower().replace("`", "'")
    else:
        plain = _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", text)).translate(_SHAPES)
        plain = unicodedata.normalize("NFKC", plain).translate(_SHAPES).casefold()
        plain = unicodedata.normalize("NFKC", plain)
    words: list[str] = []
    for word in plain.split():
        if word.isalnum():
            words.append(word)
        elif words and _ALONE.fullmatch(word):
            end = words[-1][-2:]
            if _unmarked(end + word) != end:
                words.append(_unmarked(word))
        elif words and _DASHES.fullmatch(word) and len(words[-1]) > 1 and words[-1][-2:].isalpha():
            words.append("-")  # of any length, in a sentence; after a number it may be a sum's
        else:
            words.append(_unmarked(word))
    return " ".join(words)


@lru_cache(maxsize=4096)  # few words and their marks make up most of any text
def _unmarked(word: str) -> str:
    return str(_MARKS.sub("", word))


def letters(text: str) -> str:
    """A text's letters and digits: the same for all texts of one normal form, and much faster to find."""
    plain = text.lower()
    if not text.isascii():
        plain = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    some = plain.encode(errors="surrogatepass").translate(None, _NO_LETTERS)
    return (
        some.decode() if some.isascii() else str(_NO_LETTER.sub("", some.decode(errors="surrogatepass")))
    )


def units(text: str) -> list[str]:
    """The words of a text in their normal form, without punctuation around them; of scripts that put no
    space between words, its characters."""
    found: list[str] = []
    for word in normalised(text).split():
        if not word.isascii():
            found += _UNITS.findall(word)
        elif bare := word.lstrip(_AROUND + "#%").rstrip(_AROUND):
            found.append(bare)
    return found


def is_unspaced(unit: str) -> bool:
    """Is one of the `units` of a text a character, and no word?"""
    return not unit.isascii() and _UNSPACED.match(unit) is not None
