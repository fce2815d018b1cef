"""What a suite of tasks is like: the columns of the paper's Table 1, beside the published figures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from ...specs.tasks import Task
from .draw import words_in
from .rows import AnyTask

Count = Callable[[str], int]
#: Columns of Table 1. Tokens are means; shares are of all criteria, and of all tasks.
COLUMNS = (
    "tasks",
    "prompt tokens",
    "criteria",
    "tokens/criterion",
    "negative share",
    "reference tokens",
    "with reference",
)
#: HarnessRL's Table 1, training tasks of Rubric-Mix-10k, as published (its tokenizer is not named).
PUBLISHED: dict[str, tuple[float | None, ...]] = {
    "medical": (3000, 121, 12.4, 43.4, 0.210, 322, 0.677),
    "science": (2000, 50, 12.3, 31.8, 0.020, 362, 0.311),
    "writing": (1200, 161, 10.5, 21.6, 0.281, None, 0.0),
    "role-play": (1200, 85, 26.5, 31.5, 0.0, 1205, 0.242),
    "instruction-following": (1200, 211, 3.6, 52.0, 0.0, 528, 0.056),
}


@dataclass(frozen=True)
class Figures:
    """One row of the table; None where there is nothing to measure."""

    name: str
    values: tuple[float | None, ...]


def figures(name: str, tasks: Sequence[Task], count: Count) -> Figures:
    """The columns of Table 1 for some tasks."""
    criteria = [criterion for task in tasks for criterion in task.rubric]
    references = [task.reference for task in tasks if task.reference]
    values = (
        float(len(tasks)),
        _mean([count(task.prompt) for task in tasks]),
        _mean([len(task.rubric) for task in tasks]),
        _mean([count(criterion.text) for criterion in criteria]),
        _mean([criterion.points < 0 for criterion in criteria]),
        _mean([count(reference) for reference in references]),
        _mean([bool(task.reference) for task in tasks]),
    )
    return Figures(name, values)


def tokenizer_named(name: str, offline: bool = False) -> tuple[str, Count]:
    """What counts tokens, in words, and how: `minilm` (packaged), `words`, or a model's folder or id.

    Raises `OSError` or `ValueError` where there is no such tokenizer.
    """
    if name == "words":
        return "words (a Chinese or Japanese character is one)", words_in
    from tokenizers import Tokenizer

    if name == "minilm":
        text = files("harnessrl.memory").joinpath("tokenizer.json").read_text(encoding="utf-8")
        packaged = Tokenizer.from_str(text)
        packaged.no_truncation()
        packaged.no_padding()
        return "all-MiniLM-L6-v2's WordPiece", _counting(packaged)
    return f"{name}'s", _counting(Tokenizer.from_file(str(_tokenizer_file(name, offline))))


def _tokenizer_file(model: str, offline: bool) -> Path:
    """`tokenizer.json` of a model's folder, or of its id on the hub, without the model itself."""
    from huggingface_hub import hf_hub_download

    from ..local.model import PolicyNotFoundError, check_source

    if os.path.isdir(model):
        file = Path(model) / "tokenizer.json"
        if not file.is_file():
            raise OSError(f"no tokenizer.json in {model}")
        return file
    try:
        check_source(model)
        return Path(hf_hub_download(model, "tokenizer.json", local_files_only=offline))
    except PolicyNotFoundError as error:
        raise ValueError(str(error)) from None
    except Exception as error:  # the hub's client raises what its HTTP library raises
        raise OSError(f"{model} has no tokenizer that is reached ({type(error).__name__})") from None


def _counting(tokenizer: Any) -> Count:
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)


def table(rows: Iterable[Figures], published: bool = True) -> str:
    """The figures as Markdown, each domain of Table 1 with the published ones under it."""
    lines = ["| | " + " | ".join(COLUMNS) + " |", "| --- " + "| ---: " * len(COLUMNS) + "|"]
    for row in rows:
        lines.append(_line(row.name, row.values))
        if published and row.name in PUBLISHED:
            lines.append(_line("  published", PUBLISHED[row.name]))
    return "\n".join(lines)


def histogram(title: str, values: Sequence[int], bins: int = 8, width: int = 40) -> str:
    """Counts of values in equal parts of their range, up to the 99th percentile, as text."""
    if not values:
        return f"{title}: nothing to count"
    top = max(int(np.quantile(values, 0.99)), min(values) + 1)
    edges = np.unique(np.linspace(min(values), top + 1, bins + 1).astype(int))
    counts, _ = np.histogram(np.minimum(values, top), edges)
    scale = width / max(counts.max(), 1)
    label = max(len(f"{edges[-1]:,}"), 4)
    lines = [f"{title} (last bar: and above)"]
    for low, high, n in zip(edges, edges[1:], counts, strict=False):
        lines.append(
            f"  {low:>{label},} to {high - 1:>{label},}  {'#' * round(n * scale):<{width}} {n:,}"
        )
    return "\n".join(lines)


def by_domain(tasks: Iterable[AnyTask]) -> dict[str, list[AnyTask]]:
    """Tasks by domain, the domains of Table 1 first."""
    found: dict[str, list[AnyTask]] = {}
    for task in tasks:
        found.setdefault(task.domain, []).append(task)
    known = [name for name in PUBLISHED if name in found]
    return {name: found[name] for name in [*known, *sorted(set(found) - set(known))]}


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _line(name: str, values: Sequence[float | None]) -> str:
    told = [_told(column, value) for column, value in zip(COLUMNS, values, strict=True)]
    return f"| {name} | " + " | ".join(told) + " |"


def _told(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column in ("negative share", "with reference"):
        return f"{value:.1%}"
    return f"{value:.1f}" if column in ("criteria", "tokens/criterion") else f"{value:,.0f}"
