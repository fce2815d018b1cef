"""What people ask of a run's harness from outside: files in RUN/requests/, answered at a step boundary.

A request is never changed or moved. It is answered once the log holds a record that names its id; a
resume that voids the answer lets it be answered again.
"""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from ..memory.files import write_atomic
from ..specs.updates import Update


class _Request(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    author: str
    after_step: int = -1  # the last step on record when it was handed in: no earlier one answers it


class UpdateRequest(_Request):
    """Try this update; `force`: without measuring it."""

    kind: Literal["update"] = "update"
    update: Update
    force: bool


class RollbackRequest(_Request):
    """Go back to what an earlier version held."""

    kind: Literal["rollback"] = "rollback"
    version: Annotated[int, Field(ge=0)]


HarnessRequest = UpdateRequest | RollbackRequest
_REQUEST: TypeAdapter[HarnessRequest] = TypeAdapter(
    Annotated[HarnessRequest, Field(discriminator="kind")]
)


def new_id() -> str:
    """Sorts by time; two people at once do not collide."""
    return f"{time.time_ns():020d}-{secrets.token_hex(3)}"


def hand_in(folder: Path, request: HarnessRequest) -> None:
    """Put a request where the run will find it. Raises `OSError`."""
    write_atomic(folder / f"{request.id}.json", request.model_dump_json(indent=1))


def handed_in(folder: Path) -> list[HarnessRequest]:
    """Every request so far, oldest first. A file that is none, or has another's id, is passed over."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            request = _REQUEST.validate_json(path.read_bytes())
        except (ValidationError, OSError):
            continue
        if request.id == path.stem:  # a copy would be answered twice, under one id
            found.append(request)
    return found
