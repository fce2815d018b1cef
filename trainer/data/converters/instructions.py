"""IFEval (arXiv 2311.07911) and IFBench (arXiv 2507.02833): prompts with verifiable instructions."""

from __future__ import annotations

from typing import Any

from ....specs.checks import IFEVAL_IDS, IfevalCheck
from ....specs.ood import Instruction, OodTask
from ....specs.tasks import Criterion, Origin, TrainTask
from .common import Converter, Row, RowError, content_id, make

#: What IFBench tests and IFEval does not know.
IFBENCH_IDS = frozenset(
    f"{group}:{name}"
    for group, names in {
        "count": "conjunctions keywords_multiple numbers person_names pronouns punctuation "
        "unique_word_count word_count_range words_japanese",
        "custom": "character_reverse csv_city csv_quotes csv_special_character date_format_list "
        "european_capitals_sort mcq_count_length multiples reverse_newline sentence_alphabet "
        "word_reverse",
        "format": "emoji line_indent list newline no_bullets_bullets no_whitespace options "
        "output_template parentheses quote_unquote quotes sub-bullets thesis title_case",
        "ratio": "overlap sentence_balance sentence_type sentence_words stop_words",
        "repeat": "repeat_change repeat_simple repeat_span",
        "sentence": "alliteration_increment increment keyword",
        "words": "alphabet consonants keywords_specific_position last_first no_consecutive "
        "odd_even_syllables palindrome paragraph_last_first prime_lengths repeats start_verb vowel "
        "words_position",
    }.items()
    for name in names.split()
)


def instructions_of(row: Row) -> tuple[Instruction, ...]:
    """A row's instructions, each as often as it is listed."""
    ids, arguments = row["instruction_id_list"], row["kwargs"]
    if not isinstance(ids, list) or not isinstance(arguments, list) or len(ids) != len(arguments):
        raise RowError("instruction_id_list and kwargs must be lists of one length")
    return tuple(
        Instruction(id=name, args={k: v for k, v in (given or {}).items() if v is not None})
        for name, given in zip(ids, arguments, strict=True)
    )


def _ifeval(row: Row, key: str | None) -> TrainTask:
    """A check of one point an instruction; one that is listed twice, arguments and all, counts once."""
    if not isinstance(row["prompt"], str):
        raise TypeError("prompt")
    listed = instructions_of(row)
    checks = [IfevalCheck(kind="ifeval", id=one.id, args=one.args) for one in listed]
    rubric = {
        criterion.id: criterion
        for check in checks
        for criterion in (Criterion(text=f"follows the instruction {check.id}", points=1.0, check=check),)
    }
    name = _key(row)
    return TrainTask(
        id=f"ifeval-{name}",
        domain="instruction-following",
        prompt=row["prompt"],
        rubric=tuple(rubric.values()),
        source="ifeval",
        origin=Origin(row=name, more={"instructions": [one.model_dump() for one in listed]}),
    )


def _ifbench(row: Row, key: str | None) -> OodTask:
    listed = instructions_of(row)
    for one in listed:
        if one.id not in IFBENCH_IDS and one.id not in IFEVAL_IDS:
            raise RowError(f"unknown instruction {one.id}; known are IFEval's and IFBench's")
    return make(
        OodTask, "ifbench", _key(row), "instruction-following", row["prompt"], instructions=listed
    )


def _key(row: Row) -> str:
    return str(row["key"]) if "key" in row else content_id(row["prompt"], row["instruction_id_list"])


def _has_instructions(row: Row) -> bool:
    return {"prompt", "instruction_id_list", "kwargs"} <= row.keys()


def _is_ifbench(row: Row) -> bool:
    ids: Any = row.get("instruction_id_list")
    return (
        _has_instructions(row)
        and isinstance(ids, list)
        and any(isinstance(name, str) and name in IFBENCH_IDS for name in ids)
    )


IFEVAL = Converter(
    "ifeval",
    "instruction-following",
    _ifeval,
    lambda row: _has_instructions(row) and not _is_ifbench(row),
)
IFBENCH = Converter("ifbench", "instruction-following", _ifbench, _is_ifbench, evaluation_only=True)
