"""RaR-Medicine and RaR-Science (arXiv 2507.17746): weighted criteria of mixed polarity.

A pitfall has a negative weight whatever it says. Some say what goes wrong ("Fails to name X", "Recommends
surgery"): met is bad, and the weight is right as it stands. Others say what is wanted ("The response
should not recommend surgery"): met is good, and read as a penalty it would punish the good response.
Those keep their text and get their weight's size with a plus sign. "Does not mention X" is the one or the
other by what X is: where neither the text nor the title tells, the pitfall is set aside.
"""

from __future__ import annotations

from typing import Literal

import regex

from ....specs.tasks import Criterion, TrainTask
from .common import Converter, Row, content_id, make

Polarity = Literal["good", "bad", "unclear"]

_LABEL = regex.compile(r"^\s*\w+ criteri(?:a|on)\s*:\s*", regex.I)
_SUBJECT = regex.compile(
    r"^(?:(?:the|this|an?|any)\s+)?(?:[\p{L}'\u2019-]+\s+){0,2}?"
    r"(?:responses?|answers?|model|explanation|solution|assistant|it)\s+",
    regex.I,
)
_DUTY = r"(?:should|must|shall|ought to|needs? to|has to|is (?:important|essential|crucial|critical))"
_WANTED = regex.compile(
    rf"^{_DUTY}(?:n['\u2019]t\b|\s+(?:\p{{L}}+\s+){{0,4}}?(?:not|avoid|refrain|never|exclude|omit)\b)"
    r"|^(?:do not|don['\u2019]t|never(?!\s+\p{L}+s\b)|may not)\b"
    r"|^(?:warn|caution|guard)(?:s|ing)?\s+against\b",
    regex.I,
)
_AVOIDS = regex.compile(
    r"^(?:avoid|refrain|abstain|(?:is|are|be) free|steer|stay)(?:s|ing)?\b(?:\s+(?:clear|away|of|from))*",
    regex.I,
)
_FAILS = regex.compile(
    r"^(?:fail|neglect|omit|miss|lack|ignor|overlook|forget|skip|disregard|leav(?:es|ing) out"
    r"|not? (?:mention|address|consider|discuss|provid|includ|recogni|explain|identif|acknowledg))",
    regex.I,
)
_DOES_NOT = regex.compile(
    r"^(?:(?:do|does|did|is|are|has|have|can)(?:\s*not|n['\u2019]t)|never)\s+(?P<verb>[\p{L}-]+)", regex.I
)
_SHOULD = regex.compile(rf"^{_DUTY}\s+(?:\p{{L}}+ly\s+)?(?:to\s+)?(?P<verb>[\p{{L}}-]+)", regex.I)
_SOMEWHERE = regex.compile(r"\b(?:should|must|shall)(?:\s+not|n['\u2019]t)\b", regex.I)
_SAYS = regex.compile(r"^\p{L}+(?:s|ing)\b", regex.I)
#: What is said about a thing that a response does well to leave out.
_AT_FAULT = regex.compile(
    r"\b(?:in(?:correct|accurate|appropriate|valid)(?!ly)|un(?:related|necessary|supported|founded)"
    r"|irrelevant|wrong(?!ly)|false(?!ly)|mistaken|erroneous|mislead|misconception|accidental|extraneous"
    r"|other than)",
    regex.I,
)

#: What a response ought to do, whatever it is done to: not doing it is a fault.
_DUTIES = frozenset(
    """
    acknowledge address articulate assess balance calculate check cite clarify communicate compare
    complete compute conclude connect consider contextualize convey cover define demonstrate derive
    detail determine differentiate distinguish elaborate emphasise emphasize ensure evaluate explain
    explore fully highlight illustrate integrate interpret justify outline prioritise prioritize
    properly quantify recognise recognize reflect relate respond solve specify stress summarise
    summarize tie verify adequately clearly correctly explicitly sufficiently
    """.split()
)
#: What is as good or bad as the thing that is mentioned, recommended, ...
_TELLS = frozenset(
    """
    add advise apply attach cite claim conduct describe discuss encourage establish express give
    identify imply include incorporate indicate inform introduce link list mention name note offer
    point present propose provide recommend reference report rule say show sketch state suggest
    support take touch urge use warn write
    """.split()
)
#: What a response ought not to do: not doing it is as wanted.
_FAULTS = frozenset(
    """
    assert assume attribute blame conflate confuse contradict deviate digress dismiss equate
    erroneously exaggerate fabricate fail falsely hallucinate ignore inappropriately incorrectly
    invent misattribute mischaracterize misclassify misdiagnose misidentify misinterpret mislabel
    mislead misrepresent misstate mistake mistakenly misuse neglect omit overcomplicate
    overemphasize overgeneralize overlook oversimplify overstate overuse presume ramble speculate
    stray trivialize understate unnecessarily wrongly
    """.split()
)


def polarity(text: str, title: str = "") -> Polarity:
    """Is a response for which a pitfall's `text` holds a good one or a bad one?

    `title` is asked where the text alone does not say (`Misses Duration`, `Avoids Myth`).
    """
    said = _SUBJECT.sub("", _LABEL.sub("", text), count=1).lstrip()
    if _FAILS.match(said):
        return "bad"
    if _WANTED.match(said):
        return "good"
    if found := _AVOIDS.match(said):
        return _of_avoiding(said[found.end() :].lstrip(), title)
    if found := _DOES_NOT.match(said):
        return _of_not(_bare(found["verb"], _DUTIES | _TELLS | _FAULTS), said[found.end() :], title)
    if found := _SHOULD.match(said):
        is_duty = found["verb"].casefold() in _DUTIES | _TELLS and not _AT_FAULT.search(said)
        return "good" if is_duty else _by_title(title)
    if _SOMEWHERE.search(said) and not _SAYS.match(said):
        return _by_title(title)  # what ought not to be, but not whether saying so is right
    return _of_what_it_does(said)


def _bare(verb: str, known: frozenset[str]) -> str:
    """A verb without its ending, where it is a known one."""
    verb = verb.casefold()
    stem = regex.sub(r"(?:e?s|ing)$", "", verb)
    forms = [verb, verb.removesuffix("s"), stem, stem + "e"]  # names, uses
    forms += [regex.sub(r"(\p{L})\1$", r"\1", stem), regex.sub("i$", "y", stem)]  # omitting, verifies
    return next((form for form in forms if form in known), verb)


def _of_avoiding(rest: str, title: str) -> Polarity:
    """Of `avoids REST`: good, unless REST is as good or bad as what it is about."""
    told = _by_title(title)
    first = regex.match(r"(?:any\s+|the\s+)?(\p{L}+)", rest)
    known = _DUTIES | _TELLS
    if first is None or _bare(first[1], known) not in known or _AT_FAULT.search(rest):
        return "unclear" if told == "bad" else "good"
    return "good" if told == "good" else "unclear"


def _of_not(verb: str, rest: str, title: str) -> Polarity:
    """Of `does not VERB REST`."""
    if verb in _FAULTS:
        return "good"
    if regex.search(r"\bunless\b", rest):
        return "unclear"
    at_fault = bool(_AT_FAULT.search(rest))
    if verb in _DUTIES:
        return "unclear" if at_fault else "bad"
    told = _by_title(title)
    if at_fault:  # leaving it out is right, unless the title regrets that
        return "unclear" if told == "bad" else "good"
    if told == "good" and regex.search(r"\b(?:risks?|importance|need|necessity)\b", rest):
        return "unclear"  # a thing worth mentioning
    return told


def _of_what_it_does(said: str) -> Polarity:
    """Of `Recommends X`, `Incorrectly states Y`: bad, unless X may be as it should be."""
    if regex.search(r"\b(?:avoid|refrain)|\bagainst\b", said, regex.I):
        return "unclear"
    found = _SAYS.match(said)
    wanted = found is not None and _bare(found[0], _DUTIES) in _DUTIES
    return "unclear" if wanted and not _AT_FAULT.search(said) else "bad"


def _by_title(title: str) -> Polarity:
    if regex.match(r"(?:omits?|excludes?)\b", title, regex.I) and _AT_FAULT.search(title):
        return "good"
    if regex.match(r"(?:no|not|avoid\w*|exclud\w+|without|prevents?)\b", title, regex.I):
        return "good"
    if regex.search(r"\bavoidance$", title, regex.I):
        return "good"
    if regex.match(
        r"(?:pitfall: )?(?:miss(?:es|ing|ed)?|omit\w*|omission|lack\w*|fail\w*|ignor\w*|neglect\w*"
        r"|overlook\w*|inadequate|insufficient|incomplete)\b",
        title,
        regex.I,
    ):
        return "bad"
    return "bad" if regex.search(r"\b(?:omission|oversight)$", title, regex.I) else "unclear"


def _criterion(entry: Row) -> Criterion | None:
    """The text as it stands; tags hold the title and, where the sign was turned, the weight as given.

    None for a pitfall that may be good or bad when met.
    """
    text, title, weight = entry["description"], entry.get("title") or "", float(entry["weight"])
    tags = [f"title:{title}"] if title else []
    if weight < 0:
        found = polarity(text, title)
        if found == "unclear":
            return None
        if found == "good":
            tags.append(f"weight:{weight:g}")
            weight = -weight
    return Criterion(text=text, points=weight, tags=tuple(tags) or None)


def _from_rar(source: str, domain: str, row: Row) -> TrainTask:
    read = [(entry, _criterion(entry)) for entry in row["rubric"]]
    rubric = [criterion for _, criterion in read if criterion is not None]
    unclear = [{"at": n, **entry} for n, (entry, criterion) in enumerate(read) if criterion is None]
    return make(
        TrainTask,
        source,
        content_id(row["question"], row["rubric"]),
        domain,
        row["question"],
        rubric,
        more={"question_source": row.get("question_source"), "unclear_pitfalls": unclear or None},
        reference=row.get("reference_answer") or None,
    )


def _is_rar(row: Row) -> bool:
    return {"question", "rubric", "reference_answer"} <= row.keys()


#: Both have one schema; a row by itself is told by its first positive criterion, as Science words it.
def _is_science(row: Row) -> bool:
    said = str(row["rubric"]).casefold() if _is_rar(row) else ""
    return "the response should" in said


RAR_MEDICINE = Converter(
    "rar-medicine", "medical", lambda row, key: _from_rar("rar-medicine", "medical", row), _is_rar
)
RAR_SCIENCE = Converter(
    "rar-science", "science", lambda row, key: _from_rar("rar-science", "science", row), _is_science
)
