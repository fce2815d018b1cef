"""The numbers of metrics.jsonl once more, for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class Scalars:
    """Writes a step's numbers under the names they have in metrics.jsonl (nested ones as a/b)."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        # What an interrupted attempt wrote for later steps is void.
        self._writer: Any = SummaryWriter(str(folder), purge_step=first_step)

    def write(self, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl. What is unknown (None) leaves a gap, not a zero."""
        for name, value in _numbers("", metrics):
            self._writer.add_scalar(name, value, metrics["step"])
        self._writer.flush()

    def close(self) -> None:
        """Finish the file."""
        self._writer.close()


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{path}/{key}" if path else str(key), inner)
    elif isinstance(value, int | float) and path != "step":
        yield path, float(value)
