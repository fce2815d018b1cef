"""IFEval and IFBench accuracy: the numbers of IFEval's own harness, on the same responses."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from harnessrl.specs.ood import Instruction, OodTask
from harnessrl.trainer.data.rows import read_rows
from harnessrl.trainer.evaluate.instructions import InstructionMeasure, follows, variants
from harnessrl.trainer.evaluate.measures import Group
from harnessrl.trainer.evaluate.sets import as_ood

#: A Python that has lm_eval[ifeval] (MIT); 0.4.13 is what was compared with by hand.
LM_EVAL_PYTHON = os.environ.get("LM_EVAL_PYTHON", "")
METRICS = [f"{what}, {how}" for what in ("prompts", "instructions") for how in ("strict", "loose")]

#: What lm_eval makes of rows of a task and a response: its own functions, from verdicts to means.
LM_EVAL = """
import json, sys
import langdetect
langdetect.DetectorFactory.seed = 0
from lm_eval.tasks.ifeval import utils
rows = [json.loads(line) for line in open(sys.argv[1])]
found = [utils.process_results(row["doc"], [row["response"]]) for row in rows]
names = {"prompts, strict": "prompt_level_strict_acc", "prompts, loose": "prompt_level_loose_acc"}
out = {ours: sum(one[name] for one in found) / len(found) for ours, name in names.items()}
for how in ("strict", "loose"):
    every = [one[f"inst_level_{how}_acc"] for one in found]
    out[f"instructions, {how}"] = utils.agg_inst_level_acc(every)
print(json.dumps(out))
"""


def tasks(name: str) -> list[OodTask]:
    """Real rows."""
    found = [row.task for row in read_rows(tiny.data_file(name))]
    return [one if isinstance(one, OodTask) else as_ood(one) for one in found if not isinstance(one, str)]


def responses(some: list[OodTask]) -> list[str]:
    """Written to follow some instructions, strictly, only loosely, or not at all."""
    rng = random.Random(0)
    pieces = [
        "Here is the text that you asked for:",
        "**A title of *three* words**",
        "<<a title>>",
        "* one\n* two\n* three",
        "P.S. that is all",
        "this is a plain sentence in lower case, with a comma.",
        "THIS ONE IS LOUD",
        "[name] [address] [date]",
        '{"a": 1}',
        "SECTION 1\nfirst\nSECTION 2\nsecond",
        "first paragraph\n***\nsecond paragraph",
        "My answer is yes.",
        "Is there anything else I can help with?",
        "Hope this helps!",
        "",
    ]
    out = []
    for task in some:
        some_words = " ".join(task.prompt.split()[: rng.randrange(1, 60)])
        chosen = rng.sample(pieces, rng.randrange(0, 6)) + [some_words] * rng.randrange(0, 3)
        rng.shuffle(chosen)
        text = rng.choice(["\n\n", "\n"]).join(chosen)
        keywords = [str(v) for one in task.instructions for v in one.args.values() if isinstance(v, str)]
        text += " ".join(keywords * rng.randrange(0, 3))
        out.append(rng.choice([text, text.lower(), f'"{text}"', text.replace(",", "")]))
    return out


def ours(some: list[OodTask], texts: list[str]) -> dict[str, float]:
    """The four accuracies, over what can be verified here."""
    measured = InstructionMeasure().measure([Group(t, (x,)) for t, x in zip(some, texts, strict=True)])
    out = {}
    for metric in METRICS:
        scores = [one.scores[metric] for (one,) in measured]
        known = [(s.value, s.weight) for s in scores if s.value is not None]
        values, weights = np.array(known).T
        out[metric] = float(values @ weights / weights.sum())
    return out


def verifiable(some: list[OodTask]) -> list[OodTask]:
    """Tasks whose every instruction can be verified on this machine (some need NLTK data)."""
    return [
        task
        for task in some
        if not any(isinstance(follows(one, task.prompt, "A text."), str) for one in task.instructions)
    ]


@pytest.mark.parametrize("name", ["ifeval_input_data.jsonl", "ifbench_test.jsonl"])
def test_verdicts_are_those_of_the_library(name: str) -> None:
    """`if_verifiable` is the harness of both benchmarks as a package; its loop is not used here."""
    import langdetect
    from if_verifiable.common import evaluate_instructions
    from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT as IFBENCH
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT as IFEVAL

    some = verifiable(tasks(name)) * 5
    texts = [text.strip() for text in responses(some)]  # the library strips them itself
    langdetect.DetectorFactory.seed = 0
    n_strict = n_loose_only = 0
    for task, text in zip(some, texts, strict=True):
        if not text.strip():
            continue
        (theirs, _) = evaluate_instructions(
            text,
            [one.id for one in task.instructions],
            [one.args for one in task.instructions],
            task.prompt,
            IFEVAL | IFBENCH,
        )
        found = [follows(one, task.prompt, text) for one in task.instructions]
        assert found == [(one.strict_pass, one.loose_pass) for one in theirs], (task.id, text)
        n_strict += sum(one.strict_pass for one in theirs)
        n_loose_only += sum(one.loose_pass and not one.strict_pass for one in theirs)
    assert n_strict > 20, "the responses follow too little to tell anything"
    assert n_loose_only > 0 or name.startswith("ifbench")


@pytest.mark.skipif(not LM_EVAL_PYTHON, reason="LM_EVAL_PYTHON names no Python with lm_eval[ifeval]")
def test_accuracies_are_those_of_lm_eval(tmp_path: Path) -> None:
    """Strict and loose, over prompts and over instructions: equal, not close."""
    some = verifiable(tasks("ifeval_input_data.jsonl")) * 20
    texts = responses(some)
    assert ours(some, texts) == lm_eval(some, texts, tmp_path)


def lm_eval(some: list[OodTask], texts: list[str], folder: Path) -> dict[str, Any]:
    """lm_eval's own numbers."""
    rows = [
        {
            "doc": {
                "key": n,
                "prompt": task.prompt,
                "instruction_id_list": [one.id for one in task.instructions],
                "kwargs": [one.args for one in task.instructions],
            },
            "response": text,
        }
        for n, (task, text) in enumerate(zip(some, texts, strict=True))
    ]
    (folder / "rows.jsonl").write_text(tiny.join([json.dumps(row) for row in rows]))
    command = [LM_EVAL_PYTHON, "-c", LM_EVAL, str(folder / "rows.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_needs_missing_data_is_unscored_whatever_the_response_says() -> None:
    """A prompt is left out if one of its instructions cannot be verified; the others still count."""
    task = OodTask(
        id="one",
        domain="d",
        prompt="Write.",
        instructions=(
            Instruction(id="punctuation:no_comma"),
            Instruction(id="made:up"),
            Instruction(id="detectable_format:number_bullet_lists", args={"num_bullets": 2}),
        ),
    )
    (rows,) = InstructionMeasure().measure([Group(task, ("* a\n* b", ""))])
    full, blank = (one.scores for one in rows)
    assert full["prompts, strict"].value is None and "made:up" in full["prompts, strict"].cause
    assert blank["prompts, strict"].value is None
    assert (full["instructions, strict"].value, full["instructions, strict"].weight) == (1.0, 2)
    assert blank["instructions, strict"].value == 0.0


@pytest.mark.parametrize(
    ("text", "loosely"),
    [
        ("no comma", (True, True)),
        ("Sure, here it is:\nno comma", (False, True)),
        ("no comma\nHope, that helps", (False, True)),
        ("Sure, here:\nno comma\nBye, now", (False, True)),
        ("Sure, here:\na comma, too\nBye, now", (False, False)),
        ("", (False, False)),
    ],
)
def test_loose_forgives_a_first_and_a_last_line(text: str, loosely: tuple[bool, bool]) -> None:
    assert follows(Instruction(id="punctuation:no_comma"), "Write.", text) == loosely


def test_loose_forgives_asterisks() -> None:
    check = Instruction(id="startend:end_checker", args={"end_phrase": "the end"})
    assert follows(check, "Write.", "This is **the end**") == (False, True)
    assert len(variants("one\ntwo")) == 8


@pytest.mark.parametrize(
    "wrong",
    [
        Instruction(id="length_constraints:number_words"),  # the library would draw a number
        Instruction(id="length_constraints:number_words", args={"words": 3}),
        Instruction(id="keywords:existence", args={"keywords": ["("]}),
        Instruction(  # a row of IFEval: its own harness draws a letter instead
            id="keywords:letter_frequency",
            args={"letter": "!", "let_frequency": 6, "let_relation": "at least"},
        ),
    ],
)
def test_arguments_that_make_no_sense_are_unscored(wrong: Instruction) -> None:
    assert isinstance(follows(wrong, "Write.", "some words"), str)
