"""Text and numbers as they stand on the page. Every function is pure."""

from __future__ import annotations

import math

from markupsafe import Markup

from ...specs.printable import neutralise

#: What stands where there is no number: nothing scored, no oracle, nothing measured.
ABSENT = "–"  # noqa: RUF001 (an en dash, on purpose)
_MINUS = "\N{MINUS SIGN}"


def finalize(value: object) -> object:
    """Jinja's hook for every printed expression: neutralised, then escaped by autoescape."""
    if isinstance(value, Markup):
        return value
    return neutralise(value if isinstance(value, str) else str(value))


def number(value: float | None, digits: int = 3) -> str:
    """A number with fixed decimals; absent or not finite: a dash."""
    if value is None or not math.isfinite(value):
        return ABSENT
    text = f"{value:.{digits}f}"
    # "-0.000" is a rounding artefact.
    return text.removeprefix("-") if float(text) == 0 else text.replace("-", _MINUS)


def signed(value: float | None, digits: int = 3) -> str:
    """A difference: always with its sign, 0 without."""
    text = number(value, digits)
    return f"+{text}" if value is not None and value > 0 and float(f"{value:.{digits}f}") else text


def interval(pair: tuple[float, float] | None, digits: int = 3) -> str:
    """``[low, high]``, or nothing."""
    return "" if pair is None else f"[{number(pair[0], digits)}, {number(pair[1], digits)}]"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return ABSENT if value is None else f"{round(value):,}"


def duration(seconds: float | None) -> str:
    """Seconds in the unit a person would choose."""
    if seconds is None:
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def plural(n: int, noun: str) -> str:
    """``1 task``, ``2 tasks``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def spelled(name: str) -> str:
    """A class name as people read it: ``blind-low``, ``not enough evidence``."""
    if name.startswith("blind_"):
        return name.replace("_", "-")
    return name.replace("_", " ")
