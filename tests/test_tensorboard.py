"""TensorBoard gets every number of a step; what is unknown leaves a gap."""

from __future__ import annotations

from pathlib import Path

from harnessrl.trainer.tensorboard import Scalars
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [(e.step, round(e.value, 6)) for e in events.Scalars(name)]
        for name in events.Tags()["scalars"]
    }


def test_numbers_and_gaps(tmp_path: Path) -> None:
    scalars = Scalars(tmp_path, 0)
    scalars.write({"step": 0, "reward_mean": 0.5, "quality_mean": None, "tokens": {"train": 3}})
    scalars.write({"step": 1, "reward_mean": 0.75, "quality_mean": 0.25, "tokens": {"train": 7}})
    scalars.close()
    assert read(tmp_path) == {
        "reward_mean": [(0, 0.5), (1, 0.75)],
        "quality_mean": [(1, 0.25)],
        "tokens/train": [(0, 3.0), (1, 7.0)],
    }


def test_a_resumed_run_takes_back_what_is_void(tmp_path: Path) -> None:
    first = Scalars(tmp_path, 0)
    for step, value in enumerate((0.1, 0.2, 0.3)):
        first.write({"step": step, "reward_mean": value})
    first.close()
    second = Scalars(tmp_path, 1)
    second.write({"step": 1, "reward_mean": 0.9})
    second.close()
    assert read(tmp_path) == {"reward_mean": [(0, 0.1), (1, 0.9)]}
