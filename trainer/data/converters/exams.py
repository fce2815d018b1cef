"""Exact-match sets: MedQA, GPQA and PubMedQA. The prompt asks for a last line `Answer: X`."""

from __future__ import annotations

import hashlib
import string

from ....specs.ood import AnswerKey, OodTask
from .common import Converter, Row, RowError, content_id, make


def _asked(question: str, choices: dict[str, str]) -> str:
    """The question, its options unless it lists them itself, and how to give the answer."""
    listed = "\n".join(f"{label}) {text}" for label, text in choices.items())
    parts = [question] if listed in question else [question, listed]
    return "\n\n".join([*parts, f'End with a line "Answer: X", where X is one of {", ".join(choices)}.'])


def _medqa(row: Row, key: str | None) -> OodTask:
    """Copies differ: the key's letter is in `answer_idx` and its text in `answer`, or in `answer` and
    `answer_text`; some have five options where the file's name says four."""
    choices = dict(row["options"])
    letter, text = (
        (row["answer_idx"], row["answer"])
        if "answer_idx" in row
        else (row["answer"], row.get("answer_text"))
    )
    if letter not in choices or (text is not None and choices[letter] != text):
        raise RowError(f"the answer {letter!r} ({text!r}) is none of the options")
    return make(
        OodTask,
        "medqa",
        content_id(row["question"], choices),
        "medical",
        _asked(row["question"], choices),
        more={"question": row["question"], "meta_info": row.get("meta_info")},
        answer=AnswerKey(choices=choices, correct=letter),
    )


def _gpqa(row: Row, key: str | None) -> OodTask:
    """The options in an order that only the row decides, the same in every build."""
    name = row.get("Record ID") or content_id(row["Question"])
    answers = [row["Correct Answer"], *(row[f"Incorrect Answer {n}"] for n in (1, 2, 3))]
    answers = [answer.strip() for answer in answers]
    if len(set(answers)) < len(answers):
        raise RowError("two of the answers are the same")
    shuffled = sorted(answers, key=lambda a: hashlib.sha256(f"{name}|{a}".encode()).digest())
    choices = dict(zip(string.ascii_uppercase, shuffled, strict=False))
    return make(
        OodTask,
        "gpqa",
        name,
        "science",
        _asked(row["Question"].strip(), choices),
        canary=row.get("Canary String") or None,
        more={
            "question": row["Question"],
            "domain": row.get("High-level domain"),
            "subdomain": row.get("Subdomain"),
        },
        answer=AnswerKey(choices=choices, correct=next(k for k, v in choices.items() if v == answers[0])),
    )


def _pubmedqa(row: Row, key: str | None) -> OodTask:
    """Question and abstract; the long answer is what the abstract concludes, so it stays a reference."""
    choices = {word: word for word in ("yes", "no", "maybe")}
    abstract = "\n\n".join(row["CONTEXTS"])
    question = f"{abstract}\n\n{row['QUESTION']}"
    ask = 'End with a line "Answer: X", where X is one of yes, no, maybe.'
    about = ("LABELS", "MESHES", "YEAR", "reasoning_required_pred", "reasoning_free_pred")
    kept = {name: row.get(name) for name in about}
    return make(
        OodTask,
        "pubmedqa",
        key or str(row.get("pubid") or content_id(row["QUESTION"])),
        "medical",
        f"{question}\n\n{ask}",
        more={"QUESTION": row["QUESTION"], "CONTEXTS": row["CONTEXTS"], **kept},
        reference=row.get("LONG_ANSWER") or None,
        answer=AnswerKey(choices=choices, correct=row["final_decision"]),
    )


MEDQA = Converter(
    "medqa", "medical", _medqa, lambda row: {"question", "options", "answer"} <= row.keys(), True
)
GPQA = Converter(
    "gpqa",
    "science",
    _gpqa,
    lambda row: {"Question", "Correct Answer", "Incorrect Answer 1"} <= row.keys(),
    evaluation_only=True,
    local_only=True,
)
PUBMEDQA = Converter(
    "pubmedqa", "medical", _pubmedqa, lambda row: {"QUESTION", "final_decision"} <= row.keys(), True
)
