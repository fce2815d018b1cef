"""Programs that decide one criterion on one response.

A check answers met, not met, or *unscored* (``met=None``) with the cause: a program that cannot say
(a resource missing on this machine, a pattern that runs away, arguments that make no sense) never
turns into a silent "not met", and no exception leaves `run_check`.

The IFEval instructions (arXiv 2311.07911) come from the `if_verifiable` library, which is imported
on first use because it pulls in `datasets`; nothing here downloads anything.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
import threading
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import regex

from ...specs import patterns
from ...specs.checks import (
    Check,
    IfevalCheck,
    MentionsCheck,
    PluginCheck,
    RegexCheck,
    RepetitionCheck,
    WordsCheck,
)
from ...specs.printable import short_line
from . import plugins

#: Seconds after which a pattern counts as running away on a response.
REGEX_TIMEOUT = 0.5

#: A plain English text on which every check can be tried. No check's verdict on it is used.
TRIAL_TEXT = (
    "A short walk after dinner is a simple habit that helps the body rest. "
    "Most people who try it for a few weeks say that they sleep better."
)

#: The library searches for these words as patterns, without a timeout. Rows are untrusted text: what
#: they name is meant, and searched for, as words.
_PATTERN_IDS = ("keywords:existence", "keywords:forbidden_words", "keywords:frequency")

_LANGUAGE_IDS = (
    "change_case:english_capital",
    "change_case:english_lowercase",
    "language:response_language",
)


@dataclass(frozen=True)
class Verdict:
    """What a check said: met, not met, or unscored (None) with the `cause`."""

    met: bool | None
    cause: str = ""
    reason: str = field(default="", compare=False)
    """What a judge gave as its reason, if anything."""


def run_check(check: Check, prompt: str, response: str) -> Verdict:
    """Decide `check` on `response`, the answer to `prompt`.

    A blank response meets no check (as in IFEval's own harness), unless the check could not be
    scored here on any response: then it is unscored. Never raises.
    """
    if not response.strip():
        cause = missing_resource(check)
        return Verdict(None, cause) if cause else Verdict(False)
    return _decide(check, prompt, response)


_missing: dict[str, str | None] = {}


def missing_resource(check: Check) -> str | None:
    """Why `check` can never be scored on this machine, or None. Tried once, then remembered."""
    match check:
        case RegexCheck() if not patterns.may_run_away(check.pattern):
            return None
        case WordsCheck() | MentionsCheck() | RepetitionCheck():
            return None
        case PluginCheck():  # it may have nothing to say about the trial text
            return plugins.missing(check)
    key = repr(check)
    if key not in _missing:
        verdict = _decide(check, TRIAL_TEXT, TRIAL_TEXT)
        _missing[key] = verdict.cause if verdict.met is None else None
    return _missing[key]


def _decide(check: Check, prompt: str, response: str) -> Verdict:
    try:
        match check:
            case IfevalCheck():
                return _ifeval(check, prompt, response)
            case RegexCheck():
                return _regex(check, response)
            case WordsCheck():
                n_words = len(response.split())
                least = 0 if check.min is None else check.min
                return Verdict(least <= n_words and (check.max is None or n_words <= check.max))
            case MentionsCheck():
                return Verdict(count_mentions(check.terms, response) >= check.at_least)
            case RepetitionCheck():
                return Verdict(repeated_share(response) <= check.max_share)
            case PluginCheck():
                said = plugins.decide(check, prompt, response)
                return Verdict(None, said) if isinstance(said, str) else Verdict(said)
    except Exception as error:  # a verdict we cannot reach is unscored, whatever went wrong
        return Verdict(None, short_line(f"the check failed: {type(error).__name__}: {error}"))


# --- regex ---------------------------------------------------------------------------------------


def _regex(check: RegexCheck, response: str) -> Verdict:
    try:
        found = regex.search(check.pattern, response, regex.IGNORECASE, timeout=REGEX_TIMEOUT)
    except TimeoutError:
        return Verdict(None, f"the pattern {check.pattern!r} took over {REGEX_TIMEOUT} s")
    return Verdict((found is not None) == check.present)


# --- mentions and repetition ---------------------------------------------------------------------

# These scripts put no space between words, so a word may begin anywhere.
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]")


def _folded(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold().replace("\u2019", "'")


@functools.lru_cache(maxsize=4096)
def _term_pattern(term: str) -> regex.Pattern[str]:
    words = _folded(term).split()
    begins = "" if not words or _UNSPACED.match(words[0]) else r"(?<![\p{L}\p{M}\p{N}])"
    return regex.compile(begins + r"\s+".join(regex.escape(word) for word in words))


def count_mentions(terms: tuple[str, ...], response: str) -> int:
    """How many of `terms` occur in `response` as the beginning of a word, whatever their case."""
    text = _folded(response)
    return sum(_term_pattern(term).search(text) is not None for term in terms)


def repeated_share(response: str) -> float:
    """Share (0..1) of the word pairs that repeat an earlier pair; 0 below two words."""
    words = [word.strip(".,;:!?\"'()*") or word for word in response.lower().split()]
    pairs = list(itertools.pairwise(words))
    return 1.0 - len(set(pairs)) / len(pairs) if pairs else 0.0


# --- IFEval --------------------------------------------------------------------------------------

# The libraries below load data lazily without a lock: two first calls at once would see half of it.
_library_lock = threading.Lock()


@functools.lru_cache(maxsize=1)
def _load_library() -> tuple[dict[str, Any], Any]:
    """IFEval's registry and `langdetect`, seeded and with its profiles read."""
    import langdetect
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT

    langdetect.DetectorFactory.seed = 0  # else a verdict on a short text changes from call to call
    langdetect.detect(TRIAL_TEXT)
    return INSTRUCTION_DICT, langdetect


def ifeval_library() -> tuple[dict[str, Any], Any]:
    with _library_lock:
        return _load_library()


def _ifeval(check: IfevalCheck, prompt: str, response: str) -> Verdict:
    args = {name: value for name, value in check.args.items() if value is not None}
    if check.id == "combination:repeat_prompt":
        args.setdefault("prompt_to_repeat", prompt)
    if check.id in _PATTERN_IDS:
        args = {name: _escaped(value) for name, value in args.items()}
    instruction, cause = _instruction(check.id, json.dumps(args, sort_keys=True))
    if cause:
        return Verdict(None, cause)
    if check.id in _LANGUAGE_IDS and (early := _without_language(check.id, response)):
        return early
    try:
        return Verdict(bool(instruction.check_following(response)))
    except LookupError as error:
        if "nltk" not in str(error).lower():
            raise
        name = _nltk_name(error)
        return Verdict(None, f"NLTK data is missing: python -m nltk.downloader {name}")


def _escaped(value: Any) -> Any:
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    # A relation ("at least") stays what it is: it holds no character to escape but the space.
    return re.escape(value).replace("\\ ", " ") if isinstance(value, str) else value


@functools.lru_cache(maxsize=1024)
def _instruction(id: str, args_json: str) -> tuple[Any, str]:
    """The instruction with its arguments set, and why that is impossible (or an empty string).

    The library draws a missing or senseless argument at random; a check that asks something else in
    every process is none, so that is a cause.
    """
    registry, _ = ifeval_library()
    return built(registry[id](id), json.loads(args_json))


def built(instruction: Any, args: dict[str, Any]) -> tuple[Any, str]:
    """An instruction of IFEval's library with its arguments set, or why it does not take them."""
    names = set(instruction.get_instruction_args_keys())
    if args.keys() != names:
        takes = ", ".join(sorted(names)) or "no arguments"
        return None, f"{instruction.id} takes {takes}; given: {', '.join(sorted(args)) or 'none'}"
    state = random.getstate()
    try:
        instruction.build_description(**args)
    except Exception as error:
        return None, short_line(f"{instruction.id} refuses its arguments: {error}")
    finally:
        random.setstate(state)
    taken = instruction.get_instruction_args() or {}
    for name, value in args.items():
        if _plain(taken[name]) != _plain(value):
            return None, f"{instruction.id} does not accept {name}={value!r}"
    return instruction, ""


def _plain(value: Any) -> Any:
    """`value` up to what the library itself normalises: case, outer blanks, the order of a list."""
    if isinstance(value, str):
        return value.strip().lower()
    if isinstance(value, list | tuple | set):
        return sorted({str(item).strip().lower() for item in value})
    return value


def _without_language(id: str, response: str) -> Verdict | None:
    """The verdict where no language can be detected (digits alone, say), else None.

    The library counts such a text as following the instruction, and logs to the root logger.
    """
    if id == "change_case:english_lowercase" and not response.islower():
        return Verdict(False)
    if id == "change_case:english_capital" and not response.isupper():
        return Verdict(False)
    _, langdetect = ifeval_library()
    try:
        langdetect.detect(response)
    except langdetect.LangDetectException:
        return Verdict(None, "no language can be detected in the response")
    return None


def _nltk_name(error: LookupError) -> str:
    found = regex.search(r"nltk\.download\('([^']+)'\)", str(error))
    return found[1] if found else "all"
