"""The answer that a response commits to: many phrasings, and what only looks like an answer."""

from __future__ import annotations

import time

import pytest
from harnessrl.trainer.evaluate.choice import chosen
from hypothesis import given
from hypothesis import strategies as st

OPTIONS = {
    "A": "Stimulation of monoamine release",
    "B": "Inhibition of lipase",
    "C": "Inhibition of serotonin reuptake",
    "D": "Secretion of insulin",
}
WORDS = {word: word for word in ("yes", "no", "maybe")}

SAYS_B = """\
B
b
(b)
B.
B)
[B]
**B**
Option B
B. Inhibition of lipase
B) Inhibition of lipase
**B) Inhibition of lipase**
B: Inhibition of lipase.
(B) Inhibition of lipase || Orlistat blocks the absorption of fat.
The answer is (B)
The answer is B.
The answer is **B**
The answer is "B".
The answer is: **B. Inhibition of lipase**
The best answer is B) Inhibition of lipase
The most appropriate answer is || B. Inhibition of lipase
The correct answer is option B because orlistat inhibits lipase.
The correct option is B, which is what orlistat blocks.
Therefore, the answer is most likely B.
So the answer would be B
The choice is clear: B
Answer: B
answer: b
Answer - B
Answer is: B
Answer\uff1aB
\u7b54\u6848: B
\u7b54\u6848\u662fB
My answer: B
Final answer: B
### Final Answer || B
**Answer:** B
**Answer: B**
Answer: (B) Inhibition of lipase
Answer: **B** (not A)
The answer is B, not A.
The final answer is $\\boxed{B}$.
\\boxed{\\text{B}}
B is correct.
Option B is the correct answer.
(B) Inhibition of lipase is the best choice.
I would choose B.
I'd go with (B).
It's B.
It must be B.
I think (B)
I don't know, but I would say the answer is B
The answer is inhibition of lipase.
Inhibition of lipase
This drug acts through inhibition of lipase.
The mechanism is the inhibition of lipase in the gut.
A common drug is orlistat. The answer is B.
A) is wrong since it raises serotonin. B) fits. Answer: B
The answer is not A. The answer is B.
At first the answer is A, but on reflection the answer is B.
Answer: A || Wait, that is wrong. || Answer: B
If the answer is A, then her mouth would be dry. Answer: B
Incorrect answer: A. Correct answer: B
A is not correct. B is correct.
C is incorrect. || B is right.
A) Monoamine release - no. || B) Lipase - yes. || C) Reuptake - no. || The answer is B
<think>The answer is A. No.</think>The answer is B
"""

SAYS_NOTHING = """\
The answer is A or B.
The answer is A, B, or C.
Answer: A and B
Answer: A, B
A, B
A B C D
ABCD
Both A and B could be right.
Options A, B and C are plausible.
(A) and (B) are similar.
A: Stimulation of monoamine release || B: Inhibition of lipase
Either inhibition of lipase or secretion of insulin.
I cannot answer medical questions.
I'm sorry, but I can't help with that.
None of the above
The answer is none of these.
A patient like this needs a doctor.
The answer is a combination of factors.
The answer is A complex one.
A vitamin deficiency
Vitamin D is low.
Vitamin D is correct here.
Hepatitis B is the most likely diagnosis.
Group A is the right cohort to look at.
Bad question.
It is not B.
The answer is not B.
I would say that A is wrong.
It is not inhibition of lipase.
Is it B?
Could it be inhibition of lipase?
Why is the answer A? I do not know.
Answer: X
Answer: E
<think>The answer is A
"""


@pytest.mark.parametrize("text", SAYS_B.splitlines())
def test_a_response_that_commits_to_an_answer(text: str) -> None:
    assert chosen(text.replace(" || ", "\n\n"), OPTIONS) == "B"


@pytest.mark.parametrize("text", ["", "  \n", *SAYS_NOTHING.splitlines()])
def test_a_response_that_commits_to_none(text: str) -> None:
    assert chosen(text.replace(" || ", "\n\n"), OPTIONS) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Answer: yes", "yes"),
        ("Answer: **No**", "no"),
        ("Yes", "yes"),
        ("no", "no"),
        ("Yes, because the trial shows it.", "yes"),
        ("Yes - it does.", "yes"),
        ("The answer is maybe.", "maybe"),
        ("The answer to the question is yes.", "yes"),
        ("There is no evidence, so the answer is no.", "no"),
        ("The authors found no change.\n\nAnswer: Maybe", "maybe"),
        ("No significant difference was found.", None),
        ("Yes and no.", None),
        ("Answer: yes or no", None),
        ("The answer is not yes.", None),
        ("It may be so.", None),
    ],
)
def test_answers_that_are_words(text: str, said: str | None) -> None:
    assert chosen(text, WORDS) == said


@given(st.sampled_from("ABCD"), st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_the_line_that_was_asked_for_decides_whatever_stands_before_it(label: str, before: str) -> None:
    assert chosen(f"{before}\n\nAnswer: {label}", OPTIONS) == label


@given(st.text(alphabet="ABCDabcd ().,*\n:isnotheawr", max_size=120))
def test_what_comes_out_is_a_label_or_nothing(text: str) -> None:
    assert chosen(text, OPTIONS) in {None, *OPTIONS}


@pytest.mark.parametrize("text", ["The answer is A and " * 5000, "(((((**" * 5000 + " A", "A) " * 30_000])
def test_no_response_takes_long(text: str) -> None:
    started = time.monotonic()
    chosen(text, OPTIONS)
    assert time.monotonic() - started < 20
