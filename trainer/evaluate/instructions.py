"""IFEval and IFBench: instructions that programs verify, strict and loose.

Loose is IFEval's own definition (Zhou et al. 2023, arXiv 2311.07911, section 3.2): an instruction is
followed loosely if it is followed by the response or by one of its variants, without the first line, the
last line or both, each with and without its asterisks. The programs come from `if_verifiable`; those that
need NLTK data which is not on this machine cannot say, and their instructions are unscored.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from unittest import mock

from ...agents.scoring.checks import TRIAL_TEXT, built, ifeval_library
from ...specs.checks import IFEVAL_IDS
from ...specs.ood import Instruction, OodTask
from ...specs.tasks import Task
from .measures import Group, Measured, Score


class InstructionMeasure:
    """Accuracy over prompts (all instructions followed) and over instructions, strict and loose."""

    def fits(self, task: Task) -> bool:
        """Does the task list instructions?"""
        return isinstance(task, OodTask) and bool(task.instructions)

    def measure(self, groups: Sequence[Group]) -> list[list[Measured]]:
        """Each response by itself."""
        return [[_measured(group.task, text) for text in group.texts] for group in groups]


def _measured(task: Task, text: str) -> Measured:
    """A prompt counts where all its instructions could be verified, an instruction where it was."""
    assert isinstance(task, OodTask)
    followed = [follows(one, task.prompt, text) for one in task.instructions]
    cause = next((one for one in followed if isinstance(one, str)), "")
    known = [one for one in followed if not isinstance(one, str)]
    scores = {}
    for n, mode in enumerate(("strict", "loose")):
        met = [one[n] for one in known]
        scores[f"prompts, {mode}"] = Score(None, cause) if cause else Score(float(all(met)))
        scores[f"instructions, {mode}"] = (
            Score(sum(met) / len(met), weight=len(met)) if met else Score(None, cause)
        )
    told = {
        f"{n}: {one.id}": said
        for n, (one, said) in enumerate(zip(task.instructions, followed, strict=True))
    }
    return Measured(scores, detail={"instructions": told})


def follows(instruction: Instruction, prompt: str, response: str) -> tuple[bool, bool] | str:
    """Is it followed (strict, loose)? A text says why that cannot be told."""
    args = dict(instruction.args)
    if instruction.id == "combination:repeat_prompt":
        args.setdefault("prompt_to_repeat", prompt)
    checker = _checker(instruction.id, json.dumps(args, sort_keys=True))
    if isinstance(checker, str):
        return checker
    try:
        strict = _check(checker, response)
        return strict, strict or any(_check(checker, text) for text in variants(response))
    except Exception as error:  # a program of somebody else's, on a text of somebody else's
        return _why(instruction.id, error)


def _why(id: str, error: Exception) -> str:
    if isinstance(error, LookupError) and "nltk" in str(error).lower():
        return f"{id} needs NLTK data"
    return f"{id} fails: {type(error).__name__}"


def variants(response: str) -> list[str]:
    """The texts of which one has to follow an instruction for it to be followed loosely."""
    lines = response.split("\n")
    cut = [response, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(text.replace("*", "") for text in cut)]


def _check(checker: Any, text: str) -> bool:
    return bool(text.strip()) and bool(checker.check_following(text))


@functools.lru_cache(maxsize=4096)
def _checker(id: str, args_json: str) -> Any:
    """The instruction's program with its arguments set, or why there is none.

    It is tried on a text: what needs NLTK data cannot say anything here, not even of a blank response.
    """
    args: dict[str, Any] = json.loads(args_json)
    registry = _registry(id)
    if id not in registry:
        return f"{id} is unknown"
    checker, why = built(registry[id](id), args)
    if why:
        return why
    try:
        checker.check_following(TRIAL_TEXT)
    except LookupError as error:
        if "nltk" in str(error).lower():
            return _why(id, error)
    except Exception:  # on this text; the response's own may be another matter
        return checker
    return checker


def _registry(id: str) -> Mapping[str, Any]:
    registry, _ = ifeval_library()  # which also seeds the language detection
    logging.getLogger().addFilter(_says_more)  # added once, however often
    return registry if id in IFEVAL_IDS else _ifbench()


def _says_more(record: logging.LogRecord) -> bool:
    """The library tells the root logger of every text whose language it cannot detect."""
    return "Unable to detect language" not in record.getMessage()


@functools.lru_cache(maxsize=1)
def _ifbench() -> Mapping[str, Any]:
    # The package downloads NLTK data when it is imported; nothing here reaches for the network unasked.
    with mock.patch("nltk.download"):
        from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT

    found: Mapping[str, Any] = INSTRUCTION_DICT
    return found
