"""Renders `report.html` for a run folder: `build_report(run)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...agents.scoring.diagnosis import LEVEL
from ...memory.files import write_atomic
from ...memory.records import Evaluation, Group
from . import decisions, diagnosis, history, plots, summary, text
from .data import RunData, load_run, rollouts_file
from .history import Version
from .rollouts import MAX_RESPONSE, attach_rollouts

_HERE = Path(__file__).parent

#: The failure classes as the diagnosis defines them: reward, oracle, what it means.
CLASSES: tuple[tuple[str, str, str, str], ...] = (
    ("informative", "differs", "same order", "the reward ranks the two as the oracle does"),
    ("spurious", "differs", "tie", "the reward tells apart what is equally good"),
    ("inversion", "differs", "opposite order", "the reward prefers the worse response"),
    ("blind-low", "tie at the floor", "differs", "nothing is met: the better one earns nothing"),
    ("blind-mid", "tie in between", "differs", "the rubric is too coarse to tell them apart"),
    ("blind-high", "tie at the ceiling", "differs", "all is met: the bar is too low"),
    ("blind-spread", "tie in a group that spreads", "differs", "outside the signal rate"),
    ("neutral", "tie", "tie", "nothing to tell apart; outside the signal rate"),
    ("unknown", "any", "no clear answer", "too close for the oracle, or not asked"),
)


def build_report(run: Path) -> Path:
    """Write ``run/report.html`` from the files of the run folder and return its path.

    The page is self-contained, the same bytes for the same folder, and whole or not there at all.
    An interrupted run gives a page too.

    Raises:
        FileNotFoundError: `run` is not a folder.
        LogError: the event log has a line that is no record.
    """
    page = run / "report.html"
    write_atomic(page, _render(load_run(run)))
    return page


def _render(data: RunData) -> str:
    versions, fold_notes = history.fold(data)
    head = summary.header(data, versions)
    splits = summary.probes(data)
    tally = decisions.tallies(data)
    tasks, tasks_left_out = history.timelines(data, versions)
    tasks, visits_left_out = attach_rollouts(data, tasks)
    return (
        _environment()
        .get_template("report.html")
        .render(
            head=head,
            data=data,
            notes=[*data.notes, *fold_notes],
            splits=splits,
            tally=tally,
            alarms=summary.raised_alarms(data),
            sentences=summary.sentences(data, head, splits, tally),
            figures=_figures(data, versions),
            validation=summary.validation(data),
            window=plots.window(len(data.steps)),
            health=diagnosis.health(data),
            shares=diagnosis.SHARES,
            level=LEVEL,
            decisions=decisions.rows(data),
            tasks=tasks,
            tasks_left_out=tasks_left_out,
            visits_left_out=visits_left_out,
            max_response=MAX_RESPONSE,
            criteria=data.criteria,
            classes=CLASSES,
            css=Markup((_HERE / "report.css").read_text(encoding="utf-8")),
        )
    )


def _figures(data: RunData, versions: list[Version]) -> dict[str, Any]:
    """The figures by name; none before the first step is complete."""
    evaluations = data.of(Evaluation)
    if not data.steps:
        return {}
    heat_map, heat_note = plots.sampling(data.steps, data.of(Group))
    return {
        "reward": plots.reward_and_quality(data.steps, versions),
        "classes": plots.failure_classes(data.steps, versions),
        "harness": plots.harness_over_time(data.steps, versions),
        "sampling": heat_map,
        "sampling_note": heat_note,
        "validation": plots.validation(evaluations) if evaluations else None,
    }


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        finalize=text.finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=text.number,
        signed=text.signed,
        interval=text.interval,
        percent=diagnosis.percent,
        count=text.count,
        duration=text.duration,
        plural=text.plural,
        spelled=text.spelled,
        rollouts_file=rollouts_file,
    )
    return environment
