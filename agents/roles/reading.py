"""Reading what a model answered in JSON."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import BaseModel

M = TypeVar("M", bound=BaseModel)


def read_json(model: type[M], text: str) -> M:
    """`text` as a `model`, every key said once. Raises `ValueError` (pydantic's, or a plain one).

    A model that repeats a quotation without escaping it says the quotation's keys too. Which of two equal
    keys is its own cannot be known, and a parser takes the last one.
    """
    found = model.model_validate_json(text)  # first: it also bounds how deep the answer is nested
    json.loads(text, object_pairs_hook=_once)
    return found


def _once(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    for n, key in enumerate(keys):
        if key in keys[:n]:
            raise ValueError(f"the key {key[:40]!r} stands there twice")
