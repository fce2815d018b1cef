"""Reading what a model answered in JSON."""

from __future__ import annotations

import json
from typing import TypeVar

from pydantic import BaseModel

from ...specs.yamlnodes import once

M = TypeVar("M", bound=BaseModel)


def read_json(model: type[M], text: str) -> M:
    """`text` as a `model`, every key said once. Raises `ValueError` (pydantic's, or a plain one).

    A model that repeats a quotation without escaping it says the quotation's keys too. Which of two equal
    keys is its own cannot be known, and a parser takes the last one.
    """
    found = model.model_validate_json(text)  # first: it also bounds how deep the answer is nested
    json.loads(text, object_pairs_hook=once)
    return found
