"""What a prompt's words alone say of a good response: the embedded oracle's view, and a pool."""

from __future__ import annotations

import regex

from ...specs.checks import MentionsCheck, RegexCheck, RepetitionCheck, WordsCheck
from ...specs.tasks import Criterion, Pool, Quality

#: Words that say what to do rather than what about.
_TASK_WORDS = frozenset(
    """
    a about above after all also an and answer any are as at be before being below between both
    but by can capital comma commas could do does each end entire english every few first follow
    following for from give had has have her here his how i if in include into is it its itself
    just least less letter letters like line lowercase make many may me more most must my need
    no not of on once one only or other our out over paragraph paragraphs please phrase possible
    provide question repeat request respond response same say second sentence sentences should
    show so some start such sure than that the their them then there these they this those three
    times title to two under up us use used using very want was we were what when where which
    who why will with within without word words would write your you
    """.split()
)
SUBJECT_WORDS = 6  # every other one is for the oracle, the rest for the pool


def subject_words(prompt: str) -> list[str]:
    """The longest words of a prompt that say what it is about, in its order; at most `SUBJECT_WORDS`."""
    words = [w for w in regex.findall(r"\p{L}{4,}", prompt.lower()) if w not in _TASK_WORDS]
    distinct = list(dict.fromkeys(words))
    longest = sorted(distinct, key=lambda w: (-len(w), distinct.index(w)))[:SUBJECT_WORDS]
    return sorted(longest, key=distinct.index)


def derive_quality(prompt: str) -> Quality | None:
    """What the oracle can know without anybody describing a good answer: the prompt's subject.

    Word stems (six letters) stand in for concepts. None when the prompt has no subject words. The
    pool takes the other subject words, so that no criterion repeats what the oracle looks for.
    """
    concepts = [(word[:6],) for word in subject_words(prompt)[::2]]
    return Quality(topic=tuple(concepts)) if concepts else None


def derive_pool(prompt: str) -> Pool:
    """Candidate criteria and a checklist from the prompt's words alone; some help, some do not."""
    words = tuple(subject_words(prompt)[1::2])
    criteria = [
        Criterion(text=text, points=2.0, check=check)
        for text, check in (
            ("is at least 12 words long", WordsCheck(kind="words", min=12)),
            ("is at most 10 words long", WordsCheck(kind="words", max=10)),
            ("repeats few word pairs", RepetitionCheck(kind="repetition", max_share=0.1)),
            ("ends like a sentence", RegexCheck(kind="regex", pattern=r"[.!?][\"')]*\s*$")),
            ("contains an exclamation mark", RegexCheck(kind="regex", pattern="!")),
        )
    ]
    if not words:
        return Pool(criteria=tuple(criteria))
    one = MentionsCheck(kind="mentions", terms=words)
    criteria.append(Criterion(text=f"mentions one of {', '.join(words)}", points=2.0, check=one))
    if len(words) > 1:
        two = MentionsCheck(kind="mentions", terms=words, at_least=2)
        criteria.append(Criterion(text=f"mentions two of {', '.join(words)}", points=2.0, check=two))
    checklist = (f"write about {', '.join(words)}", "finish your sentence")
    return Pool(criteria=tuple(criteria), checklists=(checklist, ("be brief", "be polite")))
