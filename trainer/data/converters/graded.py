"""Benchmarks that grade in levels: WritingBench (1 to 10, in five bands) and BiGGen-Bench (1 to 5).

The grades are carried as the benchmark has them. Beside them stands a rubric for readers that know
met and not met alone: a criterion is met from the level `WRITINGBENCH_MET` or `BIGGEN_MET` on.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....specs.ood import Graded, Level, OodTask
from ....specs.tasks import Criterion
from .common import Converter, Row, RowError, make

WRITINGBENCH_MET = 7  # the fourth of five bands, "7-8"
BIGGEN_MET = 4  # the fourth of five scores


def binary(grades: Sequence[Graded], met_from: int) -> tuple[Criterion, ...]:
    """A criterion of one point for each graded one, met when the response reaches grade `met_from`."""
    return tuple(_one(graded, met_from) for graded in grades)


def _one(graded: Graded, met_from: int) -> Criterion:
    level = next((one for one in graded.levels if one.low >= met_from), None)
    if level is None:
        raise RowError(f"no level of {graded.name!r} begins at {met_from} or above")
    text = f"{graded.name}: {graded.text} Met by a response that is at least like this: {level.text}"
    return Criterion(text=text, points=1.0)


def _writingbench(row: Row, key: str | None) -> OodTask:
    grades = tuple(
        Graded(name=item["name"], text=item["criteria_description"], levels=_bands(item))
        for item in row["checklist"]
    )
    about = {name: row.get(name) for name in ("domain1", "domain2", "lang")}
    return make(
        OodTask,
        "writingbench",
        str(row["index"]),
        "writing",
        row["query"],
        binary(grades, WRITINGBENCH_MET),
        more=about,
        grades=grades,
    )


def _bands(item: Row) -> tuple[Level, ...]:
    bands = [(band, item[band]) for band in ("1-2", "3-4", "5-6", "7-8", "9-10")]
    return tuple(
        Level(low=int(low), high=int(high), text=text)
        for band, text in bands
        for low, _, high in (band.partition("-"),)
    )


def _biggen(row: Row, key: str | None) -> OodTask:
    asked = row["score_rubric"]
    levels = tuple(Level(low=n, high=n, text=asked[f"score{n}_description"]) for n in range(1, 6))
    grades = (Graded(name=row["task"], text=asked["criteria"], levels=levels),)
    system = row.get("system_prompt")
    messages = [{"role": "system", "content": system}] if system else []
    about = {name: row.get(name) for name in ("capability", "task", "instance_idx")}
    return make(
        OodTask,
        "biggen-bench",
        str(row.get("id") or key),
        "general",
        [*messages, {"role": "user", "content": row["input"]}],
        binary(grades, BIGGEN_MET),
        more=about,
        grades=grades,
        reference=row.get("reference_answer") or None,
    )


WRITINGBENCH = Converter(
    "writingbench", "writing", _writingbench, lambda row: {"query", "checklist"} <= row.keys(), True
)
BIGGEN_BENCH = Converter(
    "biggen-bench", "general", _biggen, lambda row: {"input", "score_rubric"} <= row.keys(), True
)
