"""A response to a multiple-choice question made plain: labels and options' texts become one character.

Thoughts and mark-up go first. A letter that is a word of its sentence (`a drug`, `C. difficile`) stays.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Mapping

import regex

#: Characters that are read, from the end: where the answer was asked for.
READ = 8_000

_I = regex.IGNORECASE
_THOUGHT = r"(?:think(?:ing)?|thoughts?|reasoning|reflection|analysis)"
#: What ends a thought, whether or not the chat template has opened it, and one that never ends.
_THOUGHT_END = regex.compile(
    rf"(?:<|\[|\u25c1)/{_THOUGHT}(?:>|\]|\u25b7)|<\|channel\|>final<\|message\|>", _I
)
_OPEN_THOUGHT = regex.compile(
    rf"(?:<{_THOUGHT}>|\[think\]|\u25c1think\u25b7).*?(?=<answer|\Z)", _I | regex.DOTALL
)
#: Mark-up, and what it becomes.
_MARKUP = tuple(
    (regex.compile(pattern, regex.MULTILINE), plain)
    for pattern, plain in (
        (r"[\u200b-\u200f\u2060\ufeff\ue000-\uf8ff]+", ""),  # what nobody sees; private use is for marks
        (r"([^\p{L}\p{N}])\1{3,}", r"\1\1"),
        (r"[\u2018\u2019\u00b4]", "'"),
        (r"[\u2010\u2011\u2212]", "-"),
        (r"[ \t]*[\u2012-\u2015]+[ \t]*", " - "),
        (r"[\u3002]", ". "),
        (r"[*_\"`\u201c\u201d]{1,3}(\p{L})[*_\"`\u201c\u201d]{1,3}(?!\w)", r"(\1)"),  # **C**
        (r"</?(?:b|i|u|p|em|strong|code|span|br)\s*/?>", ""),  # <b>C</b>
        (r"<(?:final[_ ]?)?(?:answer|choice|option)>", " Answer: "),  # <answer>C</answer>
        (r"</\w{1,20}>", "\n"),
        (r"\\boxed\b", " Answer: "),  # \boxed{C}
        (r"\\(?:text\w{0,6}|math\w{0,6}|mbox)\b|\\[()\[\],;! ]|\$", " "),  # \text{C}, \(C\)
        (r"[{\[\u3010]", "("),
        (r"[}\]\u3011]", ")"),
        (r"[*`#\"\u201c\u201d]+", ""),
        (r"_+", " "),
        (r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", ""),
        (r"[ \t]*\|[ \t]*", ": "),  # | Answer | C |
        (r"(?<=\p{Han})(?=[A-Za-z])|(?<=[A-Za-z])(?=\p{Han})", " "),  # \u9009C
    )
)

#: Marks, by what stood there: a label, an option's text, a label with its text, a label that is a word.
BLOCK = 0x100
_LABEL, _TEXT, _BOTH, _WORD = (0xE000 + n * BLOCK for n in range(4))
LABEL = "[\ue000-\ue0ff\ue200-\ue3ff]"
TEXT = "[\ue100-\ue1ff]"
ANY = "[\ue000-\ue3ff]"

#: What may follow a letter that is a label and no word of the sentence ...
_AFTER_LETTER = regex.compile(
    r"[ \t]+(?:is|are|was|would|should|could|must|might|may|will|can|does|has|had|and|or|because"
    r"|since|as|for|with|which|given|but|not|due|here|it\s+is|fits|seems|looks|appears|makes|also"
    r"|rather|instead|over|best\s+(?:fits|explains|matches|describes|answers|accounts))\b",
    _I,
)
#: ... or `I` that is no pronoun, or a label that is a word (`no`, which may be one of `no evidence`).
_AFTER_I = regex.compile(r"[ \t]+(?:is|because|since|or|fits|seems)\b", _I)
_AFTER_WORD = regex.compile(
    r"[ \t]+(?:because|since|as|it|this|that|these|they|the|there|we|is|would|and|or|but|for|based|given"
    r"|not|was)\b",
    _I,
)
_BEFORE_WORD = regex.compile(r"[ \t]+\p{Latin}")
#: `C. difficile`, `No. 5`, and not a sentence that begins in lower case.
_NAME = regex.compile(
    r"\.[ \t]+(?!(?:because|since|as|this|it|the|so|which|thus|that|therefore|explanation|reason"
    r"|here)\b)\p{Ll}"
    r"|\.\s*\p{N}"
)
#: Where a lower-case letter is a label: `b) ...` or `b` on a line of its own, `the answer is b.`
_LINE_START = regex.compile(r"(?:^|\n)[\s('<>-]*$")
_LABEL_END = regex.compile(r"[).:]|\s*$|[ \t]*\n")
_SAID = regex.compile(
    r"(?:[:=]|\b(?:is|be|say|answer|option|choice|letter|pick|choose|select|with|est|es|ist))\s*[('<]*$",
    _I,
)
_SAID_END = regex.compile(r"[\s)'>]*(?:$|[.,;!\n])")


def final(text: str) -> str:
    """What follows the thoughts, without mark-up, each character in one form."""
    for last in [*_THOUGHT_END.finditer(text)][-1:]:
        text = text[last.end() :]
    return _tidy(_OPEN_THOUGHT.sub("", text)[-READ:])


def numbers(marks: str | None) -> set[int]:
    """Which answers these marks are: their places among the choices."""
    return {ord(mark) % BLOCK for mark in regex.findall(ANY, marks or "")}


def words(text: str) -> list[str]:
    """Words, numbers with their sign, and signs that tell two options apart."""
    found: list[str] = regex.findall(
        r"[<>\u2264\u2265%]|(?<!\w)-?\p{N}+(?:[.,]\p{N}+)*|[\p{L}\p{M}]+|\p{N}+", text
    )
    return found


def marked(text: str, choices: Mapping[str, str]) -> str:
    """`text` with a mark for each label, each option's text, and both where they stand together."""
    labels, texts = _search(tuple(choices.items()))
    marks = {
        _folded(label): (label, chr((_WORD if label == own else _LABEL) + n))
        for n, (label, own) in enumerate(choices.items())
    }

    def text_mark(match: regex.Match[str]) -> str:
        is_part = len(match[0]) < 6 and not _is_itself(match, match[0], match[0])
        return str(match[0]) if is_part else chr(_TEXT + int(str(match.lastgroup)[1:]))

    def label_mark(match: regex.Match[str]) -> str:
        ones = [(one, *marks[_folded(one)]) for one in match[0].split("/")]
        are_labels = all(_is_itself(match, one, label) for one, label, _ in ones)
        return "/".join(mark for _, _, mark in ones) if are_labels else str(match[0])

    def joined(match: regex.Match[str]) -> str:
        found = numbers(match[0])
        return chr(_BOTH + min(found)) if len(found) == 1 else str(match[0])

    text = labels.sub(label_mark, texts.sub(text_mark, text) if texts else text)
    return str(_TOGETHER.sub(joined, text))


#: `C) the text of C`, `the text of C (C)`
_TOGETHER = regex.compile(
    "[\ue000-\ue0ff][\\s).:,(-]{0,8}[\ue100-\ue1ff]|[\ue100-\ue1ff]\\s*\\([\ue000-\ue0ff](?=\\))"
)


@functools.lru_cache(maxsize=256)
def _search(choices: tuple[tuple[str, str], ...]) -> tuple[regex.Pattern[str], regex.Pattern[str] | None]:
    """What finds any label (`A`, `A/B`), and any option's text that no other has, the longest first."""
    ones = "|".join(regex.escape(label) for label, _ in sorted(choices, key=lambda item: -len(item[0])))
    label = rf"(?i:{ones})"
    labels = regex.compile(
        rf"(?<![\p{{L}}\p{{N}}&]|[\p{{L}}\p{{N}}]['/.-]){label}(?:/{label})*"
        r"(?![\p{L}\p{M}\p{N}]|['&/-][\p{L}\p{N}]|\.\p{Ll})"
    )
    own = {
        n: tuple(words(_tidy(text.casefold())))
        for n, (label, text) in enumerate(choices)
        if text != label
    }
    own = {n: text for n, text in own.items() if text and [*own.values()].count(text) == 1}
    gap = r"(?:[^\p{L}\p{M}\p{N}<>\u2264\u2265%-]|-(?!\p{N})){0,6}"
    patterns = [
        f"(?P<t{n}>{gap.join(map(regex.escape, text))})"
        for n, text in sorted(own.items(), key=lambda item: -len("".join(item[1])))
    ]
    texts = regex.compile(
        rf"(?<![\p{{L}}\p{{N}}-]|\p{{N}}[.,]|[<>\u2264\u2265]\s?)(?:{'|'.join(patterns)})"
        r"(?![\p{L}\p{M}\p{N}%]|-\p{L}|[.,]\p{N})",
        _I,
    )
    return labels, texts if patterns else None


def _is_itself(match: regex.Match[str], found: str, label: str) -> bool:
    """Is it a label, and no word of the sentence, going by what is around it?"""
    text, start, end = match.string, match.start(), match.end()
    if text[start - 1 : start] in ("(", "<") and text[end : end + 1] in (")", ">"):
        return True
    if len(label) < 3 and _NAME.match(text, end):
        return False
    if _BEFORE_WORD.match(text, end):
        follows = _AFTER_WORD if len(label) > 1 else _AFTER_I if label == "I" else _AFTER_LETTER
        return found.isupper() >= label.isupper() and bool(follows.match(text, end))
    if len(label) > 1 or found == label:
        return True
    before = text[max(0, start - 16) : start]
    begins_line = _LINE_START.search(before) and _LABEL_END.match(text, end)
    return bool(begins_line or (_SAID.search(before) and _SAID_END.match(text, end)))


def _folded(label: str) -> str:
    return label.casefold().replace("\u0131", "i").replace("i\u0307", "i")  # as `regex` folds them


def _tidy(text: str) -> str:
    text = unicodedata.normalize("NFKC", text)
    for pattern, plain in _MARKUP:
        text = pattern.sub(plain, text)
    return text.strip()
