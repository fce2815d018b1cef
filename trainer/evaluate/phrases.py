"""How responses state an answer, correct one, or only talk about one: patterns over marked text.

`marks` has made one character of each label and each option's text. A pattern's `lead` is what comes
before the answer, `said` the marks that it names.
"""

from __future__ import annotations

import regex

from .marks import ANY, LABEL, TEXT

_I = regex.IGNORECASE

OPEN = r"[\s('<]{0,12}"
CLOSE = r"[)'>]{0,8}"
#: Several answers: `A, B`, `A or maybe C`, `B (the text of C)`; not `B, A is wrong` or `B (not A)`.
_FURTHER = (
    rf"[ \t]*(?:[.:-][ \t]*(?={TEXT}[ \t.)]*$)|(?:[,(/&+\u3001]|->|\u2192"
    r"|(?:[,(][ \t]*)?\b(?:and|or|und|oder|et|ou|y|o)\b|[\u6216\u548c])[ \t]*)"
    r"(?:(?:maybe|possibly|perhaps|probably|even|also|option|choice|answer)\b:?[ \t]*)*"
    rf"[('<]{{0,8}}(?!{ANY}(?:[ \t,()'<>]*+(?:(?:and|or)[ \t(']+)?{ANY}){{0,3}}+{CLOSE}"
    r"[ \t]+(?:is|are|was|has|have|would|does|do)\b)"
)
_LIST = rf"(?P<said>(?>{ANY}(?:{CLOSE}{_FURTHER}{ANY}){{0,9}})){CLOSE}"
#: Where a short statement has to end, so that `so A would cause ...` is none.
_STOP = (
    rf"(?=\s*(?:$|[.;!\n]|,(?!\s*{ANY})|-\s|\((?!if)|\u9009\u9879|\u3002"
    r"|\b(?:because|since|as|given|due|based|for\s+the\s+reason|here)\b))"
)
_BE = (
    r"(?:is|was|are|(?:would|should|must|will|could|may|might|can\s+only|has\s+to|seems?\s+to"
    r"|appears?\s+to)\s+be)"
)
_FILLER = (
    r"(?:\s*\b(?:therefore|thus|then|clearly|most\s+likely|likely|probably|definitely|indeed|simply|clear"
    r"|still"
    r"|actually|obviously|now|as\s+follows|both|either|the|a\s+clear|option|choice|answer|letter"
    r"|opci\u00f3n|la|le|die|der)\b\s*:?)*"
)
NOUN = (
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
    r"(?:(?:correct|right|best|appropriate|accurate)(?!-)\b"
    r"(?:\s+(?:answer|option|choice|one|selection))?|answer\b)"
)
_START = rf"(?:^|[.;:!?]\s*|(?<!{ANY}\)?)[,(]\s*|(?<!{ANY}[)'>]?\s)\b(?:and|but)\s+)"

#: Statements that commit to what they name; to none where they name several.
_STATEMENTS = (
    # The best answer here is (C)   Answer: C   {"answer": "C"}   \boxed{C}   La respuesta es C
    rf"\b{NOUN}\b{CLOSE}{_ASIDE}\s*(?:(?:\b{_BE}|\b(?:ist|lautet|est|es)\b|\u00e9\b|\u00e8\b)\s*:?"
    rf"|[:=-]+|(?<=\bans)\.){_FILLER}",
    # Final: C   Correct: C
    r"(?:^|[.!]\s+)(?:final|correct|result)\s*[:=]",
    # \u7b54\u6848\u662fC   \u6b63\u786e\u7b54\u6848\u4e3a:C   \u6211\u9009\u62e9C
    r"\u7b54\u6848\s*\)?\s*(?:\u5e94\u8be5|\u5e94)?\s*[\u662f\u4e3a\u9009]?\s*:?(?:\s*\u9009\u9879)?",
    r"(?<!\u4e0d|\u4e0d\u80fd|\u4e0d\u5e94|\u4e0d\u5e94\u8be5|\u4e0d\u8981)\u9009(?!\u9879)\u62e9?\s*:?",
    # Je choisis C   ich w\u00e4hle C
    rf"\b(?:je\s+choisis|ich\s+w\u00e4hle|elijo|escojo)\b{_FILLER}",
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
    r"^\s*(?:(?:final|correct|the)\s+)*answer\b",
)
#: Statements that begin with the answer.
_CLOSINGS = (
    # C is correct   option (C) is the best choice   C is the answer   C would be the right one
    rf"(?:\s*\([^()\n]{{0,80}}\)|,[^,.;\n]{{0,80}},)?"
    rf"\s+(?:is|are|was|(?:would|should|must|will|has\s+to)\s+be)\s+{_RIGHT}{_STOP}",
    # C fits best   C best explains the findings
    r"\s+(?:fits\s+best|makes\s+(?:the\s+)?most\s+sense|it\s+is"
    r"|best\s+(?:fits|explains|matches|describes|answers|accounts))\b",
    # C\u9009\u9879\u6b63\u786e
    r"\s*(?:\u9009\u9879)?\s*\u662f?\s*(?:\u6b63\u786e|\u5bf9\u7684)",
)
_BEFORE_CLOSING = (
    rf"(?:{_START}|\b(?:both|option|choice|answer|letter|only|so|thus|hence|therefore|overall|that|think|believe"
    r"|while|because|since)\s+|\u9009\u9879\s*)"
)
#: `Wait, no, D`   `Correction: C`   `On second thought, it should be D`
_CUE = (
    r"(?:^|[.,;:!?(-]\s*|\b(?:but|oh|hmm|no|well)[,.\s]+)(?:(?:hmm|no)[,.\s]+)?(?:wait|actually"
    r"|correction|I\s+made\s+an?\s+(?:mistake|error)|scratch\s+that|hold\s+on|sorry|oops|rather"
    r"|on\s+(?:second\s+thoughts?|reflection)|I\s+mean|my\s+mistake|no(?=[,.!-])"
    r"|let\s+me\s+(?:correct|reconsider|rethink)|I\s+(?:was|am)\s+wrong)\b"
)
_AFTER_CUE = (
    r"(?:[\s,.:;!(-]|\b(?:wait|hmm|no|so|it|it's|that's|that|this|is|was|should|must|would|be|wrong|on|second"
    r"|thought|the|correct|right|answer|option|choice|I|I'd|I'll|think|choose|pick|say|go|with|actually"
    r"|to|my|meant)\b){0,30}"
)
#: Words that make a statement one about what is not so, or may not be.
DENIED = regex.compile(
    r"\b(?:not|never|cannot|\w+n't|wrong|incorrect|false|neither|nor|mistaken?|error|least|nicht|pas)\b"
    r"|\u4e0d\u662f|\u9519\u8bef|\u4e0d\u6b63\u786e",
    _I,
)
SUPPOSED = regex.compile(
    r"(?<!even\s)\bif\b|\b(?:unless|whether|why|suppose|supposing|assum(?:e|ing)|would-be|different"
    r"|(?:some(?:one|body)?|many|you)\s+(?:may|might|would|could|say|argue)"
    r"|(?:first|second|third|other|another|each|every)\s+(?:option|choice))\b",
    _I,
)
#: Words in the sentence of an option that is talked about and not chosen.
PASSED_OVER = regex.compile(
    r"\b(?:rul(?:e|ed|es|ing)\s+out|eliminat\w+|exclud\w+|contraindicat\w+|unlike(?:ly)?"
    r"|discard\w*|reject\w*|avoid\w*"
    r"|instead\s+of|rather\s+than|other\s+than|than|each|every|except|stop|discontinue|hold|withhold"
    r"|versus|vs|compared|such\s+as|like|distractors?|either|no"
    r"|more\s+(?:information|data|details?|context)|depends?|e\.g"
    r"|(?:options?|choices|answers)\s+(?:are|include))\b",
    _I,
)
_TURNED_DOWN = (
    rf"(?:\s*,?\s*(?:which|that))?\s+(?:(?:{_BE}|seems|looks|has\s+been|can\s+be)"
    r"\s+(?:\w+\s+)?(?:not\b|wrong\b|incorrect\b"
    r"|false\b|out\b|ruled|excluded|eliminated|unlikely|contraindicated"
    r"|a\s+(?:distractor|mistake))|isn't|wasn't|cannot|can't)"
)
#: What after an answer makes its statement none: a question, a condition, a sentence about the answer.
LEFT_OPEN = regex.compile(
    rf"{CLOSE}(?:[^.!;?\n]{{0,200}}\?|{_TURNED_DOWN}|[ \t]+(?:is|was|has|would|does|will|can|may|might)\b"
    r"|[ \t]*,?[ \t]*(?:but[ \t]+)?(?:only[ \t]+)?(?:if|unless|assuming|provided)\b)",
    _I,
)


def _compiled(lead: str, end: str) -> regex.Pattern[str]:
    return regex.compile(f"(?P<lead>{lead}){OPEN}{end}", _I | regex.MULTILINE)


CLOSING = _compiled(_BEFORE_CLOSING, rf"{_LIST}(?:{'|'.join(_CLOSINGS)})")
KINDS = (
    *(_compiled(lead, _LIST) for lead in _STATEMENTS),
    *(_compiled(lead, rf"(?={LABEL}){_LIST}{_STOP}") for lead in _SHORT),
    CLOSING,
)
CORRECTION = _compiled(_CUE + _AFTER_CUE, rf"(?:(?P<said>{ANY}){CLOSE}{_STOP})?(?P<rest>[^\n]{{0,160}})")
DENIAL = regex.compile(rf"(?P<said>{ANY}){CLOSE}{_TURNED_DOWN}", _I)
NOT_BUT = regex.compile(rf"(?:\bnot|n't)\s+{OPEN}{ANY}{CLOSE}\s*,?\s*but\s+(?:rather\s+)?", _I)
