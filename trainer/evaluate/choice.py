"""Which answer a response gives to a multiple-choice question: the one it commits to, or none.

Nothing is guessed. The last statement that commits to an answer counts, as a response may correct
itself; a statement that names several answers commits to none. A refusal, or letters that are only
talked about, is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import regex

#: Marks around a label: emphasis, quotes, brackets, LaTeX.
_OPEN = r"[\s*_`\"'\u201c\u2018(\[{$]*(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s?[{(]\s?){0,3}[*_`\"'\u201c\u2018(\[{]{0,8}"
_CLOSE = r"[*_`\"'\u201d\u2019)\]}$]{0,8}"
_THOUGHT = regex.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|$)", regex.DOTALL | regex.IGNORECASE)
#: A clause that does not say what it seems to: what is denied, supposed, asked or called wrong.
MOST_SAID = 600  # characters that are looked at around a statement
_UNSAID = regex.compile(
    r"\b(?:not|never|cannot|\w+n['\u2019]t|if|unless|whether|why|wrong|incorrect|false|neither|suppose|assume"
    r"|would[- ]be|some(?:one|body)?\s+(?:may|might|would|could|say|argue))\b",
    regex.IGNORECASE,
)
_ANSWER = r"(?:answers?|choice|option|selection|response|diagnosis)"
_IS = r"(?:\s*(?:is|was|would\s+be|should\s+be|must\s+be|has\s+to\s+be|will\s+be)\b\s*:?|\s*[:=\u2013\u2014-]+|\s*[\uff1a\u662f\u4e3a])"
_LIKELY = (
    r"(?:\s*(?:therefore|thus|clearly|most\s+likely|likely|probably|definitely|indeed|option|choice|answer|letter|"
    r"simply|clear|as\s+follows)\b:?)*"
)
_RIGHT = r"(?:the\s+|an?\s+)?(?:single\s+|most\s+likely\s+|most\s+|only\s+)*(?:correct|right|best|accurate|appropriate|true)\b"


def chosen(text: str, choices: Mapping[str, str]) -> str | None:
    """The label of the answer that `text` commits to, or None. `choices`: label -> text, as asked."""
    text = _THOUGHT.sub(" ", text).strip()
    if not text or not choices:
        return None
    readers = (_stated, _alone, _restated, _mentioned)
    for reader in readers:
        found = reader(text, choices)
        if len(found) == 1:
            return next(iter(found))
        if len(found) > 1:
            return None
    return None


def _stated(text: str, choices: Mapping[str, str]) -> set[str]:
    """What the last explicit statement says: `Answer: B`, `the answer is (B)`, `B is correct`."""
    last: tuple[int, set[str]] = (-1, set())
    for at, before, named in _statements(text, choices):
        if at > last[0] and not _UNSAID.search(before):
            last = (at, named)
    return last[1]


def _statements(text: str, choices: Mapping[str, str]) -> list[tuple[int, str, set[str]]]:
    """Where each statement ends up naming something, what its clause says before, and what it names."""
    label, content = _label(choices), _content(choices)
    found = []
    intro = rf"(?:\b{_ANSWER}\b|\u7b54\u6848)(?:\s+to\s+(?:this|the)\s+question)?{_IS}{_LIKELY}"
    verb = (
        r"(?:\bI(?:['\u2019]?d|\s+would|['\u2019]?ll|\s+will)?(?:\s+therefore)?\s+(?:choose|chose|pick|select|go\s+with"
        r"|went\s+with|answer|say)|\b(?:it|this|that)(?:['\u2019]s|\s+is|\s+must\s+be)(?=\s*\W*\b(?:option|choice|answer|letter|"
        + label
        + r")\b))"
        + _LIKELY
    )
    for opening in (intro, verb, r"\\boxed(?=\s*\{)"):
        for match in regex.finditer(opening, text, regex.IGNORECASE):
            if named := _named(text, match.end(), label, content, choices):
                found.append((match.end(), _clause(text, match.start()), named))
    closing = rf"(?P<marks>(?:\b(?i:option|choice|answer|only|so|thus|hence|therefore|that|think|believe)\s+)?(?<!\w){_OPEN})({label})(?!\w){_CLOSE}(?P<more>[^.\n]{{0,120}}?)\s+is\s+(?i:{_RIGHT})"
    for match in regex.finditer(closing, text):
        if not match["marks"].strip() and regex.search(
            r"\w[ \t]*$", text[max(0, match.start() - 20) : match.start()]
        ):
            continue  # `vitamin D is the right one`
        named = {_canonical(match[2], choices)}
        named |= {_canonical(m, choices) for m in _labels_in(match["more"], label)}
        found.append((match.end(), _clause(text, match.start()), named))
    return found


def _named(text: str, at: int, label: str, content: str, choices: Mapping[str, str]) -> set[str]:
    """The answers that stand right after a statement's opening: labels, or the text of one."""
    rest = text[at : at + MOST_SAID]
    if match := regex.match(rf"{_OPEN}({label})(?!\w)(?P<close>{_CLOSE})", rest):
        if not _is_article(match, rest, choices):
            named = {_canonical(match[1], choices)}
            others = rf"{_CLOSE}\s*(?:,|/|&|\band\b|\bor\b|,\s*(?:and|or)\b)\s*(?:\b(?:option|choice|answer)\s+)?{_OPEN}({label})(?!\w)"
            place = match.end()
            while more := regex.compile(others, regex.IGNORECASE).match(rest, place):
                named.add(_canonical(more[1], choices))
                place = more.end()
            return named
    if content and (
        match := regex.match(rf"{_OPEN}(?:the\s+|an?\s+)?({content})(?!\w)", rest, regex.IGNORECASE)
    ):
        return _by_text(match[1], choices)
    return set()


def _is_article(match: regex.Match[str], rest: str, choices: Mapping[str, str]) -> bool:
    """Is what looks like a label a word of the sentence: `the answer is a drug`, `I` for oneself?

    A bare letter before another word is one, unless the answer's own text follows.
    """
    if len(match[1]) > 1 or match["close"].strip() or match.start(1) != 0 and not rest[0].isspace():
        return False
    follows = rest[match.end() :]
    if not regex.match(r"[ \t]+\p{L}", follows):
        return match[1].islower() and not regex.match(r"\s*(?:$|[.)\n])", follows)
    if regex.match(r"[ \t]+(?:and|or|because|since|as|for|with|which|given)\b", follows):
        return match[1].islower()
    own = _plain(choices.get(match[1].upper(), ""))
    return not (own and _plain(follows).startswith(own))


def _alone(text: str, choices: Mapping[str, str]) -> set[str]:
    """The whole response, or its first or last line, is a label, with the answer's own text or without."""
    lines = [line for line in text.splitlines() if line.strip()]
    listed = {found for line in lines for found in _line(line, choices)}
    if len(listed) > 1:
        return set()  # it goes through the options
    return _line(lines[0], choices) | _line(lines[-1], choices)


def _line(line: str, choices: Mapping[str, str]) -> set[str]:
    label = _label(choices)
    shape = rf"{_OPEN}(?:(?i:option|choice|answer)\s+)?({label}){_CLOSE}(?:[.):,\uff0e\u3001-]+{_CLOSE}|\s*$|(?=\s))(?P<more>.*)$"
    match = regex.match(shape, line.strip())
    if match is None:
        return set()
    found = _canonical(match[1], choices)
    more, own = _plain(match["more"]), _plain(choices[found])
    marked = regex.match(
        rf"{_OPEN}(?:(?i:option|choice|answer)\s+)?{label}{_CLOSE}\s*[.):,\uff0e\u3001-]", line.strip()
    )
    if not more or (own != _plain(found) and more.startswith(own)):
        return {found}
    is_word = own == _plain(found)  # yes, no, maybe: what follows is why
    return {found} if is_word and marked else set()


def _restated(text: str, choices: Mapping[str, str]) -> set[str]:
    """The one answer whose text the response repeats; it must not be denied, nor another one repeated."""
    whole = _plain(text)
    texts = {label: _plain(own) for label, own in choices.items() if _plain(own) != _plain(label)}
    there = {}
    for label, own in texts.items():
        if len(own) < 4 and len(whole.split()) > 10:
            continue
        there[label] = own
    found = set()
    rest = whole
    for label, own in sorted(there.items(), key=lambda item: -len(item[1])):
        pattern = rf"(?<!\w){regex.escape(own)}(?!\w)"
        if own and regex.search(pattern, rest):
            found.add(label)
            rest = regex.sub(pattern, " \N{BULLET} ", rest)  # no shorter answer is found inside it
    if len(found) == 1:
        (label,) = found
        for sentence in regex.split(r"(?<=[.!?])\s+|\n+", text):
            if texts[label] in _plain(sentence) and (
                _UNSAID.search(sentence) or sentence.rstrip().endswith("?")
            ):
                return set()
    return found


def _mentioned(text: str, choices: Mapping[str, str]) -> set[str]:
    """The only answer that is mentioned at all, in a response that says little else: `I think (B)`."""
    found = {_canonical(m, choices) for m in _labels_in(text, _label(choices))}
    is_short = len(text.split()) <= 12
    return (
        found if len(found) == 1 and is_short and not _UNSAID.search(text) and "?" not in text else set()
    )


def _labels_in(text: str, label: str) -> list[str]:
    """Labels in brackets or emphasis: a letter alone may be a word."""
    return [m[1] for m in regex.finditer(rf"[(\[*{{]({label})[)\]*}}]", text)]


def _label(choices: Mapping[str, str]) -> str:
    """A label, as it is written: letters in either case, since what is around them decides."""
    longest = sorted(choices, key=len, reverse=True)
    return "(?i:" + "|".join(regex.escape(label) for label in longest) + ")"


def _content(choices: Mapping[str, str]) -> str:
    """The text of an answer, up to spacing; of two that begin alike the longer one."""
    texts = sorted((text for text in choices.values() if text.strip()), key=len, reverse=True)
    return "|".join(
        r"\s+".join(regex.escape(word) for word in text.split()).rstrip(".") for text in texts
    )


def _by_text(said: str, choices: Mapping[str, str]) -> set[str]:
    return {label for label, text in choices.items() if _plain(text) == _plain(said)}


def _canonical(label: str, choices: Mapping[str, str]) -> str:
    return next(one for one in choices if one.casefold() == label.casefold())


def _clause(text: str, at: int) -> str:
    """What stands before `at` in the same sentence."""
    before = text[max(0, at - MOST_SAID) : at]
    return regex.split(r"[.!?;\n]|,\s*(?:so|but|therefore|thus|hence)\b", before)[-1]


def _plain(text: str) -> str:
    """Words alone, whatever their case."""
    return " ".join(regex.findall(r"[\p{L}\p{M}\p{N}]+(?:[.,][\p{N}]+)*", text.casefold()))
