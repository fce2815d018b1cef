"""An evaluation as JSON, as Markdown and as a page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ...memory.files import write_atomic
from ...specs.printable import neutralise
from ..report import text
from .evaluation import Evaluation, PolicyResult
from .folders import RESULTS
from .stats import DRAWS, LEVEL, Interval
from .tables import PairedRow, Row, by

_HERE = Path(__file__).parent
_CSS = _HERE.parent / "report" / "report.css"
#: Criteria that the page and the Markdown show, those earned least; the JSON has all of them.
WORST = 25


def write(evaluation: Evaluation, out: Path) -> list[Path]:
    """Write `evaluation.{json,md,html}` into `out`. Raises `OSError`."""
    files = {
        RESULTS: json.dumps(asdict(evaluation), indent=1) + "\n",
        "evaluation.md": markdown(evaluation),
        "evaluation.html": page(evaluation),
    }
    for name, content in files.items():
        write_atomic(out / name, content)
    return [out / name for name in files]


def page(evaluation: Evaluation) -> str:
    """The page: self-contained, without scripts."""
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        finalize=text.finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=text.number,
        signed=text.signed,
        interval=text.interval,
        count=text.count,
        scored_tasks=scored_tasks,
        causes=causes,
        worst_heading=worst_heading,
    )
    return environment.get_template("evaluation.html").render(
        e=evaluation,
        sections=_sections(evaluation),
        comparison=by(evaluation.comparison, lambda row: row.set_name),
        worst=WORST,
        draws=DRAWS,
        level=f"{LEVEL:.0%}",
        css=Markup(_CSS.read_text(encoding="utf-8")),
    )


def _sections(evaluation: Evaluation) -> list[tuple[PolicyResult, dict[str, list[Row]]]]:
    """Each policy with its rows by set."""
    return [(policy, by(policy.rows, lambda row: row.set_name)) for policy in evaluation.policies]


def markdown(evaluation: Evaluation) -> str:
    """The same tables as text."""
    s = evaluation.settings
    lines = [
        f"# Evaluation: {evaluation.name}",
        "",
        f"Greedy, and {s.samples} sampled a task at temperature {s.temperature:g}; at most "
        f"{s.max_tokens} tokens; seed {s.seed}. Judge: {evaluation.judge or 'none'}. "
        f"Oracle: {evaluation.oracle or 'none'}. "
        f"Intervals: {LEVEL:.0%}, {DRAWS:,} bootstrap draws of tasks.",
    ]
    for one in evaluation.seen:
        lines += ["", f"**Not new: {_cell(str(one))}.**"]
    for policy in evaluation.policies:
        lines += ["", f"## {_cell(policy.name)}", ""]
        lines += _table(
            ("set", "responses", "missing", "cut at the limit"),
            [(w.set_name, w.responses, w.missing, w.cut) for w in policy.sampling],
        )
        lines += ["", *_rows(policy.rows)]
        if told := causes(policy):
            lines += ["", "Unscored, and why:", "", *(f"* {_cell(line)}" for line in told)]
        if policy.axes:
            lines += ["", "By axis, share of criteria earned:", "", *_rows(policy.axes)]
        if policy.worst:
            lines += ["", f"{worst_heading(policy)}:", ""]
            lines += _table(
                ("set", "criterion", "points", "earned", "tasks", "verdicts", "unscored"),
                [
                    (
                        c.set_name,
                        c.text,
                        f"{c.points:g}",
                        text.number(c.good, 2),
                        c.tasks,
                        c.verdicts,
                        c.unscored,
                    )
                    for c in policy.worst[:WORST]
                ],
            )
    if evaluation.comparison:
        lines += ["", f"## {_vs(evaluation)}", "", *_compared(evaluation.comparison)]
    if evaluation.refused:
        lines += ["", "## Left out", "", *(f"* {_cell(line)}" for line in evaluation.refused)]
    return "\n".join(lines) + "\n"


def worst_heading(policy: PolicyResult) -> str:
    """With as many rows as there are."""
    n = min(WORST, len(policy.worst))
    rest = f", of {len(policy.worst):,} that are not always earned" if len(policy.worst) > n else ""
    return f"The {text.plural(n, 'criterion').replace('criterions', 'criteria')} earned least{rest}"


def causes(policy: PolicyResult) -> list[str]:
    """Why responses are missing or unscored: every cause once, with how often."""
    missing = [
        f"{w.set_name}: {w.missing} of {w.responses} responses missing, and in no table: {_all(w.causes)}"
        for w in policy.sampling
        if w.missing
    ]
    return missing + [
        f"{one.set_name} {one.kind}: {one.unscored} of {one.responses} responses unscored: "
        f"{_all(one.causes)}"
        for one in policy.unscored
    ]


def _all(found: dict[str, int]) -> str:
    return "; ".join(f"{n:,} x {cause}" for cause, n in found.items())


def _vs(evaluation: Evaluation) -> str:
    first, second = (policy.name for policy in evaluation.policies)
    return f"{_cell(first)} less {_cell(second)}"


def _rows(rows: Sequence[Row]) -> list[str]:
    return _table(
        ("set", "part", "mode", "metric", "score", "interval", "tasks", "unscored"),
        [
            (
                row.set_name,
                row.part or "all",
                row.mode,
                row.metric,
                text.number(row.estimate.mean if row.estimate else None),
                text.interval(row.estimate.interval if row.estimate else None),
                scored_tasks(row),
                f"{row.unscored} of {row.responses}",
            )
            for row in rows
        ],
    )


def scored_tasks(row: Row) -> str:
    """The tasks that a figure is over; `3 of 10` where not all have one."""
    n = row.estimate.tasks if row.estimate else 0
    return f"{n:,}" if n == row.tasks else f"{n:,} of {row.tasks:,}"


def _compared(rows: Sequence[PairedRow]) -> list[str]:
    found = [(row, row.paired) for row in rows if row.paired is not None]
    return _table(
        ("set", "part", "mode", "metric", "difference", "interval", "win / tie / loss"),
        [
            (
                row.set_name,
                row.part or "all",
                row.mode,
                row.metric,
                text.signed(one.difference),
                text.interval(one.interval),
                f"{one.wins} / {one.ties} / {one.losses}",
            )
            for row, one in found
        ],
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(_cell(str(cell)) for cell in row)} |" for row in rows),
    ]


def _cell(said: str) -> str:
    """Text of others in a cell: one line, and nothing in it is Markdown or HTML."""
    line = " ".join(neutralise(said).split())
    for mark in "\\`*_|[]#":
        line = line.replace(mark, f"\\{mark}")
    return line.replace("<", "&lt;")


def lines(evaluation: Evaluation) -> list[str]:
    """What the command prints: whole sets only."""
    out = [f"WARNING: {told}" for told in evaluation.seen]
    for policy in evaluation.policies:
        out.append(f"{policy.name}:")
        for w in policy.sampling:
            told = f"; {w.missing} missing" if w.missing else ""
            cut = f"; {w.cut} cut at the token limit" if w.cut else ""
            out.append(f"  {w.set_name}: {w.tasks} tasks, {w.responses} responses{told}{cut}")
        for row in (row for row in policy.rows if not row.part):
            name = f"{row.set_name} {row.metric} ({row.mode})"
            without = row.tasks - (row.estimate.tasks if row.estimate else 0)
            over = f"; over {scored_tasks(row)} tasks" if without > row.unscored else ""
            unscored = f"; {row.unscored} of {row.responses} unscored" if row.unscored else ""
            out.append(f"    {name:44} {_estimate(row)}{over}{unscored}")
        out += [f"  {line}" for line in causes(policy)]
    if evaluation.comparison:
        first, second = (policy.name for policy in evaluation.policies)
        out.append(f"{first} less {second}:")
        for pair in evaluation.comparison:
            if pair.part or (one := pair.paired) is None:
                continue
            name = f"{pair.set_name} {pair.metric} ({pair.mode})"
            out.append(
                f"    {name:44} {one.difference:+.3f} {_ascii(one.interval)}  "
                f"{one.wins} wins, {one.ties} ties, {one.losses} losses"
            )
    return out


def _estimate(row: Row) -> str:
    if row.estimate is None:
        return "-"
    return f"{row.estimate.mean:.3f} {_ascii(row.estimate.interval)}"


def _ascii(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval[0]:.3f}, {interval[1]:.3f}]"
