"""Which answer a response gives to a multiple-choice question: the one it commits to, or none.

Nothing is guessed: a wrong reading is worse than none. Thoughts and mark-up go first; then every label and
every option's text becomes one character, a mark, so that the tables below are about words and marks. The
last statement that commits to an answer counts, as a response may correct itself. Several answers in one
statement, a correction to nothing clear, a refusal, or letters that are only talked about are no answer.
"""

from __future__ import annotations

from collections.abc import Mapping

import regex

from .marks import ANY, LABEL, final, marked, numbers, words

#: Characters that are looked at before a statement.
REACH = 400
#: Statements that are weighed, the last ones, and questions that are told apart: a response may repeat itself without end.
MANY = 40
#: Words of a response that is a label and little else.
FEW_WORDS = 12

_I = regex.IGNORECASE
#: A turn or question that somebody else begins: which answer is this question's is anybody's guess.
_QUESTION = regex.compile(r"^[ \t]*(?:human|user|question|q)[ \t]*\d*[ \t]*[:.)]", _I | regex.MULTILINE)

_OPEN = r"[\s('<]{0,12}"
_CLOSE = r"[)'>]{0,8}"
#: Several answers: `A, B`, `A or maybe C`, `B (the text of C)`; not `B, A is wrong` or `B (not A)`.
_FURTHER = (
    r"[ \t]*(?:(?:[,(/&+\u3001]|(?:[,(][ \t]*)?\b(?:and|or|und|oder|et|ou|y|o)\b|[\u6216\u548c])[ \t]*)"
    r"(?:(?:maybe|possibly|perhaps|probably|even|also|option|choice|answer)\b:?[ \t]*)*"
    rf"[('<]{{0,8}}(?!{ANY}(?:[ \t,]*+(?:(?:and|or)[ \t]+)?{ANY}){{0,3}}+{_CLOSE}[ \t]+(?:is|are|was|has|have|would|does|do)\b)"
)
_LIST = rf"(?P<said>(?>{ANY}(?:{_CLOSE}{_FURTHER}{ANY}){{0,9}})){_CLOSE}"
#: Where a short statement has to end, so that `so A would cause ...` is none.
_STOP = (
    rf"(?=\s*(?:$|[.;!\n]|,(?!\s*{ANY})|-\s|\((?!if)|\u9009\u9879|\u3002"
    r"|\b(?:because|since|as|given|due|based|for\s+the\s+reason|here)\b))"
)
_BE = r"(?:is|was|are|(?:would|should|must|will|could|may|might|can\s+only|has\s+to|seems?\s+to|appears?\s+to)\s+be)"
_FILLER = (
    r"(?:\s*\b(?:therefore|thus|then|clearly|most\s+likely|likely|probably|definitely|indeed|simply|clear|still"
    r"|actually|obviously|now|as\s+follows|both|either|the|option|choice|answer|letter|la|le|die|der)\b\s*:?)*"
)
_NOUN = (
    r"(?:answers?|ans|choice|option|selection|response|diagnosis|letter|conclusion|verdict|decision"
    r"|antwort|l\u00f6sung|r\u00e9ponse|respuesta|resposta|risposta)"
)
#: What may stand between the noun and its verb: nothing that makes it the answer to something else.
_ASIDE = (
    r"(?:[\s,]*\b(?:here|to\s+(?:this|the)\s+question|to\s+question\s+\d+|in\s+(?:my|this)\s+\w+|correcte?a?"
    r"|(?:of|among|from)\s+(?:these|those|them|the\s+\w+)(?:\s+(?:options|choices))?|letter|(?:that\s+)?I"
    r"(?:\s+would|'d)?\s+(?:choose|pick|select|give))\b,?)?"
)
_RIGHT = (
    r"(?:(?:indeed|clearly|therefore|thus|probably|definitely|likely)\s+)?(?:(?:the|an?|my|our)\s+)?"
    r"(?:(?:single|most\s+likely|most|only|final|clear)\s+)*"
    r"(?:(?:correct|right|best|appropriate|accurate)(?!-)\b(?:\s+(?:answer|option|choice|one|selection))?|answer\b)"
)
_START = rf"(?:^|[.,;:!?(]\s*|(?<!{ANY}[)'>]?\s)\b(?:and|but)\s+)"

#: Statements that commit to what they name; to none where they name several.
_STATEMENTS = (
    # The best answer here is (C)   Answer: C   {"answer": "C"}   \boxed{C}   La respuesta es C
    rf"\b{_NOUN}\b{_CLOSE}{_ASIDE}\s*(?:(?:\b{_BE}|\b(?:ist|est|es)\b|\u00e9\b|\u00e8\b)\s*:?|[.:=-]+(?!\w)){_FILLER}",
    # Final: C   Correct: C
    r"(?:^|[.!]\s+)(?:final|correct|result)\s*[:=]",
    # \u7b54\u6848\u662fC   \u6b63\u786e\u7b54\u6848\u4e3a:C   \u6211\u9009\u62e9C
    r"\u7b54\u6848\s*\)?\s*(?:\u5e94\u8be5|\u5e94)?\s*[\u662f\u4e3a\u9009]?\s*:?(?:\s*\u9009\u9879)?",
    r"(?<!\u4e0d|\u4e0d\u80fd|\u4e0d\u5e94|\u4e0d\u5e94\u8be5|\u4e0d\u8981)\u9009(?!\u9879)\u62e9?\s*:?",
    # I would choose C   we're going with C   let's go with C
    r"\b(?:(?:I|we)(?:'d|'ll|'m|'re|\s+would|\s+will|\s+am|\s+are)?(?:\s+therefore)?|let's|let\s+us)\s+"
    rf"(?:choose|chose|pick|select|answer|say|opt\s+for|settle\s+on|(?:go|going|went)\s+with)\b{_FILLER}",
)
#: Statements that are over after one label.
_SHORT = (
    # It's C   that must be option C
    rf"\b(?:it|this|that|x)(?:'s|\s+{_BE})(?:\s+an?\b)?{_FILLER}",
    # The best next step is C
    rf"\b(?:correct|right|best|(?:most\s+)?likely|most\s+appropriate)(?:\s+[\w-]+){{1,3}}?\s+{_BE}{_FILLER}",
    # This corresponds to option C   that leaves C
    r"\b(?:corresponds?\s+to|match(?:es)?|points?\s+to|leaves|leaving)(?:\s+(?:us\s+with|only))?"
    rf"{_FILLER}",
    # I think C   I believe it is C
    rf"\bI\s+(?:think|believe|guess|suspect)(?:\s+that)?(?:\s+it(?:'s|\s+{_BE}))?{_FILLER}",
    # So C   Therefore, C   Overall: C   Based on the abstract, yes
    rf"{_START}(?:(?:so|thus|hence|therefore|overall|finally|in\s+(?:conclusion|summary)|clearly|definitely"
    r"|(?:most\s+)?(?:likely|probably))\b[,:]?|(?:based\s+on|according\s+to|given)\b[^.,;:!?\n]{1,80},)"
    rf"{_FILLER}",
    # Answer C
    rf"^\s*(?:(?:final|correct|the)\s+)*answer\b",
)
#: Statements that begin with the answer.
_CLOSINGS = (
    # C is correct   option (C) is the best choice   C is the answer   C would be the right one
    rf"(?:\s*\([^()\n]{{0,80}}\)|,[^,.;\n]{{0,80}},)?\s+(?:is|are|was|(?:would|should|must|will|has\s+to)\s+be)\s+{_RIGHT}{_STOP}",
    # C fits best   C best explains the findings
    r"\s+(?:fits\s+best|makes\s+(?:the\s+)?most\s+sense|best\s+(?:fits|explains|matches|describes|answers|accounts)|it\s+is)\b",
    # C\u9009\u9879\u6b63\u786e
    r"\s*(?:\u9009\u9879)?\s*\u662f?\s*(?:\u6b63\u786e|\u5bf9\u7684)",
)
_BEFORE_CLOSING = (
    rf"(?:{_START}|\b(?:both|option|choice|answer|letter|only|so|thus|hence|therefore|overall|that|think|believe"
    r"|while|because|since)\s+|\u9009\u9879\s*)"
)
#: `Wait, no, D`   `Correction: C`   `On second thought, it should be D`
_CUE = (
    r"(?:^|[.,;:!?(-]\s*|\b(?:but|oh|hmm|no|well)[,.\s]+)(?:(?:hmm|no)[,.\s]+)?(?:wait|actually|correction|scratch\s+that"
    r"|hold\s+on|sorry|oops|rather|on\s+(?:second\s+thoughts?|reflection)|I\s+mean|my\s+mistake|no(?=[,.!-])"
    r"|let\s+me\s+(?:correct|reconsider|rethink)|I\s+(?:was|am)\s+wrong)\b"
)
_AFTER_CUE = (
    r"(?:[\s,.:;!(-]|\b(?:wait|hmm|no|so|it|it's|that's|that|this|is|was|should|must|would|be|wrong|on|second|thought"
    r"|the|correct|right|answer|option|choice|I|I'd|I'll|think|choose|pick|say|go|with|actually|to|my)\b){0,30}"
)
#: Words that make a statement one about what is not so, or may not be.
_DENIED = regex.compile(
    r"\b(?:not|never|cannot|\w+n't|wrong|incorrect|false|neither|nor|mistaken?|least|nicht|pas)\b"
    r"|\u4e0d\u662f|\u9519\u8bef|\u4e0d\u6b63\u786e",
    _I,
)
_SUPPOSED = regex.compile(
    r"(?<!even\s)\bif\b|\b(?:unless|whether|why|suppose|supposing|assum(?:e|ing)|would-be|different"
    r"|some(?:one|body)?\s+(?:may|might|would|could|say|argue)|(?:first|second|third|other|another|each|every)\s+(?:option|choice))\b",
    _I,
)
#: Words in the sentence of an option that is talked about and not chosen.
_PASSED_OVER = regex.compile(
    r"\b(?:rul(?:e|ed|es|ing)\s+out|eliminat\w+|exclud\w+|contraindicat\w+|unlike(?:ly)?|discard\w*|reject\w*|avoid\w*"
    r"|instead\s+of|rather\s+than|other\s+than|than|each|every|except|versus|vs|compared|such\s+as|like|distractors?|either|no"
    r"|more\s+(?:information|data|details?|context)|depends?|(?:options?|choices|answers)\s+(?:are|include)|e\.g)\b",
    _I,
)
_TURNED_DOWN = (
    rf"(?:\s*,?\s*(?:which|that))?\s+(?:(?:{_BE}|seems|looks|has\s+been|can\s+be)\s+(?:\w+\s+)?(?:not\b|wrong\b|incorrect\b"
    r"|false\b|out\b|ruled|excluded|eliminated|unlikely|contraindicated|a\s+(?:distractor|mistake))|isn't|wasn't|cannot|can't)"
)
_LEFT_OPEN = regex.compile(
    rf"{_CLOSE}(?:[^.!;?\n]{{0,200}}\?|{_TURNED_DOWN}|[ \t]*,?[ \t]*(?:but[ \t]+)?(?:only[ \t]+)?(?:if|unless|assuming|provided)\b)",
    _I,
)


def _compiled(lead: str, end: str) -> regex.Pattern[str]:
    return regex.compile(f"(?P<lead>{lead}){_OPEN}{end}", _I | regex.MULTILINE)


_CLOSING = _compiled(_BEFORE_CLOSING, rf"{_LIST}(?:{'|'.join(_CLOSINGS)})")
_KINDS = (
    *(_compiled(lead, _LIST) for lead in _STATEMENTS),
    *(_compiled(lead, rf"(?={LABEL}){_LIST}{_STOP}") for lead in _SHORT),
    _CLOSING,
)
_CORRECTION = _compiled(_CUE + _AFTER_CUE, rf"(?:(?P<said>{ANY}){_CLOSE}{_STOP})?(?P<rest>[^\n]{{0,160}})")
_DENIAL = regex.compile(rf"(?P<said>{ANY}){_CLOSE}{_TURNED_DOWN}", _I)
_NOT_BUT = regex.compile(rf"(?:\bnot|n't)\s+{_OPEN}{ANY}{_CLOSE}\s*,?\s*but\s+(?:rather\s+)?", _I)


def chosen(text: str, choices: Mapping[str, str]) -> str | None:
    """The label of the answer that `text` commits to, or None. `choices`: label -> text, as asked."""
    parts = _QUESTION.split(final(text), MANY) if choices else []
    said = {_committed(marked(part, choices), choices) for part in parts} - {None}
    return said.pop() if len(said) == 1 else None


def _committed(text: str, choices: Mapping[str, str]) -> str | None:
    own_words = [len(words(own)) for own in choices.values()]
    said = _stated(text)
    for read in (_alone, _mentioned):
        said = read(text) if said is None else said
    said = _restated(text, own_words) if said is None else said
    return list(choices)[said.pop()] if said and len(said) == 1 else None


# --- reading a marked text: each says which answers, or None where it has nothing to say ---------------


def _stated(text: str) -> set[int] | None:
    """What the last explicit statement names; nothing where it is taken back."""
    text = _NOT_BUT.sub("", text)
    found = [match for pattern in (*_KINDS, _CORRECTION, _DENIAL) for match in pattern.finditer(text)]
    current: set[int] | None = None
    last: regex.Match[str] | None = None
    for match in sorted(found, key=lambda one: max(one.start(), one.start("said")))[-MANY:]:
        said = numbers(match["said"])
        if match.re is _DENIAL:
            current = set() if said == current else current
        elif said and _is_meant(text, match):
            both_are_right = last is not None and last.re is _CLOSING and match.re is _CLOSING
            current = said | (current or set()) if both_are_right else said
            last = match
        elif match.re is _CORRECTION and current is not None:
            others = numbers(match["rest"]) - current
            is_denied = bool(_DENIED.search(match[0]) or _PASSED_OVER.search(match[0]))
            current = set() if bool(others) != is_denied else current
    return current


def _is_meant(text: str, match: regex.Match[str]) -> bool:
    """Is the statement neither denied, supposed nor asked, and not the head of a list of the options?"""
    at = match.end("lead") - len(match["lead"].lstrip(" \t\n.,;:!?("))
    sentence = regex.split(r"[.!?;\n]", text[max(0, at - REACH) : at])[-1]
    nearest = regex.split(r",(?!\s*(?:that|which|and|nor|or)\b)|\bbut\b", sentence)[-1]
    if _SUPPOSED.search(sentence + match["lead"].lstrip()) or _DENIED.search(nearest) or _LEFT_OPEN.match(text, match.end()):
        return False
    is_below = "\n" in text[at : match.start("said")]
    following = regex.compile(rf"[^\n]*\n[\s(-]*({ANY})(?=[).:]|\s*$)", regex.M).match(text, match.end())
    return not (is_below and following and numbers(following[1]) != numbers(match["said"]))


_ALONE = regex.compile(rf"[\s('<>-]*(?:(?:the\s+)?{_NOUN}\s+)?({ANY})[\s.)!,:'>-]*$", _I)
_BARE = regex.compile(r"[\s('<>-]*([\ue000-\ue0ff\ue300-\ue3ff])[\s.)!'>-]*$")
#: `C, because the drug ...`, `Yes, as shown`
_REASON = regex.compile(
    rf"[\s('<>-]*(?:({LABEL}){_CLOSE}[\s,.:-]*\b(?:because|since|as|given|due)\b"
    rf"|([\ue300-\ue3ff]){_CLOSE}[\s]*[,.;:-])",
    _I,
)
_HEAD = regex.compile(rf"[\s('<>-]*(?:(?:the\s+)?{_NOUN}\s+)?({LABEL})", _I)


def _alone(text: str) -> set[int] | None:
    """The first or last line, or the last sentence, is an answer and little else."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    heads = [match for line in lines if (match := _HEAD.match(line) or _ALONE.match(line))]
    if len(numbers("".join(match[1] for match in heads))) > 1:  # it goes through the options ...
        bare = [match[1] for line in lines if (match := _BARE.match(line))]
        is_last = bool(_BARE.match(lines[-1])) and len({*bare}) == 1
        is_known = is_last and numbers(bare[-1]) <= numbers("".join(match[1] for match in heads[:-1]))
        return numbers(bare[-1]) if is_known else None  # ... and then gives one
    if len(lines) > 1 and lines[-2].endswith(":") and not _BARE.match(lines[-1]):
        del lines[-1]  # the first of a list that breaks off
    sentences = regex.split(r"(?<=[.!?])\s+", lines[-1])
    pieces = [lines[0], lines[-1], sentences[-1], *(one for one in sentences if _BARE.match(one))]
    said = [match[1] or match[2] for one in pieces if (match := _REASON.match(one))]
    said += [match[1] for one in pieces if (match := _ALONE.match(one))]
    return numbers("".join(said)) or None


def _mentioned(text: str) -> set[int] | None:
    """The labels that a response mentions which says little else: `Rather (B)`."""
    if _is_open(text) or len(words(text)) > FEW_WORDS:
        return None
    found = regex.findall(rf"\({LABEL}\)|[\ue200-\ue2ff]", text)
    return numbers("".join(found)) or None


def _restated(text: str, own_words: list[int]) -> set[int] | None:
    """The one option whose text is at least a quarter of what the response says."""
    said = numbers(text)
    if len(said) != 1 or _is_open(text) or len(words(text)) > 3 * own_words[min(said)]:
        return None
    return said if regex.search("[\ue100-\ue2ff]", text) else None


def _is_open(text: str) -> bool:
    return bool(_DENIED.search(text) or _SUPPOSED.search(text) or _PASSED_OVER.search(text) or "?" in text)
