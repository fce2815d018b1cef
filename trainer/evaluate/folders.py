"""Where the results of an evaluation go. Those of another one are never written over."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import regex

RESULTS = "evaluation.json"


class OtherResultsError(Exception):
    """A folder holds the results of another evaluation; the message says what differs."""


def results_in(root: Path, policies: Sequence[str], asked: Mapping[str, Any]) -> Path:
    """The folder in `root` for the results of policies by their names: `a`, `a-vs-b`; with a number
    behind it where results of the same name answer to something else."""
    name = "-vs-".join(map(_short, policies))
    for n in itertools.count(1):
        folder = root / (name if n == 1 else f"{name}-{n}")
        if not differences(folder, asked):
            return folder
    raise AssertionError("unreachable: some number is free")


def check_results(folder: Path, asked: Mapping[str, Any]) -> None:
    """Raises `OtherResultsError` where the folder holds results that answer to something else."""
    if found := differences(folder, asked):
        raise OtherResultsError(
            f"{folder} holds the results of another evaluation ({'; '.join(found)}): give another --out"
        )


def differences(folder: Path, asked: Mapping[str, Any]) -> list[str]:
    """What the results in a folder answer to that is not what is asked now; none without results."""
    try:
        there = json.loads((folder / RESULTS).read_text())["asked"]
        return [
            f"its {key}: {_told(there.get(key))}; now: {_told(value)}"
            for key, value in asked.items()
            if there.get(key) != value
        ]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, AttributeError):
        return [f"its {RESULTS} does not say of what"]


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} ({item})" for key, item in value.items())
    return " and ".join(map(str, value)) if isinstance(value, list) else str(value)


def _short(policy: str) -> str:
    """A policy's name as a folder's: an address without its scheme, the end of a long path."""
    plain = regex.sub(r"[^\w.-]+", "-", policy.partition("://")[2] or policy)
    return plain.strip("-.")[-60:].lstrip("-.") or "policy"
