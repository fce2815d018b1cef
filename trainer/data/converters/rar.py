"""RaR-Medicine and RaR-Science (arXiv 2507.17746): weighted criteria of mixed polarity.

A pitfall has a negative weight whatever it says. Some say what goes wrong ("Does not mention X",
"Recommends surgery"): met is bad, and the weight is right as it stands. Others say what is wanted ("The
response should not recommend surgery"): met is good, and read as a penalty it would punish the good
response. Those keep their text and get their weight's size with a plus sign.
"""

from __future__ import annotations

from typing import Literal

import regex

from ....specs.tasks import Criterion, TrainTask
from .common import Converter, Row, RowError, content_id, make

Polarity = Literal["good", "bad", "unclear"]

_LABEL = regex.compile(r"^\s*\w+ criteri(?:a|on)\s*:\s*", regex.I)
_SUBJECT = regex.compile(
    r"^(?:(?:the|this|an?|any)\s+)?(?:[\p{L}'\u2019-]+\s+){0,2}?"
    r"(?:responses?|answers?|model|explanation|solution|assistant|it)\s+",
    regex.I,
)
_DUTY = r"(?:should|must|shall|ought to|needs? to|has to)"
_WANTED = regex.compile(
    rf"^{_DUTY}(?:n['\u2019]t\b|\s+(?:\p{{L}}+\s+){{0,4}}?(?:not|avoid|refrain|never|exclude|omit)\b)"
    r"|^(?:do not|don['\u2019]t|never|cannot|may not)\b",
    regex.I,
)
_AVOIDS = regex.compile(
    r"^(?:avoid|refrain|abstain|(?:is|are|be) free (?:of|from)|steers? clear|stays? away)", regex.I
)
_FAILS = regex.compile(
    r"^(?:fail|neglect|omit|miss|lack|ignor|overlook|forget|skip|disregard|leav(?:es|ing) out"
    r"|not? (?:mention|address|consider|discuss|provid|includ|recogni|explain|identif|acknowledg))",
    regex.I,
)
_DOES_NOT = regex.compile(
    r"^(?:do|does|did|is|are|has|have)(?:\s+not|n['\u2019]t)\s+(?P<verb>[\p{L}-]+)", regex.I
)
_SOMEWHERE = regex.compile(r"\b(?:should|must|shall)(?:\s+not|n['\u2019]t)\b", regex.I)
_SAYS = regex.compile(r"^\p{L}+(?:s|ing)\b", regex.I)

#: What a response ought to do: not doing it is a fault.
_DUTIES = frozenset(
    """
    acknowledge add address advise answer apply articulate assess balance calculate caution check cite
    clarify communicate compare complete compute conclude conduct connect consider contextualize convey
    correctly cover define demonstrate derive describe detail determine differentiate discuss distinguish
    elaborate emphasise emphasize encourage ensure establish evaluate exclude explain explicitly explore
    express fully give highlight identify illustrate include incorporate indicate inform integrate
    interpret justify link list mention name note offer outline point present prioritise prioritize
    properly provide
    quantify recognise recognize reference reflect relate report respond rule show sketch solve specify
    state stress suggest summarise summarize support take tie touch urge use verify warn write accurate
    adequately clearly sufficiently
    """.split()
)
#: What a response ought not to do: not doing it is as wanted.
_FAULTS = frozenset(
    """
    assert assume attribute blame claim conflate confuse contradict dismiss equate exaggerate fabricate
    falsely hallucinate imply incorrectly invent misattribute mischaracterize misdiagnose misidentify
    misinterpret mislabel mislead misrepresent misstate mistake mistakenly misuse overcomplicate
    overemphasize overgeneralize oversimplify overstate overuse presume ramble speculate stray trivialize
    understate unnecessarily wrongly deviate digress erroneously inappropriately introduce
    """.split()
)


def polarity(text: str, title: str = "") -> Polarity:
    """Is a response for which a pitfall's `text` holds a good one or a bad one?

    `title` is asked where the text alone does not say (`Misses Duration`, `Avoids Myth`).
    """
    said = _SUBJECT.sub("", _LABEL.sub("", text), count=1).lstrip()
    if _FAILS.match(said):
        return "bad"
    if _WANTED.match(said) or _AVOIDS.match(said):
        return "good"
    if found := _DOES_NOT.match(said):
        verb = found["verb"].casefold()
        return "bad" if verb in _DUTIES else "good" if verb in _FAULTS else _by_title(title)
    if regex.match(rf"{_DUTY}\b", said, regex.I):
        return _by_title(title)  # what is wanted, or the name of a pitfall: nothing tells them apart
    if _SOMEWHERE.search(said) and not _SAYS.match(said):
        return _by_title(title)  # what ought not to be, but not whether saying so is right
    return "bad"  # what the response does


def _by_title(title: str) -> Polarity:
    if regex.match(r"(?:no|not|avoid\w*|without|prevents?)\b", title, regex.I):
        return "good"
    if regex.match(
        r"(?:miss\w*|omit\w*|omission|lack\w*|fail\w*|ignor\w*|neglect\w*|overlook\w*)\b", title, regex.I
    ):
        return "bad"
    return "unclear"


def _criterion(entry: Row) -> Criterion:
    """The text as it stands; tags hold the title and, where the sign was turned, the weight as given."""
    text, title, weight = entry["description"], entry.get("title") or "", float(entry["weight"])
    tags = [f"title:{title}"] if title else []
    if weight < 0:
        found = polarity(text, title)
        if found == "unclear":
            raise RowError(f"a pitfall that may be good or bad when met: {text[:120]!r}")
        if found == "good":
            tags.append(f"weight:{weight:g}")
            weight = -weight
    return Criterion(text=text, points=weight, tags=tuple(tags) or None)


def _from_rar(source: str, domain: str, row: Row) -> TrainTask:
    rubric = [_criterion(entry) for entry in row["rubric"]]
    return make(
        TrainTask,
        source,
        content_id(row["question"], row["rubric"]),
        domain,
        row["question"],
        rubric,
        more={"question_source": row.get("question_source")},
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
