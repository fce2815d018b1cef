"""The figures of the report. Each takes plain data and returns an inline SVG."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import MaxNLocator

from ...memory.records import Evaluation, Group
from ...specs.printable import neutralise
from .data import StepMetrics
from .history import Version
from .svg import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION, draw
from .text import plural, spelled

#: Pair classes from the bottom of the stack up: colour, hatch. Those that the signal rate leaves
#: out are grey or white.
PAIR_STYLES: dict[str, tuple[str, str]] = {
    "informative": (GREEN, ""),
    "spurious": (ORANGE, ""),
    "inversion": (VERMILLION, "////"),
    "blind_low": (BLUE, ""),
    "blind_mid": (SKY, ""),
    "blind_high": (PURPLE, "\\\\\\\\"),
    "blind_spread": ("#9aa3ae", ""),
    "neutral": ("#c9cfd6", ""),
    "unknown": ("#ffffff", "xxxx"),
}
#: Bars and heat-map columns on one figure; longer runs are pooled into bins of steps.
MAX_BINS = 120
#: Rows of the heat map.
MAX_TASKS = 40
_WIDTH = 10.0


def window(n: int) -> int:
    """Steps in the moving average of a run of `n` steps: odd, and about a twelfth of the run."""
    return max(5, n // 12 // 2 * 2 + 1)


def reward_and_quality(steps: Sequence[StepMetrics], versions: Sequence[Version]) -> Markup:
    """Mean training reward and mean oracle quality over steps, with the harness versions."""

    def paint(figure: Any) -> None:
        ax = figure.subplots()
        _series(ax, steps, "reward_mean", "training reward (mean R)", BLUE, "o", "-")
        dashes = (0, (5, 1.5))
        _series(ax, steps, "quality_mean", "oracle quality (mean q)", VERMILLION, "s", dashes)
        ax.set_ylabel("reward, quality (full marks = 1)")
        _step_axis(ax, steps)
        _mark_versions(ax, versions, labels=True)
        _legend(ax)

    label = "Training reward and oracle quality over training steps"
    return draw("fig-reward", label, (_WIDTH, 3.6), paint)


def validation(evaluations: Sequence[Evaluation]) -> Markup:
    """Training reward beside reward and oracle quality on the validation tasks, and the best of them."""
    series: tuple[tuple[str, str, str, str, Any], ...] = (
        ("training_reward", "training reward (mean R, under the harness)", MUTED, "^", (0, (2, 1.5))),
        ("reward", "validation reward (seed rubrics)", BLUE, "o", "-"),
        ("quality", "validation quality (oracle)", VERMILLION, "s", (0, (5, 1.5))),
    )
    scored = [one for one in evaluations if one.reward is not None]

    def paint(figure: Any) -> None:
        ax = figure.subplots()
        for name, label, colour, marker, dashes in series:
            known = [(e.steps_done, y) for e in evaluations if (y := getattr(e, name)) is not None]
            if known:
                x, y = zip(*known, strict=True)
                ax.plot(x, y, color=colour, marker=marker, linestyle=dashes, label=label, markersize=4)
        if scored:
            best = max(scored, key=lambda one: (one.reward, -one.steps_done))
            ax.axvline(best.steps_done, color=GREEN, linewidth=1, label="best policy")
        ax.set_xlabel("steps done")
        ax.set_ylabel("reward, quality (full marks = 1)")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(ax)

    label = "Training reward, and reward and oracle quality on validation tasks, over training steps"
    return draw("fig-validation", label, (_WIDTH, 3.6), paint)


def failure_classes(steps: Sequence[StepMetrics], versions: Sequence[Version]) -> Markup:
    """Shares of the pair classes (stacked), and the signal rate with the zero-std share."""
    bins = _bins(steps)
    width = bins[0][1] - bins[0][0]

    def paint(figure: Any) -> None:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        totals = [_pooled_pairs(steps, low, high) for low, high in bins]
        centres = [(low + high - 1) / 2 for low, high in bins]
        base = np.zeros(len(bins))
        for name, (colour, hatch) in PAIR_STYLES.items():
            heights = np.array([t[name] / (sum(t.values()) or 1) for t in totals])
            if not heights.any():
                continue
            top.bar(
                centres,
                heights,
                width=0.86 * width,
                bottom=base,
                label=spelled(name),
                color=colour,
                hatch=hatch,
                edgecolor=MUTED if colour == "#ffffff" else "#ffffff",
                linewidth=0.3,
            )
            base += heights
        top.set_ylabel("share of pairs")
        top.set_ylim(0, 1)
        _legend(top, reverse=True)
        _series(bottom, steps, "signal_rate", "signal rate", GREEN, "o", "-")
        _intervals(bottom, steps)
        _series(bottom, steps, "zero_std_share", "groups with zero std", INK, "x", (0, (2, 1.5)))
        bottom.set_ylabel("rate, share (0 to 1)")
        bottom.set_ylim(-0.03, 1.03)
        _step_axis(bottom, steps)
        _mark_versions(bottom, versions, labels=False)
        _legend(bottom)

    label = "Shares of failure classes of rollout pairs, signal rate and zero-std share over steps"
    return draw("fig-classes", label, (_WIDTH, 5.6), paint)


def harness_over_time(steps: Sequence[StepMetrics], versions: Sequence[Version]) -> Markup:
    """Active criteria, guided tasks, paused tasks and the effective number of tasks."""
    panels = (
        ("criteria_active", "c: active criteria", "criteria", True),
        ("guided_tasks", "g: guided tasks", "tasks", True),
        ("paused_tasks", "p: paused tasks", "tasks", True),
        ("effective_tasks", "p: effective number of tasks", "tasks", False),
    )

    def paint(figure: Any) -> None:
        for ax, (name, title, unit, whole) in zip(
            figure.subplots(2, 2, sharex=True).flat, panels, strict=True
        ):
            x, y = _points(steps, name)
            ax.step(x, y, where="mid", color=BLUE)
            ax.plot(x, y, "o", color=BLUE, markersize=0.7 * _point_size(steps))
            ax.set_title(title, color=INK)
            ax.set_ylabel(unit)
            low, high = (min(y), max(y)) if y else (0.0, 0.0)
            ax.set_ylim(max(0.0, low - 1) - 0.15, high + 1)
            ax.yaxis.set_major_locator(MaxNLocator(4, integer=whole, steps=[1, 2, 5, 10]))
            _step_axis(ax, steps, label=name in ("paused_tasks", "effective_tasks"))
            _mark_versions(ax, versions, labels=False)

    label = "Active criteria, guided tasks, paused tasks and effective number of tasks over steps"
    return draw("fig-harness", label, (_WIDTH, 3.9), paint)


def sampling(steps: Sequence[StepMetrics], groups: Sequence[Group]) -> tuple[Markup, str]:
    """Groups per task and step as a heat map, and a sentence on what was pooled or left out."""
    bins = _bins(steps)
    totals = Counter(group.task_id for group in groups)
    domain = {group.task_id: group.domain for group in groups}
    kept = sorted(totals, key=lambda i: (-totals[i], i))[:MAX_TASKS]
    tasks = sorted(kept, key=lambda i: (domain[i], i))
    row = {task_id: index for index, task_id in enumerate(tasks)}
    first, width = bins[0][0], bins[0][1] - bins[0][0]
    counts_XT = np.zeros((len(tasks), len(bins)), dtype=int)
    for group in groups:
        column = (group.step - first) // width
        if group.task_id in row and 0 <= column < len(bins):
            counts_XT[row[group.task_id], column] += 1

    def paint(figure: Any) -> None:
        ax = figure.subplots()
        top = max(1, int(counts_XT.max(initial=0)))
        colours = LinearSegmentedColormap.from_list("counts", ["#f4f6f9", "#8fbbdc", "#08417a"])
        edges_T = np.array([bins[0][0], *(high for _, high in bins)]) - 0.5
        mesh = ax.pcolormesh(
            edges_T,
            np.arange(len(tasks) + 1) - 0.5,
            counts_XT,
            cmap=colours.resampled(min(top, 8) + 1),
            vmin=-0.5 if top <= 8 else 0,
            vmax=top + 0.5 if top <= 8 else top,
            edgecolor="#ffffff",
            linewidth=0.5,
        )
        labels = [f"{neutralise(task_id)[:32]} ({totals[task_id]})" for task_id in tasks]
        ax.set_yticks(range(len(tasks)), labels, fontsize=7.5)
        ax.invert_yaxis()
        ax.grid(False)
        ax.tick_params(axis="y", length=0)
        bar = figure.colorbar(mesh, ax=ax, pad=0.01, aspect=30, fraction=0.04)
        bar.set_label("groups per step" if width == 1 else f"groups per {width} steps")
        bar.locator = MaxNLocator(min(top, 8), integer=True)
        bar.outline.set_edgecolor(MUTED)
        _step_axis(ax, steps)

    said = "In brackets: groups in the whole run."
    if len(totals) > len(tasks):
        said += f" The {len(tasks)} most visited of {len(totals):,} tasks."
    if width > 1:
        said += f" A column is {plural(width, 'step')}."
    label = "How often each task was sampled at each step"
    return draw("fig-sampling", label, (_WIDTH, 1.0 + 0.19 * max(3, len(tasks))), paint), said


def _points(steps: Sequence[StepMetrics], name: str) -> tuple[list[int], list[float]]:
    """Steps that have the value, and the values."""
    known = [(step.step, value) for step in steps if (value := step.get(name)) is not None]
    return [x for x, _ in known], [y for _, y in known]


def _series(
    ax: Any,
    steps: Sequence[StepMetrics],
    name: str,
    label: str,
    colour: str,
    marker: str,
    style: object,
) -> None:
    """Raw points, and their centred moving average as a line."""
    x, y = _points(steps, name)
    if not x:
        return
    size = _point_size(steps)
    ax.plot(x, y, marker, color=colour, markersize=size, alpha=0.45, markeredgewidth=size / 4)
    half = window(len(steps)) // 2
    smooth = [float(np.mean(y[max(0, i - half) : i + half + 1])) for i in range(len(y))]
    ax.plot(x, smooth, linestyle=style, color=colour, label=label)


def _point_size(steps: Sequence[StepMetrics]) -> float:
    """Marker size in points: smaller where a long run crowds them."""
    return 3.2 if len(steps) <= 150 else 1.4


def _intervals(ax: Any, steps: Sequence[StepMetrics]) -> None:
    known = [
        (step.step, low, high)
        for step in steps
        if (low := step.get("signal_low")) is not None and (high := step.get("signal_high")) is not None
    ]
    if known:
        x, lows, highs = zip(*known, strict=True)
        width = _point_size(steps) * 0.7
        ax.vlines(x, lows, highs, color=GREEN, alpha=0.3, linewidth=width, label="its interval")


def _step_axis(ax: Any, steps: Sequence[StepMetrics], label: bool = True) -> None:
    ax.set_xlim(steps[0].step - 0.6, steps[-1].step + 0.6)
    ax.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    if label:
        ax.set_xlabel("training step")


def _mark_versions(ax: Any, versions: Sequence[Version], labels: bool) -> None:
    """A vertical tick where each harness version starts to act, named at the top if it fits."""
    left, right = ax.get_xlim()
    labelled = float("-inf")
    for version in versions[1:]:
        # A version acts from the start of its step: between the points of two steps.
        x = version.step - 0.5
        ax.axvline(x, color=MUTED, linewidth=0.8, linestyle=(0, (1, 1.5)), zorder=0.5)
        if labels and x - labelled >= 0.035 * (right - left):
            labelled = x
            ax.annotate(
                f"v{version.number} {version.interfaces}",
                (x, 1),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
                color=MUTED,
            )


def _legend(ax: Any, reverse: bool = False) -> None:
    if ax.get_legend_handles_labels()[1]:
        ax.legend(loc="center left", bbox_to_anchor=(1.005, 0.5), reverse=reverse)


def _bins(steps: Sequence[StepMetrics]) -> list[tuple[int, int]]:
    """Half-open ranges of steps that cover the run: single steps, or equal bins of a long run."""
    first, end = steps[0].step, steps[-1].step + 1
    width = -(-(end - first) // MAX_BINS)
    return [(low, low + width) for low in range(first, end, width)]


def _pooled_pairs(steps: Sequence[StepMetrics], low: int, high: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for step in steps:
        if low <= step.step < high:
            for name, pairs in step.counts("pairs").items():
                total[name] += round(pairs)
    return total
