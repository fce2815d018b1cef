"""Which answer a response gives to a multiple-choice question: the one it commits to, or none.

Nothing is guessed. The last statement that commits to an answer counts, as a response may correct
itself; a statement that names several answers commits to none. A refusal, or letters that are only
talked about, is no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import regex

#: Characters that are looked at around a statement. Responses are anybody's text: no search goes far.
REACH = 600
#: Words of a response that is an answer and little else.
FEW_WORDS = 12

_THOUGHT = regex.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|$)", regex.DOTALL | regex.IGNORECASE)
#: A clause that does not say what it seems to: what is denied, supposed, asked or called wrong.
_UNSAID = regex.compile(
    r"\b(?:not|never|cannot|\w+n['\u2019]t|if|unless|whether|why|wrong|incorrect|false|neither|suppose"
    r"|assume|would[- ]be|some(?:one|body)?\s+(?:may|might|would|could|say|argue))\b",
    regex.IGNORECASE,
)
#: Marks around a label: emphasis, quotes, brackets, LaTeX.
_OPEN = (
    r"[\s*_`\"'\u201c\u2018(\[{$]*"
    r"(?:\\(?:boxed|text|textbf|mathrm|mathbf)\s?[{(]\s?){0,3}"
    r"[*_`\"'\u201c\u2018(\[{]{0,8}"
)
_CLOSE = r"[*_`\"'\u201d\u2019)\]}$]{0,8}"
_NOUN = r"(?i:option|choice|answer)"
_FILLER = (
    r"(?:\s*(?:therefore|thus|clearly|most\s+likely|likely|probably|definitely|indeed|simply|clear"
    r"|as\s+follows|option|choice|answer|letter)\b:?)*"
)
_INTRO = (
    r"(?:\b(?:answers?|choice|option|selection|response|diagnosis)\b|\u7b54\u6848)"
    r"(?:\s+to\s+(?:this|the)\s+question)?"
    r"(?:\s*(?:is|was|would\s+be|should\s+be|must\s+be|has\s+to\s+be|will\s+be)\b\s*:?"
    r"|\s*[:=\u2013\u2014-]+|\s*[\uff1a\u662f\u4e3a])"
) + _FILLER
_CHOOSE = (
    r"\bI(?:['\u2019]?d|\s+would|['\u2019]?ll|\s+will)?(?:\s+therefore)?"
    r"\s+(?:choose|chose|pick|select|go\s+with|went\s+with|answer|say)"
) + _FILLER
_BOXED = r"\\boxed(?=\s*\{)"
_RIGHT = (
    r"(?i:(?:the\s+|an?\s+)?(?:single\s+|most\s+likely\s+|most\s+|only\s+)*"
    r"(?:correct|right|best|accurate|appropriate|true)\b)"
)
_JOINED = r"\s*(?:,\s*(?:and|or)\b|,|/|&|\band\b|\bor\b)\s*"


def chosen(text: str, choices: Mapping[str, str]) -> str | None:
    """The label of the answer that `text` commits to, or None. `choices`: label -> text, as asked."""
    text = _THOUGHT.sub(" ", text).strip()
    if not text or not choices:
        return None
    for read in (_stated, _alone, _restated, _mentioned):
        if found := read(text, choices):
            return next(iter(found)) if len(found) == 1 else None
    return None


# --- statements: `Answer: B`, `the answer is (B)`, `I choose B`, `B is correct` ----------------------


def _stated(text: str, choices: Mapping[str, str]) -> set[str]:
    """What the last explicit statement names."""
    label = _label(choices)
    it_is = (
        rf"\b(?:it|this|that)(?:['\u2019]s|\s+is|\s+must\s+be)(?=\s*\W*\b(?:{_NOUN}|letter|{label})\b)"
    )
    last: tuple[int, set[str]] = (-1, set())
    for opening in (_INTRO, _CHOOSE, it_is + _FILLER, _BOXED):
        for match in regex.finditer(opening, text, regex.IGNORECASE):
            named = _named(text[match.end() : match.end() + REACH], choices)
            if named and match.end() > last[0] and not _UNSAID.search(_clause(text, match.start())):
                last = (match.end(), named)
    closing = (
        rf"(?P<before>(?:\b(?:{_NOUN}|(?i:only|so|thus|hence|therefore|that|think|believe))\s+)?"
        rf"(?<!\w){_OPEN})(?P<label>{label})(?!\w){_CLOSE}(?P<more>[^.\n]{{0,120}}?)\s+is\s+{_RIGHT}"
    )
    for match in regex.finditer(closing, text):
        is_bare = not match["before"].strip()
        if is_bare and regex.search(r"\w[ \t]*$", text[max(0, match.start() - 20) : match.start()]):
            continue  # `vitamin D is the right one`
        if match.end() > last[0] and not _UNSAID.search(_clause(text, match.start())):
            inside = _marked(match["more"], choices)
            last = (match.end(), {_canonical(match["label"], choices), *inside})
    return last[1]


def _named(rest: str, choices: Mapping[str, str]) -> set[str]:
    """The answers that stand right after a statement's opening: labels, or the text of one."""
    label = _label(choices)
    match = regex.match(rf"{_OPEN}({label})(?!\w)(?P<close>{_CLOSE})", rest)
    if match and not _is_a_word(match, rest, choices):
        named = {_canonical(match[1], choices)}
        further = regex.compile(
            rf"{_CLOSE}{_JOINED}(?:\b{_NOUN}\s+)?{_OPEN}({label})(?!\w)", regex.IGNORECASE
        )
        place = match.end()
        while more := further.match(rest, place):
            named.add(_canonical(more[1], choices))
            place = more.end()
        return named
    texts = sorted((text for text in choices.values() if text.strip()), key=len, reverse=True)
    patterns = (r"\s+".join(map(regex.escape, text.split())).rstrip(".") for text in texts)
    content = rf"{_OPEN}(?:the\s+|an?\s+)?({'|'.join(patterns)})(?!\w)"
    if texts and (match := regex.match(content, rest, regex.IGNORECASE)):
        said = _plain(match[1])
        return {one for one, text in choices.items() if _plain(text) == said}
    return set()


def _is_a_word(match: regex.Match[str], rest: str, choices: Mapping[str, str]) -> bool:
    """Is what looks like a label a word of the sentence (`the answer is a drug`)?

    A bare letter before another word is one, unless a reason or the answer's own text follows.
    """
    is_marked = match["close"].strip() or (match.start(1) != 0 and not rest[0].isspace())
    if len(match[1]) > 1 or is_marked:
        return False
    follows = rest[match.end() :]
    if not regex.match(r"[ \t]+\p{L}", follows):
        return bool(match[1].islower() and not regex.match(r"\s*(?:$|[.)\n])", follows))
    if regex.match(r"[ \t]+(?:and|or|because|since|as|for|with|which|given)\b", follows):
        return bool(match[1].islower())
    own = _plain(choices[_canonical(match[1], choices)])
    return not (own and _plain(follows).startswith(own))


def _clause(text: str, at: int) -> str:
    """What stands before `at` in the same sentence."""
    before = text[max(0, at - REACH) : at]
    return str(regex.split(r"[.!?;\n]|,\s*(?:so|but|therefore|thus|hence)\b", before)[-1])


# --- an answer and nothing else ----------------------------------------------------------------------


def _alone(text: str, choices: Mapping[str, str]) -> set[str]:
    """The response, or its first or last line, is a label, with the answer's own text or without."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len({found for line in lines for found in _line(line, choices)}) > 1:
        return set()  # it goes through the options
    return _line(lines[0], choices) | _line(lines[-1], choices)


def _line(line: str, choices: Mapping[str, str]) -> set[str]:
    start = rf"{_OPEN}(?:{_NOUN}\s+)?(?P<label>{_label(choices)}){_CLOSE}"
    match = regex.match(
        rf"{start}(?P<end>\s*[.):,\uff0e\u3001-]+{_CLOSE}|\s*$|(?=\s))(?P<more>.*)$", line
    )
    if match is None:
        return set()
    found = _canonical(match["label"], choices)
    more, own = _plain(match["more"]), _plain(choices[found])
    is_word = own == _plain(found)  # yes, no, maybe: after a comma or a full stop comes the reason
    fits = bool(match["end"].strip()) if is_word else more.startswith(own)
    return {found} if not more or fits else set()


# --- an answer in other words ------------------------------------------------------------------------


def _restated(text: str, choices: Mapping[str, str]) -> set[str]:
    """The answers whose texts the response repeats; none where the one it repeats is denied or asked."""
    rest, found = _plain(text), set()
    is_long = len(rest.split()) > FEW_WORDS
    texts = {one: _plain(own) for one, own in choices.items() if _plain(own) != _plain(one)}
    for one, own in sorted(texts.items(), key=lambda item: -len(item[1])):
        pattern = rf"(?<!\w){regex.escape(own)}(?!\w)"
        if own and not (is_long and len(own) < 4) and regex.search(pattern, rest):
            found.add(one)
            rest = regex.sub(pattern, " \N{BULLET} ", rest)  # no shorter answer is found inside it
    if len(found) == 1:
        own = texts[next(iter(found))]
        for sentence in regex.split(r"(?<=[.!?])\s+|\n+", text):
            is_open = _UNSAID.search(sentence) or sentence.rstrip().endswith("?")
            if own in _plain(sentence) and is_open:
                return set()
    return found


def _mentioned(text: str, choices: Mapping[str, str]) -> set[str]:
    """The labels that a response mentions which says little else: `I think (B)`."""
    is_open = _UNSAID.search(text) or "?" in text
    return set() if is_open or len(text.split()) > FEW_WORDS else _marked(text, choices)


def _marked(text: str, choices: Mapping[str, str]) -> set[str]:
    """Labels in brackets or emphasis: a letter alone may be a word."""
    found = regex.finditer(rf"[(\[*{{]({_label(choices)})[)\]*}}]", text)
    return {_canonical(match[1], choices) for match in found}


def _label(choices: Mapping[str, str]) -> str:
    """A pattern for any label, in either case: what is around it decides."""
    longest = sorted(choices, key=len, reverse=True)
    return "(?i:" + "|".join(map(regex.escape, longest)) + ")"


def _canonical(label: str, choices: Mapping[str, str]) -> str:
    return next(one for one in choices if one.casefold() == label.casefold())


def _plain(text: str) -> str:
    """Words alone, whatever their case."""
    return " ".join(regex.findall(r"[\p{L}\p{M}\p{N}]+(?:[.,][\p{N}]+)*", text.casefold()))
